//! Faults built into the code on purpose, each with the invariants that may find it. A mutant that lives shows a hole in the
//! invariants, the scenarios or the faults.

use super::invariants::Invariant;
use super::invariants::Invariant as I;

/// One fault in the code, switched on by name.
#[derive(Debug)]
pub struct Mutant {
    pub name: &'static str,
    /// What is broken, as a sentence.
    pub broken: &'static str,
    /// Whichever of these finds it first. Several may: what follows from a fault is often found before the fault itself.
    pub caught_by: &'static [Invariant],
    /// Chosen by somebody who had written no scenario and no invariant, and had read the code alone.
    pub by_another: bool,
}

const fn mutant(name: &'static str, broken: &'static str, caught_by: &'static [Invariant]) -> Mutant {
    Mutant { name, broken, caught_by, by_another: false }
}

const fn another(name: &'static str, broken: &'static str, caught_by: &'static [Invariant]) -> Mutant {
    Mutant { name, broken, caught_by, by_another: true }
}

pub const MUTANTS: &[Mutant] = &[
    mutant("agent.command-of-any-node", "a node takes a command that names another", &[I::OwnOnly]),
    mutant("agent.command-unsigned", "a command's signature is not looked at", &[I::SignedOnly]),
    mutant(
        "agent.command-of-older-epoch",
        "a command of an epoch before a restore is accepted",
        &[I::NothingGoesBack],
    ),
    mutant(
        "agent.deadline-ignored",
        "a command is accepted after its deadline, and waits for a spec for ever",
        &[I::InTime, I::Credits, I::Settles],
    ),
    mutant(
        "agent.generation-not-awaited",
        "a command does not wait for the spec it presupposes",
        &[I::InTime],
    ),
    mutant("agent.spec-of-any-node", "a node takes a spec that names another", &[I::SignedOnly, I::OwnOnly]),
    mutant("agent.spec-unsigned", "a spec's signature is not looked at", &[I::SignedOnly]),
    mutant(
        "agent.spec-of-older-epoch",
        "a spec of an epoch before a restore is taken",
        &[I::NothingGoesBack],
    ),
    mutant(
        "agent.spec-below-mark",
        "a spec below the node's mark is taken when its journal is gone",
        &[I::NothingGoesBack],
    ),
    mutant(
        "agent.fresh-takes-unbound",
        "a node without a mark takes whatever spec was signed for it",
        &[I::FreshIsBound],
    ),
    mutant(
        "agent.spec-not-journaled",
        "a spec is converged and reported, and not written down",
        &[I::DurableFirst],
    ),
    mutant("agent.running-not-journaled", "a command starts before that is durable", &[I::DurableFirst]),
    mutant("agent.result-not-journaled", "a result is sent and not written down", &[I::DurableFirst]),
    mutant("agent.credit-kept", "a lane's credit is not given back", &[I::Credits, I::Settles]),
    mutant("agent.locks-ignored", "two commands use one resource at once", &[I::Exclusive]),
    mutant("agent.workers-unbounded", "a lane runs everything it admitted at once", &[I::Exclusive]),
    mutant(
        "agent.welcome-of-any-age",
        "a gateway's time is believed however old it is",
        &[I::InTime, I::NothingGoesBack],
    ),
    mutant(
        "agent.ack-of-any-journal",
        "an acknowledgement counts for another journal too",
        &[I::Settles, I::AckedIsKept, I::NothingGoesBack],
    ),
    mutant(
        "agent.any-version",
        "a daemon goes on with a gateway whose version it does not speak",
        &[I::Versions],
    ),
    mutant(
        "journal.done-runs-again",
        "a settled command runs when it is delivered again",
        &[I::EffectOnce, I::SettledOnce],
    ),
    mutant(
        "journal.left-running-runs-again",
        "what an earlier process left running runs again, whatever its kind",
        &[I::EffectOnce],
    ),
    mutant(
        "journal.begun-is-forgotten",
        "a command that an earlier process had begun counts as not begun while it waits to run again",
        &[I::EffectOnce, I::AsTold],
    ),
    mutant("disk.skip-fsync", "a commit returns before it is synced", &[I::DurableFirst]),
    mutant(
        "gateway.hello-of-any-node",
        "a Hello that names another node than the certificate is welcome",
        &[I::Versions],
    ),
    mutant("gateway.any-version", "a daemon of a version nobody speaks is welcome", &[I::Versions]),
    mutant(
        "gateway.result-acked-unstored",
        "a result is acknowledged before it is stored",
        &[I::AckedIsKept],
    ),
    mutant(
        "gateway.events-acked-unstored",
        "events are acknowledged before they are stored",
        &[I::AckedIsKept, I::NothingGoesBack],
    ),
    mutant("delivery.lease-ignored", "a gateway writes after its lease", &[I::Fenced, I::NothingGoesBack]),
    mutant("delivery.session-ignored", "a session that was taken over goes on writing", &[I::Fenced]),
    mutant(
        "delivery.journal-loss-ignored",
        "what was under way is sent again to a node that lost its journal",
        &[I::EffectOnce],
    ),
    mutant("delivery.settled-moves", "a report moves a command that was settled", &[I::SettledOnce]),
    mutant("delivery.result-of-any-node", "a node's report settles the command of another", &[I::OwnOnly]),
    mutant(
        "delivery.event-ack-falls",
        "an older batch of events takes an acknowledgement back",
        &[I::NothingGoesBack],
    ),
    mutant("delivery.events-dropped", "events are acknowledged and not stored", &[I::AckedIsKept]),
    mutant(
        "delivery.observed-as-told",
        "an observed generation is stored as a node tells it",
        &[I::NothingGoesBack],
    ),
    mutant(
        "delivery.claimed-again",
        "a command that is handed out is not marked as sent",
        &[I::AckedIsKept, I::Rests, I::Settles],
    ),
    another(
        "agent.deadline-by-own-clock",
        "a deadline is judged by the machine's own clock",
        &[I::InTime, I::Credits, I::Settles],
    ),
    another(
        "agent.queued-past-deadline",
        "a command whose deadline passed while it waited for a worker runs all the same",
        &[I::InTime],
    ),
    another(
        "agent.begun-said-undone",
        "a command that an earlier process had begun is reported as cancelled before it began",
        &[I::AsTold],
    ),
    another(
        "agent.command-epoch-not-marked",
        "a command of a newer epoch raises no mark",
        &[I::NothingGoesBack],
    ),
    another(
        "agent.waiting-is-overtaken",
        "a later command of a resource overtakes one that waits for more than that resource",
        &[I::InOrder],
    ),
    another(
        "agent.worker-key-as-of-the-command",
        "the key that signed a command is looked at as of the time that the command names",
        &[I::SignedOnly],
    ),
    another(
        "agent.spec-of-same-generation",
        "a spec of the generation that is held is taken",
        &[I::NothingGoesBack],
    ),
    another(
        "agent.binding-of-any-nonce",
        "a node without a mark takes a spec that is bound to another Hello",
        &[I::FreshIsBound],
    ),
    another(
        "agent.binding-of-any-spec",
        "a node without a mark takes any spec beside a binding of its Hello",
        &[I::FreshIsBound],
    ),
    another(
        "agent.marks-not-mirrored",
        "marks are in the journal and nowhere else",
        &[I::DurableFirst, I::NothingGoesBack],
    ),
    another(
        "agent.time-mark-as-stated",
        "a gateway's time outlives the session however far ahead it is",
        &[I::Settles],
    ),
    another(
        "agent.events-not-sent-again",
        "events that were sent on an earlier connection are not sent again",
        &[I::AckedIsKept, I::Credits, I::Settles],
    ),
    another(
        "agent.observed-unsettled",
        "a generation counts as observed before every section has settled",
        &[I::AsTold],
    ),
    another(
        "agent.old-roots-stay",
        "the keys of a newer trust bundle are stored and not used",
        &[I::Settles],
    ),
    another(
        "journal.sequence-reused",
        "a process that starts numbers its events from the last acknowledged one",
        &[I::NothingGoesBack, I::AckedIsKept],
    ),
    another(
        "journal.older-copy-stays-below",
        "an acknowledgement past the last event does not lift the numbers of the next ones",
        &[I::Credits, I::AckedIsKept],
    ),
    another(
        "journal.spec-leaves-marks",
        "a spec that is taken raises no mark",
        &[I::DurableFirst, I::NothingGoesBack, I::Settles],
    ),
    another(
        "journal.acked-is-forgotten",
        "a result that is acknowledged is forgotten at once",
        &[I::EffectOnce, I::SettledOnce],
    ),
    another(
        "journal.reboot-taken-for-granted",
        "a reboot that was asked for counts as done once the daemon has started again",
        &[I::AsTold],
    ),
    another(
        "gateway.updates-dropped-on-outage",
        "what nodes say of commands is dropped when the database does not answer",
        &[I::Credits, I::Settles],
    ),
    another("gateway.revoked-stays", "the session of a node that was revoked goes on", &[I::Fenced]),
    another(
        "gateway.lease-from-its-answer",
        "a gateway counts its lease from the answer and not from the question",
        &[I::Fenced],
    ),
    another("gateway.credits-unspent", "what was sent and not yet reported takes no credit", &[I::Credits]),
    another("delivery.lapsed-lease-renews", "a lease is renewed after it has run out", &[I::Fenced]),
    another(
        "delivery.reconnect-keeps-epoch",
        "a node that comes back to the same gateway keeps its session's epoch",
        &[I::NothingGoesBack, I::Fenced],
    ),
    another(
        "delivery.ack-of-other-journal",
        "what is acknowledged of one journal is taken to be so of the next",
        &[I::AckedIsKept],
    ),
    another(
        "delivery.hello-observed-as-told",
        "an observed generation of a Hello is stored as the node tells it",
        &[I::NothingGoesBack],
    ),
    another(
        "delivery.busy-stays-sent",
        "a command that a node has no room for stays marked as sent",
        &[I::Settles],
    ),
    another(
        "delivery.unconfirmed-restore-sends",
        "a restored database sends before anybody has confirmed it",
        &[I::ConfirmedFirst],
    ),
    another(
        "delivery.cancelled-goes-out",
        "a command that was cancelled before it was sent is sent",
        &[I::CalledOff],
    ),
];

pub fn find(name: &str) -> Option<&'static Mutant> {
    MUTANTS.iter().find(|mutant| mutant.name == name)
}
