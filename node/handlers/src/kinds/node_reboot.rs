//! Restarts the machine. The next boot is what settles the command: it reports this boot's id as the previous one.

use agent::kinds::{CommandContext, KindHandler, Outcome};
use futures::future::BoxFuture;
use model::CommandKind;
use wire::proto::agent::command_body::Payload;

use super::wrong_payload;

/// For a log line.
const REASON_BYTES_MAX: usize = 200;
/// The machine would not go down.
const REBOOT_FAILED: &str = "reboot-failed";

pub struct Handler;

impl KindHandler for Handler {
    fn kind(&self) -> CommandKind {
        CommandKind::NodeReboot
    }

    fn run(&self, context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            let Payload::NodeReboot(asked) = payload else { return wrong_payload() };
            if context.cancel.is_cancelled() {
                return Outcome::Cancelled;
            }
            let reason = cut(&asked.reason);
            tracing::info!(command_id = %context.command_id, reason, "rebooting");
            match context.host.reboot(&reason).await {
                Ok(()) => Outcome::Ending,
                Err(why) => Outcome::failed(REBOOT_FAILED, why),
            }
        })
    }
}

/// At most 200 bytes, cut between characters, on one line.
pub(super) fn cut(reason: &str) -> String {
    let mut out = String::new();
    for c in reason.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if out.len() + c.len_utf8() > REASON_BYTES_MAX {
            break;
        }
        out.push(c);
    }
    out
}
