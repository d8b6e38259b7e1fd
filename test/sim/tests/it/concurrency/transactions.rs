//! Savepoints that fail inside transactions that go on, and events beside the change they tell of.

use std::sync::Arc;

use kit::Rng;
use serde_json::json;
use sim::invariants::{Invariant, Violation};
use store::outbox::{self, Event};
use store::{Sql, Store, StoreConfig, StoreError, sql};

use super::{Outcome, Run, WORKERS, at_once, pause, sound};
use crate::cloud::{OP, run_all};

const ADD: Sql = sql("test_add", "UPDATE counts SET total = total + 1 WHERE key = $1");
const FAIL: Sql = sql("test_fail", "INSERT INTO counts (key) VALUES (NULL)");
/// A change told of once, by its key.
const DIFFERENT: Sql = sql(
    "test_different",
    "SELECT format('%s changed %s times and was told of %s times', c.key, c.total, count(o.event_id)) AS what
     FROM counts c LEFT JOIN outbox_events o ON o.subject = c.key GROUP BY c.key, c.total HAVING count(o.event_id) <> c.total
     ORDER BY 1",
);
const KEYS: u64 = 3;

/// One change with its event.
async fn change(tx: &mut store::Tx<'_>, key: &str, dice: &dyn Rng) -> Result<(), StoreError> {
    tx.execute(&ADD, &[&key]).await?;
    let id = model::EventId::from_uuid(uuid::Builder::from_random_bytes(dice.bytes()).into_uuid());
    let event = Event { id, kind: "test.changed", subject: key.to_owned(), tenant_id: None, data: json!({}) };
    outbox::append(tx, event).await
}

/// Some changes under savepoints, some of which fail in one of three ways, and a transaction that may be given up as a whole.
async fn operate(store: &Store, dice: &dyn Rng) {
    let keys: Vec<String> = (0..1 + dice.below(3)).map(|_| format!("k{}", dice.below(KEYS))).collect();
    let (keys, gives_up) = (&keys, dice.below(6) == 0);
    let work = store.tx(OP, |tx| {
        Box::pin(async move {
            for key in keys {
                let how = dice.below(5);
                let done: Result<(), StoreError> = tx
                    .savepoint(|tx| {
                        Box::pin(async move {
                            change(tx, key, dice).await?;
                            pause(dice).await;
                            match how {
                                // The database refuses a statement, and says so.
                                0 => tx.execute(&FAIL, &[]).await.map(drop),
                                // The caller changes its mind.
                                1 => Err(StoreError::decode("test", "as the dice say")),
                                _ => Ok(()),
                            }
                        })
                    })
                    .await?;
                drop(done);
                pause(dice).await;
            }
            if gives_up { Err(StoreError::decode("test", "given up")) } else { Ok(()) }
        })
    });
    // A killed process drops what it is at.
    let _ = match dice.below(8) {
        0 => tokio::time::timeout(std::time::Duration::from_micros(500 + dice.below(4_000)), work).await.ok(),
        _ => Some(work.await),
    };
}

pub async fn scenario(run: Run) -> Outcome {
    let db = testkit::db().await;
    run_all(
        &db.store,
        "CREATE TABLE counts (key text PRIMARY KEY, total bigint NOT NULL DEFAULT 0);
         INSERT INTO counts (key) SELECT 'k' || n FROM generate_series(0, 2) AS n",
    )
    .await;
    let mut stores = Vec::new();
    for _ in 0..WORKERS {
        stores.push(Arc::new(db.open(StoreConfig { pool_size: 1, ..db.config() }).await));
    }
    for round in 0..run.rounds {
        let mut tasks = Vec::new();
        for (at, store) in stores.iter().enumerate() {
            let (store, dice) = (store.clone(), run.dice(round, at));
            tasks.push(async move {
                for _ in 0..12 {
                    operate(&store, &*dice).await;
                }
            });
        }
        at_once(tasks).await;
        let rows = db.store.read(&DIFFERENT, &[]).await.unwrap();
        if !rows.is_empty() {
            let told = |row: &store::Row| {
                Violation::new(Invariant::EventsWithTheirChange, row.get::<_, String>("what"))
            };
            return Err(rows.iter().map(told).collect());
        }
    }
    assert!(db.scalar_i64("SELECT sum(total)::bigint FROM counts").await > 100, "hardly anything changed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_undone_leaves_neither_a_change_nor_its_event() {
    sound(scenario(Run::from_env(6)).await);
}
