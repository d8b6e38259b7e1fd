//! What nodes say of commands and of themselves, and what gateways may say and send, against what happened.

use std::collections::{BTreeMap, BTreeSet};

use agent::journal::{JournalStore, Stage, Write};
use model::command::KindPolicy;
use model::{CommandId, CommandKind, JournalId};
use wire::proto::agent::gateway_frame::Frame as Down;
use wire::proto::agent::node_frame::Frame as Up;
use wire::proto::agent::{CommandBody, CommandState, CommandUpdate, GatewayFrame, NodeFrame};

use super::clock::{Micros, SECOND};
use super::invariants::Invariant;
use super::plane::{Plane, node_id};
use super::scenario::NODES_MAX;
use super::world::World;

/// A gateway looks for sessions that must end every two seconds, and the database may not answer some of the time.
const REVOKED_WITHIN: Micros = 30 * SECOND;

#[derive(Default)]
pub struct Told {
    /// What the machines' own logs have of commands, by the journal that was there.
    acted: BTreeSet<(JournalId, CommandId)>,
    /// The boot in which a journal last had a command begin.
    began: BTreeMap<(JournalId, CommandId), String>,
    /// The newest epoch of a command that is durably accepted.
    epochs: BTreeMap<JournalId, u64>,
    /// Cancelled before they were sent.
    called_off: BTreeSet<CommandId>,
    nodes: [OfNode; NODES_MAX],
}

#[derive(Default)]
struct OfNode {
    /// Commands that this process has accepted, in their order.
    accepted: Vec<CommandId>,
    /// Those of them that have not begun.
    waiting: BTreeSet<CommandId>,
    /// The newest generation at which every section has settled in this process.
    settled: u64,
    /// Since when its certificate does not count.
    revoked: Option<Micros>,
}

type Broken = Option<(Invariant, String)>;

fn broken(holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) -> Broken {
    (!holds).then(|| (invariant, detail()))
}

fn policy(kind: &str) -> Option<KindPolicy> {
    CommandKind::parse(kind).map(CommandKind::policy)
}

impl Told {
    pub fn starts(&mut self, n: usize) {
        let revoked = self.nodes[n].revoked;
        self.nodes[n] = OfNode { revoked, ..OfNode::default() };
    }

    pub fn acts(&mut self, journal: JournalId, id: CommandId) {
        self.acted.insert((journal, id));
    }

    pub fn settles(&mut self, n: usize, generation: u64) {
        self.nodes[n].settled = generation;
    }

    pub fn calls_off(&mut self, id: CommandId) {
        self.called_off.insert(id);
    }

    /// Since when a node's certificate does not count, or that it does.
    pub fn revoke(&mut self, n: usize, since: Option<Micros>) {
        self.nodes[n].revoked = since;
    }

