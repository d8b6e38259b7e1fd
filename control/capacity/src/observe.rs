//! What a node says about its allocations: the only thing that makes a hold active, and the only thing that frees it.
//!
//! `fleet` verified the signature and that the node speaks of itself. Here the report must also be about an allocation of
//! that node, and name exactly what was booked; whatever else it says is told as an event and changes nothing. A report
//! comes at least once, so each is handled as if it had come before.

use kernel::events::{self, EventKind};
use kernel::module::wake;
use kernel::ports::node::{NodeFacts, NodeObserver, Reported, SPEC_QUEUE};
use kernel::{BoxFuture, Fault};
use kit::mutant;
use model::lifecycle::{AllocationState, ReservationEvent, ReservationState};
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId, Timestamp};
use serde_json::{Value, json};
use store::{Row, RowExt, StoreError, Tx};
use uuid::Uuid;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{AllocationBound, AllocationFailed, NodeReport};

use crate::place::spec_key;
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::state::{state_of, step};
use crate::{Capacity, sql};

/// Placements of one reservation before it has failed. Nodes that refuse five times in a row will refuse a sixth.
const ATTEMPTS_MAX: i32 = 5;
/// A node that failed a reservation is left alone this long for each attempt so far.
const AVOID_SECONDS: i64 = 60;
/// CDI names are `vendor/class=device`; ours are under a hundred bytes.
const CDI_NAME_BYTES_MAX: usize = 200;
/// What is kept of a node's own words.
const TOLD_CHARS_MAX: usize = 300;

/// Why a reservation leaves the node it is on, with no asking of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Leaving<'a> {
    /// In the node's words.
    Refused(&'a str),
    Lost,
}

impl Leaving<'_> {
    fn reason(self) -> String {
        match self {
            Leaving::Refused(told) => told.to_owned(),
            Leaving::Lost => "the node is lost".to_owned(),
        }
    }

    fn waiting(self) -> String {
        match self {
            Leaving::Refused(told) => format!("a node refused it: {told}"),
            Leaving::Lost => "the node it was on is lost".to_owned(),
        }
    }

    /// A node that is lost says nothing of the reservation: the next one is as likely to take it as the first.
    fn gives_up(self, attempts: i32) -> bool {
        match self {
            Leaving::Refused(_) => attempts >= ATTEMPTS_MAX,
            Leaving::Lost => false,
        }
    }
}

/// An allocation as its node's report meets it, both rows locked.
pub(crate) struct Spoken {
    pub id: AllocationId,
    pub reservation_id: ReservationId,
    pub state: AllocationState,
    /// It has not ended: the node is told what to do about it, and what it booked is booked.
    pub live: bool,
    pub atoms: Vec<String>,
    pub reservation_state: ReservationState,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    attempts: i32,
    release_to: Option<String>,
}

impl Spoken {
    pub fn of_row(id: AllocationId, reservation_id: ReservationId, row: &Row) -> Result<Self, StoreError> {
        let state = AllocationState::parse(row.get("state"))
            .ok_or_else(|| StoreError::decode("allocation_lock", "column \"state\""))?;
        Ok(Self {
            id,
            reservation_id,
            state,
            live: row.get("live"),
            atoms: row.get("atoms"),
            reservation_state: state_of(row.get("reservation_state"))?,
            tenant_id: row.id("tenant_id"),
            pool_id: row.id("pool_id"),
            attempts: row.get("attempts"),
            release_to: row.get("release_to"),
        })
    }

    /// What the reservation, which was releasing, ends as when nothing is held for it any more, and why.
    pub fn conclusion(&self) -> Result<(ReservationState, &'static str), Fault> {
        let expired = self.release_to.as_deref() == Some(ReservationState::Expired.name());
        let (event, reason) = if expired {
            (ReservationEvent::ExpiryConfirmed, "its time is over")
        } else {
            (ReservationEvent::ReleaseConfirmed, "somebody asked for it")
        };
        Ok((step(self.reservation_state, event)?, reason))
    }
}

