use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use store::{ErrorKind, IsRetryable, Op, Sql, Store, StoreError, sql};
use testkit::db;

const OP: Op = Op::new("test_op");
const INSERT: Sql = sql("test_insert", "INSERT INTO t (name) VALUES ($1)");
const COUNT: Sql = sql("test_count", "SELECT count(*) AS n FROM t");
const TABLE: &str = "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL CONSTRAINT t_name_key UNIQUE, CONSTRAINT t_short CHECK (length(name) < 20))";

/// What a module's error looks like.
#[derive(Debug)]
enum ModuleError {
    Refused,
    Store(StoreError),
}

impl From<StoreError> for ModuleError {
    fn from(err: StoreError) -> Self {
        Self::Store(err)
    }
}

impl IsRetryable for ModuleError {
    fn is_retryable(&self) -> bool {
        match self {
            Self::Refused => false,
            Self::Store(err) => err.retryable(),
        }
    }
}

async fn count(store: &Store) -> i64 {
    store.read_one(&COUNT, &[]).await.unwrap().get("n")
}

#[tokio::test]
async fn a_closure_borrows_a_string_and_a_slice_from_around_it() {
    let db = db().await;
    db.batch(TABLE).await;
    let first = String::from("first");
    let rest = vec![String::from("second"), String::from("third")];

    let (name, names) = (&first, rest.as_slice());
    let written: u64 = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                let mut written = tx.execute(&INSERT, &[name]).await?;
                for name in names {
                    written += tx.execute(&INSERT, &[name]).await?;
                }
                Ok::<_, StoreError>(written)
            })
        })
        .await
        .unwrap();
    assert_eq!(written, 3);
    assert_eq!(count(&db.store).await, 3);
    drop((first, rest));
}

#[tokio::test]
async fn an_error_of_the_caller_rolls_back() {
    let db = db().await;
    db.batch(TABLE).await;
    let done: Result<(), ModuleError> = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&INSERT, &[&"gone"]).await?;
                Err(ModuleError::Refused)
            })
        })
        .await;
    assert!(matches!(done, Err(ModuleError::Refused)), "{done:?}");
    assert_eq!(count(&db.store).await, 0);
}

#[tokio::test]
async fn constraint_violations_are_told_apart_and_quote_no_row() {
    let db = db().await;
    db.batch(TABLE).await;
    db.store.execute(&INSERT, &[&"hush-hush"]).await.unwrap();
    let err = db.store.execute(&INSERT, &[&"hush-hush"]).await.unwrap_err();
    assert!(err.is_unique("t_name_key"), "{err:?}");
    let long = "hush-hush-hush-hush-hush";
    let check = db.store.execute(&INSERT, &[&long]).await.unwrap_err();
    assert!(check.is_check("t_short"), "{check:?}");
    let cast = sql("cast", "SELECT ($1::text)::uuid");
    let value = db.store.read(&cast, &[&"hush-hush"]).await.unwrap_err();
    for err in [err, check, value] {
        let shown = format!("{err} {err:?} {}", kit::chain(&err));
        assert!(!shown.contains("hush"), "{shown}");
    }
}

#[tokio::test]
async fn a_connection_killed_in_a_transaction_is_replaced_and_the_transaction_runs_again() {
    let db = db().await;
    db.batch(TABLE).await;
    let attempts = AtomicU32::new(0);
    let (store, attempts_ref) = (&db.store, &attempts);
    let pid_sql = sql("pid", "SELECT pg_backend_pid() AS pid");
    let kill = sql("kill", "SELECT pg_terminate_backend($1)");
    let (pid_sql, kill) = (&pid_sql, &kill);
    db.store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&INSERT, &[&"once"]).await?;
                if attempts_ref.fetch_add(1, Ordering::Relaxed) == 0 {
                    let pid: i32 = tx.query_one(pid_sql, &[]).await?.get("pid");
                    store.read(kill, &[&pid]).await?;
                }
                tx.query(&COUNT, &[]).await?;
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    assert_eq!(attempts.load(Ordering::Relaxed), 2);
    assert_eq!(count(&db.store).await, 1);
}

#[tokio::test]
async fn a_connection_lost_during_commit_leaves_the_outcome_unknown() {
    let db = db().await;
    // A deferred trigger runs inside COMMIT and ends its own session there.
    db.batch(TABLE).await;
    db.batch(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER die AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()",
    )
    .await;
    let runs = AtomicU32::new(0);
    let seen = &runs;
    let err = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                seen.fetch_add(1, Ordering::Relaxed);
                tx.execute(&INSERT, &[&"maybe"]).await
            })
        })
        .await
        .unwrap_err();
    assert_eq!(*err.kind(), ErrorKind::CommitUnknown);
    assert!(!err.retryable());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_deadlock_is_broken_and_both_transactions_commit() {
    let db = db().await;
    db.batch(TABLE).await;
    db.store.execute(&INSERT, &[&"a"]).await.unwrap();
    db.store.execute(&INSERT, &[&"b"]).await.unwrap();
    let touch = sql("touch", "UPDATE t SET name = name WHERE name = $1");
    let both_hold_one = tokio::sync::Barrier::new(2);
    let (touch, barrier) = (&touch, &both_hold_one);
    let crossing = async |first: &'static str, second: &'static str| {
        let runs = AtomicU32::new(0);
        let seen = &runs;
        db.store
            .tx(OP, |tx| {
                Box::pin(async move {
                    tx.execute(touch, &[&first]).await?;
                    if seen.fetch_add(1, Ordering::Relaxed) == 0 {
                        barrier.wait().await;
                    }
                    tx.execute(touch, &[&second]).await
                })
            })
            .await
            .unwrap();
        runs.load(Ordering::Relaxed)
    };
    let (one, two) = tokio::join!(crossing("a", "b"), crossing("b", "a"));
    assert_eq!(one + two, 3, "exactly one of them ran twice");
}

