//! Reading reservations, once or until they settle.

use std::sync::Arc;
use std::time::Duration;

use api::reservations::{GetReservation, ListReservations, Reservation};
use api::{List, Method, Ref};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::wait::until_settled;
use kernel::{ApiError, Call, Fault};
use model::{Id, ReservationId};
use store::StoreError;
use uuid::Uuid;

use crate::state::Reserved;
use crate::{Capacity, sql, view};

/// What a caller must be allowed to do to know that a reservation is there.
pub(crate) const SEE: &str = api::reservations::Get::ACTION;

impl Capacity {
    pub(crate) async fn reserved_alone(&self, id: ReservationId) -> Result<Option<Reserved>, StoreError> {
        let row = self.store().read_opt(&sql::RESERVATION_GET, &[&id.uuid()]).await?;
        row.as_ref().map(Reserved::of_row).transpose()
    }

    pub(crate) async fn reserved_or_not_found(&self, id: ReservationId) -> Result<Reserved, Fault> {
        self.reserved(id).await?.ok_or_else(|| ApiError::not_found("reservation", id).into())
    }

    /// The reservation as it is, or as it is once `settled` says so.
    pub(crate) async fn settled(
        &self,
        id: ReservationId,
        wait: Option<Duration>,
        settled: fn(&Reserved) -> bool,
    ) -> Result<Reserved, Fault> {
        until_settled(self.clock(), self.rng(), wait, || {
            Box::pin(async move {
                let reserved = self.reserved_or_not_found(id).await?;
                let done = settled(&reserved);
                Ok((reserved, done))
            })
        })
        .await
    }
}

pub(crate) async fn get(
    capacity: Capacity,
    call: Arc<Call>,
    request: GetReservation,
) -> Result<Reservation, Fault> {
    let id = request.id.get();
    let reserved = match capacity.reserved(id).await? {
        Some(reserved) => reserved,
        None => {
            let tenant_id = call.principal.tenant_id;
            call.decide(SEE, &Resource::one("compute-reservation", id, tenant_id)).await?;
            return Err(ApiError::not_found("reservation", id).into());
        }
    };
    call.require_visible(SEE, &reserved.subject.resource(), "reservation", id).await?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    let reserved = match wait {
        Some(_) => capacity.settled(id, wait, Reserved::is_up_or_over).await?,
        None => reserved,
    };
    Ok(view::reservation(&reserved))
}

fn parts<T: Id>(reference: Option<&Ref<T>>) -> (Option<Uuid>, Option<&str>) {
    match reference {
        None => (None, None),
        Some(Ref::Id(id)) => (Some(id.uuid()), None),
        Some(Ref::Name(name)) => (None, Some(name)),
    }
}

pub(crate) async fn list(
    capacity: Capacity,
    call: Arc<Call>,
    request: ListReservations,
) -> Result<List<Reservation>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::reservations::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any("compute-reservation", tenant_id)).await?;
    }
    let page = Page::of::<ReservationId>(request.limit, request.cursor.as_ref())?;
    let (pool_id, pool_name) = parts(request.pool.as_ref());
    let (node_id, node_name) = parts(request.node.as_ref());
    let state = request.state.map(|state| state.0);
    // Asking for an end state asks for what ended.
    let ended = request.include_ended || state.is_some_and(|state| state.terminal());
    let state = state.map(|state| state.name());
    let name = request.name.as_ref().map(|name| name.as_str());
    let values: [&(dyn store::Param + Sync); 10] = [
        &tenant_id.uuid(),
        &page.before,
        &pool_id,
        &pool_name,
        &node_id,
        &node_name,
        &state,
        &name,
        &ended,
        &page.fetch(),
    ];
    let rows = capacity.store().read(&sql::RESERVATIONS_LIST, &values).await?;
    let reserved: Vec<Reserved> = rows.iter().map(Reserved::of_row).collect::<Result<_, _>>()?;
    let (reserved, cursor) = page.cut(reserved, |one| one.subject.id);
    let shown = call.filter(action, reserved, |one| one.subject.resource()).await?;
    Ok(List::new(shown.iter().map(view::reservation).collect(), cursor))
}
