//! Keys woken, claimed, finished, given up and abandoned, while claims lapse.
//!
//! Each key has a number that wakers raise, in the transaction that wakes. A pass reads it and writes down, in the transaction
//! that completes, which number it saw and from when to when it worked. So a wake-up that was lost is a number nobody saw, and
//! a claim that was not fenced is two passes over one key at the same time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kit::{Clock, Rng};
use sim::invariants::{Invariant, Violation};
use store::work::{self, Claimed, Completion, Floor, Queue};
use store::{IsRetryable, Sql, Store, StoreConfig, StoreError, sql};

use super::{Outcome, Run, WORKERS, at_once, pause, sound};
use crate::clock::HandClock;
use crate::cloud::{OP, run_all};

const QUEUE: Queue = Queue::new("test", i32::MAX);
const KEYS: u64 = 5;
const LEASE: Duration = Duration::from_secs(20);
/// Fewer passes that ended than this say nothing.
const PASSES_MIN: i64 = 51;

const WANT: Sql = sql("test_want", "UPDATE wanted SET number = number + 1 WHERE key = $1");
const WANTED: Sql = sql("test_wanted", "SELECT number FROM wanted WHERE key = $1");
const TICK: Sql = sql("test_tick", "SELECT nextval('pass_at') AS at");
const PASSED: Sql = sql(
    "test_passed",
    "INSERT INTO passes (key, number, began, ended) VALUES ($1, $2, $3, nextval('pass_at'))",
);
const OVERLAPS: Sql = sql(
    "test_overlaps",
    "SELECT format('%s: %s to %s, and one that began at %s', a.key, a.began, a.ended, b.began) AS what
     FROM passes a JOIN (SELECT key, began FROM passes UNION SELECT key, began FROM begun) b
       ON a.key = b.key AND a.began < b.began AND b.began < a.ended ORDER BY 1",
);
/// Under a claim, whatever comes of it.
const BEGUN: Sql =
    sql("test_begun", "INSERT INTO begun (key, began) VALUES ($1, nextval('pass_at')) RETURNING began");
const UNSEEN: Sql = sql(
    "test_unseen",
    "SELECT format('%s: woken for %s, seen %s', w.key, w.number, coalesce(max(p.number), 0)) AS what
     FROM wanted w LEFT JOIN passes p USING (key) GROUP BY w.key, w.number HAVING coalesce(max(p.number), 0) < w.number
     ORDER BY 1",
);

#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("the claim is another's")]
    Lost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IsRetryable for Stop {
    fn is_retryable(&self) -> bool {
        match self {
            Stop::Lost => false,
            Stop::Store(err) => err.is_retryable(),
        }
    }
}

/// A claim, and when its pass began.
struct Pass {
    item: Claimed,
    number: i64,
    began: i64,
}

struct Worker {
    store: Store,
    name: String,
    floor: Floor,
    /// Begun and not ended yet: it may have lapsed meanwhile.
    passes: Vec<Pass>,
}

impl Worker {
    async fn operate(&mut self, clock: &HandClock, dice: &dyn Rng) {
        match dice.below(24) {
            0..6 => self.wake(dice).await,
            6..10 => drop(self.together(dice).await),
            10..12 => self.start(dice).await,
            12..14 => self.claim(dice).await,
            14..22 => self.end(dice).await,
            22 if dice.below(3) == 0 => clock.pass(LEASE.as_secs() + 1),
            22 => clock.pass(dice.below(8)),
            // As a process that was killed: its claims lapse.
            _ if dice.below(4) == 0 => self.passes.clear(),
            _ => self.keep(dice).await,
        }
    }

    async fn wake(&self, dice: &dyn Rng) {
        // In their order, so that two wakers wait for each other in it.
        let keys: BTreeSet<String> =
            (0..1 + dice.below(3)).map(|_| format!("k{}", dice.below(KEYS))).collect();
        let keys = &keys;
        let delay = Duration::from_secs(if dice.below(4) == 0 { dice.below(5) } else { 0 });
        self.store
            .tx(OP, |tx| {
                Box::pin(async move {
                    for key in keys {
                        work::enqueue(tx, QUEUE, key, delay).await?;
                        pause(dice).await;
                        tx.execute(&WANT, &[key]).await?;
                        pause(dice).await;
                    }
                    Ok(())
                })
            })
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
    }

