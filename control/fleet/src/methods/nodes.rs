//! `nodes` that read, and adoption.

use std::sync::Arc;
use std::time::Duration;

use api::nodes::{self as api_nodes, InventorySection, ListNodes, Node, NodeInventory};
use api::{List, Named, Ref};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Module, wait};
use model::lifecycle::NodeState;
use model::{NodeId, TenantId};
use serde_json::{Map, Value};
use store::{Op, RowExt};

use super::node_view::{Seen, view};
use super::{on, refs, sql};
use crate::core::Fleet;

pub(super) const KIND: &str = "compute-node";
const ADOPT: Op = Op::new("node_adopt");

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, api_nodes::List, list);
    let module = on!(module, fleet, api_nodes::Get, get);
    let module = on!(module, fleet, api_nodes::Inventory, inventory);
    on!(module, fleet, api_nodes::Adopt, adopt)
}

/// What policies may ask about a node.
pub(super) fn resource(node: &Node, tenant_id: TenantId) -> Resource {
    let resource = Resource::one(KIND, node.id.0, tenant_id)
        .with("resource.name", node.name.clone())
        .with("resource.state", node.state.0.name())
        .with("resource.site", node.site.name.clone());
    match &node.pool {
        Some(pool) => resource.with("resource.pool", pool.name.clone()),
        None => resource,
    }
}

/// Reads a node that the caller may do `action` on. One it may not see is not there.
pub(super) async fn visible(
    fleet: &Fleet,
    call: &Call,
    action: &str,
    reference: &Ref<NodeId>,
) -> Result<Seen, Fault> {
    let shown = refs::shown(reference);
    let seen = match refs::node(fleet.store(), reference).await {
        Ok(node_id) => read(fleet, call, node_id).await,
        Err(fault) => Err(fault),
    };
    let seen = match seen {
        Ok(seen) => seen,
        Err(fault) => {
            let root = refs::root_tenant(fleet.store()).await?;
            call.require_visible(action, &Resource::any(KIND, root), "node", &shown).await?;
            return Err(fault);
        }
    };
    let on = resource(&seen.node, seen.tenant_id);
    call.require_on(action, "compute:nodes:get", &on, "node", &shown).await?;
    call.about(format!("node/{}", seen.node.id.0));
    Ok(seen)
}

pub(super) async fn read(fleet: &Fleet, call: &Call, node_id: NodeId) -> Result<Seen, Fault> {
    let row = fleet.store().read_opt(&sql::NODE_ONE, &[&node_id.uuid()]).await?;
    view(&row.ok_or_else(|| ApiError::not_found("node", node_id))?, call.now)
}

async fn get(fleet: Fleet, call: Arc<Call>, request: api_nodes::GetNode) -> Result<Node, Fault> {
    Ok(visible(&fleet, &call, "compute:nodes:get", &request.node).await?.node)
}

async fn list(fleet: Fleet, call: Arc<Call>, request: ListNodes) -> Result<List<Node>, Fault> {
    let tenant = request.tenant.map(|tenant| tenant.0);
    let pool = match &request.pool {
        None => None,
        Some(pool) => Some(refs::visible_pool(fleet.store(), &call, tenant, pool).await?.uuid()),
    };
    let site = match &request.site {
        None => None,
        Some(site) => Some(refs::visible_site(fleet.store(), &call, site).await?.uuid()),
    };
    let state = request.state.map(|state| state.0.name());
    let condition = request.condition.as_ref().map(|kind| kind.as_str());
    let selector = request.selector.map(api::Selector::into_map).unwrap_or_default();
    let selector =
        Value::Object(selector.into_iter().map(|(key, value)| (key, Value::from(value))).collect());
    // A state that has ended, asked for by name, is meant.
    let ended = request.include_ended || matches!(state, Some("revoked" | "removed"));
    let limit = api::limit_or_default(request.limit);
    let after = refs::after::<NodeId>(request.cursor.as_ref())?;
    let rows = fleet
        .store()
        .read(
            &sql::NODES,
            &[
                &after,
                &pool,
                &site,
                &state,
                &request.schedulable,
                &condition,
                &selector,
                &ended,
                &refs::sql_limit(limit),
            ],
        )
        .await?;
    let cursor = refs::next::<NodeId>(&rows, limit, "node_id");
    let items = rows.iter().map(|row| view(row, call.now)).collect::<Result<Vec<_>, _>>()?;
    let shown =
        call.filter("compute:nodes:list", items, |seen: &Seen| resource(&seen.node, seen.tenant_id)).await?;
    Ok(List::new(shown.into_iter().map(|seen| seen.node).collect(), cursor))
}

async fn inventory(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_nodes::GetInventory,
) -> Result<NodeInventory, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:inventory", &request.node).await?;
    let section = request.section.map(|section| section.0.name());
    let rows = fleet.store().read(&sql::NODE_INVENTORY_ALL, &[&seen.node.id.0.uuid(), &section]).await?;
    let sections = rows
        .iter()
        .map(|row| {
            let reported_at = row.ts("reported_at");
            let content = match row.get::<_, Value>("content") {
                Value::Object(content) => content,
                _ => Map::new(),
            };
            InventorySection {
                section: row.get("section"),
                hash: row.get("hash"),
                reported_at: reported_at.into(),
                age_seconds: call.now.since(reported_at).as_secs(),
                content,
            }
        })
        .collect();
    Ok(NodeInventory { node: Named::new(seen.node.id.0, seen.node.name), sections })
}

async fn adopt(fleet: Fleet, call: Arc<Call>, request: api_nodes::AdoptNode) -> Result<Node, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:adopt", &request.node).await?;
    let tenant = request.tenant.map(|tenant| tenant.0);
    let pool_id = refs::pool_to_adopt_into(fleet.store(), &call, tenant, &request.pool).await?;
    let node_id = seen.node.id.0;
    let by = call.principal.name.as_str();
    let fleet_ref = &fleet;
    call.tx(fleet_ref.store(), ADOPT, |tx| Box::pin(fleet_ref.adopt(tx, node_id, pool_id, by))).await?;
    let at_most = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    let (fleet, call) = (&fleet, &*call);
    wait::until_settled(&*fleet.0.clock, fleet.rng(), at_most, || {
        Box::pin(async move {
            let seen = read(fleet, call, node_id).await?;
            // A diagnosis that failed leaves the node accepting, and is an end too.
            let settled = seen.acceptance_over || seen.node.state.0 != NodeState::Accepting;
            Ok((seen.node, settled))
        })
    })
    .await
}
