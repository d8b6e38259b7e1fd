//! What is asked of a reservation that is there: another end, or its end. Only intent is written; the node's report ends it.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::reservations::{ExtendReservation, ReleaseReservation, Reservation};
use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use kit::mutant;
use model::lifecycle::{ReservationEvent, ReservationState};
use model::{AllocationId, ErrorCode, NodeId, ReservationId, TenantId, Timestamp};
use serde_json::{Value, json};
use store::{Op, RowExt, StoreError, Tx};

use crate::create::end_within;
use crate::many::Releasing;
use crate::place::spec_key;
use crate::read::SEE;
use crate::state::{Reserved, state_of, step};
use crate::{Capacity, sql, view};

const RESERVATION_EXTEND: Op = Op::new("reservation_extend");
const RESERVATION_RELEASE: Op = Op::new("reservation_release");

/// Decisions made anew when another call moved the end in between.
const EXTEND_TRIES_MAX: u32 = 5;

/// Who wants a reservation to end, which is what it ends as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Asked,
    Expired,
    TenantDeleted,
}

impl Why {
    pub const fn end(self) -> ReservationState {
        match self {
            Why::Asked | Why::TenantDeleted => ReservationState::Released,
            Why::Expired => ReservationState::Expired,
        }
    }

    pub const fn text(self) -> &'static str {
        match self {
            Why::Asked => "somebody asked for it",
            Why::Expired => "its time is over",
            Why::TenantDeleted => "its tenant was deleted",
        }
    }
}

fn new_end(reserved: &Reserved, request: &ExtendReservation) -> Result<Timestamp, ApiError> {
    let subject = &reserved.subject;
    let end = match (request.hours, request.expires_at, subject.expires_at) {
        (Some(hours), _, Some(end)) => {
            end.saturating_add(Duration::from_secs(hours.get().saturating_mul(3600)))
        }
        (Some(_), _, None) => {
            let message = "the reservation has no end to count from: it lasts until it is released";
            return Err(ApiError::invalid_state(message));
        }
        (None, Some(end), _) => end.0,
        (None, None, _) => return Err(ApiError::invalid("", "give hours or expiresAt")),
    };
    end_within(reserved.now, subject.starts_at, end)
}

pub(crate) async fn extend(
    capacity: Capacity,
    call: Arc<Call>,
    request: ExtendReservation,
) -> Result<Reservation, Fault> {
    let id = request.id.get();
    let action = api::reservations::Extend::ACTION;
    call.about(format!("reservation/{id}"));
    for _ in 0..EXTEND_TRIES_MAX {
        let reserved = seen(&capacity, &call, action, id).await?;
        let end = match new_end(&reserved, &request) {
            Ok(end) => end,
            // Who may not even see it is not told what is wrong with the end.
            Err(refused) => {
                call.require_on(action, SEE, &reserved.subject.resource(), "reservation", id).await?;
                return Err(refused.into());
            }
        };
        let resource = reserved.subject.resource_extended(end);
        call.require_on(action, SEE, &resource, "reservation", id).await?;
        if reserved.state.terminal() || reserved.state == ReservationState::Releasing {
            let state = reserved.state.name();
            return Err(ApiError::invalid_state(format!(
                "the reservation is {state}: its end cannot be moved"
            ))
            .detail("state", state)
            .into());
        }
        if capacity.move_end(&call, &reserved, end).await? {
            return Ok(view::reservation(&capacity.reserved_or_not_found(id).await?));
        }
    }
    Err(ApiError::new(ErrorCode::Unavailable, "others move the same end: read it again").into())
}

/// The reservation a call names. One that is not there is decided on too, as every call is.
async fn seen(capacity: &Capacity, call: &Call, action: &str, id: ReservationId) -> Result<Reserved, Fault> {
    if let Some(reserved) = capacity.reserved(id).await? {
        return Ok(reserved);
    }
    let resource = kernel::ports::iam::Resource::one("compute-reservation", id, call.principal.tenant_id);
    call.decide(action, &resource).await?;
    Err(ApiError::not_found("reservation", id).into())
}

pub(crate) async fn release(
    capacity: Capacity,
    call: Arc<Call>,
    request: ReleaseReservation,
) -> Result<Reservation, Fault> {
    let id = request.id.get();
    let action = api::reservations::Release::ACTION;
    let reserved = seen(&capacity, &call, action, id).await?;
    call.require_on(action, SEE, &reserved.subject.resource(), "reservation", id).await?;
    if request.dry_run {
        let mut shown = view::reservation(&reserved);
        shown.dry_run = true;
        return Ok(shown);
    }
    call.about(format!("reservation/{id}"));
    let released = capacity.release_with_others(Releasing { call: call.clone(), id }).await?;
    let Some(wait) = request.wait else {
        let reserved = match reserved.as_released(released) {
            Some(reserved) => reserved,
            None => capacity.reserved_or_not_found(id).await?,
        };
        return Ok(view::reservation(&reserved));
    };
    let wait = Some(Duration::from_millis(wait.timeout_ms.get()));
    let reserved = capacity.settled(id, wait, |reserved| reserved.state.terminal()).await?;
    Ok(view::reservation(&reserved))
}

