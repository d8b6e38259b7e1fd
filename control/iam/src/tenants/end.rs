//! The end of a tenant.
//!
//! ```text
//! delete: active -> deleting    (nothing new; users disabled)      empty: active -> deleted at once
//! queue:  every module is asked to end what the tenant has, again and again, until nothing is left
//!         deleting -> deleted
//! ```
//!
//! Hosts say themselves that nothing of an instance is there, so a tenant with one on a host that is away stays `deleting` until
//! that host is back, or is given up by somebody (`nodes abandon`).

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::tenants::{DeleteTenant, Tenant, TenantState};
use kernel::events::{self, EventKind};
use kernel::module::{QueueHandler, wake};
use kernel::ports::iam::Resource;
use kernel::ports::tenants::counted;
use kernel::{ApiError, BoxFuture, Call, Fault};
use model::TenantId;
use serde_json::json;
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use super::resource;
use crate::{Iam, sql, version};

/// The queue of tenants that are being deleted. Key: the tenant's UUID.
const QUEUE: &str = "tenant-end";

const OP_DELETE: Op = Op::new("tenant_delete");
const OP_END: Op = Op::new("tenant_end");
const OP_LEFT: Op = Op::new("tenant_left");

/// Between two looks at one that is not empty yet: as long as an eighth of the time it has been on its way, within these.
const AGAIN_MIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What stands in a tenant's way whatever is asked for.
fn barred(row: &Row) -> Vec<String> {
    let below = match row.get::<_, i64>("below") {
        0 => None,
        1 => Some("1 tenant below it".to_owned()),
        count => Some(format!("{count} tenants below it")),
    };
    below.into_iter().chain(counted(row.get("pools"), "pool")).collect()
}

/// What it takes to end all that a tenant has, one by one: who may not do that may not do it at once either.
const ENDS: [(&str, &str); 7] = [
    (api::instances::Delete::ACTION, api::instances::Delete::RESOURCE),
    (api::images::Delete::ACTION, api::images::Delete::RESOURCE),
    (api::reservations::Release::ACTION, api::reservations::Release::RESOURCE),
    (api::secrets::Delete::ACTION, api::secrets::Delete::RESOURCE),
    (api::policies::Delete::ACTION, api::policies::Delete::RESOURCE),
    (api::bindings::Delete::ACTION, api::bindings::Delete::RESOURCE),
    (api::users::Disable::ACTION, api::users::Disable::RESOURCE),
];

fn not_empty(tenant: &Tenant, has: &[String], barred: bool) -> ApiError {
    let (name, listed) = (&tenant.name, has.join(", "));
    let message = match barred {
        true => format!("tenant {name} has {listed}: those are not deleted with it"),
        false => format!(
            "tenant {name} is not empty: it has {listed}. With all of that: better-compute tenants delete {} --with-contents",
            tenant.id
        ),
    };
    ApiError::invalid_state(message).detail("has", has)
}

pub(crate) async fn delete(iam: Arc<Iam>, call: Arc<Call>, request: DeleteTenant) -> Result<Tenant, Fault> {
    let tenant_id = request.id.get();
    let tenant = iam.tenant(&call, tenant_id).await?;
    let asked = resource(tenant_id, &tenant.name);
    call.require_on("compute:tenants:delete", "compute:tenants:get", &asked, "tenant", tenant_id).await?;
    call.about(format!("tenant/{tenant_id}"));
    if request.with_contents {
        for (action, kind) in ENDS {
            call.require_in(action, &Resource::any(kind, tenant_id)).await?;
        }
    }
    if tenant.parent.is_none() {
        return Err(ApiError::invalid_state("the root tenant stays").into());
    }
    if call.principal.tenant_id == tenant_id {
        let message = "this is your own tenant, whose users are disabled with it: somebody of a tenant above has to delete it";
        return Err(ApiError::invalid_state(message).into());
    }
    let (this, tenant, request) = (&*iam, &tenant, &request);
    let has = call
        .tx(&iam.store, OP_DELETE, |tx| Box::pin(async move { this.delete_in(tx, tenant, request).await }))
        .await?;
    if request.dry_run {
        return Ok(Tenant { has, dry_run: true, ..tenant.clone() });
    }
    iam.tenant_at_rest(&call, tenant_id, request.wait.as_ref()).await
}

impl Iam {
    /// What it has, of which a dry run changes nothing.
    async fn delete_in(
        &self,
        tx: &mut Tx<'_>,
        tenant: &Tenant,
        request: &DeleteTenant,
    ) -> Result<Vec<String>, Fault> {
        let tenant_id = tenant.id.get();
        // As it stands, without keeping anybody from it: whoever is refused, or asks what would be, locks nothing.
        let mut has = self.has_in(tx, tenant, request).await?;
        if request.dry_run {
            return Ok(has);
        }
        // In the order in which all that changes rights locks. Whoever gives the tenant something new has been waited for
        // from here on, or waits.
        version::raise(tx).await?;
        let Some(row) = tx.query_opt(&sql::TENANT_LOCK, &[&tenant_id.uuid()]).await? else {
            return Err(ApiError::not_found("tenant", tenant_id).into());
        };
        if row.opt_ts("deleting_at").is_some() {
            if row.opt_ts("deleted_at").is_none() {
                wake(tx, QUEUE, &queue_key(tenant_id)).await?;
            }
            return Ok(Vec::new());
        }
        if has.is_empty() || !request.with_contents {
            has = self.has_in(tx, tenant, request).await?;
        }
        self.refuse_last_administrator(tx, tenant_id).await?;
        tx.execute(&sql::TENANT_DELETING, &[&tenant_id.uuid()]).await?;
        tx.execute(&sql::TENANT_USERS_DISABLE, &[&tenant_id.uuid()]).await?;
        if has.is_empty() {
            self.end_in(tx, tenant_id, &tenant.name).await?;
            return Ok(has);
        }
        let (kind, data) = (EventKind::IamTenantDeleting, json!({"name": tenant.name, "has": has}));
        events::append(tx, &*self.rng, kind, tenant_id, Some(tenant_id), data).await?;
        wake(tx, QUEUE, &queue_key(tenant_id)).await?;
        Ok(has)
    }

