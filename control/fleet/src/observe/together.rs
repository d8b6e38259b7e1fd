//! What many nodes sent, looked at in one transaction, with a few statements for all of them.
//!
//! Here nothing is undone by itself: what one observer cannot handle undoes all, and then each node is observed alone, where
//! a failing handler undoes only itself.

use std::time::Duration;

use kernel::Fault;
use kernel::events::EventKind;
use kernel::module::{Again, wake};
use kernel::ports::node::Reported;
use model::NodeId;
use pki::Purpose;
use serde_json::json;
use store::{Row, RowExt, Tx};
use uuid::Uuid;
use wire::limits::REPORT_BYTES_MAX;
use wire::proto::agent::NodeReport;
use wire::proto::agent::node_report::Report;

use super::{BATCH, about, attest, condition, is_attested, kind_of, shown};
use crate::core::{Fleet, node_key};
use crate::{FACTS_QUEUE, sql};

/// Events of one transaction at most: what a failure repeats. Each node has its share, so that none with much to say has others wait.
const EVENTS_MAX: usize = 1024;
/// Nodes whose commands one transaction handles, each by itself, while others wait to book on the nodes.
const SETTLED_MAX: usize = 64;

impl Fleet {
    /// Handles what these nodes sent. Returns which of them have more.
    pub(super) async fn observe_all(&self, tx: &mut Tx<'_>, nodes: &[NodeId]) -> Result<Vec<Again>, Fault> {
        let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
        let looks = tx.query(&sql::NODES_LOOK, &[&ids]).await?;
        let those = |what: &'static str| {
            looks.iter().filter(move |row| row.get(what)).map(|row| row.id::<NodeId>("node_id"))
        };
        for node_id in those("in_doubt") {
            self.judge_claim(tx, node_id).await?;
        }
        // On their own: facts take other locks than reports do, and an observer that fails on them does not hold up the reports.
        for node_id in those("news") {
            wake(tx, FACTS_QUEUE, &node_key(node_id)).await?;
        }
        // Others book on these nodes, and wait from here on until all is committed.
        let mut more = self.observe_events_of_all(tx, &ids).await?;
        for (place, node_id) in those("settled").enumerate() {
            if place >= SETTLED_MAX || self.observe_commands(tx, node_id).await? {
                more.push(node_id);
            }
        }
        more.sort_unstable();
        more.dedup();
        Ok(more.into_iter().map(|node_id| (node_key(node_id), Duration::ZERO)).collect())
    }

    /// The nodes that may have more events.
    async fn observe_events_of_all(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<Vec<NodeId>, Fault> {
        let each = (EVENTS_MAX / ids.len().max(1)).clamp(1, BATCH);
        let share = i64::try_from(each).expect("at most a small constant");
        let mut rows = tx.query(&sql::NODES_EVENTS_TAKE, &[&ids, &share]).await?;
        rows.sort_by_key(|row| {
            let place = (row.ts("received_at"), row.get::<_, Uuid>("journal_id"), row.get::<_, i64>("seq"));
            (row.id::<NodeId>("node_id"), place)
        });
        let mut said = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(report) = self.believed(tx, row).await? {
                said.push((row, report));
            }
        }
        let reports: Vec<Reported<'_>> = said
            .iter()
            .map(|(row, report)| Reported {
                node_id: row.id("node_id"),
                report,
                observed_at: row.ts("observed_at"),
            })
            .collect();
        if !reports.is_empty() {
            for observer in &self.0.observers {
                // A few of many are handled one by one, where a failure undoes only itself.
                for place in observer.reports(tx, &reports).await? {
                    if let Some((row, report)) = said.get(place) {
                        self.tell_observer(tx, observer, row.id("node_id"), report, row).await?;
                    }
                }
            }
        }
        let nodes =
            rows.chunk_by(|one, other| one.get::<_, Uuid>("node_id") == other.get::<_, Uuid>("node_id"));
        Ok(nodes.filter(|of_one| of_one.len() == each).map(|of_one| of_one[0].id("node_id")).collect())
    }

    /// The report of an event, unless it is told as one that nobody should believe.
    async fn believed(&self, tx: &mut Tx<'_>, row: &Row) -> Result<Option<NodeReport>, Fault> {
        let (node_id, bytes): (NodeId, &[u8]) = (row.id("node_id"), row.get("report"));
        let report: NodeReport = match wire::decode("node report", bytes, REPORT_BYTES_MAX) {
            Ok(report) => report,
            Err(err) => {
                let data = about(row, json!({ "reason": err.to_string() }));
                self.emit(tx, EventKind::SecurityInvalidReport, node_id, data).await?;
                return Ok(None);
            }
        };
        if report.node_id != node_id.to_string() {
            let data = about(row, json!({ "claimedNodeId": shown(&report.node_id) }));
            self.emit(tx, EventKind::SecurityNodeMismatch, node_id, data).await?;
            return Ok(None);
        }
        let (signature, key) = (row.get("signature"), row.get("spki_der"));
        if is_attested(&report) && !attest::verifies(Purpose::AttestedReport, bytes, signature, key) {
            let reason = json!({ "kind": kind_of(&report), "reason": "its signature is not the node's" });
            self.emit(tx, EventKind::SecurityInvalidReport, node_id, about(row, reason)).await?;
            return Ok(None);
        }
        if let Some(Report::ConditionChanged(change)) = &report.report {
            self.emit(tx, EventKind::NodeCondition, node_id, condition(change)).await?;
        }
        Ok(Some(report))
    }
}
