//! From what a caller wrote to the row it means, and what lists share.

use api::{Cursor, Ref};
use kernel::{ApiError, Call, Fault};
use model::{Id, NodeId, PoolId, SiteId, TenantId};
use store::{RowExt, Store};
use uuid::Uuid;

use super::sql;

pub(super) async fn root_tenant(store: &Store) -> Result<TenantId, Fault> {
    Ok(store.read_one(&sql::ROOT_TENANT, &[]).await?.id("tenant_id"))
}

pub(super) async fn site(store: &Store, site: &Ref<SiteId>) -> Result<SiteId, Fault> {
    match site {
        Ref::Id(id) => Ok(*id),
        Ref::Name(name) => {
            let row = store.read_opt(&sql::SITE_BY_NAME, &[name]).await?;
            Ok(row.ok_or_else(|| ApiError::not_found("site", name))?.id("site_id"))
        }
    }
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
pub(super) async fn pool(
    store: &Store,
    call: &Call,
    tenant: Option<TenantId>,
    pool: &Ref<PoolId>,
) -> Result<(PoolId, TenantId), Fault> {
    let (row, shown) = match pool {
        Ref::Id(id) => (store.read_opt(&sql::POOL_OWNER, &[&id.uuid()]).await?, id.to_string()),
        Ref::Name(name) => {
            let tenant = tenant.unwrap_or(call.principal.tenant_id);
            (store.read_opt(&sql::POOL_BY_NAME, &[&tenant.uuid(), name]).await?, name.clone())
        }
    };
    let row = row.ok_or_else(|| ApiError::not_found("pool", shown))?;
    Ok((row.id("pool_id"), row.id("tenant_id")))
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
