//! Many hands on the same rows, at once and for real: eight workers with a connection each, on a PostgreSQL of its own.
//!
//! A seed chooses what each worker does and where it pauses; what the scheduler and the server make of it is theirs. After each
//! round everybody stops and the invariants are asked. `BC_SIM_SEED` and `BC_SIM_ROUNDS` choose what is tried.

use std::sync::Arc;

use kit::{Rng, SeededRng};
use sim::invariants::Violation;
use tokio::task::JoinSet;

mod leases;
mod queue;
mod reservations;
mod transactions;

pub const WORKERS: usize = 8;
/// A run in which too little was tried goes on for this many times its rounds: on a busy machine eight workers may get little
/// done, and what they then found sound would say nothing.
const PATIENCE: u64 = 8;

/// What one run of a scenario tries: its seed, and how long.
#[derive(Clone, Copy)]
pub struct Run {
    pub seed: u64,
    pub rounds: u64,
}

impl Run {
    /// Of the environment, else these.
    pub fn from_env(rounds: u64) -> Self {
        crate::mutants::choose();
        let number = |name: &str, default: u64| {
            std::env::var(name).ok().map_or(default, |text| text.parse().expect("it is a number"))
        };
        let run = Self { seed: number("BC_SIM_SEED", 11), rounds: number("BC_SIM_ROUNDS", rounds) };
        eprintln!("BC_SIM_SEED={} BC_SIM_ROUNDS={}", run.seed, run.rounds);
        run
    }

    /// Whether another round is due, `tried` being what was done so far of what this run is about.
    pub fn goes_on(self, round: u64, tried: i64, at_least: i64) -> bool {
        round < self.rounds || (tried < at_least && round < self.rounds * PATIENCE)
    }

    /// The dice of one worker in one round.
    pub fn dice(self, round: u64, worker: usize) -> Arc<dyn Rng> {
        Arc::new(SeededRng::new(self.seed.wrapping_mul(1_000_003) ^ (round << 8) ^ worker as u64))
    }
}

/// Lets others go first, sometimes.
pub async fn pause(dice: &dyn Rng) {
    match dice.below(6) {
        0 => tokio::time::sleep(std::time::Duration::from_micros(dice.below(1_500))).await,
        1 | 2 => tokio::task::yield_now().await,
        _ => {}
    }
}

/// Runs what the workers do, each on a task of its own. What they leave comes in their order.
///
/// # Panics
/// When one of them does.
pub async fn at_once<T: Send + 'static>(
    workers: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for (at, worker) in workers.into_iter().enumerate() {
        tasks.spawn(async move { (at, worker.await) });
    }
    let mut left = tasks.join_all().await;
    left.sort_by_key(|(at, _)| *at);
    left.into_iter().map(|(_, left)| left).collect()
}

/// What a scenario says at its end.
pub type Outcome = Result<(), Vec<Violation>>;

/// # Panics
/// With what was broken.
pub fn sound(outcome: Outcome) {
    if let Err(found) = outcome {
        panic!("{}", found.iter().map(|violation| format!("\n{violation}")).collect::<String>());
    }
}
