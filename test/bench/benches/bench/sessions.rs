//! What a gateway's session takes: memory, and processor time to connect and for a heartbeat. The gateway is in a process of its
//! own with its deliveries in memory, so that the figures are its alone; the nodes are in others.
//!
//! The bound is a program that does the same handshakes with the same certificates and then only holds the connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bench::figures::{Figure, Run, Sample, median};
use bench::usage::{self, Usage};
use kit::{Clock, SystemClock};
use model::Timestamp;
use serde_json::Value;

pub mod handshake;
pub mod identities;
pub mod nodes;
pub mod part;
mod serving;

use crate::gateways::{agents, machines, relay};
use part::Process;

#[derive(clap::Args)]
pub struct Args {
    /// Sessions in all.
    #[arg(long, default_value_t = 5_000)]
    sessions: u64,
    /// Processes that the nodes are spread over.
    #[arg(long, default_value_t = 2)]
    processes: u64,
    /// How often ours and the bound take turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// A process that this benchmark starts.
#[derive(clap::Args)]
pub struct Part {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Gateway {
        sessions: u64,
        at: i64,
    },
    /// A gateway over PostgreSQL, whose address is in the environment.
    Over {
        number: u64,
        at: i64,
    },
    Bare {
        at: i64,
    },
    Relay {
        at: i64,
        gateways: Vec<SocketAddr>,
    },
    Agents {
        first: u64,
        count: u64,
        at: i64,
        gateway: SocketAddr,
    },
    Machines {
        first: u64,
        count: u64,
        at: i64,
    },
    Nodes {
        address: SocketAddr,
        first: u64,
        count: u64,
        at: i64,
        #[arg(action = clap::ArgAction::Set)]
        bare: bool,
    },
}

impl Part {
    pub fn run(self) -> anyhow::Result<()> {
        let at = Timestamp::from_millis;
        crate::runtime()?.block_on(async {
            match self.what {
                What::Gateway { sessions, at: made } => serving::in_memory(sessions, at(made)).await,
                What::Over { number, at: made } => {
                    serving::over_postgres(number, at(made), &std::env::var(part::DATABASE)?).await
                }
                What::Relay { at: made, gateways } => relay::run(gateways, at(made)).await,
                What::Agents { first, count, at: made, gateway } => {
                    agents::run(first..first + count, at(made), gateway).await
                }
                What::Machines { first, count, at: made } => {
                    machines::run(first..first + count, at(made)).await
                }
                What::Bare { at: made } => serving::bare(at(made)).await,
                What::Nodes { address, first, count, at: made, bare } => {
                    nodes::run(address, first..first + count, at(made), bare).await
                }
            }
        })
    }
}

/// Of each node in a run.
const BEATS: u64 = nodes::ROUNDS;

pub fn run(args: &Args) -> anyhow::Result<()> {
    crate::say_machine(&std::env::temp_dir())?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        ours.push(Seen::of(args, false)?);
        bare.push(Seen::of(args, true)?);
    }
    let at = SystemClock::new().now();
    let (both, server) = handshake::raw(at, Duration::from_secs(3))?;
    println!("{both}");
    println!("{:<44} {:>9.0}/s a core", "raw handshakes, the server's half", 1.0 / server.as_secs_f64());

    println!("\nratios, of the medians");
    let middle = |of: fn(&Seen) -> f64, seen: &[Seen]| {
        let mut all: Vec<f64> = seen.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let resident = |seen: &[Seen]| middle(|seen| seen.resident_each, seen);
    let cpu = |seen: &[Seen]| middle(|seen| seen.cpu_each, seen);
    println!("CPU to connect / to accept a bare connection    {:.2}", cpu(&ours) / cpu(&bare));
    println!(
        "CPU to connect / a raw handshake's server half  {:.2}",
        cpu(&ours) / (server.as_secs_f64() * 1e6)
    );
    Figure::of("gateway: memory of a session", resident(&ours), "KiB")
        .beside("a bare TLS connection", resident(&bare))
        .at_most(40.0, 24.0)
        .note(format!("{} sessions", args.sessions))
        .say()?;
    Figure::of("gateway: CPU of a heartbeat", middle(|seen| seen.cpu_beat, &ours), "us")
        .at_most(40.0, 20.0)
        .say()?;
    let rates = |seen: Vec<Seen>| median(&seen.into_iter().map(|seen| seen.connected).collect::<Vec<_>>());
    println!("connections a second / bare                     {:.2}", rates(ours) / rates(bare));
    Ok(())
}

/// A program that holds one TLS connection with a certificate of its own, and does nothing.
pub struct Connection {
    node: Process,
    _server: Process,
}

impl Connection {
    pub fn open() -> anyhow::Result<Self> {
        let at = SystemClock::new().now().millis().to_string();
        let mut server = Process::start(&["bare", &at])?;
        let address = server.hear()?;
        let mut node =
            Process::start(&["nodes", address.as_str().unwrap_or_default(), "0", "1", &at, "true"])?;
        node.hear()?;
        node.go()?;
        node.hear()?;
        Ok(Self { node, _server: server })
    }

