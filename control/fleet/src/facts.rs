//! What a node offers, put together from the inventory and the conditions it reported.

use std::collections::BTreeMap;

use kernel::Fault;
use kernel::ports::node::NodeFacts;
use model::{NodeId, PoolId, TenantId};
use serde_json::Value;
use store::{RowExt, Tx};
use wire::inventory::{self, NodeInventory, SectionName};

use crate::core::Fleet;
use crate::sql;

impl Fleet {
    /// Reads the node's facts and tells every observer. A node that is gone has none.
    pub(crate) async fn publish_facts(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let Some(facts) = read(tx, node_id).await? else { return Ok(()) };
        for observer in &self.0.observers {
            observer.facts_changed(tx, &facts).await?;
        }
        Ok(())
    }

    pub(crate) async fn publish_schedulable(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        for observer in &self.0.observers {
            observer.schedulable_changed(tx, node_id).await?;
        }
        Ok(())
    }
}

async fn read(tx: &mut Tx<'_>, node_id: NodeId) -> Result<Option<NodeFacts>, Fault> {
    let Some(row) = tx.query_opt(&sql::NODE_FACTS, &[&node_id.uuid()]).await? else { return Ok(None) };
    let pool_id: Option<PoolId> = row.opt_id("pool_id");
    let tenant_id: Option<TenantId> = row.opt_id("tenant_id");
    let unhealthy = unhealthy_devices(&row.get::<_, Value>("conditions"));
    let mut inventory = NodeInventory::default();
    for section in tx.query(&sql::NODE_INVENTORY, &[&node_id.uuid()]).await? {
        let Ok(name) = section.get::<_, &str>("section").parse::<SectionName>() else { continue };
        let content: Value = section.get("content");
        // It was checked when it was stored; one that a later bound refuses is as if it had not come.
        match inventory::decode(name, content.to_string().as_bytes()) {
            Ok(section) => inventory.set(section),
            Err(err) => {
                tracing::warn!(%node_id, section = %name, err = %err, "stored inventory section does not decode")
            }
        }
    }
    Ok(Some(NodeFacts { node_id, pool: pool_id.zip(tenant_id), inventory, unhealthy }))
}

/// Devices with a blocking condition, and what it says. The stored form is the one `delivery` writes.
fn unhealthy_devices(conditions: &Value) -> BTreeMap<String, String> {
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    conditions
        .as_array()
        .into_iter()
        .flatten()
        .filter(|condition| text(condition, "severity") == "blocking")
        .map(|condition| {
            (
                text(condition, "device"),
                format!("{}: {}", text(condition, "kind"), text(condition, "message")),
            )
        })
        .filter(|(device, _)| !device.is_empty())
        .collect()
}