impl NodeObserver for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }

    fn facts_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        facts: &'a NodeFacts,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.take_facts(tx, facts))
    }

    fn unsettled<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeId>, Fault>> {
        Box::pin(async move {
            let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
            let rows = tx.query(&sql::NODES_CLAIMING, &[&ids]).await?;
            Ok(rows.iter().map(|row| row.id("node_id")).collect())
        })
    }

    fn schedulable_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            tx.execute(&sql::ALLOCATIONS_OF_REMOVED_END, &[&node_id.uuid()]).await?;
            if let Some(row) = tx.query_opt(&sql::CAPACITY_TOUCH, &[&node_id.uuid()]).await?
                && let Some(pool_id) = row.opt_id::<PoolId>("pool_id")
            {
                wake(tx, PLACE_QUEUE, &pool_key(pool_id)).await?;
            }
            Ok(())
        })
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
                Some(Report::AllocationBound(bound)) => self.bound(tx, node_id, bound).await,
                Some(Report::AllocationFailed(failed)) => self.failed(tx, node_id, failed).await,
                Some(Report::AllocationReleased(released)) => {
                    self.released(tx, node_id, &released.allocation_id).await
                }
                Some(Report::ConditionChanged(_) | Report::InstancesObserved(_)) | None => Ok(()),
            }
        })
    }

    fn reports<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        reports: &'a [Reported<'a>],
    ) -> BoxFuture<'a, Result<Vec<usize>, Fault>> {
        Box::pin(self.take_reports(tx, reports))
    }

    fn holds<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(async move {
            let rows = tx.query(&sql::NODE_HOLDS, &[&node_id.uuid()]).await?;
            Ok(rows
                .iter()
                .map(|row| {
                    let id: ReservationId = row.id("reservation_id");
                    format!("reservation {id} ({})", row.get::<_, &str>("state"))
                })
                .collect())
        })
    }

    fn abandoned<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            for row in tx.query(&sql::NODE_HELD, &[&node_id.uuid()]).await? {
                let spoken = self.locked(tx, row.id("allocation_id"), row.id("reservation_id")).await?;
                match spoken.state {
                    AllocationState::Placed | AllocationState::Bound | AllocationState::Releasing => {
                        self.leave(tx, node_id, &spoken, Leaving::Lost).await?;
                    }
                    AllocationState::Released | AllocationState::Failed => {}
                }
            }
            Ok(())
        })
    }
}

impl Capacity {
    /// The allocation a report names, when it is one of the reporting node. Otherwise the report is told and dropped.
    async fn spoken_of(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        kind: &str,
        named: &str,
    ) -> Result<Option<Spoken>, Fault> {
        let Ok(id) = named.parse::<AllocationId>() else {
            self.distrust(tx, node_id, kind, "it names no allocation").await?;
            return Ok(None);
        };
        let found = tx.query_opt(&sql::ALLOCATION_FIND, &[&id.uuid()]).await?;
        let Some(found) = found.filter(|row| row.id::<NodeId>("node_id") == node_id) else {
            self.distrust(tx, node_id, kind, "the allocation is not on this node").await?;
            return Ok(None);
        };
        self.locked(tx, id, found.id("reservation_id")).await.map(Some)
    }

    pub(crate) async fn locked(
        &self,
        tx: &mut Tx<'_>,
        id: AllocationId,
        reservation_id: ReservationId,
    ) -> Result<Spoken, Fault> {
        // The reservation first, as everybody who locks both.
        tx.query_opt(&sql::RESERVATION_LOCK, &[&reservation_id.uuid()]).await?;
        let row = tx.query_one(&sql::ALLOCATION_LOCK, &[&id.uuid()]).await?;
        Ok(Spoken::of_row(id, reservation_id, &row)?)
    }

    async fn distrust(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        kind: &str,
        reason: &str,
    ) -> Result<(), Fault> {
        let tenant = tx.query_opt(&sql::NODE_POOL_TENANT, &[&node_id.uuid()]).await?;
        let tenant_id: Option<TenantId> = tenant.map(|row| row.id("tenant_id"));
        let data = json!({ "kind": kind, "reason": reason });
        events::append(tx, self.rng(), EventKind::SecurityInvalidReport, node_id, tenant_id, data).await?;
        Ok(())
    }

