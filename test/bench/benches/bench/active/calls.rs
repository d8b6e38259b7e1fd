//! The callers, and the look at the database that sees what has become active.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bench::figures::{Run, Sample};
use futures::{StreamExt, TryStreamExt};
use model::ReservationId;
use serde_json::{Value, json};
use store::{Sql, Store, sql};
use uuid::Uuid;

use super::sample;
use crate::plane::{Api, Plane};

/// Each has a connection of its own.
const CALLERS: usize = 16;
/// Calls under way: what does not answer for so long is not measured any further.
const CALLS_MAX: usize = 2048;
/// Calls of what is not measured.
const CALLS_AT_ONCE: usize = 32;
/// How late a reservation is seen to be active at most. It is part of the figure.
const LOOK_EVERY: Duration = Duration::from_millis(4);
const ACTIVE_WITHIN: Duration = Duration::from_secs(30);
const ENDED_WITHIN: Duration = Duration::from_secs(120);

const ACTIVE: Sql = sql(
    "bench_active",
    "SELECT reservation_id FROM reservations WHERE reservation_id = ANY($1) AND state = 'active' ORDER BY 1",
);
const OPEN: Sql = sql("bench_open", "SELECT count(*) AS open FROM reservations WHERE ended_at IS NULL");

pub struct Calls {
    callers: Vec<Api>,
    store: Store,
    held: Mutex<Vec<String>>,
}

/// What was asked for and is not active yet.
#[derive(Default)]
struct Waiting {
    since: HashMap<Uuid, Instant>,
    active: Vec<Sample>,
}

impl Calls {
    pub async fn new(plane: &Plane, store: &Store) -> anyhow::Result<Self> {
        Ok(Self { callers: plane.clients(CALLERS).await?, store: store.clone(), held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, Vec<String>> {
        self.held.lock().expect("no holder of this lock panics")
    }

    /// Has every node hold all it has, and let go of it again.
    pub async fn each_node_once(&self, nodes: u32) -> anyhow::Result<()> {
        let ids = futures::stream::iter(0..nodes)
            .map(|number| self.create(number, json!({ "pool": "gpu", "wholeNode": true, "hours": 24 })))
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect::<Vec<Uuid>>()
            .await?;
        let began = Instant::now();
        let waiting = Mutex::new(Waiting::default());
        lock(&waiting).since.extend(ids.into_iter().map(|id| (id, began)));
        self.see(&waiting, nodes as usize, began, ENDED_WITHIN).await?;
        self.release_all().await
    }

    /// One after another is active.
    pub async fn one_by_one(&self, count: u32) -> anyhow::Result<Run> {
        let (began, waiting) = (Instant::now(), Mutex::new(Waiting::default()));
        for number in 0..count {
            let due = Instant::now();
            let id = self.create(number, one()).await?;
            lock(&waiting).since.insert(id, due);
            self.see(&waiting, number as usize + 1, began, ACTIVE_WITHIN).await?;
        }
        let samples = std::mem::take(&mut lock(&waiting).active);
        Ok(Run::new("active, one at a time", began.elapsed(), samples))
    }

    /// `count` of them, one every so often.
    pub async fn at_rate(&self, rate: u32, count: u32) -> anyhow::Result<Run> {
        let (began, waiting) = (Instant::now(), Mutex::new(Waiting::default()));
        let pace = tokio::time::interval(Duration::from_secs(1) / rate);
        let due = futures::stream::unfold(pace, |mut pace| async {
            let due = pace.tick().await;
            Some((due.into_std(), pace))
        });
        let (waits, placed) = (&waiting, &Mutex::new(Vec::new()));
        let calling = due
            .take(count as usize)
            .enumerate()
            .map(|(number, due)| async move {
                let id = self.create(u32::try_from(number)?, one()).await?;
                placed.lock().expect("no holder of this lock panics").push(sample(began, due));
                lock(waits).since.insert(id, due);
                anyhow::Ok(())
            })
            .buffer_unordered(CALLS_MAX)
            .try_collect::<()>();
        let lasts = Duration::from_secs(u64::from(count / rate)) + ACTIVE_WITHIN;
        tokio::try_join!(calling, self.see(waits, count as usize, began, lasts))?;
        let placed = std::mem::take(&mut *placed.lock().expect("no holder of this lock panics"));
        println!("{}", Run::new(format!("answered as placed, at {rate}/s"), began.elapsed(), placed));
        let samples = std::mem::take(&mut lock(&waiting).active);
        Ok(Run::new(format!("active, at {rate}/s"), began.elapsed(), samples))
    }

    /// Looks until so many are active.
    async fn see(
        &self,
        waiting: &Mutex<Waiting>,
        wanted: usize,
        began: Instant,
        within: Duration,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let ids: Vec<Uuid> = lock(waiting).since.keys().copied().collect();
            let active = match ids.is_empty() {
                true => Vec::new(),
                false => self.store.read(&ACTIVE, &[&ids]).await?,
            };
            let mut waiting = lock(waiting);
            for row in active {
                if let Some(due) = waiting.since.remove(&row.get("reservation_id")) {
                    waiting.active.push(sample(began, due));
                }
            }
            if waiting.active.len() == wanted {
                return Ok(());
            }
            ensure!(
                started.elapsed() < within,
                "{} of {wanted} are active after {within:?}, and {} were asked for and are not",
                waiting.active.len(),
                waiting.since.len(),
            );
        }
    }

    /// Answered once it is placed.
    async fn create(&self, number: u32, request: Value) -> anyhow::Result<Uuid> {
        let made = self.caller(number).ok("reservations.create", request).await?;
        let id = made["id"].as_str().context("a reservation's id")?;
        self.held().push(id.to_owned());
        Ok(id.parse::<ReservationId>()?.uuid())
    }

    /// What was asked for and not released yet.
    pub fn ids(&self) -> Vec<Uuid> {
        self.held().iter().filter_map(|id| Some(id.parse::<ReservationId>().ok()?.uuid())).collect()
    }

    fn caller(&self, number: u32) -> &Api {
        &self.callers[number as usize % CALLERS]
    }

    /// Releases what is held, and waits for its end.
    pub async fn release_all(&self) -> anyhow::Result<()> {
        let held = std::mem::take(&mut *self.held());
        futures::stream::iter(held.iter().zip(0..))
            .map(|(id, number)| self.caller(number).ok("reservations.release", json!({ "id": id })))
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect::<Vec<Value>>()
            .await?;
        let started = Instant::now();
        loop {
            let open: i64 = self.store.read_one(&OPEN, &[]).await?.get("open");
            if open == 0 {
                return Ok(());
            }
            ensure!(
                started.elapsed() < ENDED_WITHIN,
                "{open} reservations have not ended after {ENDED_WITHIN:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// One GPU.
fn one() -> Value {
    json!({ "pool": "gpu", "gpus": 1, "hours": 24 })
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().expect("no holder of this lock panics")
}
