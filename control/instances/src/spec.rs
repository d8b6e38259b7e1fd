//! Instances with a place on a host as the instances section of its spec. The core is pure.
//!
//! An instance is named from its placing on, and until its place is given back: at the end by an entry that says DELETED,
//! which stays until the host reports that nothing of it is there.

use std::collections::HashMap;

use api::images::ImageFormat as ApiFormat;
use api::instances::NetworkPolicy as ApiPolicy;
use api::pools::Network;
use kernel::BoxFuture;
use kernel::ports::node::SpecContributor;
use model::lifecycle::DesiredPower;
use model::unit::{GIB, MIB};
use model::{AllocationId, InstanceId, NodeId, SecretId};
use serde_json::Value;
use store::{Row, RowExt, StoreError, Tx};
use uuid::Uuid;
use wire::proto::agent::{
    DesiredInstance, ImageFormat, InstanceImage, InstanceNic, InstancePlacement, InstanceSpec, NetworkPolicy,
    NodeSpec,
};

use crate::ipam::{bridge, mac, policy_of};
use crate::state::{desired_of, network_policy, whole};
use crate::{Instances, sql};

/// An instance on its host, with all that its entry says.
#[derive(Debug, Clone)]
struct Entry {
    id: InstanceId,
    name: Option<String>,
    desired: DesiredPower,
    revision: u64,
    boot: u64,
    runtime: String,
    vcpu: u32,
    memory_mib: u64,
    disk_gib: u64,
    /// Empty for the control plane's own store.
    url: String,
    sha256: Vec<u8>,
    format: ApiFormat,
    ssh_keys: Vec<String>,
    user_data: Option<SecretId>,
    network_policy: ApiPolicy,
    network: Option<Network>,
    address: Option<String>,
    allocation_id: AllocationId,
    atoms: Vec<String>,
    /// Of its host, as the kernel lists them; empty for any.
    cpus: String,
    mems: String,
    hugepages_1gi: bool,
    /// How often the host's disk is promised.
    disk_times: u64,
}

impl Entry {
    fn of_row(row: &Row) -> Result<Self, StoreError> {
        let format = ApiFormat::parse(row.get("format"));
        let policy = policy_of(&row.get::<_, Value>("policy"));
        let disk_times = policy.overcommit.as_ref().and_then(|overcommit| overcommit.disk);
        Ok(Self {
            id: row.id("instance_id"),
            name: row.get("name"),
            desired: desired_of(row)?,
            revision: whole(row.get("revision")),
            boot: whole(row.get("boot")),
            runtime: row.get("runtime"),
            vcpu: u32::try_from(row.get::<_, i32>("vcpu")).unwrap_or(0),
            memory_mib: whole(row.get("memory_mib")),
            disk_gib: whole(row.get("disk_gib")),
            url: row.get::<_, Option<String>>("url").unwrap_or_default(),
            sha256: row.get("sha256"),
            format: format.ok_or_else(|| StoreError::decode("nodes_instances", "column \"format\""))?,
            ssh_keys: row.get("ssh_keys"),
            user_data: row.opt_id("user_data_secret"),
            network_policy: network_policy(row)?,
            disk_times: disk_times.map_or(1, |times| times.get()),
            network: policy.network,
            address: row.get("address"),
            allocation_id: row.id("allocation_id"),
            atoms: row.get("atoms"),
            cpus: row.get("cpus"),
            mems: row.get("mems"),
            hugepages_1gi: row.get::<_, Option<&str>>("hugepages").is_some(),
        })
    }
}

/// Also a host's name in a network: an id has none of what a label may not have, but for its underscore.
fn hostname(id: InstanceId, name: Option<&String>) -> String {
    name.cloned().unwrap_or_else(|| id.to_string().replace('_', "-"))
}

