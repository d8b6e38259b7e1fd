//! Savepoints that fail inside transactions that go on, events beside the change they tell of, and a relay that numbers them
//! meanwhile.

use std::sync::Arc;

use kit::Rng;
use serde_json::json;
use sim::invariants::{Invariant, Violation};
use store::outbox::{self, Event, Relay, Relayed};
use store::work::{self, Queue};
use store::{BoxFuture, Sql, Store, StoreConfig, StoreError, lease, sql};

use super::{Outcome, Run, WORKERS, at_once, pause, sound};
use crate::cloud::{OP, run_all};

const ADD: Sql = sql("test_add", "UPDATE counts SET total = total + $2 WHERE key = $1");
const FAIL: Sql = sql("test_fail", "INSERT INTO counts (key) VALUES (NULL)");
/// A change told of once, by its key.
const DIFFERENT: Sql = sql(
    "test_different",
    "SELECT format('%s changed %s times and was told of %s times', c.key, c.total, count(o.event_id)) AS what
     FROM counts c LEFT JOIN (SELECT subject, event_id FROM outbox_events UNION ALL SELECT subject, event_id FROM events) o
       ON o.subject = c.key
     GROUP BY c.key, c.total HAVING count(o.event_id) <> c.total ORDER BY 1",
);
/// What a transaction woke before it asked anything of a savepoint, where it was committed.
const PROMISE: Sql = sql("test_promise", "INSERT INTO promised (key) VALUES ($1)");
const UNWOKEN: Sql = sql(
    "test_unwoken",
    "SELECT format('%s was promised and not woken', p.key) AS what FROM promised p
     WHERE NOT EXISTS (SELECT FROM work_wake_keys w WHERE w.key = p.key) ORDER BY 1",
);
/// Numbered, with a gap below, or twice.
const MISNUMBERED: Sql = sql(
    "test_misnumbered",
    "SELECT format('%s events up to %s, %s of them different', count(*), max(seq), count(DISTINCT event_id)) AS what
     FROM events HAVING count(*) <> coalesce(max(seq), 0) OR count(*) <> count(DISTINCT event_id)",
);
const UNNUMBERED: Sql = sql(
    "test_unnumbered",
    "SELECT format('event %s of %s was passed over', event_id, subject) AS what FROM outbox_events ORDER BY 1",
);
const KEYS: u64 = 3;
const QUEUE: Queue = Queue::new("test", i32::MAX);
/// Events of one transaction now and then: they are many rows, which take a while from the first to the commit.
const MANY: i64 = 400;
/// Passes of the relay between two looks of the workers.
const PASSES: u64 = 12;
/// Fewer changes than this say nothing.
const CHANGES_MIN: i64 = 101;

/// Some changes at once, each with its event.
async fn change(tx: &mut store::Tx<'_>, key: &str, by: i64, dice: &dyn Rng) -> Result<(), StoreError> {
    tx.execute(&ADD, &[&key, &by]).await?;
    for _ in 0..by {
        let id = model::EventId::from_uuid(uuid::Builder::from_random_bytes(dice.bytes()).into_uuid());
        let subject = key.to_owned();
        outbox::append(tx, Event { id, kind: "test.changed", subject, tenant_id: None, data: json!({}) })
            .await?;
    }
    Ok(())
}

