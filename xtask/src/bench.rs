//! `cargo xtask bench NAME`: release builds, repeated, with the same run's bound beside each figure. `--all` runs every one
//! and writes one report.

mod report;

use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use crate::packages::{self, Package};
use crate::run;

/// To add one: a row here, and figures said with `bench::figures::Figure`, with what they are held to beside the measuring.
struct Bench {
    name: &'static str,
    what: &'static str,
    how: How,
    /// What it runs or compares with.
    needs: &'static [&'static [Package]],
    /// What `--all` lets it take once it is built; it is ended after that. All of them together stay under [`ALL_MINUTES`].
    minutes: u64,
    /// Arguments that make it as short as `--all` needs; none when it is by itself.
    short: &'static [&'static str],
    /// Arguments of the long run, for `--all --long`; none when there is no such run.
    long: &'static [&'static str],
}

enum How {
    /// An example of the crate that is measured: no other crate sees what it measures.
    Example { package: &'static str, example: &'static str },
    /// A benchmark of `test/bench`, and the programs it starts.
    Bench { programs: &'static [&'static str] },
    /// A crate apart from the workspace, for what it is compared with.
    Apart { manifest: &'static str },
}

const NOTHING: &[&[Package]] = &[];
const DATABASE: &[&[Package]] = &[&[packages::POSTGRESQL]];
const HANDSHAKES: &[&[Package]] = &[&[packages::POSTGRESQL, packages::OPENSSL]];
const MACHINES: &[&[Package]] = &[
    &[packages::POSTGRESQL, packages::OPENSSH_CLIENT, packages::IPROUTE, packages::NFTABLES],
    &packages::LIBVIRT,
    &packages::TINY_IMAGE,
];

const BENCHES: &[Bench] = &[
    Bench {
        name: "placement",
        what: "decisions in memory over 100,000 GPUs, beside a plain scan",
        how: How::Example { package: "placer", example: "place_bench" },
        needs: NOTHING,
        minutes: 2,
        short: &[],
        long: &[],
    },
    Bench {
        name: "policy",
        what: "decisions of the policy engine, beside cedar-policy over the same policies",
        how: How::Apart { manifest: "test/bench/cedar/Cargo.toml" },
        needs: NOTHING,
        minutes: 1,
        short: &[],
        long: &[],
    },
    Bench {
        name: "reservations",
        what: "durable reservations through the API, beside rows of the same PostgreSQL",
        how: How::Bench { programs: &["better-compute"] },
        needs: DATABASE,
        minutes: 6,
        short: &["--nodes", "10000", "--clients", "256", "--seconds", "60", "--rounds", "1"],
        long: &["--nodes", "10000", "--clients", "256", "--seconds", "1800", "--rounds", "1"],
    },
    Bench {
        name: "queue",
        what: "keys taken and events relayed, beside a 200-row SKIP LOCKED dequeue (--snapshot: beside an old snapshot)",
        how: How::Example { package: "store", example: "queue_bench" },
        needs: DATABASE,
        minutes: 3,
        short: &["--snapshot"],
        long: &[],
    },
    Bench {
        name: "journal",
        what: "durable commits of the daemon's journal, beside append + fdatasync",
        how: How::Bench { programs: &[] },
        needs: NOTHING,
        minutes: 2,
        short: &[],
        long: &[],
    },
    Bench {
        name: "sessions",
        what: "memory and CPU of a gateway's sessions, beside bare TLS connections and raw handshakes",
        how: How::Bench { programs: &[] },
        needs: NOTHING,
        minutes: 3,
        short: &["--rounds", "1"],
        long: &["--sessions", "15000", "--rounds", "1"],
    },
    Bench {
        name: "storm",
        what: "a fleet that reconnects at one instant, sessions durable, beside the cryptography of its handshakes",
        how: How::Bench { programs: &[] },
        needs: HANDSHAKES,
        minutes: 2,
        short: &["--rounds", "1"],
        long: &[],
    },
    Bench {
        name: "dispatch",
        what: "from the COMMIT that queues a command to its node; what an idle gateway asks of the database",
        how: How::Bench { programs: &[] },
        needs: DATABASE,
        minutes: 2,
        short: &[],
        long: &[],
    },
    Bench {
        name: "active",
        what: "from the call that creates a reservation to the commit that makes it active, with 1,000 agents",
        how: How::Bench { programs: &["better-compute", "bcd"] },
        needs: DATABASE,
        minutes: 4,
        short: &[],
        long: &[],
    },
    Bench {
        name: "recovery",
        what: "how long nodes are without a session when their gateway is killed, stands still or is cut off",
        how: How::Bench { programs: &[] },
        needs: DATABASE,
        minutes: 4,
        short: &[],
        long: &[],
    },
    Bench {
        name: "idle",
        what: "memory, CPU and wake-ups of a daemon with nothing to do (--long: ten minutes)",
        how: How::Bench { programs: &["better-compute", "bcd"] },
        needs: DATABASE,
        minutes: 3,
        short: &[],
        long: &["--long"],
    },
    Bench {
        name: "vm",
        what: "from a create to SSH, beside the same image by hand; tunnels, beside plain connections (root, libvirt, QEMU)",
        how: How::Bench { programs: &["better-compute"] },
        needs: MACHINES,
        minutes: 5,
        short: &["--rounds", "3", "--at-once", "4"],
        long: &[],
    },
];
/// For `--all` without `--long`, builds not counted.
const ALL_MINUTES: u64 = 37;
/// What a long run may take.
const LONG: Duration = Duration::from_secs(45 * 60);
const _: () = {
    let (mut at, mut minutes) = (0, 0);
    while at < BENCHES.len() {
        minutes += BENCHES[at].minutes;
        at += 1;
    }
    assert!(minutes <= ALL_MINUTES, "all benchmarks together take too long");
};

