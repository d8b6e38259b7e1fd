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
    /// Chosen by somebody who had written no scenario and no invariant, and had read the code alone.
    pub by_another: bool,
}

const fn mutant(
    name: &'static str,
    what: &'static str,
    scenario: &'static str,
    caught_by: Invariant,
) -> Mutant {
    Mutant { name, what, scenario, caught_by, by_another: false }
}

const fn another(
    name: &'static str,
    what: &'static str,
    scenario: &'static str,
    caught_by: Invariant,
) -> Mutant {
    Mutant { name, what, scenario, caught_by, by_another: true }
}

const LEASES: &str = "concurrency::leases::whoever_lost_a_lease_writes_nothing_under_it";
const QUEUE: &str = "concurrency::queue::no_wake_up_is_lost_and_no_key_is_worked_on_twice_at_once";
const UNDONE: &str = "concurrency::transactions::what_is_undone_leaves_neither_a_change_nor_its_event";
const RESERVATIONS: &str = "concurrency::reservations::reservations_under_eight_hands_stay_sound";
const DELIVERY: &str = "delivery::both_delivery_stores_answer_any_history_alike";
const HAND_OVER: &str = "concurrency::reservations::a_pool_that_changes_hands_is_booked_once";
const INSTANCES: &str = "fleet::instances_come_to_rest_on_hosts_that_much_happens_to";
const LOST: &str = "fleet::hosts_that_are_lost_come_back_or_are_dead_and_nothing_runs_twice";
const RESTORED: &str = "fleet::a_restored_database_destroys_no_instance_that_it_does_not_know";
const FLEET: &str = "fleet::a_fleet_in_which_much_fails_comes_to_rest_with_every_invariant_whole";

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
    mutant(
        "instances.address-kept",
        "the address of an instance is not given back when the instance has ended",
        INSTANCES,
        Invariant::AddressesAreOnes,
    ),
    mutant(
        "instances.earlier-word-counts",
        "what a host says of an earlier revision of an instance moves its row",
        INSTANCES,
        Invariant::HostsHaveWhatRowsSay,
    ),
    mutant(
        "instances.deleted-is-not-named",
        "an instance that is to be deleted is left out of its host's spec before the host has said that it is gone",
        INSTANCES,
        Invariant::InstancesSettle,
    ),
    mutant(
        "instances.unread-list-is-empty",
        "a host whose hypervisor does not answer says that nothing is there",
        INSTANCES,
        Invariant::HostsHaveWhatRowsSay,
    ),
    mutant(
        "instances.later-start-is-none",
        "a host does not start anew what runs since an earlier start",
        INSTANCES,
        Invariant::HostsHaveWhatRowsSay,
    ),
    mutant(
        "instances.unlisted-is-destroyed",
        "a host destroys instances that no entry of its spec names",
        RESTORED,
        Invariant::DestroyedByIntent,
    ),
    mutant(
        "instances.lost-is-fenced",
        "what a host that is merely lost ran is made anew on another",
        LOST,
        Invariant::RunsOnce,
    ),
    mutant(
        "instances.nothing-is-left-behind",
        "a host that was declared dead is not told to delete what was placed elsewhere",
        LOST,
        Invariant::HostsHaveWhatRowsSay,
    ),
    another(
        "store.complete-ignores-claim",
        "a worker whose claim lapsed completes a key that is another's by now",
        QUEUE,
        Invariant::OwnersAreFenced,
    ),
    another(
        "store.complete-ignores-version",
        "a key that was woken during its pass is complete",
        QUEUE,
        Invariant::EffectsOnce,
    ),
    another(
        "store.lapsed-lease-renews",
        "a lease that has run out is renewed while nobody else has taken it",
        LEASES,
        Invariant::OwnersAreFenced,
    ),
    another(
        "store.savepoint-drops-earlier-wakes",
        "a handler that failed takes the wake-ups of those before it along",
        UNDONE,
        Invariant::EffectsOnce,
    ),
    another(
        "store.rest-of-a-batch-is-dropped",
        "of more events than fit a row, those that do not fill another are dropped",
        UNDONE,
        Invariant::EventsWithTheirChange,
    ),
    another(
        "capacity.owner-not-fenced",
        "who places in a pool does not ask whether it is still his",
        HAND_OVER,
        Invariant::OwnersAreFenced,
    ),
    another(
        "capacity.release-frees-another",
        "what a node let go of frees what others have booked of its host",
        RESERVATIONS,
        Invariant::BooksAreSound,
    ),
    another(
        "capacity.lost-node-frees",
        "devices of a lost node are free before it said that it let go",
        RESERVATIONS,
        Invariant::NodesHoldWhatRowsSay,
    ),
    another(
        "fleet.generation-not-raised",
        "a spec with other bytes keeps its generation",
        FLEET,
        Invariant::BoundOrSaysWhy,
    ),
    another(
        "fleet.last-event-of-a-batch-is-dropped",
        "of the events of several sessions the last one is acknowledged and not stored",
        DELIVERY,
        Invariant::StoresAgree,
    ),
    another(
        "fleet.acks-outlive-their-journal",
        "what is acknowledged of one journal is taken to be so of the next",
        DELIVERY,
        Invariant::StoresAgree,
    ),
    another(
        "fleet.revoked-certificate-opens",
        "a certificate that was revoked opens a session",
        DELIVERY,
        Invariant::StoresAgree,
    ),
    another(
        "fleet.lapsed-gateway-writes",
        "a gateway writes after its lease",
        DELIVERY,
        Invariant::StoresAgree,
    ),
    another(
        "kernel.key-claimed-twice",
        "two creates at once under one idempotency key make two",
        RESERVATIONS,
        Invariant::KeysMakeOneThing,
    ),
];
