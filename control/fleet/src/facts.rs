//! What a node offers, put together from the inventory and the conditions it reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel::module::{Again, HandleTogether, QueueHandler};
use kernel::ports::node::NodeFacts;
use kernel::{BoxFuture, Fault};
use model::{NodeId, PoolId, TenantId};
use serde_json::Value;
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;
use wire::inventory::{self, NodeInventory, SectionName};

use crate::core::{Fleet, node_key, node_of_key};
use crate::{FACTS_QUEUE, sql};

const FACTS: Op = Op::new("node_facts");
/// Nodes whose facts are told together: each is some statements of whoever listens.
const NODES_MAX: u32 = 16;
/// How long facts that are what they were are not told again. Then they are, so that nothing that went wrong stays so.
const TOLD_FOR_SECONDS: i64 = 600;
/// The same where an observer could not use all of them.
const UNSETTLED_FOR_SECONDS: i64 = 60;
/// Just after that.
const UNSETTLED_AGAIN: Duration = Duration::from_secs(61);

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

/// The handler of [`FACTS_QUEUE`]: tells the facts of nodes to whoever listens, where they are news.
pub struct FactsQueue(pub Fleet);

impl FactsQueue {
    /// Which of them to look at again, and when.
    async fn tell(&self, tx: &mut Tx<'_>, keys: &[String]) -> Result<Vec<Again>, Fault> {
        let ids: Vec<Uuid> =
            keys.iter().filter_map(|key| node_of_key(key)).map(|node_id| node_id.uuid()).collect();
        let known = tx.query(&sql::FACTS_NEWS, &[&ids]).await?;
        let news: Vec<&Row> = known.iter().filter(|row| row.get("news")).collect();
        for row in &news {
            self.0.publish_facts(tx, row.id("node_id")).await?;
        }
        // Of those too that have no news: this may be what is left of another look at them.
        let nodes: Vec<NodeId> =
            known.iter().filter(|row| row.get("there")).map(|row| row.id("node_id")).collect();
        let mut unsettled = BTreeSet::new();
        for observer in &self.0.0.observers {
            unsettled.extend(observer.unsettled(tx, &nodes).await?);
        }
        let lasts = |node_id: &NodeId| {
            if unsettled.contains(node_id) { UNSETTLED_FOR_SECONDS } else { TOLD_FOR_SECONDS }
        };
        if !news.is_empty() {
            let last: Vec<i64> = news.iter().map(|row| lasts(&row.id("node_id"))).collect();
            let told: Vec<Uuid> = news.iter().map(|row| row.id::<NodeId>("node_id").uuid()).collect();
            let digests: Vec<String> = news.iter().map(|row| row.get("digest")).collect();
            tx.later(&sql::FACTS_TOLD, vec![Box::new(told), Box::new(digests), Box::new(last)]);
        }
        // What holds them up may end without a word from this node.
        Ok(unsettled.into_iter().map(|node_id| (node_key(node_id), UNSETTLED_AGAIN)).collect())
    }
}

impl QueueHandler for FactsQueue {
    fn queue(&self) -> &'static str {
        FACTS_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            let keys = &[key.to_owned()];
            let again = self.0.store().tx(FACTS, |tx| Box::pin(self.tell(tx, keys))).await?;
            Ok(again.first().map(|(_, pause)| *pause))
        })
    }

    fn together(&self) -> Option<&dyn HandleTogether> {
        Some(self)
    }
}

impl HandleTogether for FactsQueue {
    fn keys_max(&self) -> u32 {
        NODES_MAX
    }

    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>> {
        Box::pin(self.tell(tx, keys))
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
