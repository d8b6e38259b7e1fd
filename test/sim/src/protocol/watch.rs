//! What really happened in a world, kept apart from everything that is under test, and the invariants over it.

use std::collections::{BTreeMap, BTreeSet};

use agent::journal::{Marks, Stage, Write};
use gateway::memory::MemoryDelivery;
use model::command::RejectReason;
use model::lifecycle::CommandState;
use model::{CommandId, CommandKind, IncarnationId, JournalId};
use wire::proto::agent::node_frame::Frame as Up;
use wire::proto::agent::{CommandState as Wire, CommandUpdate, NodeFrame};

use super::action::Release;
use super::clock::{Micros, SECOND, moment};
use super::invariants::{Invariant, Violation};
use super::nodes::{Node, Worker};
use super::plane::{Plane, node_id};
use super::scenario::NODES_MAX;

/// A Welcome's time is at most as old as a node waits for it.
const WELCOME_AGE_MAX: Micros = 31 * SECOND;
/// Reasons of settlements that the control plane makes without a node's word.
const MADE_BY_SERVER: [&str; 6] =
    ["journal-lost", "timeout", "expired", "rebooted", "cancelled", "invalid-body"];

#[derive(Debug, Clone, Copy)]
struct Execution {
    incarnation: IncarnationId,
    journal: JournalId,
    boot: u64,
}

#[derive(Default)]
pub struct Watch {
    pub violation: Option<Violation>,
    /// The machines' own logs: what was really done.
    executions: BTreeMap<CommandId, Vec<Execution>>,
    /// Results in journals.
    done: BTreeMap<(JournalId, CommandId), CommandUpdate>,
    results: BTreeMap<CommandId, Vec<CommandUpdate>>,
    /// Events in journals.
    events: BTreeMap<(JournalId, u64), Vec<u8>>,
    journal_marks: BTreeMap<JournalId, Marks>,
    /// Settled commands as they settled.
    settled: BTreeMap<CommandId, (CommandState, String, Option<Vec<u8>>)>,
    observed: [u64; NODES_MAX],
    session_epochs: [u64; NODES_MAX],
    welcomed: [u64; NODES_MAX],
    acked: BTreeMap<(usize, JournalId), u64>,
    /// Commands whose own node said something of them that is not so.
    pub lied_about: BTreeSet<CommandId>,
    /// Nodes whose lost journal somebody hostile may have used.
    pub replayed_to: [bool; NODES_MAX],
}

