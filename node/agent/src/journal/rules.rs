//! What the journal says about a command that is delivered, possibly again, and about what a crash left. Pure.

use kit::mutant;
use model::command::KindPolicy;
use model::{CommandId, CommandKind, IncarnationId, Timestamp};
use prost::Message;
use wire::proto::agent::command_result::Result as KindResult;
use wire::proto::agent::{CommandResult, CommandState, CommandUpdate, NodeRebootResult};

use super::{ENTRY_TTL, Head, HeadStage};

/// The answer to a delivered command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The acceptance checks decide; what passes them runs.
    Check,
    /// Settled: the stored result again.
    Replay,
    /// Under way in this process: say where it stands and run nothing.
    Standing(CommandState),
    /// Over without running anything more.
    Settle(Settlement),
}

/// How an entry that an earlier process left comes to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The command is what ended the earlier process.
    Rebooted { previous_boot_id: String },
    /// It may have acted, and running it again could do harm.
    Interrupted,
}

/// What is known of a kind by name. One this build does not know was neither safe to repeat nor self-terminating as far
/// as anyone here can tell.
fn policy(kind: &str) -> Option<KindPolicy> {
    CommandKind::parse(kind).map(CommandKind::policy)
}

/// The table of duplicates.
pub fn resolve(entry: Option<&Head>, incarnation: IncarnationId, boot_id: &str) -> Answer {
    let Some(entry) = entry else { return Answer::Check };
    let ours = entry.incarnation == incarnation;
    match &entry.stage {
        HeadStage::Done { .. } if mutant::on("journal.done-runs-again") => Answer::Check,
        HeadStage::Done { .. } => Answer::Replay,
        HeadStage::Accepted if ours => Answer::Standing(CommandState::Acked),
        HeadStage::Running { .. } if ours => Answer::Standing(CommandState::Running),
        HeadStage::Accepted => Answer::Check,
        HeadStage::Running { boot_id: ran_in } => match policy(&entry.kind) {
            Some(policy)
                if policy.self_terminating
                    && (**ran_in != *boot_id || mutant::on("journal.reboot-taken-for-granted")) =>
            {
                Answer::Settle(Settlement::Rebooted { previous_boot_id: ran_in.to_string() })
            }
            Some(policy) if policy.retry_safe || mutant::on("journal.left-running-runs-again") => {
                Answer::Check
            }
            // It was to end the boot that we are still in. Whether it asked or not, to ask again brings about that same end
            // and no second one.
            Some(policy) if policy.self_terminating => Answer::Check,
            _ => Answer::Settle(Settlement::Interrupted),
        },
    }
}

/// What can be settled at start without asking anyone, so that it goes out with the first Hello. What is safe to repeat
/// waits for the server to send it again, since the checks must pass again too.
pub fn recover<'a>(
    entries: impl IntoIterator<Item = (&'a CommandId, &'a Head)>,
    incarnation: IncarnationId,
    boot_id: &str,
) -> Vec<(CommandId, Settlement)> {
    entries
        .into_iter()
        .filter_map(|(id, head)| match resolve(Some(head), incarnation, boot_id) {
            Answer::Settle(settlement) => Some((*id, settlement)),
            Answer::Check | Answer::Replay | Answer::Standing(_) => None,
        })
        .collect()
}

/// What nobody will ask for any more. Entries of this process that are under way are never among it.
pub fn sweep<'a>(
    entries: impl IntoIterator<Item = (&'a CommandId, &'a Head)>,
    incarnation: IncarnationId,
    now: Timestamp,
) -> Vec<CommandId> {
    entries
        .into_iter()
        .filter(|(_, head)| {
            let settled = matches!(head.stage, HeadStage::Done { .. });
            (settled || head.incarnation != incarnation) && now.since(head.at) > ENTRY_TTL
        })
        .map(|(id, _)| *id)
        .collect()
}

/// The report of a settlement.
pub fn settled_update(id: CommandId, kind: &str, settlement: &Settlement, boot_id: &str) -> CommandUpdate {
    let mut update =
        CommandUpdate { command_id: id.to_string(), boot_id: boot_id.to_owned(), ..CommandUpdate::default() };
    match settlement {
        Settlement::Rebooted { previous_boot_id } => {
            update.set_state(CommandState::Succeeded);
            if let Some(result) = rebooted_result(kind, previous_boot_id, boot_id) {
                update.result = CommandResult { result: Some(result) }.encode_to_vec().into();
            }
        }
        Settlement::Interrupted => {
            update.set_state(CommandState::Failed);
            update.reason = "interrupted".into();
            update.message =
                "the daemon stopped while this command ran; what it had done is not known".into();
        }
    }
    update
}

fn rebooted_result(kind: &str, previous_boot_id: &str, boot_id: &str) -> Option<KindResult> {
    match CommandKind::parse(kind)? {
        CommandKind::NodeReboot => Some(KindResult::NodeReboot(NodeRebootResult {
            previous_boot_id: previous_boot_id.to_owned(),
            boot_id: boot_id.to_owned(),
        })),
        CommandKind::InventoryRefresh
        | CommandKind::DiagNvml
        | CommandKind::LogsCollect
        | CommandKind::GpuReset => None,
    }
}
