//! From what a caller wrote to the row it means, and what lists share.

use api::{Cursor, Ref};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{Id, NodeId, PoolId, SiteId, TenantId};
use store::{RowExt, Store};
use uuid::Uuid;

use super::sql;

pub(super) async fn root_tenant(store: &Store) -> Result<TenantId, Fault> {
    Ok(store.read_one(&sql::ROOT_TENANT, &[]).await?.id("tenant_id"))
}

pub(super) async fn site(store: &Store, site: &Ref<SiteId>) -> Result<SiteId, Fault> {
    let (row, shown) = match site {
        Ref::Id(id) => (store.read_opt(&sql::SITE_BY_ID, &[&id.uuid()]).await?, id.to_string()),
        Ref::Name(name) => (store.read_opt(&sql::SITE_BY_NAME, &[name]).await?, name.clone()),
    };
    Ok(row.ok_or_else(|| ApiError::not_found("site", shown))?.id("site_id"))
}

/// A site to filter by. One that the caller may not see is not there, whether it is or not.
pub(super) async fn visible_site(
    store: &Store,
    call: &Call,
    site_ref: &Ref<SiteId>,
) -> Result<SiteId, Fault> {
    let root = root_tenant(store).await?;
    let found = site(store, site_ref).await;
    let on = match &found {
        Ok(site_id) => Resource::one("compute-site", site_id, root),
        Err(_) => Resource::any("compute-site", root),
    };
    call.require_visible("compute:sites:get", &on, "site", shown(site_ref)).await?;
    found
}

pub(super) async fn node(store: &Store, node: &Ref<NodeId>) -> Result<NodeId, Fault> {
    match node {
        Ref::Id(id) => Ok(*id),
        Ref::Name(name) => {
            let row = store.read_opt(&sql::NODE_BY_NAME, &[name]).await?;
            Ok(row.ok_or_else(|| ApiError::not_found("node", name))?.id("node_id"))
        }
    }
}

/// A pool and whose it is. A name is looked up in `tenant`, or the caller's.
async fn pool(
    store: &Store,
    call: &Call,
    tenant: Option<TenantId>,
    pool: &Ref<PoolId>,
) -> Result<(PoolId, TenantId), Fault> {
    let row = match pool {
        Ref::Id(id) => store.read_opt(&sql::POOL_OWNER, &[&id.uuid()]).await?,
        Ref::Name(name) => {
            let tenant = tenant.unwrap_or(call.principal.tenant_id);
            store.read_opt(&sql::POOL_BY_NAME, &[&tenant.uuid(), name]).await?
        }
    };
    let row = row.ok_or_else(|| ApiError::not_found("pool", shown(pool)))?;
    Ok((row.id("pool_id"), row.id("tenant_id")))
}

/// A pool to filter by. One that the caller may not see is not there.
pub(super) async fn visible_pool(
    store: &Store,
    call: &Call,
    tenant: Option<TenantId>,
    pool_ref: &Ref<PoolId>,
) -> Result<PoolId, Fault> {
    let (pool_id, owner) = pool(store, call, tenant, pool_ref).await?;
    let on = Resource::one("compute-pool", pool_id, owner);
    call.require_visible("compute:pools:get", &on, "pool", shown(pool_ref)).await?;
    Ok(pool_id)
}

/// A pool that the caller may adopt nodes into. ACCESS_DENIED only to one who may see it.
pub(super) async fn pool_to_adopt_into(
    store: &Store,
    call: &Call,
    tenant: Option<TenantId>,
    pool_ref: &Ref<PoolId>,
) -> Result<PoolId, Fault> {
    let (pool_id, owner) = pool(store, call, tenant, pool_ref).await?;
    let adopt = Resource::any("compute-node", owner);
    if !call.decide("compute:nodes:adopt", &adopt).await?.allowed {
        let on = Resource::one("compute-pool", pool_id, owner);
        call.require_visible("compute:pools:get", &on, "pool", shown(pool_ref)).await?;
        // It may be seen: say what is not allowed.
        call.require("compute:nodes:adopt", &adopt).await?;
    }
    Ok(pool_id)
}

/// A reference as the caller wrote it.
pub(super) fn shown<I: Id>(reference: &Ref<I>) -> String {
    match reference {
        Ref::Id(id) => id.to_string(),
        Ref::Name(name) => name.clone(),
    }
}

/// The id a cursor stands for.
pub(super) fn after<I: Id>(cursor: Option<&Cursor>) -> Result<Option<Uuid>, Fault> {
    let Some(cursor) = cursor else { return Ok(None) };
    match cursor.as_str().parse::<I>() {
        Ok(id) => Ok(Some(id.uuid())),
        Err(_) => Err(ApiError::invalid("/cursor", "this cursor is not one that a list answered").into()),
    }
}

/// Where the next page starts: at the last id of a page that was full.
pub(super) fn next<I: Id>(rows: &[store::Row], limit: u32, column: &str) -> Option<Cursor> {
    let full = rows.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let last: I = rows.last().filter(|_| full)?.id(column);
    Cursor::parse(&last.to_string()).ok()
}

pub(super) fn sql_limit(limit: u32) -> i64 {
    i64::from(limit)
}
