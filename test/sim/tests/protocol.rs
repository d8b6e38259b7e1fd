//! The protocol simulator as a test: many seeds in a bounded time, the same bytes twice, every named scenario, and the tables
//! beside the code they speak of.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::CommandKind;
use sim::invariants::chosen_by;
use sim::protocol::action::Release;
use sim::protocol::explore::{self, Until};
use sim::protocol::invariants::Invariant;
use sim::protocol::kinds;
use sim::protocol::mutants::MUTANTS;
use sim::protocol::run::run;
use sim::protocol::scenario::Scenario;
use sim::protocol::skew::{self, KIND_TO_COME};

/// Unoptimised, a seed takes some tens of milliseconds.
const SEEDS: u64 = 200;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_few_hundred_seeds_break_no_invariant() {
    let until = Until { runs: SEEDS, faults: u64::MAX, time: Duration::MAX };
    let (tally, broken) = explore::explore(1, until, |_| {});
    println!("{} seeds, {} faults a minute", tally.runs, tally.faults_per_minute());
    if let Some((scenario, violation)) = broken {
        panic!("seed {}: {violation}\ncargo xtask sim --seed {}", scenario.seed, scenario.seed);
    }
    let table = kinds::table(&tally.hits);
    println!("{table}");
    let never: Vec<&str> = kinds::faults().filter(|name| !tally.hits.contains_key(name)).collect();
    assert!(never.is_empty(), "{never:?} never hit anything in {SEEDS} seeds:\n{table}");
    let unlisted: Vec<_> = tally
        .hits
        .keys()
        .filter(|name| !kinds::faults().chain(kinds::FOLLOWS.iter().copied()).any(|known| known == **name))
        .collect();
    assert!(unlisted.is_empty(), "{unlisted:?} is in no list of `kinds`");
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
    for dir in ["base/pki/src", "base/wire/src", "base/model/src", "node", "control", "test/sim/src/protocol"]
    {
        sites(&root().join(dir), &mut found);
    }
    let of_the_fleet =
        |name: &String| sim::invariants::mutants::MUTANTS.iter().any(|mutant| mutant.name == name);
    found.retain(|name| !of_the_fleet(name));
    found.sort();
    found.dedup();
    let mut listed: Vec<String> = MUTANTS.iter().map(|mutant| mutant.name.to_owned()).collect();
    listed.sort();
    assert_eq!(listed, found);
}

#[test]
fn daemons_and_gateways_of_other_releases_get_what_they_have_in_common() {
    let matrix = skew::matrix();
    println!("{}\n{}", skew::sessions_table(&matrix), skew::kinds_table(&matrix));
    assert_eq!(matrix.len(), Release::ALL.len() * Release::ALL.len());
    for met in &matrix {
        assert_eq!(met.violation, None, "{met:?}");
        let common = met.daemon.versions().common(met.gateway.versions());
        assert_eq!(met.protocol, common, "{met:?}");
        assert_eq!(met.converged, common.is_some(), "{met:?}");
        if common.is_none() {
            assert_eq!(met.refusal.as_deref(), Some("upgrade_required"), "{met:?}");
        }
        let known = |name: &str| CommandKind::parse(name).is_some_and(|kind| met.daemon.handles(kind));
        for name in CommandKind::ALL.iter().map(|kind| kind.name()).chain([KIND_TO_COME]) {
            let wanted = match (common.is_some(), known(name)) {
                (true, true) => "runs",
                (true, false) => "rejected UNSUPPORTED",
                (false, _) => "expired",
            };
            assert_eq!(met.commands.get(name).map(String::as_str), Some(wanted), "{name}: {met:?}");
        }
        // A daemon says more than it is asked right after its Hello, a gateway only once there is a session.
        let new_frames =
            met.daemon.sends_new_frames() || (met.gateway.sends_new_frames() && common.is_some());
        assert_eq!(met.unknown_frames > 0, new_frames, "{met:?}");
    }
}

/// What docs/simulation.md must say between the two comments of this name.
fn section(name: &str, wanted: &str) {
    let path = root().join("docs/simulation.md");
    let text = std::fs::read_to_string(&path).expect("docs/simulation.md");
    let (begin, end) =
        (format!("<!-- {name}: written by the tests of sim -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) =
        text.split_once(&begin).unwrap_or_else(|| panic!("docs/simulation.md lacks {begin}"));
    let (held, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/simulation.md lacks {end}"));
    if held != wanted && std::env::var_os("BC_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{wanted}{end}{after}"))
            .expect("docs/simulation.md is written");
        return;
    }
    assert!(held == wanted, "docs/simulation.md is behind: run this test with BC_BLESS=1");
}

#[test]
fn the_document_has_every_table_of_the_code() {
    let mut text = String::from("| # | Name | Holds | Found out by |\n|---|---|---|---|\n");
    for invariant in Invariant::ALL {
        let (number, name) = (invariant.number(), invariant.name());
        let _ = writeln!(text, "| {number} | `{name}` | {} | {} |", invariant.sentence(), invariant.how());
    }
    section("protocol invariants", &text);
    let mut text = String::from("| Mutant | What is broken | Caught by | Chosen by |\n|---|---|---|---|\n");
    for mutant in MUTANTS {
        let caught: Vec<&str> = mutant.caught_by.iter().map(|invariant| invariant.name()).collect();
        let (caught, by) = (caught.join(", "), chosen_by(mutant.by_another));
        let _ = writeln!(text, "| `{}` | {} | {caught} | {by} |", mutant.name, mutant.broken);
    }
    section("protocol mutants", &text);
    let matrix = skew::matrix();
    section("releases", &format!("{}\n{}", skew::sessions_table(&matrix), skew::kinds_table(&matrix)));
}
