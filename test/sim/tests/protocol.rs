//! The protocol simulator as a test: many seeds in a bounded time, the same bytes twice, every named scenario, and the tables
//! beside the code they speak of.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sim::protocol::explore::{self, Until};
use sim::protocol::invariants::Invariant;
use sim::protocol::mutants::MUTANTS;
use sim::protocol::run::run;
use sim::protocol::scenario::Scenario;

/// Unoptimised, a seed takes some tens of milliseconds.
const SEEDS: u64 = 200;
const WITHIN: Duration = Duration::from_secs(40);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_few_hundred_seeds_break_no_invariant() {
    let (tally, broken) = explore::explore(1, Until { runs: SEEDS, faults: u64::MAX, time: WITHIN }, |_| {});
    println!("{} seeds, {} faults a minute", tally.runs, tally.faults_per_minute());
    if let Some((scenario, violation)) = broken {
        panic!("seed {}: {violation}\ncargo xtask sim --seed {}", scenario.seed, scenario.seed);
    }
    assert!(tally.runs >= 20, "{} seeds in {WITHIN:?}", tally.runs);
    let kinds = tally.hits.len();
    assert!(kinds >= 40, "{kinds} kinds of faults hit something: {:?}", tally.hits);
    assert!(tally.fates.get("succeeded").is_some_and(|count| *count > tally.runs), "{:?}", tally.fates);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in 500..510 {
        let (first, second) = (run(&explore::scenario(seed), false), run(&explore::scenario(seed), true));
        assert_eq!(first.hash, second.hash, "seed {seed}");
    }
    let other = run(&explore::scenario(510), false).hash;
    assert_ne!(run(&explore::scenario(511), false).hash, other);
}

#[test]
fn a_scenario_reads_back_from_its_text() {
    for seed in 0..50 {
        let scenario = explore::scenario(seed);
        assert_eq!(Scenario::parse(&scenario.to_string()), Ok(scenario));
    }
    for wrong in ["at 5", "at x crash", "nodes 0", "at 1 crash node=1", "at 1 trust more=1", "dance 3"] {
        assert!(Scenario::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn every_named_scenario_passes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/protocol");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("the folder of scenarios")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a scenario");
        let scenario = Scenario::parse(&text).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        let outcome = run(&scenario, false);
        if let Some(violation) = outcome.violation {
            panic!("{}: {violation}", file.display());
        }
    }
}

/// The names of mutants in the sources of a crate.
fn sites(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sites(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            for site in text.split("mutant::on(\"").skip(1) {
                found.push(site.split('"').next().unwrap_or_default().to_owned());
            }
        }
    }
}

#[test]
fn the_table_of_mutants_is_what_the_code_has() {
    let mut found = Vec::new();
    for dir in ["node/agent/src", "control/gateway/src", "test/sim/src/protocol"] {
        sites(&root().join(dir), &mut found);
    }
    found.sort();
    found.dedup();
    let mut listed: Vec<String> = MUTANTS.iter().map(|mutant| mutant.name.to_owned()).collect();
    listed.sort();
    assert_eq!(listed, found);
}

#[test]
fn the_document_has_every_invariant_and_every_mutant() {
    let text = std::fs::read_to_string(root().join("docs/simulation.md")).expect("docs/simulation.md");
    for invariant in Invariant::ALL {
        let row = format!("| {} | `{}` | {} |", invariant.number(), invariant.name(), invariant.sentence());
        assert!(text.contains(&row), "docs/simulation.md lacks: {row}");
    }
    for mutant in MUTANTS {
        let caught: Vec<&str> = mutant.caught_by.iter().map(|invariant| invariant.name()).collect();
        let row = format!("| `{}` | {} | {} |", mutant.name, mutant.broken, caught.join(", "));
        assert!(text.contains(&row), "docs/simulation.md lacks: {row}");
    }
}
