//! A fleet that comes back at one instant: its gateway was killed, another one stands there, and every node has a session to take
//! over, durable before it is welcome.
//!
//! The bound is what the cryptography of the handshakes takes alone. Nodes, gateway and database share the processors, so what the
//! nodes took is taken off.

use std::time::Duration;

use bench::figures::Figure;
use bench::{probe, usage};
use kit::{Clock, SystemClock};

use super::database::{self, Database};
use super::{Fleet, gateway, openssl};
use crate::sessions::handshake;
use crate::statements;

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 5_000)]
    sessions: u64,
    /// Processes that the nodes are spread over.
    #[arg(long, default_value_t = 2)]
    processes: u64,
    /// How often the gateway is killed.
    #[arg(long, default_value_t = 2)]
    rounds: u64,
}

const PROBE: Duration = Duration::from_secs(1);
const PROBE_BYTES: usize = 8192;
const HEARTBEAT: Duration = Duration::from_secs(10);
const SHOWN: usize = 16;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let made = SystemClock::new().now();
    let at = made.millis().to_string();
    let database = Database::start(dir.path(), args.sessions, made)?;
    let mut fleet = Fleet::start(args.sessions, args.processes, &at)?;
    println!("{}", probe::append_and_sync(dir.path(), PROBE_BYTES, 1, PROBE)?);
    let (mut process, address) = gateway(1, &at, &database.url())?;
    println!("{}", fleet.connect("first sessions", &address, HEARTBEAT)?);
    let runtime = crate::runtime()?;
    runtime.block_on(statements::analyze(&database.store))?;
    let cores = std::thread::available_parallelism()?.get() as f64;
    let mut seen = Vec::new();
    for round in 0..args.rounds {
        process.kill()?;
        let address;
        (process, address) = gateway(2 + round, &at, &database.url())?;
        let before =
            (fleet.cpu()?, usage::of(process.pid())?.cpu, usage::cpu_of_tree(database.embedded.pid())?);
        let statements = runtime.block_on(database.statements())?;
        let run = fleet.connect("reconnect storm", &address, HEARTBEAT)?;
        let after =
            (fleet.cpu()?, usage::of(process.pid())?.cpu, usage::cpu_of_tree(database.embedded.pid())?);
        let open = runtime.block_on(database.open_sessions())?;
        anyhow::ensure!(open == i64::try_from(fleet.nodes)?, "{open} sessions are open in the database");
        println!("{run}");
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / fleet.nodes as f64;
        let (nodes, ours, theirs) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        println!(
            "  CPU of each: {:.0} us of the gateway, {:.0} us of PostgreSQL, {:.0} us of the node",
            each(ours),
            each(theirs),
            each(nodes)
        );
        if round + 1 == args.rounds {
            let statements = statements::since(runtime.block_on(database.statements())?, &statements);
            database::say_statements(&statements, run.lasted, SHOWN);
        }
        // Core-seconds that were not the nodes'.
        let left = run.lasted.as_secs_f64() * cores - nodes.as_secs_f64();
        seen.push(Storm {
            rate: fleet.nodes as f64 / left.max(f64::EPSILON),
            cpu: Duration::from_secs_f64((ours + theirs).as_secs_f64() / fleet.nodes as f64),
            run,
        });
    }
    println!("{}", probe::append_and_sync(dir.path(), PROBE_BYTES, 1, PROBE)?);
    seen.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    let middle = &seen[seen.len() / 2];
    let (what, half) = match openssl::handshake() {
        Some(half) => ("openssl speed, the server's half of a handshake", half),
        None => ("raw handshakes, the server's half", handshake::raw(made, Duration::from_secs(3))?.1),
    };
    Figure::of("reconnect storm: sessions a second of a core that the nodes left", middle.rate, "/s")
        .beside(what, 1.0 / half.as_secs_f64())
        .times(middle.run.percentile(50), middle.run.percentile(99))
        .slowest(middle.run.slowest())
        .ratio_at_least(0.2, 0.35)
        .note(format!(
            "{} sessions at {:.0}/s in all; gateway and PostgreSQL took {:.0} us of CPU each, which is {:.2} of the bound",
            fleet.nodes,
            middle.run.rate(),
            middle.cpu.as_secs_f64() * 1e6,
            half.as_secs_f64() / middle.cpu.as_secs_f64(),
        ))
        .say()
}

struct Storm {
    rate: f64,
    /// Of gateway and database, for one session.
    cpu: Duration,
    run: bench::figures::Run,
}
