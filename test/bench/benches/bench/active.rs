//! From the call that creates a reservation to the commit that makes it active: booked, its node's spec signed and delivered, bound by
//! the node's agent, reported, and taken up by a worker.
//!
//! Agents are the daemon's own on simulated hardware, each with its journal on the disk. Calls come at a rate, whether or not earlier
//! ones are done, and each is counted from the moment at which it was due.

use std::path::Path;
use std::time::{Duration, Instant};

use bench::figures::{Figure, Run, Sample, short};
use bench::{probe, usage};
use store::embedded::Embedded;
use store::{Secret, Store};

use crate::plane::Plane;
use crate::reservations::database::Counters;
use crate::statements::{self, Statement};

mod agents;
mod calls;
mod stages;

use agents::Agents;
use calls::Calls;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 1_000)]
    agents: u32,
    /// Reservations a second, one run each.
    #[arg(long, value_delimiter = ',', default_values_t = [50, 200])]
    rates: Vec<u32>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 15)]
    seconds: u32,
    /// Says which statements the database's time goes to, those of triggers too. Counting them costs it some.
    #[arg(long)]
    statements: bool,
}

/// What has to be on a disk before the next can begin, from the call to a reservation that is active. The environment file is in `/run` of
/// a machine, which costs nothing there and is on the disk here.
const DURABLE_STEPS: [&str; 10] = [
    "the booking",
    "the signed spec",
    "the spec in the node's journal",
    "the hold's environment file",
    "its folder",
    "the hold's CDI file",
    "its folder",
    "the report in the node's journal",
    "the stored report",
    "the reservation's state",
];
/// Of which the database commits.
const COMMITS: usize = 4;
/// Made one after another with nothing else to do, to count what each takes.
const ALONE: u32 = 30;
const PROBE: Duration = Duration::from_secs(2);
/// One page of PostgreSQL's log, which is what a small commit writes.
const PROBE_BYTES: usize = 8192;
const STATEMENTS_SHOWN: usize = 40;
const SLOWEST_SHOWN: usize = 10;
/// The rate at which the gate is held; the goal is held at the other.
const RATE_OF_GATE: u32 = 50;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let roles = ["api", "worker", "scheduler", "gateway"];
    let plane = match args.statements {
        true => Plane::start_counting(dir.path(), &roles)?,
        false => Plane::start(dir.path(), &roles)?,
    };
    crate::runtime()?.block_on(measure(args, &plane, dir.path()))
}

async fn measure(args: &Args, plane: &Plane, dir: &Path) -> anyhow::Result<()> {
    let mut config = plane.database.store_config(Embedded::DATABASE);
    // The look at what has become active comes 250 times a second: planned each time, it takes a part of what it measures.
    config.url =
        Secret::new(format!("{}?options=-c%20plan_cache_mode%3Dforce_generic_plan", config.url.reveal()));
    let store = Store::open(config).await?;
    let started = Instant::now();
    let agents = Agents::start(plane, &store, dir, args.agents).await?;
    println!("{} agents offer their GPUs after {:.1} s", args.agents, started.elapsed().as_secs_f64());
    let calls = Calls::new(plane, &store).await?;
    let started = Instant::now();
    // A node's first spec is bound to it, which is part of no later one.
    calls.each_node_once(args.agents).await?;
    println!("each held something once after {:.1} s", started.elapsed().as_secs_f64());
    statements::analyze(&store).await?;
    alone(&calls, &store).await?;
    for &rate in &args.rates {
        let before = probe::append_and_sync(dir, PROBE_BYTES, 1, PROBE)?;
        println!("{before}");
        let asked = if args.statements { statements::read(&store).await? } else { Vec::new() };
        let spent = Spent::read(plane, &agents)?;
        let run = calls.at_rate(rate, rate * args.seconds).await?;
        if args.statements {
            say_statements(statements::since(statements::read(&store).await?, &asked), run.samples.len());
        }
        let spent = Spent::read(plane, &agents)?.since(&spent);
        println!("{run}");
        say_slowest(&run);
        stages::say(&store, &calls.ids()).await?;
        spent.say(&run);
        let after = probe::append_and_sync(dir, PROBE_BYTES, 1, PROBE)?;
        println!("{after}");
        say(rate, args.agents, &run, before.percentile(99).max(after.percentile(99)), before.percentile(50))?;
        calls.release_all().await?;
    }
    Ok(())
}

