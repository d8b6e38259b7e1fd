//! Explores the protocol: many seeds, or one scenario, or one mutant. `cargo xtask sim` builds and starts it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use sim::protocol::explore::{self, Tally, Until};
use sim::protocol::invariants::Violation;
use sim::protocol::kinds;
use sim::protocol::mutants::{self, Mutant};
use sim::protocol::run::{Outcome, run};
use sim::protocol::scenario::Scenario;
use sim::protocol::shrink::shrink;

#[derive(Parser)]
struct Args {
    /// The first seed; the next ones follow it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// At most this many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Until this many faults have hit something.
    #[arg(long)]
    faults: Option<u64>,
    /// For at most this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Plays one scenario instead, and tells what happens.
    #[arg(long)]
    scenario: Option<std::path::PathBuf>,
    /// Tells what happens in the run of `--seed`.
    #[arg(long)]
    tell: bool,
    /// Switches a fault in the code on. Alone, the run passes when an invariant catches it; with a scenario or `--tell`, that is
    /// what is played.
    #[arg(long)]
    mutant: Option<String>,
    /// With a mutant: prints the shortest scenario that shows it, and how to play it again.
    #[arg(long)]
    shrink: bool,
    /// Names every mutant, one a line.
    #[arg(long)]
    list_mutants: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list_mutants {
        mutants::MUTANTS.iter().for_each(|mutant| println!("{}", mutant.name));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = &args.mutant {
        let Some(mutant) = mutants::find(name) else { return fail(&format!("no mutant {name:?}")) };
        if let Err(other) = kit::mutant::choose(mutant.name) {
            return fail(&format!("{other:?} was chosen before"));
        }
        if args.scenario.is_none() && !args.tell {
            return mutate(mutant, &args);
        }
    }
    if let Some(path) = &args.scenario {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(err) => return fail(&format!("failed to read {}: {err}", path.display())),
        };
        return match Scenario::parse(&text) {
            Ok(scenario) => tell(&scenario),
            Err(err) => fail(&format!("failed to read {}: {err}", path.display())),
        };
    }
    if args.tell {
        return tell(&explore::scenario(args.seed));
    }
    many(&args)
}

fn fail(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

fn until(args: &Args) -> Until {
    Until {
        runs: args.seeds.unwrap_or(u64::MAX),
        faults: args.faults.unwrap_or(u64::MAX),
        time: Duration::from_secs(if args.faults.is_some() { u64::MAX / 4 } else { args.seconds }),
    }
}

fn many(args: &Args) -> ExitCode {
    let (tally, broken) = explore::explore(args.seed, until(args), |_| {});
    report(&tally);
    let Some((scenario, violation)) = broken else {
        let again = explore::explore(
            args.seed,
            Until { runs: tally.runs.min(50), faults: u64::MAX, time: Duration::MAX },
            |_| {},
        );
        let first = explore::explore(
            args.seed,
            Until { runs: tally.runs.min(50), faults: u64::MAX, time: Duration::MAX },
            |_| {},
        );
        if again.0.hash != first.0.hash {
            return fail("same-bytes: two runs of the same seeds differ");
        }
        println!("no invariant broken; {} seeds gave the same bytes twice", again.0.runs);
        return ExitCode::SUCCESS;
    };
    println!("\nseed {}: {violation}", scenario.seed);
    explain(&scenario, &violation, "");
    ExitCode::FAILURE
}

/// Shrinks what broke an invariant, and says what is left of it and how to see it again.
fn explain(scenario: &Scenario, violation: &Violation, flags: &str) {
    let small = shrink(scenario, violation.invariant);
    let text = match run(&small, false).violation {
        Some(same) => format!("# {}\n{small}", same.to_string().replace('\n', "\n# ")),
        None => small.to_string(),
    };
    let file = std::env::temp_dir().join(format!("sim-{}-{}.txt", violation.invariant.name(), scenario.seed));
    println!("\n{text}");
    match std::fs::write(&file, &text) {
        Ok(()) => println!("cargo xtask sim{flags} --scenario {}", file.display()),
        Err(err) => {
            println!("failed to write {}: {err}; cargo xtask sim{flags} --scenario FILE", file.display())
        }
    }
}

fn report(tally: &Tally) {
    println!(
        "{} seeds, {} faults, {} steps, {} frames, {} commits; {:.1} s, {:.1} h simulated",
        tally.runs,
        tally.faults,
        tally.steps,
        tally.frames,
        tally.commits,
        tally.spent.as_secs_f64(),
        tally.simulated.as_secs_f64() / 3600.0
    );
    println!(
        "{} faults a minute of processor time ({:.1} s of it); transcripts {:016x}",
        tally.faults_per_minute(),
        tally.cpu.as_secs_f64(),
        tally.hash
    );
    println!("commands: {:?}", tally.fates);
    print!("faults that hit something:\n{}", kinds::table(&tally.hits));
}

fn tell(scenario: &Scenario) -> ExitCode {
    let Outcome { text, violation, hits, fates, hash, .. } = run(scenario, true);
    text.iter().for_each(|line| println!("{line}"));
    println!("{hits:?}\n{fates:?}\ntranscript {hash}");
    match violation {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Success when an invariant that the table names catches the fault.
fn mutate(mutant: &Mutant, args: &Args) -> ExitCode {
    let name = mutant.name;
    for (file, scenario) in named_scenarios() {
        if let Some(violation) = run(&scenario, false).violation {
            if args.shrink {
                explain(&scenario, &violation, &format!(" --mutant {name}"));
            }
            return caught(mutant, &violation, &format!("in {file}"));
        }
    }
    let (tally, broken) = explore::explore(args.seed, until(args), |_| {});
    let Some((scenario, violation)) = broken else {
        println!("{name}: SURVIVED {} seeds and {} faults", tally.runs, tally.faults);
        return ExitCode::FAILURE;
    };
    if args.shrink {
        explain(&scenario, &violation, &format!(" --mutant {name}"));
    }
    let found = format!("at seed {} after {} seeds and {} faults", scenario.seed, tally.runs, tally.faults);
    caught(mutant, &violation, &found)
}

fn caught(mutant: &Mutant, violation: &Violation, found: &str) -> ExitCode {
    let invariant = violation.invariant;
    println!("{}: {} ({}) {found}", mutant.name, invariant.name(), invariant.number());
    if mutant.caught_by.contains(&invariant) {
        return ExitCode::SUCCESS;
    }
    println!("  not what its table says: {violation}");
    ExitCode::FAILURE
}

/// The scenarios that lie beside this crate, by name.
fn named_scenarios() -> Vec<(String, Scenario)> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/protocol");
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut named: Vec<(String, Scenario)> = files
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), Scenario::parse(&text).ok()?))
        })
        .collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}
