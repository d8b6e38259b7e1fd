//! What a host says of its instances: the only thing that moves one that is on a host, and the only thing that frees it.
//!
//! `fleet` verified the signature and that the host speaks of itself. Here a status counts only for an instance that has its
//! place on that host, and moves it only when it answers to what is wanted now. A report comes at least once, so each is
//! handled as if it had come before.

use kernel::events::{self, EventKind};
use kernel::ports::node::{NodeFacts, NodeObserver};
use kernel::{BoxFuture, Fault};
use model::lifecycle::{InstanceEvent, InstanceState};
use model::{InstanceId, NodeId, TenantId, Timestamp};
use serde_json::json;
use store::{RowExt, Tx};
use uuid::Uuid;
use wire::limits::INSTANCES_PER_REPORT_MAX;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{InstanceObservedState as Seen, InstanceStatus, InstancesObserved, NodeReport};

use crate::change::Locked;
use crate::exhausted::is_refusal;
use crate::lost::Left;
use crate::state::{Heard, heard, state_of, step};
use crate::{Instances, sql};

/// Why a status is not believed.
const NO_INSTANCE: &str = "it names no instance";
const TOO_MANY: &str = "it names more instances than one report may";
const UNASKED: &str = "it answers to what was never asked";

/// Where an instance is that a host speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On that host, or it was, or nothing of it is left there.
    Known,
    /// Not there, by any row.
    Nowhere,
}

impl NodeObserver for Instances {
    fn name(&self) -> &'static str {
        "instances"
    }

    fn facts_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        facts: &'a NodeFacts,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.orphans_said(tx, facts.node_id))
    }

    fn schedulable_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.node_changed(tx, node_id))
    }

    fn report<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
        report: &'a NodeReport,
        _observed_at: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            match &report.report {
                Some(Report::InstancesObserved(observed)) => self.observed(tx, node_id, observed).await,
                Some(
                    Report::AllocationBound(_)
                    | Report::AllocationFailed(_)
                    | Report::AllocationReleased(_)
                    | Report::ConditionChanged(_),
                )
                | None => Ok(()),
            }
        })
    }

    fn reports<'a>(
        &'a self,
        _tx: &'a mut Tx<'_>,
        reports: &'a [kernel::ports::node::Reported<'a>],
    ) -> BoxFuture<'a, Result<Vec<usize>, Fault>> {
        let of_instances = |one: &kernel::ports::node::Reported<'_>| {
            matches!(one.report.report, Some(Report::InstancesObserved(_)))
        };
        let places = reports.iter().enumerate().filter(|(_, one)| of_instances(one));
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        Box::pin(async move { Ok(places) })
    }

    fn holds<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(async move {
            let mut held = Vec::new();
            for row in tx.query(&sql::NODE_INSTANCES, &[&node_id.uuid()]).await? {
                let id: InstanceId = row.id("instance_id");
                held.push(format!("instance {id} ({})", state_of(&row)?.name()));
            }
            Ok(held)
        })
    }

    fn unsettled<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeId>, Fault>> {
        Box::pin(async move {
            let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
            let rows = tx.query(&sql::lost::ORPHANS_FRESH, &[&ids]).await?;
            Ok(rows.iter().map(|row| row.id("node_id")).collect())
        })
    }

    fn abandoned<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.node_given_up(tx, node_id))
    }
}

impl Instances {
    async fn observed(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        observed: &InstancesObserved,
    ) -> Result<(), Fault> {
        if observed.instances.len() > INSTANCES_PER_REPORT_MAX {
            return self.distrust(tx, node_id, TOO_MANY).await;
        }
        // In the order in which everybody locks several.
        let mut said: Vec<(InstanceId, &InstanceStatus)> = Vec::with_capacity(observed.instances.len());
        for status in &observed.instances {
            match status.instance_id.parse() {
                Ok(id) => said.push((id, status)),
                Err(_) => self.distrust(tx, node_id, NO_INSTANCE).await?,
            }
        }
        said.sort_by_key(|(id, _)| *id);
        let mut orphans = Vec::new();
        for (id, status) in said {
            if self.hear(tx, node_id, id, status).await? == Place::Nowhere {
                orphans.push(id);
            }
        }
        self.orphans_reported(tx, node_id, &orphans).await
    }

