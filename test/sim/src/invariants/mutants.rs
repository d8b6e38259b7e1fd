//! Faults built into the control plane on purpose, one of them switched on at start, and what catches each.
//!
//! A mutant nobody catches is a rule nobody checks. `tests/it/mutants.rs` runs each in a process of its own and wants the
//! scenario named here to end by the invariant named here.

use super::Invariant;

/// One fault, and how it is found out.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// What `kit::mutant::choose` takes: `area.what-is-broken`.
    pub name: &'static str,
    /// What the program does wrong under it.
    pub what: &'static str,
    /// The test that finds it, in the binary `it` of this crate.
    pub scenario: &'static str,
    pub caught_by: Invariant,
}

const fn mutant(
    name: &'static str,
    what: &'static str,
    scenario: &'static str,
    caught_by: Invariant,
) -> Mutant {
    Mutant { name, what, scenario, caught_by }
}

/// Of the control plane. Those of agents and gateways are the protocol simulator's.
pub const MUTANTS: &[Mutant] = &[];
