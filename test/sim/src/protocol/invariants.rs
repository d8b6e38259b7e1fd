//! What must hold of every run, whatever goes wrong: one table.

use std::fmt;

use super::clock::{Micros, SECOND};

macro_rules! invariants {
    ($($number:literal $variant:ident $name:literal: $sentence:literal, $how:literal;)*) => {
        /// A sentence that no run may break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant { $(#[doc = $sentence] $variant,)* }

        impl Invariant {
            pub const ALL: &'static [Invariant] = &[$(Invariant::$variant,)*];

            pub const fn number(self) -> u32 {
                match self { $(Invariant::$variant => $number,)* }
            }

            pub const fn name(self) -> &'static str {
                match self { $(Invariant::$variant => $name,)* }
            }

            /// What holds.
            pub const fn sentence(self) -> &'static str {
                match self { $(Invariant::$variant => $sentence,)* }
            }

            /// How it is found out.
            pub const fn how(self) -> &'static str {
                match self { $(Invariant::$variant => $how,)* }
            }
        }
    };
}

invariants! {
    1 EffectOnce "effect-once":
        "A command that is not safe to repeat has its effect once, and no process has any effect twice.",
        "The machine keeps a log of what was really done to it, which no crash, reboot or lost journal touches.";
    2 SettledOnce "settled-once":
        "A command settles once, and nothing about it changes after.",
        "State, reason and result of every settled command are compared with what they were, in the store and in each journal.";
    3 NothingGoesBack "nothing-goes-back":
        "Generations, session epochs, deployment epochs and acknowledgements never go back.",
        "Each spec a node takes is compared with its durable marks; each session with the one before; each stored number with itself.";
    4 SignedOnly "signed-only":
        "Nothing runs and nothing is applied that the control plane did not sign, byte for byte.",
        "Whatever is run or applied is looked up among what was really signed.";
    5 OwnOnly "own-only":
        "A node acts on its own intent only, and its word settles its own commands only.",
        "The same look-up compares the node; a result that is stored must be in the journal of the command's own node.";
    6 DurableFirst "durable-first":
        "Nothing leaves a node, and nothing happens on it, before the record of it is durable.",
        "Every frame and every effect is compared with what a power cut at this moment would leave.";
    7 AckedIsKept "acked-is-kept":
        "What a gateway acknowledges is stored, and is what the node had said.",
        "Every Ack and every Welcome is compared with the store, event by event and result by result.";
    8 Fenced "fenced":
        "A gateway past its lease says and changes nothing, nor does a session that another one has taken over or whose certificate was revoked.",
        "The store's digest before and after each such write, and every frame a gateway sends.";
    9 Explained "explained":
        "Every hold is explained by a spec that was signed; one that no entry lists is kept and reported.",
        "Each hold that appears or goes is looked up in the spec of that pass; at rest the conditions are compared with the machine.";
    10 FreshIsBound "fresh-is-bound":
        "A node without a mark takes only a spec that is bound to its own Hello.",
        "The nonce of its Hello is looked up among those that were answered for.";
    11 InTime "in-time":
        "Nothing runs past its deadline, nor before its node holds the spec it presupposes.",
        "Deadlines are judged by the time that is right, and by the node's own durable mark.";
    12 Exclusive "exclusive":
        "A resource has one command at a time, and a lane no more than its workers.",
        "What runs on a machine is compared whenever something starts.";
    13 Versions "versions":
        "Who speaks no common version gets no session, and a kind or frame nobody knows is refused or ignored.",
        "Sessions that open after a Hello or a Welcome of another version.";
    14 Settles "settles":
        "When faults have stopped, every command settles and every node converges to its newest generation, within a bound.",
        "The world runs on without faults until it rests, or until the bound has passed.";
    15 Credits "credits":
        "At rest every lane has all its credits, and no result and no event waits; while nothing fails, no node is sent more than it has credits for.",
        "What nodes say of themselves at rest, and their answers before the first fault.";
    16 Rests "rests":
        "When the world rests, every loop rests.",
        "Frames, commits and calls of the store are counted for two minutes at rest, and steps at every single moment.";
    17 SameBytes "same-bytes":
        "The same seed gives the same bytes.",
        "A hash over every frame, commit and effect, of two runs.";
    18 NoPanic "no-panic":
        "Nothing that arrives makes a core panic.",
        "A run that panics is a broken run.";
    19 AsTold "as-told":
        "What a command is said to have come to is what happened, and what a node has observed is what has settled there.",
        "A result that a journal holds is compared with the machine's log, an observed generation with the last pass that settled.";
    20 InOrder "in-order":
        "Of two commands of a lane that want one resource, the one accepted first begins first.",
        "Whenever one begins, those that were accepted before it and wait are looked at.";
    21 CalledOff "called-off":
        "A command that was cancelled before it was sent is not sent.",
        "Every command a gateway sends is looked up among those.";
    22 ConfirmedFirst "confirmed-first":
        "A restored database sends nothing before somebody has confirmed it.",
        "What the store gives a gateway to send is counted until then.";
}

/// How long after the last fault a node may take to its newest generation: the longest backoff and the longest backstop, some times.
pub const CONVERGE_WITHIN: Micros = 600 * SECOND;
/// And a command past its deadline and its kind's time.
pub const SETTLE_SLACK: Micros = 120 * SECOND;
/// Steps at one moment: more means that something turns in a circle.
pub const STEPS_AT_ONCE_MAX: u32 = 5_000;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub at: Micros,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, at, detail } = self;
        write!(
            f,
            "{} ({}) broken at {}.{:03} s: {detail}\n  {}",
            invariant.name(),
            invariant.number(),
            at / SECOND,
            at % SECOND / 1000,
            invariant.sentence()
        )
    }
}
