//! Live allocations as the devices section of their node's spec. The core is pure.
//!
//! An allocation is named HELD from its booking on. It leaves the spec only by an entry that says RELEASED, which stays
//! until the node reports that the hold is gone, and in the spec that is signed until there is something else to say to the
//! node: an entry that is merely missing releases nothing. One that failed too is
//! named RELEASED: the node that refused it at one generation may have bound it at a later one.

use std::collections::HashMap;

use api::reservations::Binding as ApiBinding;
use kernel::BoxFuture;
use kernel::ports::node::SpecContributor;
use model::lifecycle::AllocationState;
use model::{AllocationId, NodeId};
use serde_json::Value;
use store::{Row, RowExt, StoreError, Tx};
use uuid::Uuid;
use wire::proto::agent::{Binding, DesiredHold, DeviceAssignment, DevicesSection, Limits, NodeSpec};

use crate::state::StoredLimits;
use crate::{Capacity, sql};

const GPU: &str = "gpu";
/// Of a hold of CPU and memory alone, which has no atoms.
const HOST: &str = "host";

#[derive(Debug, Clone, PartialEq)]
struct Assigned {
    allocation_id: AllocationId,
    state: AllocationState,
    atoms: Vec<String>,
    binding: ApiBinding,
    limits: Option<StoredLimits>,
}

impl Assigned {
    fn of_row(row: &Row) -> Result<Self, StoreError> {
        let undecodable = |column| StoreError::decode("node_assignments", format!("column {column:?}"));
        let limits: Option<Value> = row.get("limits");
        Ok(Self {
            allocation_id: row.id("allocation_id"),
            state: AllocationState::parse(row.get("state")).ok_or_else(|| undecodable("state"))?,
            atoms: row.get("atoms"),
            binding: ApiBinding::parse(row.get("binding")).ok_or_else(|| undecodable("binding"))?,
            limits: limits.map(serde_json::from_value).transpose().map_err(|_| undecodable("limits"))?,
        })
    }
}

fn section(assigned: Vec<Assigned>) -> DevicesSection {
    DevicesSection { assignments: assigned.into_iter().filter_map(assignment).collect() }
}

fn assignment(one: Assigned) -> Option<DeviceAssignment> {
    let desired = match one.state {
        AllocationState::Placed | AllocationState::Bound => DesiredHold::Held,
        AllocationState::Releasing | AllocationState::Failed => DesiredHold::Released,
        AllocationState::Released => return None,
    };
    let binding = match one.binding {
        ApiBinding::Hold => Binding::Hold,
        ApiBinding::Kubernetes => Binding::Kubernetes,
    };
    Some(DeviceAssignment {
        allocation_id: one.allocation_id.to_string(),
        device_class: if one.atoms.is_empty() { HOST } else { GPU }.to_owned(),
        atoms: one.atoms,
        binding: binding.into(),
        limits: one.limits.map(|limits| Limits {
            cpu_millis: limits.cpu_millis,
            memory_bytes: limits.memory_bytes,
            cpus: limits.cpus,
            mems: limits.mems,
            hugepages_1gi: limits.hugepages_1gi,
        }),
        desired: desired.into(),
    })
}

impl SpecContributor for Capacity {
    fn name(&self) -> &'static str {
        "capacity"
    }

    fn part<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<NodeSpec, StoreError>> {
        Box::pin(async move {
            let rows = tx.query(&sql::NODE_ASSIGNMENTS, &[&node_id.uuid()]).await?;
            if rows.is_empty() {
                return Ok(NodeSpec::default());
            }
            let assigned = rows.iter().map(Assigned::of_row).collect::<Result<_, _>>()?;
            Ok(NodeSpec { devices: Some(section(assigned)), ..NodeSpec::default() })
        })
    }

    fn parts<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeSpec>, StoreError>> {
        Box::pin(async move {
            let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
            let mut assigned: HashMap<NodeId, Vec<Assigned>> = HashMap::new();
            for row in tx.query(&sql::many::NODES_ASSIGNMENTS, &[&ids]).await? {
                assigned.entry(row.id("node_id")).or_default().push(Assigned::of_row(&row)?);
            }
            let of = |node_id: &NodeId| {
                let devices = assigned.remove(node_id).map(section);
                NodeSpec { devices, ..NodeSpec::default() }
            };
            Ok(nodes.iter().map(of).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(state: AllocationState) -> Assigned {
        Assigned {
            allocation_id: AllocationId::from_uuid(uuid::Uuid::from_u128(7)),
            state,
            atoms: vec!["GPU-a".to_owned()],
            binding: ApiBinding::Kubernetes,
            limits: Some(StoredLimits { cpu_millis: 4000, cpus: "0-3".to_owned(), ..Default::default() }),
        }
    }

    #[test]
    fn what_is_released_is_named_until_the_node_says_it_is_gone() {
        let of = |state| section(vec![assigned(state)]).assignments.first().map(|one| one.desired());
        assert_eq!(of(AllocationState::Placed), Some(DesiredHold::Held));
        assert_eq!(of(AllocationState::Bound), Some(DesiredHold::Held));
        assert_eq!(of(AllocationState::Releasing), Some(DesiredHold::Released));
        assert_eq!(of(AllocationState::Failed), Some(DesiredHold::Released));
        assert_eq!(of(AllocationState::Released), None);
    }

    #[test]
    fn an_assignment_carries_its_binding_and_limits() {
        let one = assignment(assigned(AllocationState::Bound)).unwrap();
        assert_eq!((one.binding(), one.device_class.as_str()), (Binding::Kubernetes, "gpu"));
        let limits = one.limits.unwrap();
        assert_eq!((limits.cpu_millis, limits.cpus.as_str(), limits.mems.as_str()), (4000, "0-3", ""));
    }

    #[test]
    fn what_has_no_devices_is_held_of_the_host() {
        let one = assignment(Assigned { atoms: Vec::new(), ..assigned(AllocationState::Placed) }).unwrap();
        assert_eq!((one.device_class.as_str(), one.atoms.len()), ("host", 0));
        assert!(one.limits.is_some());
    }
}
