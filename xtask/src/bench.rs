//! `cargo xtask bench NAME`: release builds, repeated, with the same run's bound beside each figure.

use anyhow::bail;

use crate::run;

struct Bench {
    name: &'static str,
    what: &'static str,
    package: &'static str,
    example: &'static str,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "placement",
        what: "decisions in memory, beside a naive scan",
        package: "placer",
        example: "place_bench",
    },
    Bench { name: "policy", what: "decisions, per policy set", package: "policy", example: "decide_bench" },
];

pub fn run(name: Option<&str>, args: &[String]) -> anyhow::Result<()> {
    let Some(name) = name else {
        for bench in BENCHES {
            println!("{:<12} {}", bench.name, bench.what);
        }
        return Ok(());
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        bail!("no benchmark {name:?}; `cargo xtask bench` lists them");
    };
    run::must(
        run::cargo()
            .args([
                "run",
                "--release",
                "--quiet",
                "--package",
                bench.package,
                "--example",
                bench.example,
                "--",
            ])
            .args(args),
    )
}
