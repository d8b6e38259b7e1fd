use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::module::{Again, HandleTogether};
use kernel::run::drive::DrivenQueue;
use kernel::run::run_queues;
use kernel::{ApiError, BoxFuture, Fault, QueueHandler};
use kit::{Rng, SeededRng};
use store::{Op, Sql, Tx, sql};
use testkit::{TestDb, db, eventually};

use crate::world::{ACT, BOUND, OBSERVE, process, wake};

const QUEUE: &str = "test";

/// A lock that is not had in time.
const LOCKED: Sql = sql(
    "locked",
    "DO $$ BEGIN RAISE EXCEPTION 'as the test wants it' USING ERRCODE = 'lock_not_available'; END $$",
);

/// Writes what it has seen, many keys at once; some keys fail, and some only once.
#[derive(Default)]
struct Seer {
    /// How many keys each transaction that was tried had.
    together: Mutex<Vec<usize>>,
    alone: Mutex<Vec<String>>,
}

impl Seer {
    async fn see(&self, tx: &mut Tx<'_>, keys: &[String]) -> Result<(), Fault> {
        let see = sql(
            "see",
            "INSERT INTO seen (key, wanted) SELECT key, wanted FROM intent WHERE key = ANY($1)
             ON CONFLICT (key) DO UPDATE SET wanted = excluded.wanted",
        );
        tx.execute(&see, &[&keys]).await?;
        if let Some(key) = keys.iter().find(|key| key.starts_with("poison")) {
            return Err(ApiError::conflict(format!("{key}, as the test wants it")).into());
        }
        assert!(!keys.iter().any(|key| key.starts_with("panic")), "as the test wants it");
        Ok(())
    }
}

/// Shared with the test.
struct Seeing(Arc<Seer>, store::Store);

impl QueueHandler for Seeing {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            self.0.alone.lock().unwrap().push(key.to_owned());
            let keys = &[key.to_owned()];
            self.1.tx(Op::new("test_alone"), |tx| Box::pin(self.0.see(tx, keys))).await?;
            Ok(None)
        })
    }

    fn together(&self) -> Option<&dyn HandleTogether> {
        Some(self)
    }
}

impl HandleTogether for Seeing {
    fn keys_max(&self) -> u32 {
        50
    }

    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>> {
        Box::pin(async move {
            self.0.together.lock().unwrap().push(keys.len());
            assert!(keys.is_sorted(), "{keys:?}");
            if keys.iter().any(|key| key.starts_with("locked")) {
                tx.execute(&LOCKED, &[]).await?;
            }
            self.0.see(tx, keys).await?;
            Ok(keys
                .iter()
                .filter(|key| key.starts_with("again"))
                .map(|key| (key.clone(), Duration::from_secs(3600)))
                .collect())
        })
    }
}

async fn world() -> (TestDb, Arc<Seer>, Arc<dyn QueueHandler>) {
    let db = db().await;
    db.batch("CREATE TABLE intent (key text PRIMARY KEY, wanted int NOT NULL)").await;
    db.batch("CREATE TABLE seen (key text PRIMARY KEY, wanted int NOT NULL)").await;
    let seer = Arc::new(Seer::default());
    let handler = Arc::new(Seeing(seer.clone(), db.store.clone()));
    (db, seer, handler)
}

/// Wants one more of a key and wakes it, in one transaction.
async fn want(db: &TestDb, key: &str) {
    let want = sql(
        "want",
        "INSERT INTO intent VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET wanted = intent.wanted + 1",
    );
    let wanted: Result<(), Fault> = db
        .store
        .tx(Op::new("test_want"), |tx| {
            Box::pin(async move {
                tx.execute(&want, &[&key]).await?;
                Ok(kernel::module::wake(tx, QUEUE, key).await?)
            })
        })
        .await;
    wanted.unwrap();
}

async fn wait_for(db: &TestDb, text: &str, wanted: i64) {
    eventually(BOUND, || async {
        match db.scalar_i64(text).await {
            found if found == wanted => Ok(()),
            found => Err(format!("{found} instead of {wanted}: {text}")),
        }
    })
    .await;
}

const BEHIND: &str =
    "SELECT count(*) FROM intent LEFT JOIN seen USING (key) WHERE seen.wanted IS DISTINCT FROM intent.wanted";
