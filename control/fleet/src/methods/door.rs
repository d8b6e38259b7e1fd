//! What is to be known of a node before anybody is let onto it, or into what runs there.

use api::Ref;
use kernel::ports::tunnels::{NodeDoor, NodeDoors};
use kernel::{BoxFuture, Fault};
use model::{NodeId, Timestamp};
use pki::Purpose;
use store::RowExt;

use super::node_view::view;
use super::{nodes, sql};
use crate::core::Fleet;

impl NodeDoors for Fleet {
    fn node<'a>(&'a self, node: &'a Ref<NodeId>) -> BoxFuture<'a, Result<Option<NodeDoor>, Fault>> {
        Box::pin(async move {
            let node_id = match node {
                Ref::Id(id) => *id,
                Ref::Name(name) => match self.store().read_opt(&sql::NODE_BY_NAME, &[name]).await? {
                    Some(row) => row.id("node_id"),
                    None => return Ok(None),
                },
            };
            let id = node_id.uuid();
            let Some(row) = self.store().read_opt(&sql::NODE_ONE, &[&id]).await? else { return Ok(None) };
            let Some(door) = self.store().read_opt(&sql::NODE_DOOR, &[&id]).await? else { return Ok(None) };
            let seen = view(&row, door.ts("now"))?;
            let keys: Vec<Vec<u8>> = door.get("keys");
            Ok(Some(NodeDoor {
                node_id,
                name: seen.node.name.clone(),
                tenant_id: seen.tenant_id,
                resource: nodes::resource(&seen.node, seen.tenant_id),
                gateway: door.get("gateway"),
                keys: keys.into_iter().filter_map(|key| key.try_into().ok()).collect(),
                capabilities: door.get("capabilities"),
                deployment_epoch: u64::try_from(door.get::<_, i64>("deployment_epoch")).unwrap_or(0),
            }))
        })
    }

    fn sign_ticket(&self, ticket: &[u8], at: Timestamp) -> Result<Vec<u8>, Fault> {
        self.sign(Purpose::ExecTicket, ticket, at)
    }
}