/// When the slowest ended: at one time, or spread over the run.
fn say_slowest(run: &Run) {
    let mut samples = run.samples.clone();
    samples.sort_by_key(|sample| std::cmp::Reverse(sample.took));
    samples.truncate(SLOWEST_SHOWN);
    samples.sort_by_key(|sample| sample.at);
    let each = samples.iter().map(|one| format!("{} at {:.1} s", short(one.took), one.at.as_secs_f64()));
    println!("  the slowest: {}", each.collect::<Vec<_>>().join(", "));
}

/// Which statements take most, for each reservation.
fn say_statements(mut all: Vec<Statement>, count: usize) {
    let each = |of: f64| of / count.max(1) as f64;
    let outer: f64 = all.iter().filter(|one| one.outer).map(|one| one.ms).sum();
    println!("  statements for each: {:.2} ms of execution and planning", each(outer));
    all.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    for one in all.iter().take(STATEMENTS_SHOWN) {
        let inner = if one.outer { "" } else { "  (in one above)" };
        println!("  {:>8.3} ms {:>7.2} calls   {}{inner}", each(one.ms), each(one.calls as f64), one.text);
    }
}

/// What each takes by itself, and how often the database's log is synced for it.
async fn alone(calls: &Calls, store: &Store) -> anyhow::Result<()> {
    let started = Instant::now();
    let resting = Counters::read(store).await?;
    let busy = Counters::read(store).await?;
    let (rested, rest) = (started.elapsed(), busy.since(&resting));
    let started = Instant::now();
    let run = calls.one_by_one(ALONE).await?;
    let counted = Counters::read(store).await?.since(&busy);
    let share = started.elapsed().as_secs_f64() / rested.as_secs_f64();
    let syncs = (counted.log_syncs as f64 - rest.log_syncs as f64 * share) / f64::from(ALONE);
    println!("{run}");
    println!(
        "  {syncs:.1} fsyncs of the database's log for each, {COMMITS} of them one after the other: with the node's {}, k = {}",
        DURABLE_STEPS.len() - COMMITS,
        DURABLE_STEPS.len(),
    );
    println!("  k: {}", DURABLE_STEPS.join(", "));
    stages::say(store, &calls.ids()).await?;
    calls.release_all().await
}

fn say(rate: u32, agents: u32, run: &Run, sync: Duration, sync_p50: Duration) -> anyhow::Result<()> {
    let k = DURABLE_STEPS.len() as u32;
    let over = run.percentile(99).saturating_sub(sync * k);
    let held = if rate > RATE_OF_GATE { "; the gate is one of 50/s" } else { "" };
    Figure::of(
        format!("place to active at {rate}/s: p99 over its durable steps"),
        over.as_secs_f64() * 1e3,
        "ms",
    )
    .times(run.percentile(50), run.percentile(99))
    .slowest(run.percentile(100).as_secs_f64() * 1e3)
    .at_most(50.0, 20.0)
    .note(format!(
        "{agents} agents, {:.0}/s done; k = {k} x fdatasync p99 {} taken off; fdatasync p50 {}{held}",
        run.rate(),
        short(sync),
        short(sync_p50),
    ))
    .say()
}

/// Processor time so far.
struct Spent {
    plane: Duration,
    database: Duration,
    agents: Duration,
    own: Duration,
}

impl Spent {
    fn read(plane: &Plane, agents: &Agents) -> anyhow::Result<Self> {
        Ok(Self {
            plane: usage::of(plane.server.pid())?.cpu,
            database: usage::cpu_of_tree(plane.database.pid())?,
            agents: usage::of(agents.pid())?.cpu,
            own: usage::of(std::process::id())?.cpu,
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            plane: self.plane.saturating_sub(earlier.plane),
            database: self.database.saturating_sub(earlier.database),
            agents: self.agents.saturating_sub(earlier.agents),
            own: self.own.saturating_sub(earlier.own),
        }
    }

    fn say(&self, run: &Run) {
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e3 / run.samples.len().max(1) as f64;
        println!(
            "  CPU of each: {:.1} ms of the control plane, {:.1} ms of PostgreSQL, {:.1} ms of the agents, {:.1} ms of the callers",
            each(self.plane),
            each(self.database),
            each(self.agents),
            each(self.own),
        );
    }
}

/// A sample that ended now.
fn sample(run_began: Instant, due: Instant) -> Sample {
    Sample { at: run_began.elapsed(), took: due.elapsed() }
}
