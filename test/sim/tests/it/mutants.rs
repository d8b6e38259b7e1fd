//! Each fault that is built in on purpose is found by the scenario that is said to find it, and called by the right name.
//!
//! One process per mutant, since a mutant is chosen once for the life of its process: this very binary again, with one test.

use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt;
use sim::invariants::mutants::{MUTANTS, Mutant};
use tokio::process::Command;

const CHOSEN: &str = "BC_SIM_MUTANT";
/// A scenario ends at the first violation, some seconds after it began. This is where a machine is hopelessly slow.
const BOUND: Duration = Duration::from_secs(150);
/// As many as there are cores in the smallest machine this runs on.
const AT_ONCE: usize = 2;
/// More than the scenario has by itself, since a mutant that shows seldom needs them.
const ROUNDS: &str = "16";
/// Tried one after the other until it is caught.
const SEEDS: [&str; 16] =
    ["11", "12", "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26"];

/// The mutant of the environment, if any. At the start of every scenario.
pub fn choose() {
    if let Ok(name) = std::env::var(CHOSEN) {
        assert!(MUTANTS.iter().any(|mutant| mutant.name == name), "there is no mutant {name}");
        // Another scenario of this process has chosen it already.
        let _ = kit::mutant::choose(&name);
    }
}

/// Whether this process has one: then what callers are told may be anything, and the invariants are to say what is wrong.
pub fn chosen() -> bool {
    std::env::var(CHOSEN).is_ok()
}

/// Why it is not caught.
async fn survives(mutant: &Mutant, database: &str, seed: &str) -> Option<String> {
    let mut scenario = Command::new(std::env::current_exe().expect("this program has a path"));
    scenario
        .args([mutant.scenario, "--exact", "--nocapture"])
        .env(CHOSEN, mutant.name)
        .env("BC_SIM_ROUNDS", ROUNDS)
        .env("BC_SIM_SEED", seed)
        .env("BC_TEST_DATABASE_URL", database)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let Ok(ended) = tokio::time::timeout(BOUND, scenario.output()).await else {
        return Some(format!("{}: nothing within {BOUND:?}", mutant.name));
    };
    let ended = ended.expect("it starts");
    let said = [ended.stdout, ended.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let called = format!("I{:02} ", mutant.caught_by.number());
    let named = said.lines().any(|line| line.trim_start().starts_with(&called));
    if !ended.status.success() && named {
        eprintln!("{} is caught by {}", mutant.name, mutant.caught_by);
        return None;
    }
    let last: Vec<&str> = said.lines().rev().take(12).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Some(format!("{}: not caught by {}; it said:\n{}", mutant.name, mutant.caught_by, last.join("\n")))
}

/// What workers do at the same time is not the seed's alone, so one that survives a seed may not survive the next.
async fn survives_all(mutant: &Mutant, database: &str) -> Option<String> {
    let mut said = None;
    for seed in SEEDS {
        said = survives(mutant, database, seed).await;
        said.as_ref()?;
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mutant_of_the_control_plane_is_caught_by_its_invariant() {
    // One server for all of them.
    let db = testkit::db().await;
    let only = std::env::var("BC_SIM_ONLY").unwrap_or_default();
    let survivors: Vec<String> =
        futures::stream::iter(MUTANTS.iter().filter(|mutant| mutant.name.contains(&only)))
            .map(|mutant| survives_all(mutant, &db.url))
            .buffer_unordered(AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
    assert!(survivors.is_empty(), "{}", survivors.join("\n\n"));
}

#[test]
fn mutants_have_names_of_their_own() {
    let mut names: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), MUTANTS.len());
}

/// `BC_BLESS=1` writes the tables anew.
#[test]
fn the_page_on_simulation_lists_every_invariant_and_mutant() {
    const BEGIN: &str = "<!-- invariants: written by the tests of sim -->\n";
    const END: &str = "<!-- end of invariants -->\n";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulation.md");
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("it says where the tables begin");
    let (tables, after) = rest.split_once(END).expect("it says where they end");
    let wanted = sim::invariants::reference();
    if std::env::var("BC_BLESS").is_ok() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("it can be written");
        return;
    }
    assert!(tables == wanted, "docs/simulation.md is behind: run this test with BC_BLESS=1");
}
