//! What a node sent, looked at in order: its own events, its commands' results, its inventory and conditions.
//!
//! The gateway stored the bytes and judged nothing. Here a signature is checked before a state moves, and a handler that
//! fails undoes only itself: the event is done either way, since sending it again would fail again.

use std::time::Duration;

use kernel::events::{self, EventKind};
use kernel::module::QueueHandler;
use kernel::{BoxFuture, Fault};
use model::lifecycle::{CommandState, NodeEvent, NodeState};
use model::{CommandId, CommandKind, NodeId};
use pki::{Purpose, Signature, VerifyingKey};
use prost::Message;
use serde_json::json;
use sha2::{Digest, Sha256};
use store::{Op, Row, RowExt, Tx};
use wire::limits::{REPORT_BYTES_MAX, RESULT_BYTES_MAX};
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{AttestedResult, CommandResult, NodeReport, command_result};

use crate::core::{Fleet, node_of_key};
use crate::{OBSERVE_QUEUE, sql};

const OBSERVE: Op = Op::new("node_observe");

/// Whether a batch was full, so that there may be more.
type More = bool;

impl Fleet {
    pub(crate) async fn observe(&self, node_id: NodeId) -> Result<(), Fault> {
        loop {
            let more: More = self
                .store()
                .tx(OBSERVE, |tx| {
                    Box::pin(async move {
                        let events = self.observe_events(tx, node_id).await?;
                        let commands = self.observe_commands(tx, node_id).await?;
                        if !events && !commands {
                            self.publish_facts(tx, node_id).await?;
                        }
                        Ok::<_, Fault>(events || commands)
                    })
                })
                .await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn observe_events(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<More, Fault> {
        let rows = tx.query(&sql::NODE_EVENTS_OPEN, &[&node_id.uuid()]).await?;
        for row in &rows {
            self.observe_event(tx, node_id, row).await?;
            let (journal, seq): (uuid::Uuid, i64) = (row.get("journal_id"), row.get("seq"));
            tx.execute(&sql::NODE_EVENT_HANDLED, &[&node_id.uuid(), &journal, &seq]).await?;
        }
        Ok(rows.len() == 64)
    }

    async fn observe_event(&self, tx: &mut Tx<'_>, node_id: NodeId, row: &Row) -> Result<(), Fault> {
        let (bytes, seq): (&[u8], i64) = (row.get("report"), row.get("seq"));
        let report: NodeReport = match wire::decode("node report", bytes, REPORT_BYTES_MAX) {
            Ok(report) => report,
            Err(err) => {
                let data = json!({ "seq": seq, "reason": err.to_string() });
                return self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await;
            }
        };
        if report.node_id != node_id.to_string() {
            let named: String = report.node_id.chars().take(64).collect();
            let data = json!({ "seq": seq, "claimedNodeId": named });
            return self.emit(tx, EventKind::SecurityNodeMismatch, node_id, data).await;
        }
        if is_attested(&report)
            && !self.is_signed_by_node(tx, node_id, Purpose::AttestedReport, bytes, row).await?
        {
            let data = json!({ "seq": seq, "reason": "its signature is not the node's" });
            return self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await;
        }
        let observed_at = row.ts("observed_at");
        for observer in &self.0.observers {
            let report = &report;
            let done = tx.savepoint(|tx| Box::pin(observer.report(tx, node_id, report, observed_at))).await?;
            if let Err(err) = done {
                tracing::warn!(%node_id, seq, observer = observer.name(), err = kit::chain(&err), "report handler failed");
                let data = json!({ "seq": seq, "handler": observer.name() });
                self.emit(tx, EventKind::NodeReportFailed, node_id, data).await?;
            }
        }
        Ok(())
    }

    async fn observe_commands(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<More, Fault> {
        let rows = tx.query(&sql::COMMANDS_SETTLED, &[&node_id.uuid()]).await?;
        for row in &rows {
            let command_id: CommandId = row.id("command_id");
            self.observe_command(tx, node_id, command_id, row).await?;
            tx.execute(&sql::COMMAND_HANDLED, &[&command_id.uuid()]).await?;
        }
        Ok(rows.len() == 64)
    }

    async fn observe_command(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        command_id: CommandId,
        row: &Row,
    ) -> Result<(), Fault> {
        let (kind, state): (&str, &str) = (row.get("kind"), row.get("state"));
        let attested = CommandKind::parse(kind).is_some_and(|kind| kind.policy().attested);
        let believed = !attested || self.result_is_attested(tx, node_id, command_id, row).await?;
        let data = json!({
            "nodeId": node_id.to_string(), "kind": kind, "state": state,
            "reason": row.get::<_, &str>("reason"), "message": row.get::<_, &str>("message"),
        });
        let tenant = self.tenant_of(tx, node_id).await?;
        events::append(tx, self.rng(), EventKind::CommandSettled, command_id, tenant, data).await?;
        if !believed && state == CommandState::Succeeded.name() {
            let data = json!({ "kind": kind, "reason": "the result is not signed by the node" });
            self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await?;
        }
        self.conclude_acceptance(tx, node_id, command_id, row, believed).await
    }

    /// The diagnosis that decides whether an adopted node may take work.
    async fn conclude_acceptance(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        command_id: CommandId,
        row: &Row,
        believed: bool,
    ) -> Result<(), Fault> {
        let Some(node) = tx.query_opt(&sql::NODE_LOCK, &[&node_id.uuid()]).await? else { return Ok(()) };
        let waited_for: Option<CommandId> = node.opt_id("acceptance_command_id");
        if waited_for != Some(command_id) || node.get::<_, &str>("state") != NodeState::Accepting.name() {
            return Ok(());
        }
        let refusal = if !believed {
            Some("its diagnosis was not signed by the node".to_owned())
        } else {
            acceptance_refusal(row)
        };
        match refusal {
            None => self.move_node(tx, node_id, NodeEvent::Accepted).await,
            Some(reason) => {
                let data = json!({ "commandId": command_id.to_string(), "reason": reason });
                self.emit(tx, EventKind::NodeAcceptanceFailed, node_id, data).await
            }
        }
    }

    pub(crate) async fn result_is_attested(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        command_id: CommandId,
        row: &Row,
    ) -> Result<bool, Fault> {
        let result: Option<&[u8]> = row.get("result");
        let statement = AttestedResult {
            command_id: command_id.to_string(),
            state: i32::from(row.get::<_, Option<i16>>("result_state").unwrap_or(0)),
            result_sha256: Sha256::digest(result.unwrap_or_default()).to_vec().into(),
            node_id: node_id.to_string(),
        }
        .encode_to_vec();
        let signature: Option<&[u8]> = row.get("result_signature");
        let key: Option<&[u8]> = row.get("result_key_sha256");
        self.verify_node(tx, node_id, Purpose::AttestedResult, &statement, signature, key).await
    }

    async fn is_signed_by_node(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        purpose: Purpose,
        body: &[u8],
        row: &Row,
    ) -> Result<bool, Fault> {
        let (signature, key): (Option<&[u8]>, Option<&[u8]>) = (row.get("signature"), row.get("key_sha256"));
        self.verify_node(tx, node_id, purpose, body, signature, key).await
    }

    /// Whether `signature` over `body` is by a key that this node has an unrevoked certificate for.
    async fn verify_node(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        purpose: Purpose,
        body: &[u8],
        signature: Option<&[u8]>,
        key_sha256: Option<&[u8]>,
    ) -> Result<bool, Fault> {
        let (Some(signature), Some(key_sha256)) = (signature, key_sha256) else { return Ok(false) };
        let Ok(signature) = Signature::from_bytes(signature) else { return Ok(false) };
        let Some(row) = tx.query_opt(&sql::NODE_KEY, &[&node_id.uuid(), &key_sha256]).await? else {
            return Ok(false);
        };
        let Ok(key) = VerifyingKey::from_spki_der(row.get("spki_der")) else { return Ok(false) };
        Ok(key.verify(purpose, body, &signature).is_ok())
    }
}

/// Reports that move a booking are believed only when the node signed them.
fn is_attested(report: &NodeReport) -> bool {
    match &report.report {
        Some(Report::AllocationBound(_) | Report::AllocationFailed(_) | Report::AllocationReleased(_)) => {
            true
        }
        Some(Report::ConditionChanged(_)) | None => false,
    }
}

/// Why a settled acceptance command does not let the node in.
fn acceptance_refusal(row: &Row) -> Option<String> {
    if row.get::<_, &str>("state") != CommandState::Succeeded.name() {
        let (state, message): (&str, &str) = (row.get("state"), row.get("message"));
        return Some(format!("its diagnosis {state}: {message}"));
    }
    let bytes: Option<&[u8]> = row.get("result");
    let result: CommandResult =
        match wire::decode("command result", bytes.unwrap_or_default(), RESULT_BYTES_MAX) {
            Ok(result) => result,
            Err(err) => return Some(err.to_string()),
        };
    match result.result {
        Some(command_result::Result::DiagNvml(diag)) if diag.passed => None,
        Some(command_result::Result::DiagNvml(diag)) => {
            let failed: Vec<String> = diag
                .checks
                .iter()
                .filter(|check| !check.passed)
                .take(8)
                .map(|check| format!("{} {}: {}", check.name, check.device, check.reason))
                .collect();
            Some(failed.join("; "))
        }
        Some(command_result::Result::InventoryRefresh(_)) => None,
        _ => Some("its diagnosis has no result".to_owned()),
    }
}

/// The handler of [`OBSERVE_QUEUE`].
pub struct ObserveQueue(pub Fleet);

impl QueueHandler for ObserveQueue {
    fn queue(&self) -> &'static str {
        OBSERVE_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            if let Some(node_id) = node_of_key(key) {
                self.0.observe(node_id).await?;
            }
            Ok(None)
        })
    }
}
