//! The delivery store in memory and the one over PostgreSQL, given the same histories, answer the same.
//!
//! A history is a list of steps over a few gateways, nodes, journals and commands, named by small numbers, so that what is lost,
//! taken over, late or somebody else's comes up all the time. Numbers that only their own store gives out, like a session's epoch,
//! are told apart by when they were given. A history that fails shrinks to the few steps that matter.
//!
//! `BC_SIM_SEED` and `BC_SIM_CASES` choose what is tried.

use std::sync::Arc;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use sim::invariants::{Invariant, Violation};

mod both;
mod memory;
mod postgres;
mod side;
mod step;
mod words;

use both::Both;
use step::{Step, history};

/// Histories of one run of the tests: some seconds.
const CASES: u32 = 48;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("it is a number"))
}

/// The first step, by its number, after which the two differ.
pub async fn difference(postgres: &Arc<postgres::Postgres>, steps: &[Step]) -> Result<(), String> {
    postgres.empty().await;
    let mut both = Both::new(postgres.clone());
    for (at, step) in steps.iter().enumerate() {
        both.step(step).await.map_err(|differs| format!("step {at}, {step:?}: {differs}"))?;
    }
    both.same_state().await.map_err(|differs| format!("at the end: {differs}"))
}

#[test]
fn both_delivery_stores_answer_any_history_alike() {
    crate::mutants::choose();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let postgres = runtime.block_on(postgres::Postgres::new());
    let seed = number("BC_SIM_SEED", 7);
    let cases = u32::try_from(number("BC_SIM_CASES", u64::from(CASES))).unwrap();
    eprintln!("BC_SIM_SEED={seed} BC_SIM_CASES={cases}");
    let config = Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 4_000,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&history(), |steps| {
        runtime.block_on(difference(&postgres, &steps)).map_err(TestCaseError::fail)
    });
    if let Err(failed) = outcome {
        panic!("{}", Violation::new(Invariant::StoresAgree, failed.to_string()));
    }
}
