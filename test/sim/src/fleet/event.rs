//! What happens at a moment of virtual time, outside of tasks.

use std::sync::Arc;
use std::time::Duration;

use agent::identity::Identity;
use agent::kinds::Outcome;
use model::CommandId;
use wire::proto::agent::{GatewayFrame, NodeFrame};

use super::chaos::{Fault, Planned};
use super::line::Line;

pub enum Event {
    /// The database told a channel.
    Notified(&'static str, String),
    /// A node's own clock says that something is due. Stale when the number is not the node's.
    NodeDue {
        node: usize,
        turn: u64,
    },
    /// A machine starts, or its daemon does.
    NodeStarts {
        node: usize,
        life: u64,
    },
    /// A machine that is to restart goes down.
    NodeReboots {
        node: usize,
        life: u64,
    },
    WorkerDone {
        node: usize,
        life: u64,
        id: CommandId,
        outcome: Outcome,
    },
    Renewed {
        node: usize,
        life: u64,
        renewed: Result<Box<Identity>, String>,
    },
    ToNode(Arc<Line>, ToNode),
    ToGateway(Arc<Line>, Option<Box<NodeFrame>>),
    /// The processes of the control plane start again.
    GatewayStarts {
        gateway: usize,
    },
    ControlStarts {
        control: usize,
    },
    Fault(Planned),
    FaultEnds(Fault),
    /// A client does something.
    Client,
    /// A tenant does what comes next for its instance. Stale when the number is not the life's.
    Tenant {
        life: usize,
        turn: u64,
    },
    /// A backup of the database is made.
    Backup,
    /// Everything that must be true is asked.
    Check,
    /// Hosts are looked at beside the rows.
    Hosts,
    /// What is expected of the run is looked at.
    Watch,
}

pub enum ToNode {
    Connected,
    Frame(Box<GatewayFrame>),
    Ended { why: String, pushback: Option<Duration> },
}
