//! What a simulator does and sees beyond what a gateway may: time's share in commands, and everything that is stored.

use std::hash::{DefaultHasher, Hash, Hasher};

use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, CommandKind, JournalId, NodeId, Timestamp};

use super::{MemoryDelivery, Node, State};

/// Where a command stands, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct CommandView<'a> {
    pub command_id: CommandId,
    pub node_id: NodeId,
    pub state: CommandState,
    pub reason: &'a str,
    pub result: Option<&'a [u8]>,
}

/// A node's session, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView {
    pub epoch: u64,
    pub gateway_epoch: u64,
    pub open: bool,
    pub journal_id: JournalId,
    pub acked: u64,
}

impl MemoryDelivery {
    /// The database after it was restored: intent of older epochs is refused by nodes that have seen this one.
    pub fn set_deployment_epoch(&self, epoch: u64) {
        self.lock().deployment_epoch = epoch;
    }

    /// What the passage of time does to commands, as the control plane's sweeper has it: one that was not sent expires, and one
    /// whose node says nothing for its kind's time fails.
    pub fn sweep(&self, now: Timestamp) {
        self.lock().sweep(now);
    }

    pub fn each_command(&self, mut see: impl FnMut(CommandView<'_>)) {
        for command in &self.lock().commands {
            see(CommandView {
                command_id: command.stored.command_id,
                node_id: command.stored.node_id,
                state: command.state,
                reason: &command.reason,
                result: command.result.as_deref(),
            });
        }
    }

    pub fn session(&self, node_id: NodeId) -> Option<SessionView> {
        let state = self.lock();
        let session = state.nodes.get(&node_id)?.session.as_ref()?;
        Some(SessionView {
            epoch: session.epoch,
            gateway_epoch: session.gateway.epoch,
            open: session.open,
            journal_id: session.journal_id,
            acked: session.acked,
        })
    }

    /// The generation that every section has settled at, as far as the node said.
    pub fn observed_generation(&self, node_id: NodeId) -> u64 {
        self.lock().nodes.get(&node_id).map_or(0, |node| node.observed_generation)
    }

    /// The stored report of a journal's event.
    pub fn event_report(&self, node_id: NodeId, journal_id: JournalId, seq: u64) -> Option<Vec<u8>> {
        let state = self.lock();
        let event = state.nodes.get(&node_id)?.events.get(&(journal_id, seq))?;
        Some(event.report.clone())
    }

    /// A digest of all that a gateway's writes can change, of one node or of all: equal before and after a write that did nothing.
    pub fn digest(&self, of: Option<NodeId>) -> u64 {
        let state = self.lock();
        let mut hasher = DefaultHasher::new();
        let wanted = |node_id: &NodeId| of.is_none_or(|of| of == *node_id);
        for (node_id, node) in state.nodes.iter().filter(|(node_id, _)| wanted(node_id)) {
            node_id.uuid().hash(&mut hasher);
            node.digest(&mut hasher);
        }
        for command in state.commands.iter().filter(|command| wanted(&command.stored.node_id)) {
            command.stored.command_id.uuid().hash(&mut hasher);
            (command.state, command.stored.attempt, command.session_epoch).hash(&mut hasher);
            (&command.reason, &command.result).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl State {
    fn sweep(&mut self, now: Timestamp) {
        for command in &mut self.commands {
            let kind = CommandKind::parse(&command.stored.kind).map(CommandKind::policy);
            let timeout = kind.map_or(model::command::UNKNOWN_KIND_TIMEOUT, |policy| policy.timeout);
            if command.state == CommandState::Pending && command.not_after < now {
                command.settle(CommandState::Expired, CommandEvent::Expired.name());
            } else if CommandState::IN_FLIGHT.contains(&command.state)
                && command.not_after.saturating_add(timeout) < now
            {
                command.settle(CommandState::Failed, "timeout");
            }
        }
    }
}

impl Node {
    fn digest(&self, hasher: &mut DefaultHasher) {
        if let Some(session) = &self.session {
            (session.epoch, session.gateway.epoch, session.open, session.acked, session.beats).hash(hasher);
        }
        for ((journal_id, seq), event) in &self.events {
            (journal_id.uuid(), seq, &event.report).hash(hasher);
        }
        self.inventory.hash(hasher);
        self.observed_generation.hash(hasher);
        self.status.as_ref().map(|status| (&status.status_key, status.applied_generation)).hash(hasher);
    }
}
