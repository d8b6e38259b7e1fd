//! Whether a node is there. Silence makes it unreachable, which takes no work away from it; two good heartbeats bring it back.

use std::time::Duration;

use kernel::events::EventKind;
use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use model::NodeId;
use model::lifecycle::{NodeEvent, NodeState};
use serde_json::{Value, json};
use store::{Op, Param, RowExt, Tx};
use uuid::Uuid;

use crate::core::Fleet;
use crate::sql;

const LIVENESS: Op = Op::new("node_liveness");
const SESSIONS: Op = Op::new("sessions_orphaned");
const PERIOD: Duration = Duration::from_secs(2);
/// Three missed heartbeats of 10 s on a closed session.
const SILENT_CLOSED_SECONDS: f64 = 30.0;
/// Five on one that still looks open: the connection may be slow, not dead.
const SILENT_OPEN_SECONDS: f64 = 50.0;
/// Heartbeats in a row before an unreachable node counts as back.
const GOOD_HEARTBEATS: i32 = 2;
/// Rows of one look; the next one follows at once when it was full.
const LOOK_MAX: usize = 500;

/// What a node may be due for, in the order in which nodes are moved.
const EVENTS: [NodeEvent; 3] = [NodeEvent::HeartbeatsMissed, NodeEvent::HeartbeatsBack, NodeEvent::GivenUp];

/// Of one node, or of all.
fn due_of(node: &Option<Uuid>) -> [&(dyn Param + Sync); 4] {
    [node, &SILENT_CLOSED_SECONDS, &SILENT_OPEN_SECONDS, &GOOD_HEARTBEATS]
}

impl Fleet {
    /// One look at every node's heartbeats. One statement, when there is nothing to do.
    pub async fn liveness(&self) -> Result<PassOutcome, Fault> {
        let mut rows = self.store().read(&sql::NODES_DUE, &due_of(&None::<Uuid>)).await?;
        if rows.iter().any(|row| row.get::<_, Option<Uuid>>("node_id").is_none()) {
            self.close_orphaned_sessions().await?;
            rows = self.store().read(&sql::NODES_DUE, &due_of(&None::<Uuid>)).await?;
        }
        let mut full = false;
        for event in EVENTS {
            let due = rows.iter().filter(|row| row.get::<_, Option<&str>>("event") == Some(event.name()));
            let due: Vec<NodeId> = due.map(|row| row.id("node_id")).collect();
            full |= due.len() == LOOK_MAX;
            for node_id in due {
                let moved =
                    self.store().tx(LIVENESS, |tx| Box::pin(self.move_if_due(tx, node_id, event))).await;
                if let Err(err) = moved {
                    // One node's trouble is not the others'. It is tried again at the next look.
                    let event = event.name();
                    tracing::warn!(%node_id, event, err = kit::chain(&err), "failed to move a node");
                    full = false;
                }
            }
        }
        Ok(if full { PassOutcome::More } else { PassOutcome::Idle })
    }

    /// Asks again under the node's lock: it may have been heard since the list was read.
    async fn move_if_due(&self, tx: &mut Tx<'_>, node_id: NodeId, event: NodeEvent) -> Result<(), Fault> {
        tx.query_opt(&sql::NODE_LOCK, &[&node_id.uuid()]).await?;
        let rows = tx.query(&sql::NODES_DUE, &due_of(&Some(node_id.uuid()))).await?;
        if !rows.iter().any(|row| row.get::<_, Option<&str>>("event") == Some(event.name())) {
            return Ok(());
        }
        // That a node is not heard is so; to give it up, and place its work elsewhere, is a decision.
        if event == NodeEvent::GivenUp && !kernel::run::may_act(tx).await? {
            return Ok(());
        }
        self.move_node(tx, node_id, event).await
    }

    /// Sessions of gateways that are gone, or came back under another epoch, are over.
    async fn close_orphaned_sessions(&self) -> Result<(), Fault> {
        self.store()
            .tx(SESSIONS, |tx| {
                Box::pin(async move {
                    tx.execute(&sql::SESSIONS_OF_ENDED_GATEWAYS, &[]).await?;
                    tx.execute(&sql::SESSIONS_OF_EARLIER_EPOCHS, &[]).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Takes one event to a node's state; says so to whoever places work, and as a domain event, when the state changed.
    pub(crate) async fn move_node(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        event: NodeEvent,
    ) -> Result<(), Fault> {
        self.move_node_by(tx, node_id, event, json!({})).await
    }

    /// The same with what its mover says of it, for the event.
    pub(crate) async fn move_node_by(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        event: NodeEvent,
        mut said: Value,
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
            said["state"] = next.name().into();
            self.emit(tx, kind, node_id, said).await?;
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

    /// It records who is heard, and gives nobody up while the deployment only observes.
    fn acts(&self) -> bool {
        false
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.liveness())
    }
}