    /// What became durable in a journal.
    fn synced(&mut self, plane: &Plane, journal: JournalId, writes: &[Write]) -> Broken {
        for write in writes {
            let Write::Entry(entry) = write else { continue };
            let id = entry.command_id;
            match &entry.stage {
                Stage::Accepted => {
                    let epoch = plane.commands.get(&id).map_or(0, |issued| issued.body.deployment_epoch);
                    let newest = self.epochs.entry(journal).or_default();
                    *newest = epoch.max(*newest);
                }
                Stage::Running { boot_id } => {
                    self.began.insert((journal, id), boot_id.clone());
                }
                Stage::Done { update } => {
                    let found = self.is_so(journal, id, &entry.kind, update);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
        None
    }

    /// Whether what a journal says a command came to is what its machine's log has.
    fn is_so(&self, journal: JournalId, id: CommandId, kind: &str, update: &CommandUpdate) -> Broken {
        let acted = self.acted.contains(&(journal, id));
        // What was to end a boot that has ended since has come about, by whatever.
        let ended = policy(kind).is_some_and(|policy| policy.self_terminating)
            && self.began.get(&(journal, id)).is_some_and(|boot| *boot != update.boot_id);
        let so = match update.state() {
            CommandState::Rejected | CommandState::Cancelled => !acted,
            CommandState::Succeeded => acted || ended,
            _ => true,
        };
        broken(so, Invariant::AsTold, || {
            let what = if acted { "acted" } else { "did nothing" };
            format!("{kind} {id} {what}, and its node says {:?} ({})", update.state(), update.reason)
        })
    }

    /// What a step wants journaled.
    fn decides(
        &mut self,
        n: usize,
        journal: JournalId,
        mut held: u64,
        plane: &Plane,
        writes: &[Write],
    ) -> Broken {
        let node = &mut self.nodes[n];
        let newest = self.epochs.get(&journal).copied().unwrap_or(0);
        let back = Invariant::NothingGoesBack;
        let mut found = None;
        for write in writes {
            match write {
                Write::Entry(entry) if matches!(entry.stage, Stage::Done { .. }) => {
                    node.waiting.remove(&entry.command_id);
                }
                Write::Entry(entry) if !node.accepted.contains(&entry.command_id) => {
                    let id = entry.command_id;
                    node.accepted.push(id);
                    node.waiting.insert(id);
                    let epoch = plane.commands.get(&id).map_or(u64::MAX, |one| one.body.deployment_epoch);
                    let what = || format!("node {} accepts {id} of epoch {epoch} after {newest}", n + 1);
                    found = found.or(broken(epoch >= newest, back, what));
                }
                Write::Spec(spec) => {
                    let (epoch, generation) = (spec.deployment_epoch, spec.generation);
                    let what = || format!("node {} takes a spec of epoch {epoch} after {newest}", n + 1);
                    found = found.or(broken(epoch >= newest, back, what));
                    let what = || format!("node {} holds generation {held} and takes {generation}", n + 1);
                    found = found.or(broken(generation > held, back, what));
                    held = generation;
                }
                _ => {}
            }
        }
        found
    }

    /// A command begins: no other of its lane has waited longer for one of its resources.
    fn begins(&mut self, n: usize, id: CommandId, plane: &Plane) -> Broken {
        let issued = plane.commands.get(&id)?;
        let node = &mut self.nodes[n];
        node.waiting.remove(&id);
        let lane = policy(&issued.kind).map(|policy| policy.lane);
        let shares = |other: &CommandId| {
            plane.commands.get(other).is_some_and(|other| {
                policy(&other.kind).map(|policy| policy.lane) == lane
                    && other.body.resource_keys.iter().any(|key| issued.body.resource_keys.contains(key))
            })
        };
        let before = node.accepted.iter().take_while(|other| **other != id);
        let overtaken = before.filter(|other| node.waiting.contains(other)).find(|other| shares(other))?;
        Some((
            Invariant::InOrder,
            format!("{id} begins before {overtaken}, which waits for the same resource"),
        ))
    }
}

impl World {
    pub(super) fn look(&mut self, found: Broken) {
        if let Some((invariant, detail)) = found {
            self.watch.broken(invariant, self.now, || detail);
        }
    }

    pub(super) fn look_at_synced(&mut self, n: usize, writes: &[Write]) {
        let journal = self.nodes[n].disk.id();
        self.watch.synced(&self.delivery, n, journal, writes, self.now);
        let found = self.told.synced(&self.plane, journal, writes);
        self.look(found);
    }

    pub(super) fn look_at_decided(&mut self, n: usize) {
        let node = &self.nodes[n];
        let Some(step) = node.process.as_ref().and_then(|process| process.committing.as_ref()) else {
            return;
        };
        let held = node.disk.durable_spec().map_or(0, |spec| spec.generation);
        let found = self.told.decides(n, node.disk.id(), held, &self.plane, &step.writes);
        self.look(found);
    }

    pub(super) fn look_at_begin(&mut self, n: usize, id: CommandId) {
        let found = self.told.begins(n, id, &self.plane);
        self.look(found);
    }

    /// What a node says of itself.
    pub(super) fn look_at_word(&mut self, n: usize, frame: &NodeFrame) {
        let (mark, settled) = (self.nodes[n].kept.marks.generation, self.told.nodes[n].settled);
        let observed = |generation: u64| {
            broken(generation <= settled, Invariant::AsTold, || {
                format!("node {} has observed {generation}, and what has settled there is {settled}", n + 1)
            })
        };
        let found = match &frame.frame {
            Some(Up::Hello(hello)) => observed(hello.observed_generation),
            Some(Up::Status(status)) => {
                let applied = status.applied_generation;
                let mirrored = broken(applied <= mark, Invariant::DurableFirst, || {
                    format!("node {} says it holds {applied}, and beside its journal is {mark}", n + 1)
                });
                mirrored.or_else(|| observed(status.observed_generation))
            }
            Some(Up::CommandUpdate(update)) if self.hits.is_empty() => {
                broken(update.reason != "no-credit", Invariant::Credits, || {
                    format!("nothing has failed, and node {} has no credit for {}", n + 1, update.command_id)
                })
            }
            _ => None,
        };
        self.look(found);
    }

    /// What a gateway may say no more.
    pub(super) fn look_at_right(&mut self, id: u64, frame: &GatewayFrame) {
        let Some(connection) = self.net.connections.get(&id) else { return };
        let (n, gateway) = (connection.node, &self.gateways[connection.gateway]);
        // A machine that stood still cannot know for how long.
        let leased = gateway.clock.has_stood_still()
            || gateway.running.as_ref().is_none_or(|running| self.store.holds(running.lease()));
        let found = broken(leased, Invariant::Fenced, || {
            format!("a gateway whose lease is over says {} to node {}", name(frame), n + 1)
        });
        let found = found.or_else(|| {
            let id = command_of(frame).filter(|id| self.told.called_off.contains(id))?;
            Some((Invariant::CalledOff, format!("node {} is sent {id}, which was cancelled before", n + 1)))
        });
        let found = found.or_else(|| self.outlived(n, gateway.resumed_at, frame));
        let found = found.or_else(|| self.acknowledges_nothing(n, frame));
        self.look(found);
    }

    /// Whether a frame acknowledges an event that is not stored, whoever else has one of that number.
    fn acknowledges_nothing(&self, n: usize, frame: &GatewayFrame) -> Broken {
        let (journal, seq) = match &frame.frame {
            Some(Down::Welcome(welcome)) => (&welcome.journal_id, welcome.acked_event_seq),
            Some(Down::Ack(ack)) => (&ack.journal_id, ack.event_seq),
            _ => return None,
        };
        let journal = journal.parse().ok().filter(|_| seq > 0)?;
        let stored = self.delivery.event_report(node_id(n), journal, seq).is_some();
        broken(stored, Invariant::AckedIsKept, || {
            format!("event {seq} of {journal} is acknowledged to node {}, and is not stored", n + 1)
        })
    }

    /// Whether a gateway that runs since `resumed` goes on with a node whose certificate was revoked.
    fn outlived(&self, n: usize, resumed: Micros, frame: &GatewayFrame) -> Broken {
        let since = self.told.nodes[n].revoked?;
        let within = self.now.saturating_sub(since.max(resumed)) <= REVOKED_WITHIN;
        let may_be = match &frame.frame {
            Some(Down::Refusal(_) | Down::Revocation(_) | Down::Drain(_)) => true,
            Some(Down::Welcome(_)) => false,
            _ => within,
        };
        broken(may_be, Invariant::Fenced, || {
            format!("the certificate of node {} was revoked, and it is told {}", n + 1, name(frame))
        })
    }
}

fn command_of(frame: &GatewayFrame) -> Option<CommandId> {
    let Some(Down::Command(command)) = &frame.frame else { return None };
    let body = wire::decode::<CommandBody>("command", &command.body, command.body.len()).ok()?;
    body.command_id.parse().ok()
}

fn name(frame: &GatewayFrame) -> &'static str {
    match &frame.frame {
        Some(Down::Welcome(_)) => "a Welcome",
        Some(Down::Command(_)) => "a command",
        Some(Down::DesiredState(_)) => "a spec",
        Some(Down::Ack(_)) => "an acknowledgement",
        Some(Down::HeartbeatAck(_)) => "that it is heard",
        _ => "something",
    }
}