    async fn bound(&self, tx: &mut Tx<'_>, node_id: NodeId, bound: &AllocationBound) -> Result<(), Fault> {
        const KIND: &str = "AllocationBound";
        let Some(spoken) = self.spoken_of(tx, node_id, KIND, &bound.allocation_id).await? else {
            return Ok(());
        };
        if sorted(&bound.atoms) != sorted(&spoken.atoms) {
            return self.distrust(tx, node_id, KIND, "it names other devices than were booked").await;
        }
        if !names_what_was_booked(&spoken, &bound.cdi_devices) {
            return self.distrust(tx, node_id, KIND, "its CDI names are not those of what was booked").await;
        }
        let late = mutant::on("capacity.late-bound-counts");
        match if late { AllocationState::Placed } else { spoken.state } {
            AllocationState::Placed => {}
            // Said again, or said before the node heard that it is to let go.
            AllocationState::Bound | AllocationState::Releasing => return Ok(()),
            // Tried again at a generation after the one it failed at. It is told to let go, and is booked until it has.
            AllocationState::Failed if spoken.live => return Ok(()),
            AllocationState::Released | AllocationState::Failed => {
                return self.distrust(tx, node_id, KIND, "the allocation is over").await;
            }
        }
        let state = step(spoken.reservation_state, ReservationEvent::Bound)?;
        tx.execute(&sql::ALLOCATION_BOUND, &[&spoken.id.uuid(), &bound.cdi_devices]).await?;
        tx.execute(&sql::RESERVATION_ACTIVE, &[&spoken.reservation_id.uuid()]).await?;
        let data = json!({
            "state": state.name(), "poolId": spoken.pool_id.to_string(), "nodeId": node_id.to_string(),
            "allocationId": spoken.id.to_string(), "cdiDevices": bound.cdi_devices,
        });
        let (kind, id) = (EventKind::ReservationActive, spoken.reservation_id);
        self.tell(tx, kind, id, spoken.tenant_id, data).await?;
        Ok(())
    }

    async fn failed(&self, tx: &mut Tx<'_>, node_id: NodeId, failed: &AllocationFailed) -> Result<(), Fault> {
        const KIND: &str = "AllocationFailed";
        let Some(spoken) = self.spoken_of(tx, node_id, KIND, &failed.allocation_id).await? else {
            return Ok(());
        };
        if matches!(spoken.state, AllocationState::Released | AllocationState::Failed) {
            return Ok(());
        }
        self.leave(tx, node_id, &spoken, Leaving::Refused(&told(failed))).await
    }

    /// Takes a reservation off its node, to be placed on another at once. The allocation stays behind, booked and to be let
    /// go of: the node may hold it yet, at a later generation than the one it failed at or out of our sight, and nobody
    /// else gets its devices before the node says that they are free.
    pub(crate) async fn leave(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        spoken: &Spoken,
        why: Leaving<'_>,
    ) -> Result<(), Fault> {
        let reason = why.reason();
        let state = step(spoken.reservation_state, ReservationEvent::AllocationFailed)?;
        tx.execute(&sql::ALLOCATION_FAILED, &[&spoken.id.uuid(), &reason]).await?;
        if mutant::on("capacity.lost-node-frees") && matches!(why, Leaving::Lost) {
            tx.execute(&sql::ALLOCATION_END, &[&spoken.id.uuid()]).await?;
        }
        wake(tx, SPEC_QUEUE, &spec_key(node_id)).await?;
        if state == ReservationState::Releasing {
            // Nobody waits for it any more.
            return self.conclude(tx, spoken).await;
        }
        let (id, tenant_id) = (spoken.reservation_id, spoken.tenant_id);
        if why.gives_up(spoken.attempts) {
            step(state, ReservationEvent::GivenUp)?;
            let reason = format!("{} placements failed, the last by {reason}", spoken.attempts);
            return self.end_in(tx, id, tenant_id, ReservationState::Failed, &reason).await;
        }
        let waiting = why.waiting();
        let values: [&(dyn store::Param + Sync); 4] = [&id.uuid(), &node_id.uuid(), &waiting, &AVOID_SECONDS];
        tx.execute(&sql::RESERVATION_RESCHEDULE, &values).await?;
        wake(tx, PLACE_QUEUE, &pool_key(spoken.pool_id)).await?;
        let data = json!({
            "state": state.name(), "poolId": spoken.pool_id.to_string(), "nodeId": node_id.to_string(),
            "allocationId": spoken.id.to_string(), "reason": reason,
        });
        self.tell(tx, EventKind::ReservationReplacing, id, tenant_id, data).await?;
        Ok(())
    }

