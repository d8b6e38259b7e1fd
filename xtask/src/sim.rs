//! `cargo xtask sim`: the protocol simulator, built once and explored.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::run;

/// Seconds a mutant may take before it counts as alive.
const MUTANT_SECONDS: u64 = 60;
/// And all of them together: who waits longer does not run them.
const MUTANTS_WITHIN: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct Args {
    /// The first seed; the next ones follow it.
    #[arg(long)]
    seed: Option<u64>,
    /// Until this many faults have hit something.
    #[arg(long)]
    faults: Option<u64>,
    /// For this long: 90s, 30m, 2h. A minute without it.
    #[arg(long = "for", value_parser = seconds)]
    lasts: Option<u64>,
    /// Plays one scenario, and tells what happens.
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Tells what happens in the run of one seed.
    #[arg(long)]
    tell: bool,
    /// Switches one fault in the code on; it passes when an invariant catches it. With a scenario or `--tell`, that is played.
    #[arg(long)]
    mutant: Option<String>,
    /// With a mutant: prints the shortest scenario that shows it, and how to play it again.
    #[arg(long)]
    shrink: bool,
    /// Every mutant, one after the other.
    #[arg(long)]
    mutants: bool,
}

fn seconds(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.len() - usize::from(text.ends_with(['s', 'm', 'h'])));
    let number: u64 = number.parse().map_err(|_| "it is a number and s, m or h".to_owned())?;
    Ok(match unit {
        "m" => number * 60,
        "h" => number * 3600,
        _ => number,
    })
}

pub fn run(sim: &Args) -> anyhow::Result<()> {
    let program = build()?;
    if sim.mutants {
        return mutants(&program);
    }
    let mut command = Command::new(&program);
    for (flag, value) in [("--seed", sim.seed), ("--faults", sim.faults), ("--seconds", sim.lasts)] {
        if let Some(value) = value {
            command.arg(flag).arg(value.to_string());
        }
    }
    if let Some(path) = &sim.scenario {
        command.arg("--scenario").arg(path);
    }
    if let Some(name) = &sim.mutant {
        command.arg("--mutant").arg(name);
    }
    for (flag, is_set) in [("--tell", sim.tell), ("--shrink", sim.shrink)] {
        if is_set {
            command.arg(flag);
        }
    }
    run::must(&mut command)
}

fn build() -> anyhow::Result<PathBuf> {
    let cargo = ["build", "--release", "--quiet", "--package", "sim", "--bin", "protocol-sim"];
    run::must(run::cargo().args(cargo).args(["--features", "testing"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(PathBuf::from(target).join("release/protocol-sim"))
}

/// Starts the one program once for each mutant of its table.
fn mutants(program: &PathBuf) -> anyhow::Result<()> {
    let names = run::output(Command::new(program).arg("--list-mutants"))?;
    let (began, mut alive, mut count) = (Instant::now(), Vec::new(), 0);
    for name in names.lines() {
        count += 1;
        let status = Command::new(program)
            .args(["--mutant", name, "--seconds", &MUTANT_SECONDS.to_string()])
            .status()
            .with_context(|| format!("failed to start {}", program.display()))?;
        if !status.success() {
            alive.push(name);
        }
    }
    if !alive.is_empty() {
        bail!("of {count} mutants these were not caught as they should be: {}", alive.join(", "));
    }
    let took = began.elapsed();
    println!("all {count} mutants were caught in {:.0} s", took.as_secs_f64());
    if took > MUTANTS_WITHIN {
        bail!("that is more than the {} s they may take", MUTANTS_WITHIN.as_secs());
    }
    Ok(())
}
