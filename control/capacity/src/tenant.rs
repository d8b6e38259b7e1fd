//! What a tenant has here, for whoever deletes the tenant: reservations. What they held on nodes is free by those nodes' word.

use kernel::ports::tenants::{Belongings, CLEARED_AT_ONCE, counted};
use kernel::{BoxFuture, Fault};
use model::{ReservationId, TenantId};
use store::{IsRetryable, Op, RowExt, Tx};

use crate::change::Why;
use crate::{Capacity, sql};

const TENANT_RESERVATION: Op = Op::new("reservation_tenant_end");
const TENANT_DRAFTS: Op = Op::new("reservation_tenant_drafts");

impl Belongings for Capacity {
    fn left<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
    ) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(async move {
            let row = tx.query_one(&sql::TENANT_HAS, &[&tenant_id.uuid()]).await?;
            Ok(counted(row.get("reservations"), "reservation").into_iter().collect())
        })
    }

    fn clear(&self, tenant_id: TenantId) -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move {
            // Before what is admitted is looked for: a draft of the last moment is then either admitted or gone.
            self.store()
                .tx(TENANT_DRAFTS, |tx| {
                    Box::pin(async move {
                        Ok::<_, Fault>(tx.execute(&sql::TENANT_DRAFTS_DELETE, &[&tenant_id.uuid()]).await?)
                    })
                })
                .await?;
            let rows = self.store().read(&sql::TENANT_RESERVATIONS, &[&tenant_id.uuid()]).await?;
            for row in &rows {
                let id: ReservationId = row.id("reservation_id");
                let asked = self
                    .store()
                    .tx(TENANT_RESERVATION, |tx| Box::pin(self.release_in(tx, id, Why::TenantDeleted)))
                    .await;
                match asked {
                    Err(err) if !err.is_retryable() => {
                        tracing::error!(reservation_id = %id, err = kit::chain(&err), "reservation cannot go with its tenant");
                    }
                    done => done?,
                }
            }
            Ok(rows.len() >= CLEARED_AT_ONCE)
        })
    }
}
