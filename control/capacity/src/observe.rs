//! What a node says about its allocations: the only thing that makes a hold active, and the only thing that frees it.
//!
//! `fleet` verified the signature and that the node speaks of itself. Here the report must also be about an allocation of
//! that node, and name exactly what was booked; whatever else it says is told as an event and changes nothing. A report
//! comes at least once, so each is handled as if it had come before.

use kernel::events::{self, EventKind};
use kernel::module::wake;
use kernel::ports::node::{NodeFacts, NodeObserver, SPEC_QUEUE};
use kernel::{BoxFuture, Fault};
use model::lifecycle::{AllocationState, ReservationEvent, ReservationState};
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId, Timestamp};
use serde_json::{Value, json};
use store::{RowExt, StoreError, Tx};
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

/// An allocation as its node's report meets it, both rows locked.
struct Spoken {
    id: AllocationId,
    reservation_id: ReservationId,
    state: AllocationState,
    atoms: Vec<String>,
    reservation_state: ReservationState,
    tenant_id: TenantId,
    pool_id: PoolId,
    attempts: i32,
    release_to: Option<String>,
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

    fn schedulable_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
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
                Some(Report::ConditionChanged(_)) | None => Ok(()),
            }
        })
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
        let reservation_id: ReservationId = found.id("reservation_id");
        // The reservation first, as everybody who locks both.
        tx.query_opt(&sql::RESERVATION_LOCK, &[&reservation_id.uuid()]).await?;
        let row = tx.query_one(&sql::ALLOCATION_LOCK, &[&id.uuid()]).await?;
        let state = AllocationState::parse(row.get("state"))
            .ok_or_else(|| StoreError::decode("allocation_lock", "column \"state\""))?;
        Ok(Some(Spoken {
            id,
            reservation_id,
            state,
            atoms: row.get("atoms"),
            reservation_state: state_of(row.get("reservation_state"))?,
            tenant_id: row.id("tenant_id"),
            pool_id: row.id("pool_id"),
            attempts: row.get("attempts"),
            release_to: row.get("release_to"),
        }))
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
        let plain = |name: &String| {
            name.len() <= CDI_NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if bound.cdi_devices.len() > spoken.atoms.len() || !bound.cdi_devices.iter().all(plain) {
            return self.distrust(tx, node_id, KIND, "its CDI names are not those of what was booked").await;
        }
        match spoken.state {
            AllocationState::Placed => {}
            // Said again, or said before the node heard that it is to let go.
            AllocationState::Bound | AllocationState::Releasing => return Ok(()),
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
        let told = told(failed);
        let state = step(spoken.reservation_state, ReservationEvent::AllocationFailed)?;
        self.free(tx, node_id, &spoken, AllocationState::Failed, &told).await?;
        if state == ReservationState::Releasing {
            // It was to let go, and has nothing to let go of.
            return self.conclude(tx, &spoken).await;
        }
        let (id, tenant_id) = (spoken.reservation_id, spoken.tenant_id);
        if spoken.attempts >= ATTEMPTS_MAX {
            step(state, ReservationEvent::GivenUp)?;
            let reason = format!("{} placements failed, the last by {told}", spoken.attempts);
            return self.end_in(tx, id, tenant_id, ReservationState::Failed, &reason).await;
        }
        let waiting = format!("a node refused it: {told}");
        let values: [&(dyn store::Param + Sync); 4] = [&id.uuid(), &node_id.uuid(), &waiting, &AVOID_SECONDS];
        tx.execute(&sql::RESERVATION_RESCHEDULE, &values).await?;
        let data = json!({
            "state": state.name(), "poolId": spoken.pool_id.to_string(), "nodeId": node_id.to_string(),
            "allocationId": spoken.id.to_string(), "reason": told,
        });
        self.tell(tx, EventKind::ReservationReplacing, id, tenant_id, data).await?;
        Ok(())
    }

    async fn released(&self, tx: &mut Tx<'_>, node_id: NodeId, named: &str) -> Result<(), Fault> {
        const KIND: &str = "AllocationReleased";
        let Some(spoken) = self.spoken_of(tx, node_id, KIND, named).await? else { return Ok(()) };
        match spoken.state {
            AllocationState::Releasing => {}
            AllocationState::Released | AllocationState::Failed => return Ok(()),
            AllocationState::Placed | AllocationState::Bound => {
                // Nobody asked for it, so it stays booked, and the spec goes on asking the node to hold it.
                let data: Value = json!({
                    "state": spoken.reservation_state.name(), "nodeId": node_id.to_string(),
                    "allocationId": spoken.id.to_string(), "atoms": spoken.atoms, "degraded": true,
                    "reason": "the node let go of it unasked",
                });
                let (kind, id) = (EventKind::ReservationDegraded, spoken.reservation_id);
                return Ok(self.tell(tx, kind, id, spoken.tenant_id, data).await?);
            }
        }
        self.free(tx, node_id, &spoken, AllocationState::Released, "").await?;
        self.conclude(tx, &spoken).await
    }

    /// Ends the allocation and gives back what it booked.
    async fn free(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        spoken: &Spoken,
        state: AllocationState,
        reason: &str,
    ) -> Result<(), Fault> {
        tx.execute(&sql::ALLOCATION_END, &[&spoken.id.uuid(), &state.name(), &reason]).await?;
        wake(tx, SPEC_QUEUE, &spec_key(node_id)).await?;
        wake(tx, PLACE_QUEUE, &pool_key(spoken.pool_id)).await?;
        Ok(())
    }

    /// The reservation was releasing and nothing is held any more.
    async fn conclude(&self, tx: &mut Tx<'_>, spoken: &Spoken) -> Result<(), Fault> {
        let expired = spoken.release_to.as_deref() == Some(ReservationState::Expired.name());
        let (event, reason) = if expired {
            (ReservationEvent::ExpiryConfirmed, "its time is over")
        } else {
            (ReservationEvent::ReleaseConfirmed, "somebody asked for it")
        };
        let end = step(spoken.reservation_state, event)?;
        self.end_in(tx, spoken.reservation_id, spoken.tenant_id, end, reason).await
    }
}

fn sorted(texts: &[String]) -> Vec<&str> {
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