    /// What it has, or why it is not deleted as it was asked for.
    async fn has_in(
        &self,
        tx: &mut Tx<'_>,
        tenant: &Tenant,
        request: &DeleteTenant,
    ) -> Result<Vec<String>, Fault> {
        let tenant_id = tenant.id.get();
        if tenant.state.0 != TenantState::Active {
            return Ok(Vec::new());
        }
        let stays = barred(&tx.query_one(&sql::TENANT_STAYS, &[&tenant_id.uuid()]).await?);
        if !stays.is_empty() {
            return Err(not_empty(tenant, &stays, true).into());
        }
        let mut has = self.left_in(tx, tenant_id).await?;
        let own = tx.query_one(&sql::TENANT_HAS, &[&tenant_id.uuid()]).await?;
        has.extend(counted(own.get("users"), "user"));
        has.extend(match own.get("policies") {
            1 => Some("1 policy".to_owned()),
            count => counted(count, "policie"),
        });
        match has.is_empty() || request.with_contents {
            true => Ok(has),
            false => Err(not_empty(tenant, &has, false).into()),
        }
    }

    /// Somebody has to be left who can repair everything else.
    async fn refuse_last_administrator(&self, tx: &mut Tx<'_>, tenant_id: TenantId) -> Result<(), Fault> {
        let row = tx.query_one(&sql::TENANT_STAYS, &[&tenant_id.uuid()]).await?;
        if row.get::<_, bool>("administered") {
            return Ok(());
        }
        let message = "nobody would be left with the root tenant's policy administrator: bind it to a user of another tenant first";
        Err(ApiError::invalid_state(message).into())
    }

    /// What other modules have of it.
    async fn left_in(&self, tx: &mut Tx<'_>, tenant_id: TenantId) -> Result<Vec<String>, Fault> {
        let mut left = Vec::new();
        for belongings in self.belongings() {
            left.extend(belongings.left(tx, tenant_id).await?);
        }
        Ok(left)
    }

    pub(super) async fn left(&self, tenant_id: TenantId) -> Result<Vec<String>, Fault> {
        self.store.tx(OP_LEFT, |tx| Box::pin(async move { self.left_in(tx, tenant_id).await })).await
    }

    /// Ends one of which nothing else is left, and whose row is locked.
    async fn end_in(&self, tx: &mut Tx<'_>, tenant_id: TenantId, name: &str) -> Result<(), Fault> {
        for own in sql::TENANT_OWN {
            tx.execute(own, &[&tenant_id.uuid()]).await?;
        }
        tx.execute(&sql::TENANT_DELETED, &[&tenant_id.uuid()]).await?;
        let kind = EventKind::IamTenantDeleted;
        Ok(events::append(tx, &*self.rng, kind, tenant_id, Some(tenant_id), json!({"name": name})).await?)
    }

    /// When to look again, if ever.
    async fn go_on(&self, tenant_id: TenantId) -> Result<Option<Duration>, Fault> {
        let under_way = self.store.read_opt(&sql::TENANT_UNDER_WAY, &[&tenant_id.uuid()]).await?;
        let Some(row) = under_way else { return Ok(None) };
        let since = row.ts("now").since(row.ts("deleting_at"));
        let name: String = row.get("name");
        let mut more = false;
        for belongings in self.belongings() {
            more |= belongings.clear(tenant_id).await?;
        }
        let name = &name;
        let ended = self.left(tenant_id).await?.is_empty()
            && self
                .store
                .tx(OP_END, |tx| Box::pin(async move { self.end_if_empty(tx, tenant_id, name).await }))
                .await?;
        let pause = if more { AGAIN_MIN } else { (since / 8).clamp(AGAIN_MIN, AGAIN_MAX) };
        Ok((!ended).then_some(pause))
    }

    /// Whether it has ended.
    async fn end_if_empty(&self, tx: &mut Tx<'_>, tenant_id: TenantId, name: &str) -> Result<bool, Fault> {
        version::raise(tx).await?;
        let locked = tx.query_opt(&sql::TENANT_LOCK, &[&tenant_id.uuid()]).await?;
        if locked.is_none_or(|row| row.opt_ts("deleted_at").is_some()) {
            return Ok(true);
        }
        let empty = self.left_in(tx, tenant_id).await?.is_empty();
        if empty {
            self.end_in(tx, tenant_id, name).await?;
        }
        Ok(empty)
    }
}

fn queue_key(tenant_id: TenantId) -> String {
    tenant_id.uuid().hyphenated().to_string()
}

/// The handler of [`QUEUE`].
pub(crate) struct End(pub Arc<Iam>);

impl QueueHandler for End {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match Uuid::parse_str(key) {
                Ok(id) => self.0.go_on(TenantId::from_uuid(id)).await,
                Err(_) => Ok(None),
            }
        })
    }
}

pub(super) fn state_of(row: &Row) -> TenantState {
    match (row.opt_ts("deleted_at"), row.opt_ts("deleting_at")) {
        (Some(_), _) => TenantState::Deleted,
        (None, Some(_)) => TenantState::Deleting,
        (None, None) => TenantState::Active,
    }
}
