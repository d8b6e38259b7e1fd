//! Wake-ups taken and settled, and events relayed, a second, beside what the same PostgreSQL does when all it has to do is to
//! dequeue as many rows: pgbench, 200 rows a transaction with SKIP LOCKED, in turns with ours.
//! `cargo run --release -p store --example queue_bench [-- --snapshot]`.
//!
//! With `--snapshot` an old snapshot is held open while 300,000 keys and events go through, none of which can be cleaned
//! up then, and the rates are taken again: what that costs is the loss.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use bench::figures::{Figure, Run, Sample, median};
use bench::{pgbench, probe};
use kit::{OsRng, Rng};
use model::{EventId, Timestamp};
use prometheus_client::registry::Registry;
use serde_json::json;
use store::embedded::{Embedded, EmbeddedConfig, Size};
use store::lease::acquire;
use store::outbox::{self, Event, RELAY_LEASE, Relay, Relayed};
use store::work::{self, Floor, Queue};
use store::{Lease, Op, Sql, Store, StoreConfig, StoreError, migrate, sql};
use tokio::sync::oneshot;

const QUEUE: Queue = Queue::new("bench", 100);
const OP: Op = Op::new("bench");
/// Rows of one run.
const ROWS: usize = 100_000;
/// Rows of one transaction, ours and pgbench's.
const BATCH: u32 = pgbench::BATCH;
/// Events that a relay moves in one transaction, as the kernel's does.
const RELAY_BATCH: u32 = 1_000;
/// Takers at once, and pgbench's clients: one for each core of a small machine.
const TAKERS: usize = 2;
const ROUNDS: usize = 3;
/// Rows put in by one transaction.
const FILL: usize = 2_000;
/// What goes through while a snapshot is held open: an hour at some 80 a second.
const DEAD: usize = 300_000;
const PROBE: Duration = Duration::from_secs(1);

const RAW_TABLE: Sql = sql("raw_table", pgbench::TABLE);
const RAW_FILL: Sql = sql("raw_fill", pgbench::FILL);

fn main() -> anyhow::Result<()> {
    let snapshot = std::env::args().any(|argument| argument == "--snapshot");
    let parent = std::env::var_os("BC_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::Builder::new().prefix("bc-bench-").tempdir_in(parent)?;
    // PostgreSQL runs as another user, who has to pass.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    println!("load at the start {}", std::fs::read_to_string("/proc/loadavg")?.trim());
    println!("{}", probe::append_and_sync(dir.path(), 8192, 1, PROBE)?);
    // Sized as what has so much to hand on: the smaller one has fewer buffers than the events of a run take.
    let config = EmbeddedConfig { size: Size::Large, ..EmbeddedConfig::durable(dir.path().join("pg")) };
    let database = Embedded::start_blocking(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&database, dir.path(), snapshot))
}

struct Bench<'a> {
    store: Store,
    database: &'a Embedded,
    dir: PathBuf,
    floors: Vec<Mutex<Floor>>,
    relay: Mutex<Relay>,
    lease: Lease,
}

async fn measure(database: &Embedded, dir: &Path, snapshot: bool) -> anyhow::Result<()> {
    let store = Store::open(database.store_config(Embedded::DATABASE)).await?;
    migrate::run(&store).await?;
    let mut registry = Registry::default();
    store.register_metrics(&mut registry);
    store.execute(&RAW_TABLE, &[]).await?;
    let hour = Duration::from_secs(3600);
    let lease = store.tx(OP, |tx| Box::pin(acquire(tx, RELAY_LEASE, "bench", hour))).await?;
    let bench = Bench {
        store,
        database,
        dir: dir.to_owned(),
        floors: (0..TAKERS).map(|_| Mutex::default()).collect(),
        relay: Mutex::default(),
        lease: lease.context("a new database's lease is free")?,
    };
    let (mut raw, mut raw_one, mut queue, mut events) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        say(&mut raw, bench.raw(TAKERS).await?);
        say(&mut queue, bench.queue().await?);
        say(&mut raw_one, bench.raw(1).await?);
        say(&mut events, bench.events().await?);
    }
    println!();
    let both = format!("pgbench, {BATCH} rows SKIP LOCKED, {TAKERS} clients");
    Figure::rate("queue: keys taken and settled", "/s", &queue)
        .beside(both, median(&raw))
        .ratio_at_least(0.5, 0.8)
        .say()?;
    Figure::rate("outbox: events relayed, by one relay", "/s", &events)
        .beside(format!("pgbench, {BATCH} rows SKIP LOCKED, 1 client"), median(&raw_one))
        .ratio_at_least(0.5, 0.8)
        .say()?;
    if snapshot {
        bench.under_a_snapshot(median(&queue), median(&events)).await?;
    }
    statements(&registry)
}

