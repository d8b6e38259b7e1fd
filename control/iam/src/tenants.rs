//! Tenants.

use std::sync::Arc;
use std::time::Duration;

use api::tenants::{CreateTenant, GetTenant, ListTenants, Tenant, TenantState};
use api::{Named, Wait, Word};
use kernel::events::{self, EventKind};
use kernel::idempotency::Key;
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::wait::until_settled;
use kernel::{ApiError, Call, Fault};
use model::{TenantId, Timestamp};
use serde_json::json;
use store::{Op, Row, RowExt};

use crate::{Iam, sql, version};

mod end;

pub(crate) use end::{End, delete};

const OP_CREATE: Op = Op::new("tenant_create");

/// How deep the tree may be: each decision looks at every tenant on the way up.
const DEPTH_MAX: usize = 16;

fn resource(tenant_id: TenantId, name: &str) -> Resource {
    Resource::one("compute-tenant", tenant_id, tenant_id).with("resource.name", name.to_owned())
}

fn view(row: &Row, now: Timestamp) -> Tenant {
    let created_at = row.ts("created_at");
    let parent_name: Option<String> = row.get("parent_name");
    Tenant {
        id: row.id::<TenantId>("tenant_id").into(),
        name: row.get("name"),
        parent: row.opt_id("parent_id").map(|id| Named::new(id, parent_name.unwrap_or_default())),
        state: Word(end::state_of(row)),
        has: Vec::new(),
        created_at: created_at.into(),
        deleted_at: row.opt_ts("deleted_at").map(Into::into),
        age_seconds: now.since(created_at).as_secs(),
        dry_run: false,
    }
}

impl Iam {
    /// The tenant a request speaks about: the caller's own when it names none.
    pub(crate) fn tenant_of(call: &Call, given: Option<api::Id<TenantId>>) -> TenantId {
        given.map_or(call.principal.tenant_id, api::Id::get)
    }

    async fn tenant(&self, call: &Call, tenant_id: TenantId) -> Result<Tenant, Fault> {
        let row = self.store.read_opt(&sql::TENANT_GET, &[&tenant_id.uuid()]).await?;
        let row = row.ok_or_else(|| ApiError::not_found("tenant", tenant_id))?;
        Ok(view(&row, call.now))
    }

    /// Waits while it is being deleted, and says what it still has if it is.
    async fn tenant_at_rest(
        &self,
        call: &Call,
        tenant_id: TenantId,
        wait: Option<&Wait>,
    ) -> Result<Tenant, Fault> {
        let wait = wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
        let mut tenant = until_settled(&*self.clock, &*self.rng, wait, || {
            Box::pin(async move {
                let tenant = self.tenant(call, tenant_id).await?;
                let settled = tenant.state.0 != TenantState::Deleting;
                Ok((tenant, settled))
            })
        })
        .await?;
        if tenant.state.0 == TenantState::Deleting {
            tenant.has = self.left(tenant_id).await?;
        }
        Ok(tenant)
    }

    /// The tenant and those above it, from itself to the root, with names.
    pub(crate) async fn way_up(&self, tenant_id: TenantId) -> Result<Vec<Named<TenantId>>, Fault> {
        let rows = self.store.read(&sql::TENANT_WAY_UP, &[&tenant_id.uuid()]).await?;
        Ok(rows.iter().map(|row| Named::new(row.id("tenant_id"), row.get::<_, String>("name"))).collect())
    }
}

pub(crate) async fn create(iam: Arc<Iam>, call: Arc<Call>, request: CreateTenant) -> Result<Tenant, Fault> {
    let parent_id = Iam::tenant_of(&call, request.parent);
    let asked =
        Resource::any("compute-tenant", parent_id).with("resource.name", request.name.as_str().to_owned());
    call.require_in("compute:tenants:create", &asked).await?;
    let key = Key::of(&call, parent_id, request.idempotency_key.as_ref().map(api::Text::as_str), &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(&iam.store).await?
    {
        return iam.tenant(&call, kernel::idempotency::made(&made)?).await;
    }
    let depth = iam.way_up(parent_id).await?.len();
    if depth >= DEPTH_MAX {
        let message = format!("a tenant may be at most {DEPTH_MAX} levels below the root");
        return Err(ApiError::invalid("/parent", message).detail("depthMax", DEPTH_MAX).into());
    }

    let tenant_id: TenantId = iam.rng.id(call.now);
    call.about(format!("tenant/{tenant_id}"));
    let (key, name, rng) = (key.as_ref(), request.name.as_str(), &*iam.rng);
    let made = call.tx(&iam.store, OP_CREATE, |tx| {
        Box::pin(async move {
            if let Some(key) = key
                && let Some(made) = key.claim(tx, &tenant_id.to_string()).await?
            {
                return kernel::idempotency::made(&made);
            }
            tx.execute(&sql::TENANT_INSERT, &[&tenant_id.uuid(), &parent_id.uuid(), &name]).await?;
            version::raise(tx).await?;
            let data = json!({"name": name, "parentId": parent_id.to_string()});
            let kind = EventKind::IamTenantCreated;
            events::append(tx, rng, kind, tenant_id, Some(tenant_id), data).await?;
            Ok::<_, Fault>(tenant_id)
        })
    });
    let made = made.await.map_err(|fault| {
        fault.on_unique("tenants_parent_id_name_key", || {
            ApiError::conflict(format!("there is a tenant {name} below {parent_id} already"))
                .detail("name", name)
        })
    })?;
    iam.tenant(&call, made).await
}

pub(crate) async fn get(iam: Arc<Iam>, call: Arc<Call>, request: GetTenant) -> Result<Tenant, Fault> {
    let tenant_id = request.id.get();
    let tenant = iam.tenant(&call, tenant_id).await?;
    call.require_visible("compute:tenants:get", &resource(tenant_id, &tenant.name), "tenant", tenant_id)
        .await?;
    iam.tenant_at_rest(&call, tenant_id, request.wait.as_ref()).await
}

pub(crate) async fn list(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: ListTenants,
) -> Result<api::List<Tenant>, Fault> {
    let action = "compute:tenants:list";
    let top = Iam::tenant_of(&call, request.parent);
    call.require_in(action, &Resource::any("compute-tenant", top)).await?;
    let page = Page::of::<TenantId>(request.limit, request.cursor.as_ref())?;
    // Without a parent: everything from the caller's own tenant downwards.
    let all = request.parent.is_none();
    let name = request.name.as_ref().map(api::Name::as_str);
    let (deleted, fetch) = (request.include_deleted, page.fetch());
    let params: [&(dyn store::Param + Sync); 6] = [&top.uuid(), &all, &name, &page.before, &fetch, &deleted];
    let rows = iam.store.read(&sql::TENANT_LIST, &params).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<TenantId>("tenant_id"));
    let items = rows.iter().map(|row| view(row, call.now)).collect();
    let items = call.filter(action, items, |tenant: &Tenant| resource(tenant.id.get(), &tenant.name)).await?;
    Ok(api::List::new(items, cursor))
}
