//! What a daemon takes that has nothing to do: memory, processor time and wake-ups. The real one joins a local control plane with
//! this machine's own inventory, in a mount namespace where it finds a copy of `/etc`; the simulated one has hardware that is
//! cheap to read, so that the difference is what reading the hardware costs.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use bench::figures::Figure;
use bench::usage::{self, Usage};
use serde_json::json;

use crate::plane::Plane;
use crate::program::{self, Running};
use crate::sessions::Connection;

#[derive(clap::Args)]
pub struct Args {
    /// Seconds to watch each for.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Ten minutes each.
    #[arg(long)]
    long: bool,
}

/// Joining, the checks of acceptance, and what a runtime gives back after its start.
const SETTLES: Duration = Duration::from_secs(12);
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs what follows where `/etc` is a copy and `/run` is empty.
const APART: &str = "mount --make-rprivate / && mount --bind \"$1\" /etc && mount -t tmpfs tmpfs /run && shift && exec \"$@\"";

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = crate::folder()?;
    crate::say_machine(dir.path())?;
    let lasts = Duration::from_secs(if args.long { 600 } else { args.seconds });
    let plane = Plane::start(dir.path(), &["api", "worker", "scheduler", "gateway"])?;
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        let admin = plane.admin()?;
        admin.ok("sites.create", json!({ "name": "bench" })).await?;
        admin.ok("pools.create", json!({ "name": "gpu", "class": "gpu" })).await
    })?;
    Figure::of("bcd: binary, code and data without symbols", mib(program_bytes("bcd")?), "MiB")
        .at_most(20.0, 12.0)
        .say()?;

    let bound = Connection::open()?;
    let bare = watch("bound: a program with one TLS connection", bound.pid(), lasts)?;
    drop(bound);
    let simulated = simulated(&plane, &dir.path().join("sim"), &runtime)?;
    let host = host(&plane, &dir.path().join("host"), &runtime)?;
    wait_ready(&plane, &runtime, 2)?;
    std::thread::sleep(SETTLES);
    // Both at once: they are idle, and so is the rest.
    std::thread::scope(|scope| {
        let one = scope.spawn(|| watch("bcd sim, 1 machine", simulated.pid(), lasts));
        let node = watch("bcd node, this machine's inventory", host.pid(), lasts)?;
        one.join().map_err(|_| anyhow::anyhow!("watching failed"))??;
        Figure::of("bcd node, idle: resident memory", mib(node.resident_p50), "MiB")
            .beside("a program with one TLS connection", mib(bare.resident_p50))
            .slowest(mib(node.resident_max))
            .at_most(12.0, 8.0)
            .note(format!(
                "PSS {:.1} MiB, of the bound {:.1}",
                mib(node.proportional),
                mib(bare.proportional)
            ))
            .say()?;
        Figure::of("bcd node, idle: CPU of a core", node.cpu_percent, "%")
            .slowest(node.cpu_percent_max)
            .at_most(0.3, 0.1)
            .note(format!("{:.1} wake-ups a second; slowest is the busiest second", node.wakeups))
            .say()
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}

struct Watched {
    resident_p50: u64,
    resident_max: u64,
    proportional: u64,
    cpu_percent: f64,
    cpu_percent_max: f64,
    /// A second.
    wakeups: f64,
}

/// What of the program is loaded when it runs: the segments of a 64-bit ELF file that are.
fn program_bytes(name: &str) -> anyhow::Result<u64> {
    const LOADED: u64 = 1;
    let bytes = std::fs::read(program::path(name)?)?;
    let number = |at: usize, length: usize| -> anyhow::Result<u64> {
        let found = bytes.get(at..at + length).context("the program is no whole ELF file")?;
        Ok(found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let (table, each, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    let mut loaded = 0;
    for at in 0..count {
        let header = usize::try_from(table + at * each)?;
        if number(header, 4)? == LOADED {
            loaded += number(header + 0x20, 8)?;
        }
    }
    Ok(loaded)
}

fn token(plane: &Plane, runtime: &tokio::runtime::Runtime) -> anyhow::Result<String> {
    let request = json!({ "site": "bench", "pool": "gpu", "usesMax": 1, "expiresInHours": 1 });
    let made = runtime.block_on(async { plane.admin()?.ok("joinTokens.create", request).await })?;
    Ok(made["secret"].as_str().context("a join token's secret")?.to_owned())
}

fn simulated(plane: &Plane, dir: &Path, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Running> {
    let config = plane.daemon_config(dir)?;
    let mut command = Command::new(program::path("bcd")?);
    command
        .args(["sim", "--nodes", "1", "--config"])
        .arg(&config)
        .env("BCD_JOIN_TOKEN", token(plane, runtime)?);
    Running::start(&mut command, &dir.join("log"))
}

fn host(plane: &Plane, dir: &Path, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Running> {
    let config = plane.daemon_config(dir)?;
    let bcd = program::path("bcd")?;
    let join = ["join", "--config"];
    program::done(Command::new(&bcd).args(join).arg(&config).env("BCD_JOIN_TOKEN", token(plane, runtime)?))?;
    let etc = dir.join("etc");
    program::done(Command::new("cp").args(["-a", "/etc"]).arg(&etc))?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", APART, "sh"])
        .arg(&etc)
        .arg(&bcd)
        .args(["node", "--config"])
        .arg(&config);
    Running::start(&mut command, &dir.join("log"))
}

fn wait_ready(plane: &Plane, runtime: &tokio::runtime::Runtime, wanted: usize) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let listed = runtime.block_on(async { plane.admin()?.ok("nodes.list", json!({})).await })?;
        let states: Vec<_> =
            listed["items"].as_array().into_iter().flatten().map(|node| node["state"].to_string()).collect();
        let count = |wanted: &str| states.iter().filter(|state| state.contains(wanted)).count();
        // The simulated one passes the checks of its pool. This machine need not: it is connected and idle all the same.
        if states.len() == wanted && count("ready") >= 1 && count("joined") == 0 {
            println!("states of the machines: {}", states.join(", "));
            return Ok(());
        }
        anyhow::ensure!(
            started.elapsed() < READY_WITHIN,
            "the machines are {states:?} after {READY_WITHIN:?}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn watch(what: &str, pid: u32, lasts: Duration) -> anyhow::Result<Watched> {
    let first = usage::of(pid)?;
    let started = Instant::now();
    let mut seen: Vec<Usage> = vec![first];
    while started.elapsed() < lasts {
        std::thread::sleep(LOOK_EVERY);
        seen.push(usage::of(pid)?);
    }
    let (lasted, last) = (started.elapsed().as_secs_f64(), seen[seen.len() - 1]);
    let cpu = |from: &Usage, to: &Usage| (to.cpu - from.cpu).as_secs_f64();
    let busiest = seen.windows(2).map(|two| cpu(&two[0], &two[1])).fold(0.0, f64::max);
    let mut sizes: Vec<u64> = seen.iter().map(|usage| usage.resident_bytes).collect();
    sizes.sort_unstable();
    let watched = Watched {
        resident_p50: sizes[sizes.len() / 2],
        resident_max: sizes[sizes.len() - 1],
        proportional: last.proportional_bytes,
        cpu_percent: cpu(&first, &last) / lasted * 100.0,
        cpu_percent_max: busiest * 100.0,
        wakeups: last.sleeps.saturating_sub(first.sleeps) as f64 / lasted,
    };
    println!(
        "{what:<44} RSS p50 {:.1} max {:.1} MiB   PSS {:.1} MiB   {} threads\n  CPU {:.3} % of a core, busiest second {:.0} %   {:.1} wake-ups/s",
        mib(watched.resident_p50),
        mib(watched.resident_max),
        mib(watched.proportional),
        last.threads,
        watched.cpu_percent,
        watched.cpu_percent_max,
        watched.wakeups,
    );
    Ok(watched)
}
