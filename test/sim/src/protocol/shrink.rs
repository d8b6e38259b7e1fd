//! A shorter scenario that breaks the same invariant.

use super::invariants::Invariant;
use super::run::run;
use super::scenario::Scenario;

/// Runs a shrink may take: it is for a person to read, not for perfection.
const RUNS_MAX: u32 = 600;

/// Leaves out lines, many at once first, while the invariant still breaks.
pub fn shrink(scenario: &Scenario, invariant: Invariant) -> Scenario {
    let mut best = scenario.clone();
    let mut runs = 0;
    let breaks = |candidate: &Scenario| {
        run(candidate, false).violation.is_some_and(|violation| violation.invariant == invariant)
    };
    let mut size = best.lines.len().div_ceil(2);
    while size > 0 && runs < RUNS_MAX {
        let mut at = 0;
        let mut shorter = false;
        while at < best.lines.len() && runs < RUNS_MAX {
            let mut candidate = best.clone();
            let end = (at + size).min(candidate.lines.len());
            candidate.lines.drain(at..end);
            runs += 1;
            if breaks(&candidate) {
                best = candidate;
                shorter = true;
            } else {
                at += size;
            }
        }
        if size == 1 && !shorter {
            break;
        }
        size = if size == 1 { 1 } else { size.div_ceil(2) };
        if size == 1 && best.lines.is_empty() {
            break;
        }
    }
    for (nodes, gateways) in [(1, 1), (1, best.gateways), (best.nodes, 1)] {
        if nodes > best.nodes || gateways > best.gateways || (nodes, gateways) == (best.nodes, best.gateways)
        {
            continue;
        }
        let candidate = Scenario { nodes, gateways, ..best.clone() };
        if breaks(&candidate) {
            best = candidate;
        }
    }
    best
}
