//! The network of a pool, and the addresses in it.

use std::net::Ipv4Addr;

use api::pools::{AddressScope, Network, PoolPolicy};
use model::{AllocationId, InstanceId, NodeId, PoolId};
use serde_json::Value;
use store::{StoreError, Tx};

use crate::sql;

/// Where the pool says nothing.
const BRIDGE: &str = "br0";

/// The stored policy. It was checked when it was written.
pub(crate) fn policy_of(stored: &Value) -> PoolPolicy {
    serde_json::from_value(stored.clone()).unwrap_or_default()
}

pub(crate) fn bridge(network: Option<&Network>) -> String {
    network.and_then(|network| network.bridge.as_ref()).map_or(BRIDGE, |bridge| bridge.as_str()).to_owned()
}

/// The addresses that are leased: the first, and how many come after it.
fn leased(network: &Network) -> (Ipv4Addr, i64) {
    let hosts = network.subnet.hosts();
    (*hosts.start(), i64::from(hosts.end().to_bits() - hosts.start().to_bits()))
}

fn scope(network: &Network) -> AddressScope {
    network.scope.map_or(AddressScope::Pool, |scope| scope.0)
}

/// What leasing came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leased {
    /// The pool leases none: instances ask for one by themselves.
    None,
    Address(String),
    /// All are taken.
    Exhausted,
}

/// Leases the next free address for a place. Last in its transaction: whoever leases of the pool waits from here on.
pub(crate) async fn lease(
    tx: &mut Tx<'_>,
    network: Option<&Network>,
    pool_id: PoolId,
    node_id: NodeId,
    allocation_id: AllocationId,
) -> Result<Leased, StoreError> {
    let Some(network) = network else { return Ok(Leased::None) };
    tx.query_one(&sql::ADDRESSES_LOCK, &[&pool_id.uuid()]).await?;
    let (first, more) = leased(network);
    let first = first.to_string();
    let gateway = network.gateway.map(|gateway| gateway.to_string());
    let scope = scope(network).name();
    let values: [&(dyn store::Param + Sync); 7] =
        [&allocation_id.uuid(), &pool_id.uuid(), &node_id.uuid(), &scope, &first, &more, &gateway];
    let row = tx.query_opt(&sql::ADDRESS_LEASE, &values).await?;
    Ok(row.map_or(Leased::Exhausted, |row| Leased::Address(row.get("address"))))
}

/// Locally administered, and an instance's own for as long as it lives: the random end of its id.
pub(crate) fn mac(id: InstanceId) -> String {
    let bytes = id.uuid().into_bytes();
    let own: Vec<String> = bytes[11..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("02:{}", own.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_one_machines_and_locally_administered() {
        let id = InstanceId::from_uuid(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_01fe_dcba_9876));
        assert_eq!(mac(id), "02:fe:dc:ba:98:76");
    }

    #[test]
    fn all_addresses_of_machines_are_leased() {
        let network: Network =
            serde_json::from_value(serde_json::json!({ "subnet": "10.0.0.0/29" })).unwrap();
        assert_eq!(leased(&network), (Ipv4Addr::new(10, 0, 0, 1), 5));
        assert_eq!((scope(&network), bridge(Some(&network)).as_str()), (AddressScope::Pool, "br0"));
    }
}