fn nic(entry: &Entry) -> InstanceNic {
    let network = entry.network.as_ref();
    let leased = entry.address.as_ref().zip(network);
    InstanceNic {
        mac: mac(entry.id),
        bridge: bridge(network),
        addresses: leased
            .iter()
            .map(|(address, network)| format!("{address}/{}", network.subnet.prefix()))
            .collect(),
        gateways: leased.and_then(|(_, network)| network.gateway).iter().map(ToString::to_string).collect(),
        nameservers: leased
            .map(|(_, network)| network.nameservers.as_slice().iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
    }
}

/// None for one that may be anywhere.
fn placement(entry: &Entry) -> Option<InstancePlacement> {
    let hugepage_bytes = if entry.hugepages_1gi { GIB } else { 0 };
    let placement = InstancePlacement { cpus: entry.cpus.clone(), mems: entry.mems.clone(), hugepage_bytes };
    (placement != InstancePlacement::default()).then_some(placement)
}

fn spec(entry: &Entry) -> InstanceSpec {
    let desired = match entry.desired {
        DesiredPower::Running => DesiredInstance::Running,
        DesiredPower::Stopped => DesiredInstance::Stopped,
        DesiredPower::Deleted => DesiredInstance::Deleted,
    };
    let format = match entry.format {
        ApiFormat::Qcow2 => ImageFormat::Qcow2,
        ApiFormat::Raw => ImageFormat::Raw,
        ApiFormat::Iso => ImageFormat::Iso,
    };
    let policy = match entry.network_policy {
        ApiPolicy::Egress => NetworkPolicy::Egress,
        ApiPolicy::Private => NetworkPolicy::Private,
        ApiPolicy::None => NetworkPolicy::None,
    };
    // What is on its way out is told nothing more.
    let told = entry.user_data.filter(|_| desired != DesiredInstance::Deleted);
    let sha256: String = entry.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    InstanceSpec {
        instance_id: entry.id.to_string(),
        revision: entry.revision,
        desired: desired.into(),
        boot: entry.boot,
        runtime: entry.runtime.clone(),
        vcpus: entry.vcpu,
        memory_bytes: entry.memory_mib.saturating_mul(MIB),
        disk_bytes: entry.disk_gib.saturating_mul(GIB),
        image: Some(InstanceImage { url: entry.url.clone(), sha256, format: format.into() }),
        nics: vec![nic(entry)],
        hostname: hostname(entry.id, entry.name.as_ref()),
        ssh_keys: entry.ssh_keys.clone(),
        allocation_id: entry.allocation_id.to_string(),
        gpu_device_ids: entry.atoms.clone(),
        network_policy: policy.into(),
        ssh_from_host_only: false,
        user_data: told.map(wire::secret::reference).unwrap_or_default(),
        placement: placement(entry),
        disk_backed_bytes: entry.disk_gib.saturating_mul(GIB).div_ceil(entry.disk_times),
    }
}

impl SpecContributor for Instances {
    fn name(&self) -> &'static str {
        "instances"
    }

    fn part<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<NodeSpec, StoreError>> {
        Box::pin(async move {
            let parts = self.parts_of(tx, &[node_id]).await?;
            Ok(parts.into_iter().next().unwrap_or_default())
        })
    }

    fn parts<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeSpec>, StoreError>> {
        Box::pin(self.parts_of(tx, nodes))
    }
}

