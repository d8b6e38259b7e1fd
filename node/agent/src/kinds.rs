//! Command kinds as the agent sees them: something that runs once, for a body, and comes to an outcome.

use std::sync::Arc;

use futures::future::BoxFuture;
use model::{CommandId, CommandKind, NodeId, Timestamp};
use tokio_util::sync::CancellationToken;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result;

use crate::hardware::Host;

/// What running a command came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Succeeded(command_result::Result),
    /// `code` is one stable word: `invalid-payload`, `gpu-busy`, `internal`.
    Failed {
        code: String,
        message: String,
        result: Option<command_result::Result>,
    },
    /// Stopped by a cancel before anything was done. What was done in part is a failure.
    Cancelled,
    /// The command ends this process; the next one settles it. Only for self-terminating kinds.
    Ending,
}

impl Outcome {
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed { code: code.into(), message: message.into(), result: None }
    }
}

/// What a command runs with.
#[derive(Clone)]
pub struct CommandContext {
    pub command_id: CommandId,
    pub node_id: NodeId,
    pub boot_id: String,
    /// Server time after which nobody waits for it.
    pub not_after: Timestamp,
    /// Asked to stop: return at the next point between two actions, with what really happened.
    pub cancel: CancellationToken,
    pub host: Arc<dyn Host>,
}

/// Runs one kind. `running` is durable before this is called, and the outcome before anyone hears of it.
pub trait KindHandler: Send + Sync + 'static {
    fn kind(&self) -> CommandKind;
    /// `payload` is of `kind`. A panic becomes the failure `internal`.
    fn run(&self, context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome>;
}