const UNTAKEN: &str = "SELECT count(*) FROM work_wake_keys";

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_handled_together_and_settled_with_what_was_done() {
    let (db, seer, handler) = world().await;
    for n in 0..120 {
        want(&db, &format!("k{n}")).await;
    }
    want(&db, "again").await;
    run_queues(&process("one", &db.store), &[handler], 4);
    wait_for(&db, BEHIND, 0).await;
    wait_for(&db, UNTAKEN, 0).await;
    let (together, alone) = (seer.together.lock().unwrap().clone(), seer.alone.lock().unwrap().len());
    assert!(alone <= 8, "only the first ones go alone: {alone}");
    assert_eq!(together.iter().sum::<usize>() + alone, 121, "{together:?}");
    wait_for(
        &db,
        "SELECT count(*) FROM work WHERE key = 'again' AND run_at > compute_now() + interval '59 minutes'",
        1,
    )
    .await;
    wait_for(&db, "SELECT count(*) FROM work", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poisoned_key_among_many_fails_alone() {
    for poison in ["poison", "panic"] {
        let (db, seer, handler) = world().await;
        // The first keys of a process go alone anyway.
        for n in 0..8 {
            want(&db, &format!("first{n}")).await;
        }
        run_queues(&process("one", &db.store), &[handler], 4);
        wait_for(&db, BEHIND, 0).await;
        for n in 0..30 {
            want(&db, &format!("k{n:02}")).await;
            if n == 15 {
                want(&db, poison).await;
            }
        }
        wait_for(&db, BEHIND, 1).await;
        wait_for(&db, UNTAKEN, 0).await;
        let left = format!("SELECT count(*) FROM work WHERE key = '{poison}' AND attempts >= 1");
        wait_for(&db, &left, 1).await;
        wait_for(&db, "SELECT count(*) FROM work", 1).await;
        assert!(seer.alone.lock().unwrap().iter().any(|key| key == poison));
        let reason = db.scalar_text("SELECT last_error FROM work").await;
        let wanted = if poison == "panic" { "it panicked" } else { "poison, as the test wants it" };
        assert!(reason.contains(wanted), "{reason}");
        // It holds nobody up from now on.
        let tried = seer.together.lock().unwrap().len();
        want(&db, "k00").await;
        wait_for(&db, BEHIND, 1).await;
        assert!(seer.together.lock().unwrap().len() > tried, "together again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_databases_trouble_with_keys_together_holds_up_none_under_a_lease() {
    let (db, seer, handler) = world().await;
    let queue = DrivenQueue::new(&process("one", &db.store), handler);
    // The first look of a process is a careful one.
    assert!(queue.claim(8).await.unwrap().0.is_empty());
    want(&db, "locked").await;
    let due: Result<(), Fault> = db
        .store
        .tx(Op::new("test_due"), |tx| {
            Box::pin(
                async move { Ok(kernel::module::wake_in(tx, QUEUE, "due", Duration::from_millis(1)).await?) },
            )
        })
        .await;
    due.unwrap();
    eventually(BOUND, || async {
        match queue.claim(8).await {
            Ok((claimed, _)) if claimed.iter().any(|item| item.key == "due") => Ok(()),
            told => Err(format!("{told:?}")),
        }
    })
    .await;
    assert!(!seer.together.lock().unwrap().is_empty(), "they were tried together");
    assert_eq!(db.scalar_i64(UNTAKEN).await, 1, "what is locked still waits");
    // With nothing claimed it is told as what it is.
    assert!(queue.claim(8).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_while_the_deployment_observes() {
    let (db, seer, handler) = world().await;
    db.batch(OBSERVE).await;
    want(&db, "k").await;
    let queue = DrivenQueue::new(&process("one", &db.store), handler);
    for _ in 0..3 {
        let (claimed, pause) = queue.claim(8).await.unwrap();
        assert!(claimed.is_empty() && !pause.is_zero());
    }
    assert_eq!(db.scalar_i64(UNTAKEN).await, 1);
    db.batch(ACT).await;
    let (claimed, _) = queue.claim(8).await.unwrap();
    for item in &claimed {
        queue.run(item).await.unwrap();
    }
    assert_eq!((db.scalar_i64(BEHIND).await, db.scalar_i64(UNTAKEN).await), (0, 0));
    drop(seer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_a_queue_that_rests_says_when_to_look_again() {
    let (db, _, handler) = world().await;
    let queue = DrivenQueue::new(&process("one", &db.store), handler);
    want(&db, "k").await;
    let mut looks = 0;
    loop {
        let (claimed, pause) = queue.claim(8).await.unwrap();
        for item in &claimed {
            queue.run(item).await.unwrap();
        }
        looks += 1;
        assert!(looks < 10, "it rests when there is nothing to do");
        if claimed.is_empty() && pause > Duration::from_secs(1) {
            break;
        }
        tokio::time::sleep(pause.min(Duration::from_millis(200))).await;
    }
    assert_eq!(db.scalar_i64(BEHIND).await, 0);
    wake(&db.store, QUEUE, "k").await;
    queue.claim(8).await.unwrap();
    assert_eq!(db.scalar_i64(UNTAKEN).await, 0, "it was looked at at once");
}

/// Two processes, keys that fail, and wake-ups that come all the while: what was wanted last is seen by everybody.
#[tokio::test(flavor = "multi_thread")]
async fn no_wake_up_is_lost_between_two_processes_and_keys_that_fail() {
    for seed in 1..=2 {
        let (db, _, handler) = world().await;
        let (one, two) = (process("one", &db.store), process("two", &db.store));
        run_queues(&one, std::slice::from_ref(&handler), 4);
        run_queues(&two, std::slice::from_ref(&handler), 4);
        let waker = async |n: u64| {
            let rng: &dyn Rng = &SeededRng::new(seed * 10 + n);
            for _ in 0..100 {
                match rng.below(20) {
                    0 => want(&db, &format!("poison{}", rng.below(2))).await,
                    _ => want(&db, &format!("k{}", rng.below(12))).await,
                }
            }
        };
        tokio::join!(waker(1), waker(2), waker(3));
        let behind = format!("{BEHIND} AND key LIKE 'k%'");
        wait_for(&db, &behind, 0).await;
        wait_for(&db, UNTAKEN, 0).await;
        wait_for(&db, "SELECT count(*) FROM work WHERE key LIKE 'k%'", 0).await;
        assert!(one.supervisor.shutdown(BOUND).await && two.supervisor.shutdown(BOUND).await);
    }
}