impl Instances {
    async fn parts_of(&self, tx: &mut Tx<'_>, nodes: &[NodeId]) -> Result<Vec<NodeSpec>, StoreError> {
        let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
        let mut entries: HashMap<NodeId, Vec<InstanceSpec>> = HashMap::new();
        for row in tx.query(&sql::NODES_INSTANCES, &[&ids]).await? {
            let entry = Entry::of_row(&row)?;
            if entry.desired == DesiredPower::Deleted && kit::mutant::on("instances.deleted-is-not-named") {
                continue;
            }
            entries.entry(row.id("node_id")).or_default().push(spec(&entry));
        }
        let of = |node_id: &NodeId| {
            let instances = entries.remove(node_id).map(wire::instance::section);
            NodeSpec { instances, ..NodeSpec::default() }
        };
        Ok(nodes.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(desired: DesiredPower) -> Entry {
        let network = serde_json::json!({
            "subnet": "10.0.0.0/24", "gateway": "10.0.0.1", "nameservers": ["10.0.0.1", "9.9.9.9"], "bridge": "vm0",
        });
        Entry {
            id: InstanceId::from_uuid(Uuid::from_u128(7)),
            name: None,
            desired,
            revision: 3,
            boot: 2,
            runtime: "libvirt-kvm".to_owned(),
            network_policy: ApiPolicy::Private,
            vcpu: 2,
            memory_mib: 512,
            disk_gib: 10,
            url: "https://cloud.example.com/debian.qcow2".to_owned(),
            sha256: vec![0xab; 32],
            format: ApiFormat::Qcow2,
            ssh_keys: vec!["ssh-ed25519 AAAA alice".to_owned()],
            user_data: Some(SecretId::from_uuid(Uuid::from_u128(9))),
            network: serde_json::from_value(network).unwrap(),
            address: Some("10.0.0.2".to_owned()),
            allocation_id: AllocationId::from_uuid(Uuid::from_u128(8)),
            atoms: Vec::new(),
            cpus: String::new(),
            mems: String::new(),
            hugepages_1gi: false,
            disk_times: 1,
        }
    }

    #[test]
    fn an_entry_says_what_is_wanted_and_of_which_revision() {
        let spec = spec(&entry(DesiredPower::Running));
        assert_eq!((spec.desired(), spec.revision, spec.boot), (DesiredInstance::Running, 3, 2));
        assert_eq!((spec.memory_bytes, spec.disk_bytes), (512 << 20, 10 << 30));
        let image = spec.image.unwrap();
        assert_eq!((image.format(), image.sha256.as_str()), (ImageFormat::Qcow2, "ab".repeat(32).as_str()));
        let nic = &spec.nics[0];
        assert_eq!((nic.bridge.as_str(), nic.addresses.as_slice()), ("vm0", &["10.0.0.2/24".to_owned()][..]));
        assert_eq!((nic.gateways.len(), nic.nameservers.len()), (1, 2));
        assert!(spec.hostname.starts_with("inst-") && !spec.hostname.contains('_'), "{}", spec.hostname);
    }

    #[test]
    fn an_entry_says_what_of_its_host_it_has() {
        let plain = spec(&entry(DesiredPower::Running));
        assert_eq!((plain.placement, plain.disk_backed_bytes), (None, 10 << 30));
        let seated = Entry {
            cpus: "4-5".to_owned(),
            mems: "1".to_owned(),
            hugepages_1gi: true,
            disk_times: 3,
            ..entry(DesiredPower::Running)
        };
        let seated = spec(&seated);
        let placement = seated.placement.unwrap();
        assert_eq!((placement.cpus.as_str(), placement.mems.as_str()), ("4-5", "1"));
        assert_eq!((placement.hugepage_bytes, seated.disk_backed_bytes), (1 << 30, 3_579_139_414));
    }

    #[test]
    fn what_is_deleted_is_named_as_such() {
        assert_eq!(spec(&entry(DesiredPower::Deleted)).desired(), DesiredInstance::Deleted);
        assert_eq!(spec(&entry(DesiredPower::Deleted)).user_data, "");
        assert_eq!(spec(&entry(DesiredPower::Stopped)).user_data, "secret://sec_00000000000000000000000009");
        assert_eq!(spec(&entry(DesiredPower::Stopped)).desired(), DesiredInstance::Stopped);
    }

    #[test]
    fn without_an_address_of_ours_the_guest_asks_for_one() {
        let nic = nic(&Entry { address: None, ..entry(DesiredPower::Running) });
        assert!(nic.addresses.is_empty() && nic.gateways.is_empty() && nic.nameservers.is_empty());
        assert_eq!(nic.bridge, "vm0");
    }
}