/// Which of them, and how.
#[derive(clap::Args)]
pub struct Args {
    /// Run every benchmark and write one report to target/bench/report.md.
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// With --all: also the long run of each that has one.
    #[arg(long, requires = "all")]
    long: bool,
    name: Option<String>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.all {
        return report::run(args.long);
    }
    let Some(name) = &args.name else {
        for bench in BENCHES {
            println!("{:<14} {}", bench.name, bench.what);
        }
        println!(
            "\nEach runs for a few minutes once it is built; docs/performance.md says how to read them. --all runs them all."
        );
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == *name) else {
        bail!("no benchmark {name:?}; `cargo xtask bench` lists them");
    };
    build(std::slice::from_ref(bench))?;
    run::must(command(bench).args(&args.args))
}

/// Runs it, built or not.
fn command(bench: &Bench) -> Command {
    let mut cargo = run::cargo();
    match bench.how {
        How::Example { package, example } => {
            cargo.args(["run", "--release", "--quiet", "--package", package, "--example", example, "--"])
        }
        How::Apart { manifest } => {
            let run = ["run", "--release", "--quiet", "--locked", "--manifest-path", manifest];
            cargo.args(run).args(["--target-dir", "target", "--"])
        }
        How::Bench { .. } => {
            cargo.args(["bench", "--quiet", "--package", "bench", "--bench", "bench", "--", bench.name])
        }
    };
    cargo
}

/// What they need, so that no build runs beside a measurement. The programs are as they ship, and apart from the benchmarks:
/// those want features of their crates that they do not.
fn build(benches: &[Bench]) -> anyhow::Result<()> {
    let needed: Vec<Package> = benches.iter().flat_map(|bench| bench.needs.concat()).collect();
    packages::ensure(&needed)?;
    let mut programs = Vec::new();
    for bench in benches {
        match bench.how {
            How::Example { package, example } => {
                let cargo = ["build", "--release", "--quiet", "--package", package, "--example", example];
                run::must(run::cargo().args(cargo))?;
            }
            How::Apart { manifest } => {
                let cargo = ["build", "--release", "--quiet", "--locked", "--manifest-path", manifest];
                run::must(run::cargo().args(cargo).args(["--target-dir", "target"]))?;
            }
            How::Bench { programs: needed } => programs.extend(needed),
        }
    }
    programs.sort_unstable();
    programs.dedup();
    for program in programs {
        // Each apart, by the profile it ships with.
        let profile = if program == "bcd" { "daemon" } else { "release" };
        let cargo = ["build", "--quiet", "--profile", profile, "--package", program, "--bin", program];
        run::must(run::cargo().args(cargo))?;
    }
    if benches.iter().any(|bench| matches!(bench.how, How::Bench { .. })) {
        let cargo = ["bench", "--quiet", "--package", "bench", "--bench", "bench", "--no-run"];
        run::must(run::cargo().args(cargo))?;
    }
    Ok(())
}