#[tokio::test]
async fn a_dropped_transaction_rolls_back_and_its_connection_is_not_reused() {
    let db = db().await;
    db.batch(TABLE).await;
    let config = store::StoreConfig { pool_size: 1, ..db.config() };
    let single = db.open(config).await;
    let hang = single.tx(OP, |tx| {
        Box::pin(async move {
            tx.execute(&INSERT, &[&"gone"]).await?;
            std::future::pending::<()>().await;
            Ok::<_, StoreError>(())
        })
    });
    tokio::time::timeout(Duration::from_millis(200), hang).await.unwrap_err();
    assert_eq!(count(&single).await, 0);
}

#[tokio::test]
async fn swallowing_a_failed_statement_does_not_commit_silently() {
    let db = db().await;
    db.batch(TABLE).await;
    let err = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&INSERT, &[&"a"]).await?;
                let _ = tx.execute(&INSERT, &[&"a"]).await;
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap_err();
    assert_eq!(*err.kind(), ErrorKind::Aborted);
    assert_eq!(count(&db.store).await, 0);
}

#[tokio::test]
async fn a_savepoint_undoes_its_own_part_and_borrows_what_the_closure_made() {
    let db = db().await;
    db.batch(TABLE).await;
    db.store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&INSERT, &[&"kept"]).await?;
                let made_here = String::from("kept");
                let name = &made_here;
                let inner: Result<u64, StoreError> =
                    tx.savepoint(|tx| Box::pin(async move { tx.execute(&INSERT, &[name]).await })).await?;
                assert!(inner.unwrap_err().is_unique("t_name_key"));
                let fine: Result<u64, StoreError> = tx
                    .savepoint(|tx| Box::pin(async move { tx.execute(&INSERT, &[&"also kept"]).await }))
                    .await?;
                assert_eq!(fine.unwrap(), 1);
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    assert_eq!(count(&db.store).await, 2);
}

#[tokio::test]
async fn the_virtual_clock_is_what_statements_see() {
    let db = db().await;
    let then = model::Timestamp::from_millis(1_000_000_000_000);
    let config = store::StoreConfig { virtual_clock: Some(std::sync::Arc::new(move || then)), ..db.config() };
    let virtual_store = db.open(config).await;
    let now = virtual_store.tx(OP, |tx| Box::pin(async move { tx.now().await })).await.unwrap();
    assert_eq!(now, then);
    let real = db.store.tx(OP, |tx| Box::pin(async move { tx.now().await })).await.unwrap();
    assert!(real.since(then) > Duration::from_secs(365 * 86_400), "{real}");
}

#[tokio::test]
async fn a_password_is_in_no_message() {
    let db = db().await;
    let url = "postgres://bc:hunter2@127.0.0.1:1/bc";
    let config = store::StoreConfig { url: store::Secret::new(url), ..db.config() };
    let shown = format!("{config:?}");
    let Err(err) = Store::open(config).await else { panic!("nothing listens there") };
    assert!(err.retryable(), "{err}");
    for text in [shown, err.to_string(), format!("{err:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn metrics_name_the_operation_and_the_statement() {
    let db = db().await;
    db.batch(TABLE).await;
    let mut registry = prometheus_client::registry::Registry::default();
    db.store.register_metrics(&mut registry);
    db.store.tx(OP, |tx| Box::pin(async move { tx.execute(&INSERT, &[&"x"]).await })).await.unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains(r#"store_ops_total{op="test_op",result="committed"} 1"#), "{text}");
    assert!(text.contains("store_pool_open 1"), "{text}");
    assert!(text.contains(r#"store_statement_seconds_count{statement="test_insert"} 1"#), "{text}");
}

#[tokio::test]
async fn a_statement_overtaken_by_a_migration_is_prepared_again() {
    let db = db().await;
    db.batch(TABLE).await;
    let all = &sql("all", "SELECT * FROM t");
    db.store.tx(OP, |tx| Box::pin(async move { tx.query(all, &[]).await })).await.unwrap();
    db.batch("ALTER TABLE t ADD COLUMN more text").await;
    let rows = db.store.tx(OP, |tx| Box::pin(async move { tx.query(all, &[]).await })).await.unwrap();
    assert!(rows.is_empty());
    db.batch("ALTER TABLE t ADD COLUMN yet_more text").await;
    db.store.read(all, &[]).await.unwrap();
}

#[tokio::test]
async fn a_connection_to_a_server_that_takes_no_writes_is_given_up() {
    let db = db().await;
    db.batch(TABLE).await;
    let single = db.open(store::StoreConfig { pool_size: 1, ..db.config() }).await;
    // What a session finds whose server was demoted under it.
    single.execute(&sql("demote", "SET default_transaction_read_only = on"), &[]).await.unwrap();
    single.tx(OP, |tx| Box::pin(async move { tx.execute(&INSERT, &[&"x"]).await })).await.unwrap();
    assert_eq!(count(&single).await, 1);
}