impl Watch {
    pub fn broken(&mut self, invariant: Invariant, at: Micros, detail: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { invariant, at, detail: detail() });
        }
    }

    fn must(&mut self, holds: bool, invariant: Invariant, at: Micros, detail: impl FnOnce() -> String) {
        if !holds {
            self.broken(invariant, at, detail);
        }
    }

    /// A command acts on its machine.
    pub fn acts(
        &mut self,
        node: &Node,
        n: usize,
        id: CommandId,
        kind: CommandKind,
        incarnation: IncarnationId,
        at: Micros,
    ) {
        let journal = agent::journal::JournalStore::id(node.disk.as_ref());
        let before = self.executions.entry(id).or_default();
        let in_process = before.iter().any(|run| run.incarnation == incarnation);
        // What a node whose journal is gone is told again by somebody hostile, nothing on it can know.
        let known = before.iter().any(|run| run.journal == journal || !self.replayed_to[n]);
        // What ends a boot ends it once, however often that boot was asked to end.
        let ends = kind.policy().self_terminating && before.iter().all(|run| run.boot == node.boot);
        let known = known && !ends;
        let again = !before.is_empty() && !kind.policy().retry_safe && known;
        before.push(Execution { incarnation, journal, boot: node.boot });
        let times = before.len();
        self.must(!in_process && !again, Invariant::EffectOnce, at, || {
            format!("{} {id} acted on node {} for the {times}. time", kind.name(), n + 1)
        });
    }

    /// A command is about to run. What its node had heard of the time when it was decided is what counts.
    pub fn runs(
        &mut self,
        plane: &Plane,
        node: &Node,
        n: usize,
        id: CommandId,
        kind: CommandKind,
        decided: Marks,
        running: &BTreeMap<CommandId, Worker>,
        at: Micros,
    ) {
        let Some(issued) = plane.commands.get(&id) else {
            return self.broken(Invariant::SignedOnly, at, || {
                format!("node {} runs {id}, which nobody signed", n + 1)
            });
        };
        self.must(node.release.handles(kind), Invariant::Versions, at, || {
            format!("node {} runs {id}, and release {} has no {}", n + 1, node.release.name(), kind.name())
        });
        self.must(issued.kind == kind.name(), Invariant::SignedOnly, at, || {
            format!("node {} runs {id} as {}, and {} was signed", n + 1, kind.name(), issued.kind)
        });
        self.must(issued.node == n, Invariant::OwnOnly, at, || {
            format!("node {} runs {id} of node {}", n + 1, issued.node + 1)
        });
        let spec = node.disk.durable_spec().map_or(0, |spec| spec.generation);
        self.must(spec >= issued.body.min_generation, Invariant::InTime, at, || {
            format!("{id} needs generation {}, node {} holds {spec}", issued.body.min_generation, n + 1)
        });
        let late = moment(at).micros() - issued.not_after.micros();
        let allowed = i64::try_from(WELCOME_AGE_MAX).unwrap_or(0);
        let in_time = decided.server_time_ms <= issued.body.not_after_ms && (node.lied_to || late <= allowed);
        self.must(in_time, Invariant::InTime, at, || {
            format!("{id} runs on node {} {} ms past its deadline", n + 1, late / 1000)
        });
        let shared = running
            .values()
            .any(|worker| issued.body.resource_keys.iter().any(|key| worker.keys.contains(key)));
        self.must(!shared, Invariant::Exclusive, at, || format!("{id} starts while its resource is in use"));
        let lane = kind.policy().lane;
        let in_lane = running.values().filter(|worker| worker.kind.policy().lane == lane).count();
        self.must(in_lane < lane.workers(), Invariant::Exclusive, at, || {
            format!("{id} starts in lane {} beside {in_lane} others", lane.name())
        });
    }

    /// A step wants a command journaled as done. One of a kind that this daemon does not know is refused for that reason, and no
    /// other is.
    pub fn refuses(
        &mut self,
        plane: &Plane,
        n: usize,
        release: Release,
        id: CommandId,
        update: &CommandUpdate,
        at: Micros,
    ) {
        let Some(issued) = plane.commands.get(&id).filter(|issued| issued.node == n) else { return };
        if update.state() != Wire::Rejected || self.lied_about.contains(&id) {
            return;
        }
        let known = CommandKind::parse(&issued.kind).is_some_and(|kind| release.handles(kind));
        let unsupported = update.reason == RejectReason::Unsupported.name();
        self.must(unsupported != known, Invariant::Versions, at, || {
            format!(
                "node {} of release {} refuses {id} {}: {}",
                n + 1,
                release.name(),
                issued.kind,
                update.reason
            )
        });
    }

    /// A step wants a spec journaled.
    pub fn takes_spec(
        &mut self,
        plane: &Plane,
        n: usize,
        spec: &agent::journal::StoredSpec,
        marks: Marks,
        nonce: &[u8],
        at: Micros,
    ) {
        let signed = plane.specs.get(&(n, spec.deployment_epoch, spec.generation));
        self.must(signed.is_some_and(|signed| signed.bytes == spec.body), Invariant::SignedOnly, at, || {
            format!(
                "node {} takes generation {}, which was not signed for it like this",
                n + 1,
                spec.generation
            )
        });
        let back = spec.generation < marks.generation || spec.deployment_epoch < marks.deployment_epoch;
        self.must(!back, Invariant::NothingGoesBack, at, || {
            format!(
                "node {} takes generation {} of epoch {} after {marks:?}",
                n + 1,
                spec.generation,
                spec.deployment_epoch
            )
        });
        let bound = !marks.is_fresh() || plane.bindings.contains(&(n, nonce.to_vec(), spec.generation));
        self.must(bound, Invariant::FreshIsBound, at, || {
            format!("node {} without a mark takes generation {} unbound", n + 1, spec.generation)
        });
    }

    /// Writes became durable.
    pub fn synced(
        &mut self,
        store: &MemoryDelivery,
        n: usize,
        journal: JournalId,
        writes: &[Write],
        at: Micros,
    ) {
        for write in writes {
            match write {
                Write::EventsAcked(seq) => {
                    let missing = self.missing(store, n, journal, 0, *seq);
                    self.must(missing.is_empty(), Invariant::AckedIsKept, at, || {
                        format!("node {} forgets events {missing:?}, which are not stored", n + 1)
                    });
                }
                Write::Entry(entry) => {
                    let id = entry.command_id;
                    let before = self.done.get(&(journal, id));
                    let update = match &entry.stage {
                        Stage::Done { update } => Some(update),
                        Stage::Accepted | Stage::Running { .. } => None,
                    };
                    let changed =
                        before.is_some_and(|before| update.is_none_or(|update| **update != *before));
                    self.must(!changed, Invariant::SettledOnce, at, || {
                        format!("node {} journals {id} again after it was done", n + 1)
                    });
                    if let Some(update) = update {
                        self.done.insert((journal, id), (**update).clone());
                        self.results.entry(id).or_default().push((**update).clone());
                    }
                }
                Write::Event(event) => {
                    let before = self.events.insert((journal, event.seq), event.report.to_vec());
                    let changed = before.is_some_and(|before| before != event.report);
                    self.must(!changed, Invariant::NothingGoesBack, at, || {
                        format!("node {} gives number {} to a second event", n + 1, event.seq)
                    });
                }
                Write::Marks(marks) => {
                    let before = self.journal_marks.insert(journal, *marks).unwrap_or_default();
                    self.must(before.max(*marks) == *marks, Invariant::NothingGoesBack, at, || {
                        format!("node {}'s marks went from {before:?} to {marks:?}", n + 1)
                    });
                }
                _ => {}
            }
        }
    }

    /// A frame leaves a node.
    pub fn node_says(&mut self, node: &Node, n: usize, frame: &NodeFrame, at: Micros) {
        let held = || node.disk.durable_spec().map_or(0, |spec| spec.generation);
        match &frame.frame {
            Some(Up::CommandUpdate(update)) => self.reports(node, n, update, at),
            Some(Up::Hello(hello)) => {
                let durable = held();
                self.must(hello.applied_generation == durable, Invariant::DurableFirst, at, || {
                    format!(
                        "node {} says it holds {}, and {durable} is durable",
                        n + 1,
                        hello.applied_generation
                    )
                });
                hello.unacked_results.iter().for_each(|update| self.reports(node, n, update, at));
            }
            Some(Up::Status(status)) => {
                let durable = held();
                self.must(status.applied_generation <= durable, Invariant::DurableFirst, at, || {
                    format!(
                        "node {} says it holds {}, and {durable} is durable",
                        n + 1,
                        status.applied_generation
                    )
                });
            }
            Some(Up::Events(batch)) => {
                for event in &batch.events {
                    let durable = node.disk.durable_event(event.seq);
                    let same = durable.is_some_and(|durable| durable.report == event.report);
                    self.must(same, Invariant::DurableFirst, at, || {
                        format!("node {} sends event {} that is not durable", n + 1, event.seq)
                    });
                }
            }
            _ => {}
        }
    }

    fn reports(&mut self, node: &Node, n: usize, update: &CommandUpdate, at: Micros) {
        let Ok(id) = update.command_id.parse::<CommandId>() else { return };
        let stage = node.disk.durable_entry(id).map(|entry| entry.stage);
        let durable = match update.state() {
            Wire::Unspecified | Wire::Busy => true,
            Wire::Acked => stage.is_some(),
            Wire::Running => matches!(stage, Some(Stage::Running { .. } | Stage::Done { .. })),
            Wire::Succeeded | Wire::Failed | Wire::Rejected | Wire::Cancelled => {
                matches!(&stage, Some(Stage::Done { update: kept }) if **kept == *update)
            }
        };
        self.must(durable, Invariant::DurableFirst, at, || {
            format!("node {} reports {:?} of {id}, and {stage:?} is durable", n + 1, update.state())
        });
    }

    /// An effect of a step is about to happen: its record must be there.
    pub fn running_is_durable(
        &mut self,
        node: &Node,
        n: usize,
        id: CommandId,
        incarnation: IncarnationId,
        at: Micros,
    ) {
        let entry = node.disk.durable_entry(id);
        let ours = entry.is_some_and(|entry| {
            entry.incarnation == incarnation && matches!(entry.stage, Stage::Running { .. })
        });
        self.must(ours, Invariant::DurableFirst, at, || {
            format!("node {} starts {id}, and that it runs is not durable", n + 1)
        });
    }

    pub fn converges(&mut self, node: &Node, n: usize, generation: u64, at: Micros) {
        let durable = node.disk.durable_spec().map_or(0, |spec| spec.generation);
        self.must(durable >= generation, Invariant::DurableFirst, at, || {
            format!("node {} converges generation {generation}, and {durable} is durable", n + 1)
        });
    }

    pub fn first_event(&self, journal: JournalId) -> Option<Vec<u8>> {
        self.events.get(&(journal, 1)).cloned()
    }

    /// A gateway acknowledges events up to `seq` of a journal.
    pub fn acks_events(
        &mut self,
        store: &MemoryDelivery,
        n: usize,
        journal: JournalId,
        seq: u64,
        at: Micros,
    ) {
        let last = self.acked.get(&(n, journal)).copied().unwrap_or(0);
        self.must(seq >= last, Invariant::NothingGoesBack, at, || {
            format!("node {}'s events were acknowledged up to {last}, and now to {seq}", n + 1)
        });
        if seq <= last {
            return;
        }
        // Up to `last` it was looked at before, and what is stored stays.
        let missing = self.missing(store, n, journal, last, seq);
        self.must(missing.is_empty(), Invariant::AckedIsKept, at, || {
            format!("node {}'s events {missing:?} are acknowledged and not stored", n + 1)
        });
        self.acked.insert((n, journal), seq);
    }

    /// Events of a journal, after one number and up to another, that the store does not have as they were.
    fn missing(
        &self,
        store: &MemoryDelivery,
        n: usize,
        journal: JournalId,
        after: u64,
        through: u64,
    ) -> Vec<u64> {
        if through <= after {
            return Vec::new();
        }
        self.events
            .range((journal, after + 1)..=(journal, through))
            .filter(|((_, seq), report)| {
                store.event_report(node_id(n), journal, *seq).as_ref() != Some(*report)
            })
            .map(|((_, seq), _)| *seq)
            .collect()
    }

    /// A step wants a command journaled as accepted.
    pub fn accepts(&mut self, plane: &Plane, n: usize, id: CommandId, marks: Marks, at: Micros) {
        let epoch = plane.commands.get(&id).map_or(u64::MAX, |issued| issued.body.deployment_epoch);
        self.must(epoch >= marks.deployment_epoch, Invariant::NothingGoesBack, at, || {
            format!("node {} accepts {id} of epoch {epoch} after {marks:?}", n + 1)
        });
    }

    pub fn acks_results(
        &mut self,
        plane: &Plane,
        store: &MemoryDelivery,
        n: usize,
        ids: &[String],
        at: Micros,
    ) {
        for id in ids.iter().filter_map(|id| id.parse::<CommandId>().ok()) {
            let own = plane.commands.get(&id).is_some_and(|issued| issued.node == n);
            let own = own && !self.lied_about.contains(&id);
            let settled = store.command_fate(id).is_some_and(|fate| fate.state.terminal());
            self.must(!own || settled, Invariant::AckedIsKept, at, || {
                format!("the result of {id} is acknowledged and not stored")
            });
        }
    }

    pub fn welcomes(&mut self, n: usize, epoch: u64, at: Micros) {
        let before = std::mem::replace(&mut self.welcomed[n], epoch);
        self.must(epoch != before, Invariant::NothingGoesBack, at, || {
            format!("node {} is welcomed twice to session {epoch}", n + 1)
        });
    }

    /// The store may have changed.
    pub fn stored(&mut self, plane: &Plane, store: &MemoryDelivery, nodes: usize, at: Micros) {
        let mut broken: Option<(Invariant, String)> = None;
        store.each_command(|command| {
            let id = command.command_id;
            if let Some((state, reason, result)) = self.settled.get(&id) {
                let same = (*state, reason.as_str(), result.as_deref())
                    == (command.state, command.reason, command.result);
                if !same {
                    broken = Some((
                        Invariant::SettledOnce,
                        format!(
                            "{id} was {} and is {} ({:?}, {:?})",
                            state.name(),
                            command.state.name(),
                            reason,
                            command.reason
                        ),
                    ));
                }
                return;
            }
            if !command.state.terminal() {
                return;
            }
            let said = self.results.get(&id).is_some_and(|said| {
                said.iter().any(|update| {
                    terminal(update.state()) == Some(command.state)
                        && update.result == command.result.unwrap_or_default()
                })
            });
            let by_server = command.result.is_none() && MADE_BY_SERVER.contains(&command.reason);
            if !said && !by_server {
                broken = Some((
                    Invariant::OwnOnly,
                    format!(
                        "{id} is {} ({:?}), and its node {} never said so",
                        command.state.name(),
                        command.reason,
                        command.node_id
                    ),
                ));
            }
            let result = command.result.map(<[u8]>::to_vec);
            self.settled.insert(id, (command.state, command.reason.to_owned(), result));
        });
        for n in 0..nodes {
            let observed = store.observed_generation(node_id(n));
            if observed < self.observed[n] || observed > plane.newest[n] {
                let before = self.observed[n];
                broken = Some((
                    Invariant::NothingGoesBack,
                    format!(
                        "node {}'s observed generation went from {before} to {observed} of {}",
                        n + 1,
                        plane.newest[n]
                    ),
                ));
            }
            self.observed[n] = observed;
            let epoch = store.session(node_id(n)).map_or(0, |session| session.epoch);
            if epoch < self.session_epochs[n] {
                broken = Some((
                    Invariant::NothingGoesBack,
                    format!("node {}'s session epoch fell to {epoch}", n + 1),
                ));
            }
            self.session_epochs[n] = epoch;
        }
        if let Some((invariant, detail)) = broken {
            self.broken(invariant, at, || detail);
        }
    }
}

fn terminal(state: Wire) -> Option<CommandState> {
    match state {
        Wire::Succeeded => Some(CommandState::Succeeded),
        Wire::Failed => Some(CommandState::Failed),
        Wire::Rejected => Some(CommandState::Rejected),
        Wire::Cancelled => Some(CommandState::Cancelled),
        Wire::Unspecified | Wire::Acked | Wire::Running | Wire::Busy => None,
    }
}
