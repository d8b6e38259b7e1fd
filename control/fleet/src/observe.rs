//! What a node sent, looked at in order: a claim to be ahead of us, its own events, its commands' results; then its facts.
//!
//! The gateway stored the bytes and judged nothing. Here a signature is checked before a state moves, and a handler that
//! fails undoes only itself: the event is done either way, since sending it again would fail again.

use std::sync::Arc;
use std::time::Duration;

use kernel::events::EventKind;
use kernel::module::{Again, HandleTogether, QueueHandler};
use kernel::ports::node::NodeObserver;
use kernel::{BoxFuture, Fault};
use model::NodeId;
use pki::Purpose;
use serde_json::{Value, json};
use store::{IsRetryable, Op, Row, RowExt, Tx};
use wire::limits::REPORT_BYTES_MAX;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{ConditionChanged, NodeReport};

use crate::core::{Fleet, node_of_key};
use crate::{OBSERVE_QUEUE, sql};

mod attest;
mod claims;
pub(crate) mod commands;
mod together;

pub(crate) use attest::AttestedResultOf;

const OBSERVE: Op = Op::new("node_observe");
const FACTS: Op = Op::new("node_facts");
/// What one transaction handles of each kind: short enough that a failure repeats little.
const BATCH: usize = 64;
/// Nodes that are looked at together: there is one such transaction at a time, so a busy fleet is as fast as its size is large.
const NODES_MAX: u32 = 256;
/// After this many batches other nodes get their turn.
const ROUNDS_MAX: u32 = 64;
/// Text of a node that goes into an event.
const SHOWN_CHARS_MAX: usize = 64;

/// Whether a batch was full, so that there may be more.
type More = bool;

impl Fleet {
    /// Handles what the node sent. Returns when to look again, if there is more.
    pub async fn observe(&self, node_id: NodeId) -> Result<Option<Duration>, Fault> {
        for _ in 0..ROUNDS_MAX {
            if !self.store().tx(OBSERVE, |tx| Box::pin(self.observe_batch(tx, node_id))).await? {
                // On their own: an observer that fails on the facts does not hold up the events.
                self.store().tx(FACTS, |tx| Box::pin(self.publish_facts(tx, node_id))).await?;
                return Ok(None);
            }
        }
        Ok(Some(Duration::ZERO))
    }

