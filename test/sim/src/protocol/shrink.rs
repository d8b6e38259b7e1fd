//! A shorter scenario that breaks the same invariant.

use super::invariants::Invariant;
use super::run::run;
use super::scenario::Scenario;

/// Runs a shrink may take: it is for a person to read, not for perfection.
const RUNS_MAX: u32 = 800;

/// Leaves out nodes, gateways and lines, many at once first, while the invariant still breaks.
pub fn shrink(scenario: &Scenario, invariant: Invariant) -> Scenario {
    let mut shrinking = Shrinking { best: scenario.clone(), invariant, runs: 0 };
    shrinking.smaller_world();
    shrinking.fewer_lines(scenario.lines.len().div_ceil(2));
    // What was in the way of a smaller world may be gone, and with the rest of it some lines.
    shrinking.smaller_world();
    shrinking.fewer_lines(1);
    shrinking.best
}

struct Shrinking {
    best: Scenario,
    invariant: Invariant,
    runs: u32,
}

impl Shrinking {
    /// Keeps a candidate that still breaks the invariant.
    fn takes(&mut self, candidate: Scenario) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let violation = run(&candidate, false).violation;
        let breaks = violation.is_some_and(|violation| violation.invariant == self.invariant);
        if breaks {
            self.best = candidate;
        }
        breaks
    }

    fn smaller_world(&mut self) {
        let Scenario { nodes, gateways, .. } = self.best;
        for (nodes, gateways) in [(1, 1), (1, gateways), (nodes, 1)] {
            if (nodes, gateways) < (self.best.nodes, self.best.gateways) {
                let candidate = Scenario { nodes, gateways, ..self.best.clone() };
                self.takes(candidate);
            }
        }
    }

    /// Leaves out `size` lines at once, then half as many, until no single one can go.
    fn fewer_lines(&mut self, mut size: usize) {
        loop {
            let (mut at, mut shorter) = (0, false);
            while at < self.best.lines.len() {
                let mut candidate = self.best.clone();
                let end = (at + size).min(candidate.lines.len());
                candidate.lines.drain(at..end);
                if self.takes(candidate) {
                    shorter = true;
                } else {
                    at += size;
                }
            }
            if self.runs >= RUNS_MAX || (size <= 1 && !shorter) {
                return;
            }
            size = size.div_ceil(2);
        }
    }
}