    pub fn pid(&self) -> u32 {
        self.node.pid()
    }
}

/// One run: a server and the processes of its nodes.
struct Seen {
    connected: Run,
    /// KiB of the server.
    resident_each: f64,
    /// Microseconds of the server.
    cpu_each: f64,
    /// Microseconds of the server for each heartbeat; zero where there are none.
    cpu_beat: f64,
}

impl Seen {
    fn of(args: &Args, bare: bool) -> anyhow::Result<Self> {
        let at = SystemClock::new().now().millis().to_string();
        let mut server = match bare {
            false => Process::start(&["gateway", &args.sessions.to_string(), &at])?,
            true => Process::start(&["bare", &at])?,
        };
        let address = server.hear()?;
        let address = address.as_str().unwrap_or_default();
        let share = args.sessions / args.processes;
        let mut nodes = (0..args.processes)
            .map(|at_process| {
                let (first, count) = ((at_process * share).to_string(), share.to_string());
                Process::start(&["nodes", address, &first, &count, &at, if bare { "true" } else { "false" }])
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        hear_all(&mut nodes)?;
        let idle = usage::of(server.pid())?;
        let started = Instant::now();
        say_all(&mut nodes)?;
        let told = hear_all(&mut nodes)?;
        let connected = Run::new(name("connect", bare), started.elapsed(), samples(&told));
        println!("{connected}");
        let open = usage::of(server.pid())?;
        let sessions = (share * args.processes) as f64;
        let mut seen = Self {
            connected,
            resident_each: grown(&idle, &open) / sessions,
            cpu_each: (open.cpu - idle.cpu).as_secs_f64() * 1e6 / sessions,
            cpu_beat: 0.0,
        };
        println!(
            "  {:.1} KiB and {:.0} us CPU each, of the server; {:.0} us of the nodes; the empty server has {:.1} MiB",
            seen.resident_each,
            seen.cpu_each,
            cpu_of(&nodes)?.as_secs_f64() * 1e6 / sessions,
            idle.resident_bytes as f64 / 1048576.0,
        );
        if !bare {
            seen.cpu_beat = beat(&mut nodes, &server, &idle, &open, sessions)?;
        }
        Ok(seen)
    }
}

/// Gives the server's microseconds for each.
fn beat(
    nodes: &mut [Process],
    server: &Process,
    idle: &Usage,
    open: &Usage,
    sessions: f64,
) -> anyhow::Result<f64> {
    let before = cpu_of(nodes)?;
    let started = Instant::now();
    say_all(nodes)?;
    let told = hear_all(nodes)?;
    // A sample is a round of one process: every node says its beat and hears that it was heard.
    let lasted = started.elapsed();
    let beaten = usage::of(server.pid())?;
    let beats = sessions * BEATS as f64;
    let rounds = Run::new("heartbeats, by rounds of all", lasted, samples(&told));
    println!(
        "{:<44} {:>9.0}/s   a round: p50 {}, max {}",
        "heartbeats",
        beats / lasted.as_secs_f64(),
        bench::figures::short(rounds.percentile(50)),
        bench::figures::short(rounds.percentile(100)),
    );
    let each = (beaten.cpu - open.cpu).as_secs_f64() * 1e6 / beats;
    println!(
        "  {each:.1} us CPU each, of the server; {:.1} us of the nodes; {:.1} KiB a session after them",
        (cpu_of(nodes)? - before).as_secs_f64() * 1e6 / beats,
        grown(idle, &beaten) / sessions,
    );
    Ok(each)
}

fn name(what: &str, bare: bool) -> String {
    match bare {
        false => format!("gateway: {what}"),
        true => format!("bare TLS: {what}"),
    }
}

/// KiB.
fn grown(from: &Usage, to: &Usage) -> f64 {
    to.resident_bytes.saturating_sub(from.resident_bytes) as f64 / 1024.0
}

pub fn cpu_of(nodes: &[Process]) -> anyhow::Result<Duration> {
    let mut all = Duration::ZERO;
    for one in nodes {
        all += usage::of(one.pid())?.cpu;
    }
    Ok(all)
}

fn say_all(nodes: &mut [Process]) -> anyhow::Result<()> {
    nodes.iter_mut().try_for_each(Process::go)
}

fn hear_all(nodes: &mut [Process]) -> anyhow::Result<Vec<Value>> {
    nodes.iter_mut().map(Process::hear).collect()
}

/// `[[at, took], …]` in microseconds, of each process.
pub fn samples(told: &[Value]) -> Vec<Sample> {
    let pairs = told.iter().filter_map(Value::as_array).flatten();
    let micros = |pair: &Value, at: usize| Duration::from_micros(pair[at].as_u64().unwrap_or(0));
    pairs.map(|pair| Sample { at: micros(pair, 0), took: micros(pair, 1) }).collect()
}
