//! Durable reservations a second, as a caller sees them: from the call to the answer that names the node, booked and on the
//! disk. Releases come at the same rate, so that the pool stays as full as wanted, and every machine gets its signed spec and
//! answers it as an agent would.
//!
//! The bound is the same PostgreSQL on the same disk that inserts as many rows as one reservation writes in its life, in as
//! many transactions and in a single one; and pgbench that dequeues rows, beside the rows that ours writes a second.

use std::time::Duration;

use bench::figures::{Figure, Run, median, per_second};
use bench::{pgbench, probe, usage};
use store::embedded::Embedded;
use store::{Sql, Store, sql};

use crate::plane::Plane;
use crate::statements;

mod bound;
pub mod database;
mod load;
mod machines;
mod spent;

use database::{Counters, Table};
use load::{Load, Measured};
use machines::Machines;
use spent::Spent;

#[derive(clap::Args)]
pub struct Args {
    /// Machines of ten GPUs.
    #[arg(long, default_value_t = 1_000)]
    nodes: u32,
    /// Callers at once.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// How full the pool is kept.
    #[arg(long, default_value_t = 70)]
    occupancy_percent: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 12)]
    seconds: u64,
    /// How often ours and the bound take turns.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
}

/// What a long run is compared with need not last as long.
const BOUND_MAX: Duration = Duration::from_secs(30);
const RAW_TABLE: Sql = sql("raw_table", pgbench::TABLE);
const RAW_FILL: Sql = sql("raw_fill", pgbench::FILL);
const RAW_ROWS: usize = 100_000;
const RAW_CLIENTS: usize = 2;
const PROBE: Duration = Duration::from_secs(2);
/// One page of PostgreSQL's log, which is what a small commit writes.
const PROBE_BYTES: usize = 8192;
const TABLES_SHOWN: usize = 14;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let plane = Plane::start(dir.path(), &["api", "worker", "scheduler"])?;
    crate::runtime()?.block_on(measure(args, &plane, dir.path()))
}

async fn measure(args: &Args, plane: &Plane, dir: &std::path::Path) -> anyhow::Result<()> {
    let store = Store::open(plane.database.store_config(Embedded::DATABASE)).await?;
    let machines = Machines::make(plane, &store, args.nodes).await?;
    let load =
        Load::fill(plane, &machines, args.clients, args.nodes * machines::GPUS, args.occupancy_percent)
            .await?;
    statements::analyze(&store).await?;
    println!(
        "pool:    {} machines, {} GPUs, {} booked by {} reservations; {} callers",
        args.nodes,
        args.nodes * machines::GPUS,
        load.gpus_held(),
        load.held(),
        args.clients
    );
    let lasts = Duration::from_secs(args.seconds);
    let (mut ours, mut in_parts, mut at_once, mut raw) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..args.rounds {
        println!("{}", probe::append_and_sync(dir, PROBE_BYTES, 1, PROBE)?);
        let seen = one(plane, &store, &load, lasts).await?;
        let (rows, transactions) = (seen.rows_each(), seen.transactions_each());
        last = Some(seen);
        let lasts = (lasts / 2).min(BOUND_MAX);
        let run = bound::run(&store, args.clients, rows, transactions, lasts).await?;
        println!("{run}");
        in_parts.push(run);
        let run = bound::run(&store, args.clients, rows, 1.0, lasts).await?;
        println!("{run}");
        at_once.push(run);
        let run = dequeue(plane, &store, dir).await?;
        println!("{run}");
        raw.push(run);
        ours.extend(last.as_ref().map(|seen| seen.placed.clone()));
    }
    let seen = last.ok_or_else(|| anyhow::anyhow!("no round was asked for"))?;
    seen.explain();
    println!("\nratios, of the medians");
    let rate = median(&ours);
    println!("reservations / as many rows in as many transactions   {:.2}", rate / median(&in_parts));
    println!("reservations / as many rows in one transaction        {:.2}", rate / median(&at_once));
    let slowest =
        ours.iter().map(|run| run.slowest() / run.rate()).min_by(f64::total_cmp).unwrap_or_default();
    Figure::rate("reservations, created through the API", "/s", &ours)
        .beside("as many rows in as many transactions", median(&in_parts))
        .at_least(1_500.0, 5_000.0)
        .say()?;
    Figure::of("reservations: slowest part of the mean", slowest * 100.0, "%").at_least(90.0, 90.0).say()?;
    Figure::of("reservations: rows written", rate * seen.rows_each(), "rows/s")
        .beside(format!("pgbench, {} rows SKIP LOCKED, {RAW_CLIENTS} clients", pgbench::BATCH), median(&raw))
        .say()
}

