//! Decisions a second of our policy engine beside Cedar's, over the same policies and requests, each in its own language.
//!
//! Both are asked every request first and have to decide the same. What a request is about is put together before the clock
//! runs, on both sides.

mod cedar;
mod ours;
mod sets;

use std::hint::black_box;
use std::time::{Duration, Instant};

use bench::figures::{Figure, Run, Sample, median};
use sets::Set;

/// Reading the clock takes about as long as a decision of ours, so it is read once for so many of them.
const DECISIONS_A_SAMPLE: u32 = 32;
const ROUNDS: usize = 3;
const LASTS: Duration = Duration::from_secs(2);

fn main() -> anyhow::Result<()> {
    for set in [sets::roadmap(), sets::hundred()] {
        compare(&set)?;
    }
    Ok(())
}

fn compare(set: &Set) -> anyhow::Result<()> {
    let ours = ours::Engine::new(set)?;
    let cedar = cedar::Engine::new(set)?;
    let asked = ours::requests(set);
    let asked: Vec<_> = asked.iter().map(ours::Asked::request).collect();
    let allowed: Vec<bool> = asked.iter().map(|request| ours.allows(request)).collect();
    for (at, allowed) in allowed.iter().enumerate() {
        let other = cedar.allows(at);
        anyhow::ensure!(*allowed == other, "request {at} of {:?}: ours {allowed}, Cedar {other}", set.name);
    }
    println!(
        "{}: {} policies, {} statements, {} requests of which {} are allowed; both decide the same",
        set.name,
        set.policies.len(),
        set.policies.iter().map(|policy| policy.statements.len()).sum::<usize>(),
        asked.len(),
        allowed.iter().filter(|allowed| **allowed).count(),
    );
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(say(measure("ours", asked.len(), |at| ours.allows(&asked[at]))));
        other.push(say(measure("cedar-policy", asked.len(), |at| cedar.allows(at))));
    }
    // Cedar has no figure of ours to reach: never being slower is what is asked.
    Figure::rate(format!("policy decisions, {}", set.name), "/s", &own)
        .beside("cedar-policy", median(&other))
        .ratio_at_least(1.0, 10.0)
        .say()
}

fn say(run: Run) -> Run {
    println!("{run}");
    run
}

/// Asks one request after another. A sample is the mean of a few in a row.
fn measure(what: &str, requests: usize, allows: impl Fn(usize) -> bool) -> Run {
    let mut samples = Vec::new();
    let mut at = 0;
    let started = Instant::now();
    while started.elapsed() < LASTS {
        let from = Instant::now();
        for _ in 0..DECISIONS_A_SAMPLE {
            black_box(allows(black_box(at)));
            at = (at + 1) % requests;
        }
        samples.push(Sample { at: started.elapsed(), took: from.elapsed() / DECISIONS_A_SAMPLE });
    }
    Run::new(what, started.elapsed(), samples).of_units(DECISIONS_A_SAMPLE)
}
