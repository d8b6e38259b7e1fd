//! Settled commands: told to the world, and the diagnosis among them that lets an adopted node in.

use kernel::Fault;
use kernel::events::{self, EventKind};
use model::lifecycle::{CommandState, NodeEvent, NodeState};
use model::{CommandId, CommandKind, NodeId};
use serde_json::json;
use store::{Row, RowExt, Tx};
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::command_result::Result as Outcome;
use wire::proto::agent::{CommandResult, DiagNvmlResult};

use super::{AttestedResultOf, BATCH, More, limit, shown, shown_up_to};
use crate::core::Fleet;
use crate::sql;

/// Failed checks named in an event; the command's result has them all.
const CHECKS_SHOWN_MAX: usize = 8;
/// Of what a check says.
const REASON_CHARS_MAX: usize = 200;

impl Fleet {
    pub(super) async fn observe_commands(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<More, Fault> {
        let rows = tx.query(&sql::COMMANDS_SETTLED, &[&node_id.uuid(), &limit()]).await?;
        for row in &rows {
            let command_id: CommandId = row.id("command_id");
            self.observe_command(tx, node_id, command_id, row).await?;
            tx.execute(&sql::COMMAND_HANDLED, &[&command_id.uuid()]).await?;
        }
        Ok(rows.len() == BATCH)
    }

    async fn observe_command(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        command_id: CommandId,
        row: &Row,
    ) -> Result<(), Fault> {
        let (kind, state): (&str, &str) = (row.get("kind"), row.get("state"));
        let data = json!({
            "nodeId": node_id.to_string(), "kind": kind, "state": state,
            "reason": row.get::<_, &str>("reason"), "message": row.get::<_, &str>("message"),
        });
        let tenant = self.tenant_of(tx, node_id).await?;
        events::append(tx, self.rng(), EventKind::CommandSettled, command_id, tenant, data).await?;
        // A failure needs no signature: believing it lets nothing in.
        let attested = CommandKind::parse(kind).is_some_and(|kind| kind.policy().attested);
        let unsigned = state == CommandState::Succeeded.name()
            && attested
            && !AttestedResultOf::of(command_id, node_id, row).holds();
        if unsigned {
            let data = json!({ "kind": kind, "reason": "the result is not signed by the node" });
            self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await?;
        }
        let refusal = if unsigned { Some(UNSIGNED.to_owned()) } else { refusal(row) };
        self.conclude_acceptance(tx, node_id, command_id, refusal).await
    }

    /// Lets the node in, or says why not, when this is the command that its acceptance waits for.
    async fn conclude_acceptance(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        command_id: CommandId,
        refusal: Option<String>,
    ) -> Result<(), Fault> {
        let Some(node) = tx.query_opt(&sql::NODE_LOCK, &[&node_id.uuid()]).await? else { return Ok(()) };
        let waited_for: Option<CommandId> = node.opt_id("acceptance_command_id");
        if waited_for != Some(command_id) || node.get::<_, &str>("state") != NodeState::Accepting.name() {
            return Ok(());
        }
        match refusal {
            None => self.move_node(tx, node_id, NodeEvent::Accepted).await,
            Some(reason) => {
                let data = json!({ "commandId": command_id.to_string(), "reason": reason });
                self.emit(tx, EventKind::NodeAcceptanceFailed, node_id, data).await
            }
        }
    }
}

/// Why a diagnosis that says nothing against the node does not let it in.
pub(crate) const UNSIGNED: &str = "its diagnosis was not signed by the node";

fn refusal(row: &Row) -> Option<String> {
    let bytes: Option<&[u8]> = row.get("result");
    refusal_of(row.get("kind"), row.get("state"), row.get("message"), bytes.unwrap_or_default())
}

/// Why a settled command would not let a node in.
pub(crate) fn refusal_of(kind: &str, state: &str, message: &str, result: &[u8]) -> Option<String> {
    if state != CommandState::Succeeded.name() {
        return Some(format!("its diagnosis {state}: {message}"));
    }
    let decoded = wire::decode("command result", result, RESULT_BYTES_MAX);
    let result: CommandResult = match decoded {
        Ok(result) => result,
        Err(err) => return Some(err.to_string()),
    };
    match (CommandKind::parse(kind), result.result) {
        (Some(CommandKind::DiagNvml), Some(Outcome::DiagNvml(diag))) => diagnosis_refusal(&diag),
        (Some(CommandKind::InventoryRefresh), Some(Outcome::InventoryRefresh(_))) => None,
        _ => Some("its diagnosis has no result of its kind".to_owned()),
    }
}

fn diagnosis_refusal(diag: &DiagNvmlResult) -> Option<String> {
    if diag.passed {
        return None;
    }
    let failed: Vec<String> = diag
        .checks
        .iter()
        .filter(|check| !check.passed)
        .take(CHECKS_SHOWN_MAX)
        .map(|check| {
            let reason = shown_up_to(&check.reason, REASON_CHARS_MAX);
            format!("{} {}: {reason}", shown(&check.name), shown(&check.device))
        })
        .collect();
    Some(if failed.is_empty() { "its diagnosis did not pass".to_owned() } else { failed.join("; ") })
}
