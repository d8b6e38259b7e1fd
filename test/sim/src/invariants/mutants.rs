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

const LEASES: &str = "concurrency::leases::whoever_lost_a_lease_writes_nothing_under_it";
const QUEUE: &str = "concurrency::queue::no_wake_up_is_lost_and_no_key_is_worked_on_twice_at_once";
const UNDONE: &str = "concurrency::transactions::what_is_undone_leaves_neither_a_change_nor_its_event";
const RESERVATIONS: &str = "concurrency::reservations::reservations_under_eight_hands_stay_sound";
const DELIVERY: &str = "delivery::both_delivery_stores_answer_any_history_alike";

/// Of the control plane. Those of agents and gateways are the protocol simulator's.
pub const MUTANTS: &[Mutant] = &[
    mutant(
        "store.lease-guard-always-holds",
        "a guarded transaction does not ask whether its lease and epoch still hold",
        LEASES,
        Invariant::OwnersAreFenced,
    ),
    mutant(
        "store.lease-guard-takes-no-lock",
        "the guard asks, and keeps nobody from taking the lease over before the commit",
        LEASES,
        Invariant::OwnersAreFenced,
    ),
    mutant(
        "store.floor-passes-what-is-not-settled",
        "a taker of wake-ups begins behind transactions that may still add some",
        QUEUE,
        Invariant::EffectsOnce,
    ),
    mutant(
        "store.savepoint-keeps-its-rows",
        "the rows of a handler that failed stay, without its events",
        UNDONE,
        Invariant::EventsWithTheirChange,
    ),
    mutant(
        "store.savepoint-keeps-its-events",
        "the events of a handler that failed are told, without its rows",
        UNDONE,
        Invariant::EventsWithTheirChange,
    ),
    mutant(
        "capacity.quota-outlives-its-reservation",
        "what a reservation counts for against quotas stays when it has ended",
        RESERVATIONS,
        Invariant::QuotasAreTheirRows,
    ),
    mutant(
        "capacity.release-frees-at-once",
        "devices are free when their release is asked for, and not when the node let go",
        RESERVATIONS,
        Invariant::BooksAreSound,
    ),
    mutant(
        "capacity.late-bound-counts",
        "a node's word that it bound an allocation moves its reservation wherever that is by now",
        RESERVATIONS,
        Invariant::EffectsOnce,
    ),
    mutant(
        "capacity.booking-forgotten",
        "an allocation is written without the rows whose key makes a second one impossible",
        RESERVATIONS,
        Invariant::AtomsBookedOnce,
    ),
    mutant(
        "kernel.keys-are-not-asked",
        "a create sent twice under one idempotency key makes two",
        RESERVATIONS,
        Invariant::KeysMakeOneThing,
    ),
    mutant(
        "fleet.updates-of-lost-sessions-count",
        "a gateway moves commands on a session that another one has taken over",
        DELIVERY,
        Invariant::StoresAgree,
    ),
    mutant(
        "fleet.acknowledged-past-the-last",
        "a node is told that an event is stored that it has not sent yet",
        DELIVERY,
        Invariant::StoresAgree,
    ),
];
