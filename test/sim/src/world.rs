//! What a simulated node shows of itself, beside the rows: what it holds, what its journal remembers and what it has done.

use agent::journal::Marks;
use model::{AllocationId, CommandId, CommandKind, InstanceId, JournalId, NodeId, Timestamp};
use store::Store;

/// The fleet at one moment.
pub struct World<'a> {
    /// As the owner of the schema, under the virtual clock.
    pub store: &'a Store,
    pub now: Timestamp,
    pub nodes: &'a [NodeView],
    /// Every hold that went, in order.
    pub releases: &'a [ReleaseView],
    /// Everything of an instance that went, in order.
    pub destroyed: &'a [DestroyedView],
}

/// One node as a look at the machine itself shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// Its number in the simulation, from 0.
    pub index: usize,
    /// None before it has joined.
    pub node_id: Option<NodeId>,
    /// Whether its daemon runs.
    pub up: bool,
    /// By an operator, at some time: what it runs may have been placed elsewhere.
    pub declared_dead: bool,
    pub boot_id: String,
    /// Another one after the journal was lost.
    pub journal_id: JournalId,
    /// What the journal has seen the highest of.
    pub marks: Marks,
    /// Of this journal: events written, and acknowledged by a gateway.
    pub last_event_seq: u64,
    pub acked_event_seq: u64,
    /// By allocation.
    pub holds: Vec<HoldView>,
    /// By instance.
    pub domains: Vec<DomainView>,
    /// Every effect this machine ever had that may not be repeated, in order, over all its journals and boots.
    pub effects: Vec<EffectView>,
}

/// A hold as its file on the node says.
#[derive(Debug, Clone, PartialEq)]
pub struct HoldView {
    pub allocation_id: AllocationId,
    pub atoms: Vec<String>,
    /// When the simulator first saw it, for bounds in time.
    pub since: Timestamp,
}

/// An instance as its host's hypervisor has it.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainView {
    pub instance_id: InstanceId,
    pub running: bool,
    /// The start it was last started for, and when that was first seen.
    pub boot: i64,
    pub boot_since: Timestamp,
    pub vcpus: u32,
    pub memory_bytes: i64,
    pub cards: Vec<CardView>,
    /// When the simulator first saw it, for bounds in time.
    pub since: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CardView {
    pub mac: String,
    pub bridge: String,
    /// With the lengths of their prefixes.
    pub addresses: Vec<String>,
}

/// A command whose handler ran.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectView {
    pub command_id: CommandId,
    pub kind: CommandKind,
    pub at: Timestamp,
    pub journal_id: JournalId,
    pub boot_id: String,
}

/// A hold that was there and is not any more.
#[derive(Debug, Clone, PartialEq)]
pub struct ReleaseView {
    pub node_id: NodeId,
    pub allocation_id: AllocationId,
    pub at: Timestamp,
    /// Of the spec the node held when the hold went.
    pub generation: u64,
    /// Whether that spec said that the hold is to go.
    pub intended: bool,
}

/// An instance of which something was on a host, and is not any more.
#[derive(Debug, Clone, PartialEq)]
pub struct DestroyedView {
    pub node_id: NodeId,
    pub instance_id: InstanceId,
    pub at: Timestamp,
    /// Of the spec the host held when it went.
    pub generation: u64,
    /// Whether that spec said that it is to go.
    pub intended: bool,
}
