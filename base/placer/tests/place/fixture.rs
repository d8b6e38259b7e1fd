//! Nodes for tests and measurements.

#![allow(dead_code)]

use std::collections::BTreeMap;

use model::NodeId;
use model::unit::GIB;
use placer::{Amount, AtomId, Claim, CpuSet, DeviceView, HostView, NodeView, NumaView, Snapshot, Standing};

pub const H100: &str = "h100-sxm-80gb";

pub fn id(number: u128) -> NodeId {
    NodeId::from_uuid(uuid::Uuid::from_u128(number))
}

/// A node with `gpus` GPUs in one island, half on each of two NUMA nodes, 16 CPUs and 128 GiB for each GPU, at least
/// those for one.
pub fn node(number: u128, gpus: u16, model: &str) -> NodeView {
    let parts = u64::from(gpus.max(1));
    let device = |at: u16| DeviceView {
        atom: AtomId::from(format!("GPU-{number:08x}-0000-4000-8000-{at:012x}").as_str()),
        model: model.into(),
        memory_bytes: 80 * GIB,
        numa: Some(at / gpus.div_ceil(2)),
        index: at,
        island: Some(0),
        booked: false,
        unhealthy: None,
    };
    let numa = |at: u16| NumaView {
        id: at,
        cpus: CpuSet::from_cpus((0..8 * parts as u16).map(|cpu| at * 8 * parts as u16 + cpu)),
        memory_bytes: Amount::unbooked(64 * GIB * parts),
        hugepages_1gi: Amount::unbooked(4),
    };
    NodeView {
        id: id(number),
        name: format!("sim-{number}").into(),
        standing: Standing::READY,
        held_whole: false,
        labels: BTreeMap::from([("bc.dev/cap.devices.limits".to_owned(), "1".to_owned())]),
        host: HostView {
            cpu_millis: Amount::unbooked(16_000 * parts),
            memory_bytes: Amount::unbooked(128 * GIB * parts),
            hugepages_1gi: Amount::unbooked(8),
            disk_bytes: Amount::unbooked(256 * GIB * parts),
        },
        numa: vec![numa(0), numa(1)],
        devices: (0..gpus).map(device).collect(),
    }
}

pub fn snapshot(nodes: impl IntoIterator<Item = NodeView>) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for node in nodes {
        snapshot.upsert(node).expect("a well-formed node");
    }
    snapshot
}

/// GPUs with their share of the host.
pub fn gpus(count: u32) -> Claim {
    Claim {
        gpus: count,
        cpu_millis: 16_000 * u64::from(count),
        memory_bytes: 128 * GIB * u64::from(count),
        ..Claim::default()
    }
}
