//! What an engine's step asks the world to do. Effects happen in order, and only after the step's writes are durable.

use std::time::Duration;

use bytes::Bytes;
use model::{CommandId, CommandKind, Timestamp};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{CommandUpdate, Hello, NodeFrame};

use crate::journal::Marks;
use crate::secrets::{SecretTold, SecretWanted};
use crate::tunnel::Ticket;

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Dropped when no session is open: what matters is in the journal and is sent again.
    Send(Outgoing),
    /// Start a worker.
    Run { id: CommandId, kind: CommandKind, payload: Payload, not_after: Timestamp },
    /// Tell a worker that its command is cancelled.
    Cancel(CommandId),
    /// The spec, or something under it, may have changed.
    Converge,
    /// Open a connection.
    Dial,
    /// Let go of the connection.
    Hangup,
    /// Make a newer trust bundle durable, then say so with `Input::TrustStored`.
    StoreTrust { version: u64, signed: Bytes },
    /// Mirror the marks beside the journal.
    StoreMarks(Marks),
    /// Let the holder of this ticket in.
    OpenTunnel { ticket: Ticket, address: Option<String>, lasts: Duration },
    /// Let nobody stay in.
    CloseTunnels,
    /// Lay what was told of a secret where the next pass takes it.
    Told { wanted: SecretWanted, told: SecretTold },
}

/// Something for the other side. Bodies that are only in the journal are read when it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Outgoing {
    Frame(Box<NodeFrame>),
    /// With the held spec's signed body, and these results.
    Hello {
        hello: Box<Hello>,
        results: Vec<CommandId>,
    },
    /// A journaled result.
    Result(CommandId),
    /// Events after `after`, up to and including `through`.
    Events {
        after: u64,
        through: u64,
    },
    /// Inventory sections by name.
    Inventory(Vec<String>),
}

impl Outgoing {
    pub fn frame(frame: Frame) -> Self {
        Outgoing::Frame(Box::new(NodeFrame { frame: Some(frame) }))
    }

    pub fn update(update: CommandUpdate) -> Self {
        Self::frame(Frame::CommandUpdate(update))
    }
}