async fn dequeue(plane: &Plane, store: &Store, dir: &std::path::Path) -> anyhow::Result<Run> {
    store.execute(&RAW_TABLE, &[]).await?;
    store.execute(&RAW_FILL, &[&i64::try_from(RAW_ROWS)?]).await?;
    // A database of this run alone, gone with it.
    let url = plane.database.url(Embedded::DATABASE).reveal().to_owned();
    let (server, dir) = (plane.database.pid(), dir.to_owned());
    tokio::task::spawn_blocking(move || pgbench::dequeue(server, &url, &dir, RAW_ROWS, RAW_CLIENTS)).await?
}

/// One run, with what it took of the database and of the processors.
struct Seen {
    placed: Run,
    released: Run,
    waited: usize,
    counters: Counters,
    server_cpu: Duration,
    database_cpu: Duration,
    load_cpu: Duration,
    settled_after: Duration,
    spent: Spent,
    tables: Vec<Table>,
}

async fn one(plane: &Plane, store: &Store, load: &Load, lasts: Duration) -> anyhow::Result<Seen> {
    let (server, database, own) = (plane.server.pid(), plane.database.pid(), std::process::id());
    let before = (usage::of(server)?.cpu, usage::cpu_of_tree(database)?, usage::of(own)?.cpu);
    let (counted, spent) = (Counters::read(store).await?, Spent::read(&plane.api).await?);
    let tables = database::tables(store).await?;
    let Measured { placed, released, waited, settled_after } = load.churn(lasts).await?;
    let spent = Spent::read(&plane.api).await?.since(&spent);
    let counters = Counters::read(store).await?.since(&counted);
    let after = (usage::of(server)?.cpu, usage::cpu_of_tree(database)?, usage::of(own)?.cpu);
    println!("{placed}");
    println!("{released}");
    Ok(Seen {
        placed,
        released,
        waited,
        counters,
        server_cpu: after.0.saturating_sub(before.0),
        database_cpu: after.1.saturating_sub(before.1),
        load_cpu: after.2.saturating_sub(before.2),
        settled_after,
        spent,
        tables: database::tables_since(database::tables(store).await?, &tables),
    })
}

impl Seen {
    fn each(&self, total: u64) -> f64 {
        total as f64 / self.placed.samples.len().max(1) as f64
    }

    fn rows_each(&self) -> f64 {
        self.each(self.counters.rows)
    }

    fn transactions_each(&self) -> f64 {
        self.each(self.counters.writing_transactions)
    }

    fn explain(&self) {
        let counters = &self.counters;
        println!("\nthe last run, for each reservation from its creation to the end of its release");
        println!("rows written                 {:>8.1}", self.rows_each());
        println!("transactions that write      {:>8.1}", self.transactions_each());
        println!("transactions in all          {:>8.1}", self.each(counters.transactions));
        println!("rows read by an index        {:>8.1}", self.each(counters.rows_fetched));
        println!("rows read by scanning        {:>8.1}", self.each(counters.rows_scanned));
        println!("log written                  {:>8.0} bytes", self.each(counters.log_bytes));
        println!("fsyncs of the log            {:>8.2}", self.each(counters.log_syncs));
        let cpu = |cpu: Duration| {
            format!("{:.0} us", cpu.as_secs_f64() * 1e6 / self.placed.samples.len().max(1) as f64)
        };
        println!("CPU of the control plane     {:>8}", cpu(self.server_cpu));
        println!("CPU of PostgreSQL            {:>8}", cpu(self.database_cpu));
        println!("CPU of callers and machines  {:>8}", cpu(self.load_cpu));
        println!(
            "rows written a second        {:>8.0}",
            per_second(self.counters.rows as usize, self.placed.lasted)
        );
        println!("releases asked for a second  {:>8.0}", self.released.rate());
        println!("creates that had to wait     {:>8}", self.waited);
        println!(
            "every spec signed, every machine's answer handled {:.2} s after the last call",
            self.settled_after.as_secs_f64()
        );
        self.spent.say(self.placed.samples.len());
        println!(
            "\nbusiest tables, for each reservation: rows written, scans, rows scanned, rows found by an index"
        );
        let each = |count: i64| count as f64 / self.placed.samples.len().max(1) as f64;
        for table in self.tables.iter().take(TABLES_SHOWN) {
            println!(
                "  {:<28} {:>7.1} {:>7.1} {:>9.1} {:>9.1}",
                table.name,
                each(table.written),
                each(table.scans),
                each(table.scanned),
                each(table.fetched),
            );
        }
    }
}
