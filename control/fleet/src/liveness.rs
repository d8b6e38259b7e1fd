//! Whether a node is there. Silence makes it unreachable, which takes no work away from it; two good heartbeats bring it back.

use std::time::Duration;

use kernel::events::EventKind;
use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use model::NodeId;
use model::lifecycle::{NodeEvent, NodeState};
use store::{Op, RowExt, Tx};

use crate::core::Fleet;
use crate::sql;

const LIVENESS: Op = Op::new("node_liveness");
const PERIOD: Duration = Duration::from_secs(2);
/// Three missed heartbeats of 10 s on a closed session.
const SILENT_CLOSED_SECONDS: f64 = 30.0;
/// Five on one that still looks open: the connection may be slow, not dead.
const SILENT_OPEN_SECONDS: f64 = 50.0;
/// Heartbeats in a row before an unreachable node counts as back.
const GOOD_HEARTBEATS: i32 = 2;

impl Fleet {
    pub(crate) async fn liveness(&self) -> Result<PassOutcome, Fault> {
        let silent =
            self.store().read(&sql::NODES_SILENT, &[&SILENT_CLOSED_SECONDS, &SILENT_OPEN_SECONDS]).await?;
        let back = self.store().read(&sql::NODES_BACK, &[&GOOD_HEARTBEATS, &SILENT_OPEN_SECONDS]).await?;
        let lost = self.store().read(&sql::NODES_LOST, &[]).await?;
        let moves = [
            (silent, NodeEvent::HeartbeatsMissed),
            (back, NodeEvent::HeartbeatsBack),
            (lost, NodeEvent::GivenUp),
        ];
        for (rows, event) in moves {
            for row in rows {
                let node_id: NodeId = row.id("node_id");
                self.store().tx(LIVENESS, |tx| Box::pin(self.move_node(tx, node_id, event))).await?;
            }
        }
        Ok(PassOutcome::Idle)
    }

    /// Takes one event to a node's state; says so to whoever places work, and as a domain event, when the state changed.
    pub(crate) async fn move_node(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        event: NodeEvent,
    ) -> Result<(), Fault> {
        let Some(row) = tx.query_opt(&sql::NODE_LOCK, &[&node_id.uuid()]).await? else { return Ok(()) };
        let Some(state) = NodeState::parse(row.get("state")) else { return Ok(()) };
        // Another process may have moved it since the list was read.
        let Ok(next) = state.next(event) else { return Ok(()) };
        if next == state {
            return Ok(());
        }
        tx.execute(&sql::NODE_STATE_PUT, &[&node_id.uuid(), &next.name(), &state.name()]).await?;
        if event == NodeEvent::HeartbeatsMissed {
            tx.execute(&sql::NODE_SESSION_GOOD_RESET, &[&node_id.uuid()]).await?;
        }
        if let Some(kind) = news(event) {
            self.emit(tx, kind, node_id, serde_json::json!({ "state": next.name() })).await?;
        }
        self.publish_schedulable(tx, node_id).await
    }
}

/// What the world is told of a move.
const fn news(event: NodeEvent) -> Option<EventKind> {
    match event {
        NodeEvent::Accepted => Some(EventKind::NodeReady),
        NodeEvent::HeartbeatsMissed => Some(EventKind::NodeUnreachable),
        NodeEvent::HeartbeatsBack => Some(EventKind::NodeReachable),
        NodeEvent::GivenUp => Some(EventKind::NodeLost),
        NodeEvent::Revoked => Some(EventKind::NodeRevoked),
        NodeEvent::Removed => Some(EventKind::NodeRemoved),
        // Adoption speaks for itself, with its pool; a machine that joins again says so there.
        NodeEvent::Adopted | NodeEvent::Rejoined => None,
    }
}

/// Looks for nodes that fell silent or came back.
pub struct Liveness(pub Fleet);

impl Pass for Liveness {
    fn name(&self) -> &'static str {
        "node-liveness"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.liveness())
    }
}