impl Capacity {
    /// False when the end was moved, or the reservation ended, since it was read.
    async fn move_end(&self, call: &Call, reserved: &Reserved, end: Timestamp) -> Result<bool, Fault> {
        let subject = &reserved.subject;
        let (to, from) =
            (std::time::SystemTime::from(end), subject.expires_at.map(std::time::SystemTime::from));
        call.tx(self.store(), RESERVATION_EXTEND, |tx| {
            Box::pin(async move {
                let moved = tx.query_opt(&sql::RESERVATION_EXTEND, &[&subject.id.uuid(), &to, &from]).await?;
                let Some(row) = moved else { return Ok(false) };
                // As it is now: since it was read it may have been placed, bound or taken off its node.
                let data = json!({
                    "state": row.get::<_, &str>("state"), "expiresAt": end.to_string(),
                    "previousExpiresAt": subject.expires_at.map(|end| end.to_string()),
                });
                self.tell(tx, EventKind::ReservationExtended, subject.id, subject.tenant_id, data).await?;
                Ok::<_, Fault>(true)
            })
        })
        .await
    }

    /// Ends one reservation, asked for by one call.
    pub(crate) async fn release_one(&self, call: &Call, id: ReservationId) -> Result<(), Fault> {
        call.tx(self.store(), RESERVATION_RELEASE, |tx| {
            Box::pin(async move { self.release_in(tx, id, Why::Asked).await })
        })
        .await
    }

    /// Asks for the end of a reservation. What was never placed ends at once; what is on a node ends by the node's word.
    /// One that is ending or has ended is left as it is.
    pub(crate) async fn release_in(&self, tx: &mut Tx<'_>, id: ReservationId, why: Why) -> Result<(), Fault> {
        let Some(row) = tx.query_opt(&sql::RESERVATION_LOCK, &[&id.uuid()]).await? else { return Ok(()) };
        let state = state_of(row.get("state"))?;
        if state.terminal() || matches!(state, ReservationState::Draft | ReservationState::Releasing) {
            return Ok(());
        }
        let row = tx.query_one(&sql::RESERVATION_GET, &[&id.uuid()]).await?;
        let reserved = Reserved::of_row(&row)?;
        if why == Why::Expired && reserved.subject.expires_at.is_none_or(|end| end > reserved.now) {
            return Ok(());
        }
        step(state, ReservationEvent::ReleaseAsked)?;
        tx.execute(&sql::RESERVATION_RELEASING, &[&id.uuid(), &why.end().name()]).await?;
        let released = tx.query_opt(&sql::ALLOCATION_RELEASING, &[&id.uuid()]).await?;
        let Some(row) = released else {
            return self.end_in(tx, id, reserved.subject.tenant_id, why.end(), why.text()).await;
        };
        let (allocation_id, node_id): (AllocationId, NodeId) = (row.id("allocation_id"), row.id("node_id"));
        if mutant::on("capacity.release-frees-at-once") {
            tx.execute(&sql::ALLOCATION_END, &[&allocation_id.uuid()]).await?;
        }
        let data = json!({
            "state": ReservationState::Releasing.name(), "nodeId": node_id.to_string(),
            "allocationId": allocation_id.to_string(), "reason": why.text(),
        });
        self.tell(tx, EventKind::ReservationReleasing, id, reserved.subject.tenant_id, data).await?;
        wake(tx, SPEC_QUEUE, &spec_key(node_id)).await?;
        Ok(())
    }

    /// Ends a reservation that holds nothing any more: its quota is free from here on.
    pub(crate) async fn end_in(
        &self,
        tx: &mut Tx<'_>,
        id: ReservationId,
        tenant_id: TenantId,
        end: ReservationState,
        reason: &str,
    ) -> Result<(), Fault> {
        let kind = match end {
            ReservationState::Expired => EventKind::ReservationExpired,
            ReservationState::Failed => EventKind::ReservationFailed,
            ReservationState::Released
            | ReservationState::Draft
            | ReservationState::Scheduling
            | ReservationState::Placed
            | ReservationState::Active
            | ReservationState::Releasing => EventKind::ReservationReleased,
        };
        let failure = if end == ReservationState::Failed { reason } else { "" };
        if tx.execute(&sql::RESERVATION_END, &[&id.uuid(), &end.name(), &failure]).await? == 0 {
            return Err(StoreError::decode("reservation_end", "a reservation that had ended").into());
        }
        if !mutant::on("capacity.quota-outlives-its-reservation") {
            tx.execute(&sql::QUOTA_HOLDS_DELETE, &[&id.uuid()]).await?;
        }
        let data: Value = json!({ "state": end.name(), "reason": reason });
        self.tell(tx, kind, id, tenant_id, data).await?;
        Ok(())
    }
}
