//! How long a node is without a session when its gateway is killed, stopped, or cut off. Three gateways behind a relay, real agents,
//! sessions that are rows of PostgreSQL: a node has recovered when its next session is committed.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bench::figures::{Figure, Run, Sample};
use kit::{Clock, SystemClock};
use serde_json::Value;

use super::agents::{Recovery, Stages};
use super::database::Database;
use super::gateway;
use crate::sessions::part::Process;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 3_000)]
    agents: u64,
    /// Processes that the agents are spread over.
    #[arg(long, default_value_t = 3)]
    processes: u64,
    /// Which of kill, stop and cut; all of them when none is named.
    #[arg(long)]
    only: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fault {
    Kill,
    Stop,
    Cut,
}

const GATEWAYS: u64 = 3;
const CONNECTED_WITHIN: Duration = Duration::from_secs(180);
/// Well over the gate, to see how far it is missed.
const RECOVERED_WITHIN: Duration = Duration::from_secs(75);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Heartbeats are under way, and each gateway's sessions are old ones.
const SETTLES: Duration = Duration::from_secs(12);
/// A session that ended is closed in the database, or another is opened, well within it.
const SPREADS: Duration = Duration::from_secs(4);

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let made = SystemClock::new().now();
    let at = made.millis().to_string();
    let database = Database::start(dir.path(), args.agents, made)?;
    let runtime = crate::runtime()?;
    let mut gateways = (1..=GATEWAYS)
        .map(|number| gateway(number, &at, &database.url()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut relay = vec!["relay", &at];
    relay.extend(gateways.iter().map(|(_, address)| address.as_str()));
    let mut relay = Process::start(&relay)?;
    let address = relay.hear()?.as_str().context("the relay says where it listens")?.to_owned();
    let share = args.agents / args.processes;
    let mut agents = (0..args.processes)
        .map(|number| {
            Process::start(&["agents", &(number * share).to_string(), &share.to_string(), &at, &address])
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    agents.iter_mut().try_for_each(|one| one.hear().map(drop))?;
    let wanted = i64::try_from(share * args.processes)?;
    println!("{wanted} agents connected in {:.1} s", connected(&runtime, &database, wanted)?.as_secs_f64());
    for (number, fault) in [Fault::Kill, Fault::Stop, Fault::Cut].into_iter().enumerate() {
        if args.only.is_some_and(|only| only != fault) {
            continue;
        }
        std::thread::sleep(SETTLES);
        let id = number as u64 + 1;
        let held = runtime.block_on(database.held_by(id))?;
        ensure!(!held.0.is_empty(), "gateway {id} holds no session");
        come_back(&mut agents)?;
        let cpu = crate::sessions::cpu_of(&agents)?;
        let (from, noted) = (runtime.block_on(database.now())?, SystemClock::new().now().micros());
        let (process, _) = &mut gateways[number];
        match fault {
            Fault::Kill => process.kill()?,
            Fault::Stop => signal("STOP", process.pid())?,
            Fault::Cut => tell(&mut relay, &format!("cut {number}"))?,
        }
        let started = Instant::now();
        let took = loop {
            let moved = runtime.block_on(database.moved(&held, from))?;
            if moved.len() == held.0.len() || started.elapsed() > RECOVERED_WITHIN {
                break moved;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        if fault == Fault::Stop {
            // What wakes up past its lease must find that out by itself.
            signal("CONT", gateways[number].0.pid())?;
        }
        let theirs = crate::sessions::cpu_of(&agents)?.saturating_sub(cpu);
        say(fault, &took, held.0.len(), started.elapsed(), theirs)?;
        Stages::of(come_back(&mut agents)?, noted).say(noted);
        gateways[number].0.kill()?;
        gateways[number] = gateway(10 + id, &at, &database.url())?;
        tell(&mut relay, &format!("set {number} {}", gateways[number].1))?;
        // Each fault finds a third of the nodes.
        std::thread::sleep(SETTLES);
        tell(&mut relay, "spread")?;
        std::thread::sleep(SPREADS);
        connected(&runtime, &database, wanted)?;
    }
    Ok(())
}

/// Waits until so many sessions are open.
fn connected(
    runtime: &tokio::runtime::Runtime,
    database: &Database,
    wanted: i64,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    while runtime.block_on(database.open_sessions())? < wanted {
        ensure!(started.elapsed() < CONNECTED_WITHIN, "not all agents connected within {CONNECTED_WITHIN:?}");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(started.elapsed())
}

/// Agents that did since this was last asked.
fn come_back(agents: &mut [Process]) -> anyhow::Result<Vec<Recovery>> {
    agents.iter_mut().try_for_each(Process::go)?;
    let mut all = Vec::new();
    for one in agents {
        all.extend(serde_json::from_value::<Vec<Recovery>>(one.hear()?)?);
    }
    Ok(all)
}

fn say(
    fault: Fault,
    took: &[Duration],
    nodes: usize,
    lasted: Duration,
    agents: Duration,
) -> anyhow::Result<()> {
    let (name, gate, goal) = match fault {
        Fault::Kill => ("recovery from a killed gateway, p99", 5.0, 2.0),
        Fault::Stop => ("recovery from a gateway that stands still, p99", 35.0, 15.0),
        Fault::Cut => ("recovery from a gateway that is cut off, p99", 35.0, 15.0),
    };
    // Those that have not recovered count as long as was waited.
    let lost = nodes - took.len();
    let samples = took.iter().copied().chain(std::iter::repeat_n(lasted, lost));
    let run = Run::new(name, lasted, samples.map(|took| Sample { at: took, took }).collect());
    println!("{run}");
    Figure::of(name, run.percentile(99).as_secs_f64(), "s")
        .times(run.percentile(50), run.percentile(99))
        .at_most(gate, goal)
        .note(format!(
            "{nodes} of its nodes, {lost} of them not back after {:.0} s, in which all agents took {:.1} s of the same cores",
            lasted.as_secs_f64(),
            agents.as_secs_f64(),
        ))
        .say()
}

fn tell(relay: &mut Process, order: &str) -> anyhow::Result<()> {
    relay.tell(order)?;
    match relay.hear()? {
        Value::String(done) if done == "done" => Ok(()),
        other => bail!("the relay says {other}"),
    }
}

fn signal(name: &str, pid: u32) -> anyhow::Result<()> {
    // By the tool that every system has, to need no unsafe code and no crate for one signal.
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status()?;
    ensure!(status.success(), "kill -{name} {pid} failed");
    Ok(())
}