    async fn observe_batch(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<More, Fault> {
        self.judge_claim(tx, node_id).await?;
        let events = self.observe_events(tx, node_id).await?;
        let commands = self.observe_commands(tx, node_id).await?;
        Ok(events || commands)
    }

    async fn observe_events(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<More, Fault> {
        let rows = tx.query(&sql::NODE_EVENTS_OPEN, &[&node_id.uuid(), &limit()]).await?;
        for row in &rows {
            self.observe_event(tx, node_id, row).await?;
            let (journal, seq): (uuid::Uuid, i64) = (row.get("journal_id"), row.get("seq"));
            tx.execute(&sql::NODE_EVENT_HANDLED, &[&node_id.uuid(), &journal, &seq]).await?;
        }
        Ok(rows.len() == BATCH)
    }

    async fn observe_event(&self, tx: &mut Tx<'_>, node_id: NodeId, row: &Row) -> Result<(), Fault> {
        let bytes: &[u8] = row.get("report");
        let report: NodeReport = match wire::decode("node report", bytes, REPORT_BYTES_MAX) {
            Ok(report) => report,
            Err(err) => {
                let data = about(row, json!({ "reason": err.to_string() }));
                return self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await;
            }
        };
        if report.node_id != node_id.to_string() {
            let data = about(row, json!({ "claimedNodeId": shown(&report.node_id) }));
            return self.emit(tx, EventKind::SecurityNodeMismatch, node_id, data).await;
        }
        if is_attested(&report)
            && !self.is_signed_by_node(tx, node_id, Purpose::AttestedReport, bytes, row).await?
        {
            let reason = json!({ "kind": kind_of(&report), "reason": "its signature is not the node's" });
            return self.emit(tx, EventKind::SecurityInvalidReport, node_id, about(row, reason)).await;
        }
        if let Some(Report::ConditionChanged(change)) = &report.report {
            self.emit(tx, EventKind::NodeCondition, node_id, condition(change)).await?;
        }
        self.tell_observers(tx, node_id, &report, row).await
    }

    async fn tell_observers(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        report: &NodeReport,
        row: &Row,
    ) -> Result<(), Fault> {
        for observer in &self.0.observers {
            self.tell_observer(tx, observer, node_id, report, row).await?;
        }
        Ok(())
    }

    async fn tell_observer(
        &self,
        tx: &mut Tx<'_>,
        observer: &Arc<dyn NodeObserver>,
        node_id: NodeId,
        report: &NodeReport,
        row: &Row,
    ) -> Result<(), Fault> {
        let observed_at = row.ts("observed_at");
        let done = tx.savepoint(|tx| Box::pin(observer.report(tx, node_id, report, observed_at))).await?;
        let Err(err) = done else { return Ok(()) };
        if err.is_retryable() {
            // A deadlock, a lost connection: nothing about the report. The whole batch runs again.
            return Err(err);
        }
        let (handler, seq): (_, i64) = (observer.name(), row.get("seq"));
        tracing::warn!(%node_id, seq, observer = handler, err = kit::chain(&err), "report handler failed");
        let data = about(row, json!({ "kind": kind_of(report), "handler": handler }));
        self.emit(tx, EventKind::NodeReportFailed, node_id, data).await
    }
}

fn limit() -> i64 {
    i64::try_from(BATCH).expect("a small constant")
}

/// A node's own words, fit for an event: short, and without control characters. The database takes no NUL in JSON, and one
/// that came so far would keep every later report of its node from being handled.
fn shown(text: &str) -> String {
    shown_up_to(text, SHOWN_CHARS_MAX)
}

fn shown_up_to(text: &str, chars_max: usize) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(chars_max).collect()
}

/// An event's data with which of the node's events it is about.
fn about(row: &Row, mut data: Value) -> Value {
    data["journalId"] = row.get::<_, uuid::Uuid>("journal_id").to_string().into();
    data["seq"] = row.get::<_, i64>("seq").into();
    data
}

const fn kind_of(report: &NodeReport) -> &'static str {
    match &report.report {
        Some(Report::AllocationBound(_)) => "allocation-bound",
        Some(Report::AllocationFailed(_)) => "allocation-failed",
        Some(Report::AllocationReleased(_)) => "allocation-released",
        Some(Report::ConditionChanged(_)) => "condition-changed",
        Some(Report::InstancesObserved(_)) => "instances-observed",
        // A newer agent's.
        None => "unknown",
    }
}

/// Reports that move a booking, or an instance, are believed only when the node signed them.
fn is_attested(report: &NodeReport) -> bool {
    match &report.report {
        Some(
            Report::AllocationBound(_)
            | Report::AllocationFailed(_)
            | Report::AllocationReleased(_)
            | Report::InstancesObserved(_),
        ) => true,
        Some(Report::ConditionChanged(_)) | None => false,
    }
}

fn condition(change: &ConditionChanged) -> Value {
    let condition = change.condition.clone().unwrap_or_default();
    let one = json!([{ "kind": shown(&condition.kind), "device": shown(&condition.device) }]);
    if change.cleared { json!({ "cleared": one }) } else { json!({ "raised": one }) }
}

/// The handler of [`OBSERVE_QUEUE`].
pub struct ObserveQueue(pub Fleet);

impl QueueHandler for ObserveQueue {
    fn queue(&self) -> &'static str {
        OBSERVE_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match node_of_key(key) {
                Some(node_id) => self.0.observe(node_id).await,
                None => Ok(None),
            }
        })
    }

    fn together(&self) -> Option<&dyn HandleTogether> {
        Some(self)
    }
}

impl HandleTogether for ObserveQueue {
    fn keys_max(&self) -> u32 {
        NODES_MAX
    }

    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>> {
        Box::pin(async move {
            let nodes: Vec<NodeId> = keys.iter().filter_map(|key| node_of_key(key)).collect();
            self.0.observe_all(tx, &nodes).await
        })
    }
}