    /// Many keys in one transaction, which may be given up. How many there were.
    async fn together(&mut self, dice: &dyn Rng) -> usize {
        let (from, most) = (self.floor, 1 + u32::try_from(dice.below(6)).expect("small"));
        let gives_up = dice.below(5) == 0;
        let done = self
            .store
            .tx(OP, |tx| {
                Box::pin(async move {
                    let mut floor = from;
                    let taken = work::take(tx, QUEUE, &mut floor, most, false).await?;
                    for key in &taken.keys {
                        let began: i64 = tx.query_one(&TICK, &[]).await?.get("at");
                        let number: i64 = tx.query_one(&WANTED, &[key]).await?.get("number");
                        pause(dice).await;
                        tx.execute(&PASSED, &[key, &number, &began]).await?;
                    }
                    if gives_up { Err(Stop::Lost) } else { Ok((floor, taken.keys.len())) }
                })
            })
            .await;
        match done {
            Ok((floor, keys)) => {
                self.floor = floor;
                keys
            }
            Err(Stop::Lost) => 1,
            Err(Stop::Store(err)) => panic!("{}", kit::chain(&err)),
        }
    }

    /// Woken keys, under a lease.
    async fn start(&mut self, dice: &dyn Rng) {
        let (name, most) = (self.name.as_str(), 1 + u32::try_from(dice.below(3)).expect("small"));
        let from = self.floor;
        let (floor, items) = self
            .store
            .tx(OP, |tx| {
                Box::pin(async move {
                    let mut floor = from;
                    let taken = work::take(tx, QUEUE, &mut floor, most, false).await?;
                    pause(dice).await;
                    Ok((floor, work::start(tx, QUEUE, &taken.keys, name, LEASE).await?))
                })
            })
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
        self.floor = floor;
        self.begin(items).await;
    }

    /// Keys for later, and those that failed or lapsed.
    async fn claim(&mut self, dice: &dyn Rng) {
        let (name, batch) = (self.name.as_str(), 1 + u32::try_from(dice.below(3)).expect("small"));
        let items = self
            .store
            .tx(OP, |tx| Box::pin(async move { work::claim(tx, QUEUE, name, batch, LEASE).await }))
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
        self.begin(items).await;
    }

    async fn begin(&mut self, items: Vec<Claimed>) {
        for item in items {
            let began = self.store.read_one(&BEGUN, &[&item.key]).await.unwrap().get("began");
            let number = self.store.read_one(&WANTED, &[&item.key]).await.unwrap().get("number");
            self.passes.push(Pass { item, number, began });
        }
    }

    async fn keep(&self, dice: &dyn Rng) {
        let Some(pass) = pick(&self.passes, dice) else { return };
        let item = &self.passes[pass].item;
        self.store
            .tx(OP, |tx| Box::pin(async move { work::extend(tx, item, LEASE).await }))
            .await
            .map_err(|err: StoreError| err)
            .unwrap();
    }

    async fn end(&mut self, dice: &dyn Rng) {
        let Some(at) = pick(&self.passes, dice) else { return };
        let pass = &self.passes.swap_remove(at);
        let how = dice.below(8);
        let ended = self
            .store
            .tx(OP, |tx| {
                Box::pin(async move {
                    if how == 0 {
                        // It failed, and did nothing.
                        work::fail(tx, &pass.item, "as the dice say", Duration::from_secs(1)).await?;
                        return Ok(());
                    }
                    let done = match how {
                        1 => work::reschedule(tx, &pass.item, Duration::from_secs(2)).await?,
                        _ => work::complete(tx, &pass.item).await?,
                    };
                    if done == Completion::Lost {
                        return Err(Stop::Lost);
                    }
                    pause(dice).await;
                    tx.execute(&PASSED, &[&pass.item.key, &pass.number, &pass.began]).await?;
                    Ok(())
                })
            })
            .await;
        match ended {
            Ok(()) | Err(Stop::Lost) => {}
            Err(Stop::Store(err)) => panic!("{}", kit::chain(&err)),
        }
    }
}