/// Some changes under savepoints, some of which fail in one of three ways, and a transaction that may be given up as a whole.
async fn operate(store: &Store, dice: &dyn Rng) {
    let keys: Vec<String> = (0..1 + dice.below(3)).map(|_| format!("k{}", dice.below(KEYS))).collect();
    let (keys, gives_up) = (&keys, dice.below(6) == 0);
    let by = match dice.below(6) {
        0 => MANY,
        1 => 20,
        _ => 1,
    };
    let woken = &format!("woken-{:016x}", dice.u64());
    let work = store.tx(OP, |tx| {
        Box::pin(async move {
            work::wake(tx, QUEUE, woken.as_str());
            tx.execute(&PROMISE, &[woken]).await?;
            for key in keys {
                let how = dice.below(5);
                let done: Result<(), StoreError> = tx
                    .savepoint(|tx| {
                        Box::pin(async move {
                            change(tx, key, by, dice).await?;
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

/// Numbers what there is, over and over, as the one relay of a deployment does.
async fn relay(store: &Store, relay: &mut Relay, dice: &dyn Rng) -> Relayed {
    let hour = std::time::Duration::from_secs(3_600);
    let lease = store
        .tx(OP, |tx| Box::pin(async move { lease::acquire(tx, outbox::RELAY_LEASE, "test", hour).await }))
        .await
        .map_err(|err: StoreError| err)
        .unwrap()
        .expect("nobody else asks for it");
    let mut moved = Relayed::Moved(0);
    for _ in 0..PASSES {
        moved = relay.pass(store, &lease, 1 + u32::try_from(dice.below(40)).expect("small")).await.unwrap();
    }
    moved
}

async fn broken(store: &Store, statement: &Sql, invariant: Invariant) -> Vec<Violation> {
    let rows = store.read(statement, &[]).await.unwrap();
    rows.iter().map(|row| Violation::new(invariant, row.get::<_, String>("what"))).collect()
}

pub async fn scenario(run: Run) -> Outcome {
    let db = testkit::db().await;
    run_all(
        &db.store,
        "CREATE TABLE counts (key text PRIMARY KEY, total bigint NOT NULL DEFAULT 0);
         CREATE TABLE promised (key text PRIMARY KEY);
         INSERT INTO counts (key) SELECT 'k' || n FROM generate_series(0, 2) AS n",
    )
    .await;
    let mut stores = Vec::new();
    for _ in 0..WORKERS {
        stores.push(Arc::new(db.open(StoreConfig { pool_size: 1, ..db.config() }).await));
    }
    let relaying = Arc::new(db.open(StoreConfig { pool_size: 1, ..db.config() }).await);
    let mut numbers = Relay::default();
    let (mut round, mut tried) = (0, 0);
    while run.goes_on(round, tried, CHANGES_MIN) {
        let mut tasks: Vec<BoxFuture<'static, Option<Relay>>> = Vec::new();
        for (at, store) in stores.iter().enumerate() {
            let (store, dice) = (store.clone(), run.dice(round, at));
            tasks.push(Box::pin(async move {
                for _ in 0..12 {
                    operate(&store, &*dice).await;
                }
                None
            }));
        }
        let (store, dice) = (relaying.clone(), run.dice(round, WORKERS));
        tasks.push(Box::pin(async move {
            for _ in 0..40 {
                relay(&store, &mut numbers, &*dice).await;
            }
            Some(numbers)
        }));
        numbers = at_once(tasks).await.into_iter().flatten().next().expect("the relay comes back");
        let mut found = broken(&db.store, &DIFFERENT, Invariant::EventsWithTheirChange).await;
        found.extend(broken(&db.store, &UNWOKEN, Invariant::EffectsOnce).await);
        found.extend(broken(&db.store, &MISNUMBERED, Invariant::EventsOnceInOrder).await);
        if !found.is_empty() {
            return Err(found);
        }
        tried = db.scalar_i64("SELECT sum(total)::bigint FROM counts").await;
        round += 1;
    }
    while relay(&relaying, &mut numbers, &*run.dice(round, 0)).await != Relayed::Moved(0) {}
    let found = broken(&db.store, &UNNUMBERED, Invariant::EventsOnceInOrder).await;
    if !found.is_empty() {
        return Err(found);
    }
    assert!(tried >= CHANGES_MIN, "{tried} changes: nothing was tried");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_undone_leaves_neither_a_change_nor_its_event() {
    sound(scenario(Run::from_env(6)).await);
}
