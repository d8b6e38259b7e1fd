//! Reading tunnels.

use std::sync::Arc;

use api::tunnels::{GetTunnel, ListTunnels, Tunnel};
use api::{List, Method, Ref};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::TunnelId;

use crate::view::{Stored, view};
use crate::{Access, sql};

pub(crate) const KIND: &str = "compute-tunnel";
const SEE: &str = api::tunnels::Get::ACTION;

fn resource(stored: &Stored) -> Resource {
    Resource::one(KIND, stored.id, stored.tenant_id)
        .with("resource.op", stored.op.clone())
        .with("resource.userId", stored.user_id.to_string())
}

async fn stored(access: &Access, id: TunnelId) -> Result<Option<Stored>, Fault> {
    let row = access.store().read_opt(&sql::TUNNEL_GET, &[&id.uuid()]).await?;
    Ok(row.as_ref().map(Stored::of_row))
}

pub(crate) async fn one(access: &Access, id: TunnelId) -> Result<Tunnel, Fault> {
    let stored = stored(access, id).await?.ok_or_else(|| ApiError::not_found("tunnel", id))?;
    view(&stored)
}

/// A tunnel that the caller may do `action` on. One it may not see is not there.
pub(crate) async fn visible(
    access: &Access,
    call: &Call,
    action: &str,
    id: TunnelId,
) -> Result<Stored, Fault> {
    let Some(stored) = stored(access, id).await? else {
        call.decide(action, &Resource::one(KIND, id, call.principal.tenant_id)).await?;
        return Err(ApiError::not_found("tunnel", id).into());
    };
    call.require_on(action, SEE, &resource(&stored), "tunnel", id).await?;
    Ok(stored)
}

pub(crate) async fn get(access: Access, call: Arc<Call>, request: GetTunnel) -> Result<Tunnel, Fault> {
    view(&visible(&access, &call, SEE, request.id.get()).await?)
}

pub(crate) async fn list(
    access: Access,
    call: Arc<Call>,
    request: ListTunnels,
) -> Result<List<Tunnel>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::tunnels::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
    }
    let page = Page::of::<TunnelId>(request.limit, request.cursor.as_ref())?;
    let (node_id, node_name) = match &request.node {
        Some(Ref::Id(id)) => (Some(id.uuid()), None),
        Some(Ref::Name(name)) => (None, Some(name.as_str())),
        None => (None, None),
    };
    let instance_id = request.instance.map(|id| id.get().uuid());
    let values: [&(dyn store::Param + Sync); 7] = [
        &tenant_id.uuid(),
        &page.before,
        &instance_id,
        &node_id,
        &node_name,
        &request.include_closed,
        &page.fetch(),
    ];
    let rows = access.store().read(&sql::TUNNELS_LIST, &values).await?;
    let found: Vec<Stored> = rows.iter().map(Stored::of_row).collect();
    let (found, cursor) = page.cut(found, |one| one.id);
    let shown = call.filter(action, found, resource).await?;
    Ok(List::new(shown.iter().map(view).collect::<Result<_, _>>()?, cursor))
}