fn say(runs: &mut Vec<Run>, run: Run) {
    println!("{run}");
    runs.push(run);
}

impl Bench<'_> {
    /// pgbench over rows that are there, until they are gone.
    async fn raw(&self, clients: usize) -> anyhow::Result<Run> {
        self.store.execute(&RAW_FILL, &[&i64::try_from(ROWS)?]).await?;
        self.clean("raw_queue").await?;
        // A database of this run alone, gone with it.
        let url = self.database.url(Embedded::DATABASE).reveal().to_owned();
        let (server, dir) = (self.database.pid(), self.dir.clone());
        tokio::task::spawn_blocking(move || pgbench::dequeue(server, &url, &dir, ROWS, clients)).await?
    }

    async fn queue(&self) -> anyhow::Result<Run> {
        self.fill_queue(ROWS).await?;
        self.clean("work_wake_batches").await?;
        self.drain_queue().await
    }

    async fn fill_queue(&self, rows: usize) -> anyhow::Result<()> {
        for _ in 0..rows / FILL {
            let keys: Vec<String> = (0..FILL).map(|_| id().uuid().to_string()).collect();
            let keys = keys.as_slice();
            self.store.tx(OP, |tx| Box::pin(work::enqueue_all(tx, QUEUE, keys))).await?;
        }
        Ok(())
    }

    async fn drain_queue(&self) -> anyhow::Result<Run> {
        let started = Instant::now();
        let takers = self.floors.iter().map(|floor| async move {
            let mut samples = Vec::new();
            loop {
                let from = Instant::now();
                let at = *floor.lock().expect("no holder panics");
                let (taken, next) = self
                    .store
                    .tx(Op::new("bench_take"), |tx| {
                        Box::pin(async move {
                            let mut floor = at;
                            let taken = work::take(tx, QUEUE, &mut floor, BATCH, true).await?;
                            Ok::<_, StoreError>((taken.keys.len(), floor))
                        })
                    })
                    .await?;
                *floor.lock().expect("no holder panics") = next;
                if taken == 0 {
                    return Ok::<_, anyhow::Error>(samples);
                }
                samples.push(Sample { at: started.elapsed(), took: from.elapsed() });
            }
        });
        let samples = futures::future::try_join_all(takers).await?.concat();
        let lasted = started.elapsed();
        Ok(Run::new(format!("queue, {TAKERS} takers"), lasted, samples).of_units(BATCH))
    }

    async fn events(&self) -> anyhow::Result<Run> {
        self.fill_events(ROWS).await?;
        self.clean("outbox_batches").await?;
        self.drain_events().await
    }

    async fn fill_events(&self, rows: usize) -> anyhow::Result<()> {
        for _ in 0..rows / FILL {
            self.store
                .tx(OP, |tx| {
                    Box::pin(async move {
                        for _ in 0..FILL {
                            outbox::append(tx, event()).await?;
                        }
                        Ok::<_, StoreError>(())
                    })
                })
                .await?;
        }
        Ok(())
    }

    async fn drain_events(&self) -> anyhow::Result<Run> {
        let started = Instant::now();
        let mut relay = std::mem::take(&mut *self.relay.lock().expect("no holder panics"));
        let mut samples = Vec::new();
        loop {
            let from = Instant::now();
            match relay.pass(&self.store, &self.lease, RELAY_BATCH).await? {
                Relayed::Moved(0) => break,
                Relayed::Moved(_) => samples.push(Sample { at: started.elapsed(), took: from.elapsed() }),
                Relayed::NotHolder => anyhow::bail!("the lease is over"),
            }
        }
        *self.relay.lock().expect("no holder panics") = relay;
        let lasted = started.elapsed();
        Ok(Run::new("outbox, 1 relay", lasted, samples).of_units(RELAY_BATCH))
    }

    async fn clean(&self, table: &'static str) -> anyhow::Result<()> {
        let text = match table {
            "raw_queue" => "VACUUM ANALYZE raw_queue",
            "work_wake_batches" => "VACUUM ANALYZE work_wake_batches",
            _ => "VACUUM ANALYZE outbox_batches",
        };
        self.store.execute(&sql("clean", text), &[]).await?;
        Ok(())
    }

    /// The rates again, once a million rows could not be cleaned up.
    async fn under_a_snapshot(&self, queue_before: f64, events_before: f64) -> anyhow::Result<()> {
        let patient = StoreConfig {
            idle_in_transaction_timeout: Duration::ZERO,
            ..self.database.store_config(Embedded::DATABASE)
        };
        let old = Store::open(patient).await?;
        let (release, released) = oneshot::channel::<()>();
        let (taken, is_taken) = oneshot::channel::<()>();
        let ends = &Mutex::new(Some((taken, released)));
        let holding = old.tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&sql("isolate", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), &[]).await?;
                tx.query(&sql("look", "SELECT count(*) FROM deployment"), &[]).await?;
                let ends = ends.lock().expect("no holder panics").take();
                if let Some((taken, released)) = ends {
                    let _ = taken.send(());
                    let _ = released.await;
                }
                Ok::<_, StoreError>(())
            })
        });
        let measuring = async {
            is_taken.await?;
            for _ in 0..DEAD / ROWS {
                self.fill_queue(ROWS).await?;
                self.drain_queue().await?;
                self.fill_events(ROWS).await?;
                self.drain_events().await?;
            }
            let (mut queue, mut events) = (Vec::new(), Vec::new());
            println!("\nwith an old snapshot and {DEAD} dead rows of each");
            for _ in 0..ROUNDS {
                say(&mut queue, self.queue().await?);
                say(&mut events, self.events().await?);
            }
            println!();
            let loss = |runs: &[Run], before: f64| (1.0 - median(runs) / before) * 100.0;
            Figure::of("queue: loss by an old snapshot", loss(&queue, queue_before), "%")
                .at_most(20.0, 10.0)
                .say()?;
            Figure::of("outbox: loss by an old snapshot", loss(&events, events_before), "%")
                .at_most(20.0, 10.0)
                .say()?;
            let _ = release.send(());
            Ok::<_, anyhow::Error>(())
        };
        let (held, measured) = tokio::join!(holding, measuring);
        measured?;
        Ok(held?)
    }
}

fn id() -> EventId {
    let rng: &dyn Rng = &OsRng;
    rng.id(Timestamp::from_millis(1))
}

fn event() -> Event {
    let id = id();
    Event {
        id,
        kind: "reservation.placed",
        subject: format!("reservation/{id}"),
        tenant_id: None,
        data: json!({ "state": "placed", "nodeId": id.to_string(), "atoms": ["GPU-0", "GPU-1"] }),
    }
}

/// The statements, by the time they took in all.
fn statements(registry: &Registry) -> anyhow::Result<()> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    let total = |name: &str, what: &str| -> f64 {
        let line = format!("store_statement_seconds_{what}{{statement=\"{name}\"}} ");
        text.lines()
            .find_map(|found| found.strip_prefix(&line))
            .and_then(|value| value.parse().ok())
            .unwrap_or(0.0)
    };
    println!("\nstatements: how many, the mean of one");
    for name in ["work_wake", "work_take", "outbox_append", "outbox_move", "commit"] {
        let count = total(name, "count");
        println!("  {name:<16} {count:>9.0} {:>9.0} us", total(name, "sum") * 1e6 / count.max(1.0));
    }
    Ok(())
}