fn pick<T>(from: &[T], dice: &dyn Rng) -> Option<usize> {
    (!from.is_empty()).then(|| usize::try_from(dice.below(from.len() as u64)).expect("a small list"))
}

async fn broken(store: &Store, statement: &Sql, invariant: Invariant) -> Vec<Violation> {
    let rows = store.read(statement, &[]).await.unwrap();
    rows.iter().map(|row| Violation::new(invariant, row.get::<_, String>("what"))).collect()
}

pub async fn scenario(run: Run) -> Outcome {
    let db = testkit::db().await;
    run_all(
        &db.store,
        "CREATE SEQUENCE pass_at;
         CREATE TABLE wanted (key text PRIMARY KEY, number bigint NOT NULL DEFAULT 0);
         CREATE TABLE begun (key text NOT NULL, began bigint NOT NULL);
         CREATE TABLE passes (key text NOT NULL, number bigint NOT NULL, began bigint NOT NULL, ended bigint NOT NULL);
         INSERT INTO wanted (key) SELECT 'k' || n FROM generate_series(0, 4) AS n",
    )
    .await;
    let clock = Arc::new(HandClock::new());
    let mut workers = Vec::new();
    for at in 0..WORKERS {
        let told = clock.clone();
        let virtual_clock: store::VirtualClock = Arc::new(move || told.now());
        let config = StoreConfig { virtual_clock: Some(virtual_clock), pool_size: 1, ..db.config() };
        workers.push(Worker {
            store: db.open(config).await,
            name: format!("worker-{at}"),
            floor: Floor::default(),
            passes: Vec::new(),
        });
    }
    let (mut round, mut tried) = (0, 0);
    while run.goes_on(round, tried, PASSES_MIN) {
        let mut tasks = Vec::new();
        for (at, mut worker) in workers.drain(..).enumerate() {
            let (clock, dice) = (clock.clone(), run.dice(round, at));
            tasks.push(async move {
                for _ in 0..30 {
                    worker.operate(&clock, &*dice).await;
                    pause(&*dice).await;
                }
                worker
            });
        }
        workers = at_once(tasks).await;
        // After each round, since a wake-up that is lost is made good by the next one of its key.
        drain(&mut workers[0], &clock).await;
        let mut found = broken(&db.store, &UNSEEN, Invariant::EffectsOnce).await;
        found.extend(broken(&db.store, &OVERLAPS, Invariant::OwnersAreFenced).await);
        if !found.is_empty() {
            return Err(found);
        }
        tried = db.scalar_i64("SELECT count(*) FROM passes").await;
        round += 1;
    }
    assert!(tried >= PASSES_MIN, "{tried} passes ended: nothing was tried");
    Ok(())
}

/// One worker alone, once every claim of the others has lapsed.
async fn drain(worker: &mut Worker, clock: &HandClock) {
    struct Straight;
    impl Rng for Straight {
        fn fill(&self, bytes: &mut [u8]) {
            // The last of everything: a pass that completes.
            bytes.fill(0xff);
        }
    }
    worker.passes.clear();
    for _ in 0..100 {
        clock.pass(LEASE.as_secs() + 1);
        while worker.together(&Straight).await > 0 {}
        worker.claim(&Straight).await;
        if worker.passes.is_empty() && worker.store.read(&LEFT, &[]).await.unwrap().is_empty() {
            return;
        }
        while !worker.passes.is_empty() {
            worker.end(&Straight).await;
        }
    }
}

const LEFT: Sql =
    sql("test_left", "SELECT key FROM work UNION ALL SELECT key FROM work_wake_keys ORDER BY 1");

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_and_no_key_is_worked_on_twice_at_once() {
    sound(scenario(Run::from_env(6)).await);
}
