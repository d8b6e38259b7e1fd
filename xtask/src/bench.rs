//! `cargo xtask bench NAME`: release builds, repeated, with the same run's bound beside each figure.

use std::process::Command;

use anyhow::bail;

use crate::run;

struct Bench {
    name: &'static str,
    what: &'static str,
    how: How,
}

enum How {
    /// An example of the crate that is measured: no other crate sees what it measures.
    Example { package: &'static str, example: &'static str },
    /// A benchmark of `test/bench`, and the programs it starts.
    Bench { programs: &'static [&'static str] },
    /// A crate apart from the workspace, for what it is compared with.
    Apart { manifest: &'static str },
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "placement",
        what: "decisions in memory over 100,000 GPUs, beside a plain scan",
        how: How::Example { package: "placer", example: "place_bench" },
    },
    Bench {
        name: "policy",
        what: "decisions of the policy engine, beside cedar-policy over the same policies",
        how: How::Apart { manifest: "test/bench/cedar/Cargo.toml" },
    },
    Bench {
        name: "reservations",
        what: "durable reservations through the API, beside rows of the same PostgreSQL",
        how: How::Bench { programs: &["better-compute"] },
    },
    Bench {
        name: "journal",
        what: "durable commits of the daemon's journal, beside append + fdatasync",
        how: How::Bench { programs: &[] },
    },
    Bench {
        name: "sessions",
        what: "memory and CPU of a gateway's sessions, beside bare TLS connections and raw handshakes",
        how: How::Bench { programs: &[] },
    },
    Bench {
        name: "idle",
        what: "memory, CPU and wake-ups of a daemon with nothing to do (--long: ten minutes)",
        how: How::Bench { programs: &["better-compute", "bcd"] },
    },
];

pub fn run(name: Option<&str>, args: &[String]) -> anyhow::Result<()> {
    let Some(name) = name else {
        for bench in BENCHES {
            println!("{:<14} {}", bench.name, bench.what);
        }
        println!(
            "\nEach runs for less than three minutes once it is built; docs/performance.md says how to read them."
        );
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        bail!("no benchmark {name:?}; `cargo xtask bench` lists them");
    };
    match bench.how {
        How::Example { package, example } => {
            let cargo = ["run", "--release", "--quiet", "--package", package, "--example", example, "--"];
            run::must(run::cargo().args(cargo).args(args))
        }
        How::Apart { manifest } => {
            let cargo = ["run", "--release", "--quiet", "--locked", "--manifest-path", manifest];
            run::must(run::cargo().args(cargo).args(["--target-dir", "target", "--"]).args(args))
        }
        How::Bench { programs } => {
            build(programs)?;
            let cargo = ["bench", "--quiet", "--package", "bench", "--bench", "bench", "--", name];
            run::must(run::cargo().args(cargo).args(args))
        }
    }
}

/// The programs as they ship, built apart from the benchmark: it wants features of their crates that they do not.
fn build(programs: &[&str]) -> anyhow::Result<()> {
    if programs.is_empty() {
        return Ok(());
    }
    let mut cargo: Command = run::cargo();
    cargo.args(["build", "--release", "--quiet"]);
    for program in programs {
        cargo.args(["--package", program, "--bin", program]);
    }
    run::must(&mut cargo)
}