    async fn hear(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        id: InstanceId,
        status: &InstanceStatus,
    ) -> Result<Place, Fault> {
        let seen = status.state();
        let held = self.locked(tx, id).await?.filter(|held| held.node_id == Some(node_id));
        let Some(held) = held else {
            return match self.hear_left(tx, node_id, id, seen, status.revision).await? {
                Left::Heard => Ok(Place::Known),
                Left::Unasked => {
                    self.distrust(tx, node_id, UNASKED).await?;
                    Ok(Place::Known)
                }
                // Said again after it was taken for what it says.
                Left::Nothing if seen == Seen::Absent => Ok(Place::Known),
                Left::Nothing => Ok(Place::Nowhere),
            };
        };
        if status.revision > held.revision {
            self.distrust(tx, node_id, UNASKED).await?;
            return Ok(Place::Known);
        }
        if status.revision < held.revision && !kit::mutant::on("instances.earlier-word-counts") {
            // Of what was wanted before. The host will answer to what is wanted now.
            return Ok(Place::Known);
        }
        let bounded = wire::instance::bounded(status.clone());
        self.heard_of(tx, &held, seen, &bounded).await?;
        Ok(Place::Known)
    }

    /// A host's word on the present revision of an instance that has its place there.
    async fn heard_of(
        &self,
        tx: &mut Tx<'_>,
        held: &Locked,
        seen: Seen,
        bounded: &InstanceStatus,
    ) -> Result<(), Fault> {
        if is_refusal(held.desired, seen, bounded) {
            self.said(tx, held, &bounded.reason, &bounded.message).await?;
            return Ok(self.refused(tx, held).await?);
        }
        match heard(held.desired, seen) {
            Heard::Moves(InstanceEvent::SeenRunning | InstanceEvent::SeenStopped) => {
                self.has_room(tx, held).await?
            }
            Heard::Moves(_) | Heard::Gone | Heard::Waits | Heard::Nothing => {
                self.not_refused(tx, held).await?
            }
        }
        match heard(held.desired, seen) {
            Heard::Moves(event) => {
                let state = step(held.state, event)?;
                let failed = event == InstanceEvent::SeenError;
                let (reason, message) =
                    if failed { (bounded.reason.as_str(), bounded.message.as_str()) } else { ("", "") };
                self.moved(tx, held, state, reason, message).await
            }
            Heard::Gone => {
                step(held.state, InstanceEvent::SeenAbsent)?;
                self.end_in(tx, held, "its host has nothing of it").await
            }
            Heard::Waits => self.said(tx, held, &bounded.reason, &bounded.message).await,
            Heard::Nothing => Ok(()),
        }
    }

    async fn said(&self, tx: &mut Tx<'_>, held: &Locked, reason: &str, message: &str) -> Result<(), Fault> {
        if (held.said_reason.as_str(), held.said_message.as_str()) != (reason, message) {
            tx.execute(&sql::INSTANCE_SAID, &[&held.id.uuid(), &reason, &message]).await?;
        }
        Ok(())
    }

    /// Writes a state that its host's word came to, with the words; an event when it is another than before.
    async fn moved(
        &self,
        tx: &mut Tx<'_>,
        held: &Locked,
        state: InstanceState,
        reason: &str,
        message: &str,
    ) -> Result<(), Fault> {
        let same_words = held.said_reason == reason && held.said_message == message;
        if state == held.state && same_words {
            return Ok(());
        }
        tx.execute(&sql::INSTANCE_MOVE, &[&held.id.uuid(), &state.name(), &reason, &message]).await?;
        if state == held.state {
            return Ok(());
        }
        let mut data = held.data(state, held.desired);
        let kind = match state {
            InstanceState::Running | InstanceState::Stopped if held.state == InstanceState::Lost => {
                EventKind::InstanceRecovered
            }
            InstanceState::Running => EventKind::InstanceRunning,
            InstanceState::Stopped => EventKind::InstanceStopped,
            InstanceState::Error => {
                data["reason"] = reason.into();
                data["message"] = message.into();
                EventKind::InstanceFailed
            }
            // A host's word leads to none of these.
            InstanceState::Lost
            | InstanceState::Pending
            | InstanceState::Scheduling
            | InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Stopping
            | InstanceState::Deleting
            | InstanceState::Deleted => return Ok(()),
        };
        self.tell(tx, kind, held.id, held.tenant_id, data).await?;
        Ok(())
    }

    async fn distrust(&self, tx: &mut Tx<'_>, node_id: NodeId, reason: &str) -> Result<(), Fault> {
        let tenant_id = self.tenant_of(tx, node_id).await?;
        let data = json!({ "kind": "InstancesObserved", "reason": reason });
        events::append(tx, self.rng(), EventKind::SecurityInvalidReport, node_id, tenant_id, data).await?;
        Ok(())
    }

    pub(crate) async fn tenant_of(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
    ) -> Result<Option<TenantId>, Fault> {
        let row = tx.query_opt(&sql::NODE_TENANT, &[&node_id.uuid()]).await?;
        Ok(row.map(|row| row.id("tenant_id")))
    }
}
