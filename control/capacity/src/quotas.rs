//! Quotas: how much a tenant and those below it may hold at once. Without a row on the way up there is no limit.
//!
//! What is held is a row per reservation and resource from admission to the end; the database refuses the row that would
//! pass the limit. A quota is set from above: the decision is made in the parent of the tenant it binds, so that no tenant
//! raises its own.

use std::sync::Arc;

use api::quotas::{ListQuotas, Quota, QuotaResource, SetQuota};
use api::{List, Method, Named, Word};
use kernel::events::{self, EventKind};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{ErrorCode, QuotaId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, StoreError};

use crate::state::{stored, whole};
use crate::{Capacity, sql};

const QUOTA_SET: Op = Op::new("quota_set");
/// The trigger that keeps holds within quotas.
const WITHIN_QUOTA: &str = "quota_holds_within_quota";

pub(crate) fn is_over_quota(err: &StoreError) -> bool {
    err.is_check(WITHIN_QUOTA)
}

impl Capacity {
    /// Which quota does not take `wanted`, with its numbers. None when all do by now.
    pub async fn quota_refusal(
        &self,
        tenant_id: TenantId,
        wanted: &[(&'static str, i64)],
    ) -> Result<Option<ApiError>, StoreError> {
        let rows = self.store().read(&sql::QUOTA_USAGE, &[&tenant_id.uuid()]).await?;
        Ok(rows.iter().find_map(|row| {
            let resource: &str = row.get("resource");
            let (limit, used): (i64, i64) = (row.get("amount"), row.get("used"));
            let (_, wanted) = wanted.iter().find(|(name, _)| *name == resource)?;
            let whose: TenantId = row.id("tenant_id");
            let above = (whose != tenant_id).then(|| row.get::<_, &str>("tenant_name"));
            let over = used.saturating_add(*wanted) > limit;
            over.then(|| refusal(whose, above, resource, *wanted, used, limit))
        }))
    }
}

/// `above` is the name of the quota's tenant where that is not the tenant that asked.
pub(crate) fn refusal(
    whose: TenantId,
    above: Option<&str>,
    resource: &str,
    wanted: i64,
    used: i64,
    limit: i64,
) -> ApiError {
    let of = above.map(|name| format!(" of tenant {name} above")).unwrap_or_default();
    let message = format!(
        "the quota of {resource}{of} is {limit}, {used} of it are used and {wanted} more are wanted: release something, \
         or ask for a higher quota"
    );
    ApiError::new(ErrorCode::QuotaExceeded, message)
        .detail("resource", resource)
        .detail("tenant", whose.to_string())
        .detail("used", used)
        .detail("wanted", wanted)
        .detail("limit", limit)
}

fn view(row: &Row) -> Result<Quota, Fault> {
    let resource = QuotaResource::parse(row.get("resource"))
        .ok_or_else(|| StoreError::decode("quota", "column \"resource\""))?;
    Ok(Quota {
        id: row.id::<QuotaId>("quota_id").into(),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        resource: Word(resource),
        amount: whole(row.get("amount")),
        used: whole(row.get("used")),
        updated_at: row.ts("updated_at").into(),
    })
}

/// Decided where it is given from. Who may not set it and may not see the tenant either is told that there is none.
async fn require_set(capacity: &Capacity, call: &Call, tenant_id: TenantId) -> Result<(), Fault> {
    let action = api::quotas::Set::ACTION;
    let Some(row) = capacity.store().read_opt(&sql::TENANT_GET, &[&tenant_id.uuid()]).await? else {
        call.require_in(action, &Resource::any("compute-quota", tenant_id)).await?;
        return Err(ApiError::not_found("tenant", tenant_id).into());
    };
    let from = row.opt_id("parent_id").unwrap_or(tenant_id);
    let resource = Resource::one("compute-quota", tenant_id, from);
    let tenant = Resource::one("compute-tenant", tenant_id, tenant_id);
    let known = tenant_id == call.principal.tenant_id
        || call.decide(api::tenants::Get::ACTION, &tenant).await?.allowed;
    if known {
        return call.require(action, &resource).await;
    }
    call.require_visible(action, &resource, "tenant", tenant_id).await
}

pub(crate) async fn set(capacity: Capacity, call: Arc<Call>, request: SetQuota) -> Result<Quota, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    require_set(&capacity, &call, tenant_id).await?;
    let (resource, amount) = (request.resource.0.name(), stored(request.amount.get()));
    let fresh: QuotaId = capacity.id();
    call.about(format!("tenant/{tenant_id}"));
    let this = &capacity;
    let quota = call
        .tx(capacity.store(), QUOTA_SET, |tx| {
            Box::pin(async move {
                let before = tx.query_opt(&sql::QUOTA_LOCK, &[&tenant_id.uuid(), &resource]).await?;
                let before: Option<i64> = before.map(|row| row.get("amount"));
                let values: [&(dyn store::Param + Sync); 4] =
                    [&fresh.uuid(), &tenant_id.uuid(), &resource, &amount];
                tx.execute(&sql::QUOTA_PUT, &values).await?;
                let row = tx.query_one(&sql::QUOTA_GET, &[&tenant_id.uuid(), &resource]).await?;
                let quota = view(&row)?;
                if before != Some(amount) {
                    let data = json!({ "resource": resource, "amount": amount, "previousAmount": before });
                    let kind = EventKind::QuotaChanged;
                    events::append(tx, this.rng(), kind, quota.id, Some(tenant_id), data).await?;
                }
                Ok::<_, Fault>(quota)
            })
        })
        .await?;
    Ok(quota)
}

pub(crate) async fn list(
    capacity: Capacity,
    call: Arc<Call>,
    request: ListQuotas,
) -> Result<List<Quota>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::quotas::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any("compute-quota", tenant_id)).await?;
    }
    let page = Page::of::<QuotaId>(request.limit, request.cursor.as_ref())?;
    let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &page.before, &page.fetch()];
    let rows = capacity.store().read(&sql::QUOTAS_LIST, &values).await?;
    let quotas: Vec<Quota> = rows.iter().map(view).collect::<Result<_, _>>()?;
    let (quotas, cursor) = page.cut(quotas, |quota| quota.id.get());
    let shown =
        call.filter(action, quotas, |quota| Resource::one("compute-quota", quota.id, tenant_id)).await?;
    Ok(List::new(shown, cursor))
}