    async fn released(&self, tx: &mut Tx<'_>, node_id: NodeId, named: &str) -> Result<(), Fault> {
        const KIND: &str = "AllocationReleased";
        let Some(spoken) = self.spoken_of(tx, node_id, KIND, named).await? else { return Ok(()) };
        match spoken.state {
            AllocationState::Releasing => {
                self.free(tx, &spoken).await?;
                self.conclude(tx, &spoken).await
            }
            // Its reservation is elsewhere by now.
            AllocationState::Failed if spoken.live => self.free(tx, &spoken).await,
            AllocationState::Released | AllocationState::Failed => Ok(()),
            AllocationState::Placed | AllocationState::Bound => {
                // Nobody asked for it, so it stays booked, and the spec goes on asking the node to hold it.
                let data: Value = json!({
                    "state": spoken.reservation_state.name(), "nodeId": node_id.to_string(),
                    "allocationId": spoken.id.to_string(), "atoms": spoken.atoms, "degraded": true,
                    "reason": "the node let go of it unasked",
                });
                let (kind, id) = (EventKind::ReservationDegraded, spoken.reservation_id);
                Ok(self.tell(tx, kind, id, spoken.tenant_id, data).await?)
            }
        }
    }

    /// Ends the allocation and gives back what it booked. The node's spec goes on naming it as released until something else
    /// is to be said to that node: the node has done it, and a spec of its own would say nothing new.
    async fn free(&self, tx: &mut Tx<'_>, spoken: &Spoken) -> Result<(), Fault> {
        self.wake_waiting(tx, [spoken.pool_id]).await?;
        tx.execute(&sql::ALLOCATION_END, &[&spoken.id.uuid()]).await?;
        free_its_node(tx, &[spoken.id.uuid()]).await?;
        Ok(())
    }

    /// The reservation was releasing and nothing is held for it any more.
    async fn conclude(&self, tx: &mut Tx<'_>, spoken: &Spoken) -> Result<(), Fault> {
        let (end, reason) = spoken.conclusion()?;
        self.end_in(tx, spoken.reservation_id, spoken.tenant_id, end, reason).await
    }
}

/// What a mutant gives back besides: what others booked of the same node's host.
pub(crate) async fn free_its_node(tx: &mut Tx<'_>, freed: &[Uuid]) -> Result<(), StoreError> {
    const FREE: store::Sql = store::sql(
        "host_bookings_of_its_node_free",
        "DELETE FROM host_bookings h USING allocations a WHERE a.allocation_id = ANY($1::uuid[]) AND h.node_id = a.node_id",
    );
    if mutant::on("capacity.release-frees-another") {
        tx.execute(&FREE, &[&freed]).await?;
    }
    Ok(())
}

/// A hold without devices has one name, its own. GPUs may be named or not, never more of them than were booked.
pub(crate) fn names_what_was_booked(spoken: &Spoken, cdi_devices: &[String]) -> bool {
    if spoken.atoms.is_empty() {
        return cdi_devices == [format!("bcd.dev/host={}", spoken.id)];
    }
    let plain =
        |name: &String| name.len() <= CDI_NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    cdi_devices.len() <= spoken.atoms.len() && cdi_devices.iter().all(plain)
}

pub(crate) fn sorted(texts: &[String]) -> Vec<&str> {
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.sort_unstable();
    texts
}

/// The node's reason and message, made fit to be stored and shown.
fn told(failed: &AllocationFailed) -> String {
    let clean = |text: &str, max: usize| -> String {
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(max).collect()
    };
    let reason = clean(&failed.reason, 64);
    let message = clean(&failed.message, TOLD_CHARS_MAX);
    match (reason.is_empty(), message.is_empty()) {
        (true, true) => "no reason given".to_owned(),
        (true, false) => message,
        (false, true) => reason,
        (false, false) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn whatever_a_node_says_is_kept_short_and_printable(reason in any::<String>(), message in any::<String>()) {
            let told = told(&AllocationFailed { reason, message, ..Default::default() });
            prop_assert!(!told.is_empty() && told.chars().count() <= 64 + 2 + TOLD_CHARS_MAX);
            prop_assert!(!told.chars().any(char::is_control));
        }
    }
}
