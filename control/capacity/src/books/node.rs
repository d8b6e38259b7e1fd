//! One node's rows as the placer wants them. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::label::CAPABILITY_PREFIX;
use model::lifecycle::NodeState;
use model::{NodeId, PoolId, ReservationId};
use placer::{
    Amount, AtomId, Claim, Cordon, CpuSet, DeviceView, HostView, NodeView, NumaView, Policy, Standing,
    floating,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::{Row, RowExt, StoreError};

use crate::pools::{Reserve, policy_of};
use crate::state::whole;

/// What the machine has, whatever is booked, ill or closed on it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub name: String,
    gone: bool,
    gpus: BTreeMap<String, u32>,
    cpu_millis: u64,
    memory_bytes: u64,
    hugepages_1gi: u64,
    disk_bytes: u64,
    labels: BTreeMap<String, String>,
}

impl Machine {
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub fn could_hold(&self, claim: &Claim) -> bool {
        let enough = |(model, count): (&String, &u32)| {
            *count >= claim.gpus && claim.model.as_ref().is_none_or(|wanted| wanted == model)
        };
        let has = |key: &str, value: &str| self.labels.get(key).is_some_and(|found| found == value);
        !self.gone
            && (claim.gpus == 0 || self.gpus.iter().any(enough))
            && self.cpu_millis >= claim.cpu_millis
            && self.memory_bytes >= claim.memory_bytes
            && self.hugepages_1gi >= claim.hugepages_1gi
            && self.disk_bytes >= claim.disk_bytes
            && claim.selector.iter().all(|(key, value)| has(key, value))
            && claim.capabilities.iter().all(|name| has(&format!("{CAPABILITY_PREFIX}{name}"), "1"))
    }
}

pub(crate) struct ReadNode {
    pub id: NodeId,
    pub pool_id: Option<PoolId>,
    pub version: i64,
    pub offer_version: i64,
    pub kept_for: Option<ReservationId>,
    pub policy: Policy,
    pub machine: Machine,
    pub view: NodeView,
}

/// A NUMA node as `node_capacity.topology` keeps it, before the host's reserve.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NumaRow {
    pub id: u16,
    pub cpus: String,
    pub memory_bytes: u64,
    #[serde(rename = "hugepages1Gi")]
    pub hugepages_1gi: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceRow {
    atom: String,
    model: String,
    memory_bytes: u64,
    numa: Option<u16>,
    index: u16,
    island: Option<u16>,
    health: String,
    reason: String,
    booked: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostRow {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    #[serde(rename = "hugepages1Gi")]
    pub hugepages_1gi: u64,
    pub disk_bytes: u64,
    mems: Vec<u16>,
    whole_node: bool,
}

/// What is booked on a node, and nothing of what it offers.
pub(super) struct BookedRow {
    pub id: NodeId,
    pub version: i64,
    pub offer_version: i64,
    pub atoms: Vec<String>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
    pub disk_bytes: u64,
    pub whole_node: bool,
    /// Those that are bound to NUMA nodes.
    pub bound: Vec<HostRow>,
}

impl BookedRow {
    pub fn read(row: &Row) -> Result<Self, StoreError> {
        let amount = |column| whole(row.get(column));
        Ok(Self {
            id: row.id("node_id"),
            version: row.get("version"),
            offer_version: row.get("offer_version"),
            atoms: row.get("atoms"),
            cpu_millis: amount("cpu_millis"),
            memory_bytes: amount("memory_bytes"),
            hugepages_1gi: amount("hugepages_1gi"),
            disk_bytes: amount("disk_bytes"),
            whole_node: row.get("whole_node"),
            bound: list(row.get("bound"), "bound")?,
        })
    }
}

pub(super) fn read(row: &Row) -> Result<ReadNode, StoreError> {
    let id: NodeId = row.id("node_id");
    let name: String = row.get("name");
    let state = NodeState::parse(row.get("state")).ok_or_else(|| undecodable("state"))?;
    let capabilities: Vec<String> = row.get("capabilities");
    let labels = super::labels(&row.get::<_, Value>("labels"), &capabilities);
    let topology: Vec<NumaRow> = list(Some(row.get("topology")), "topology")?;
    let devices: Vec<DeviceRow> = list(row.get("devices"), "devices")?;
    let booked: Vec<HostRow> = list(row.get("booked"), "booked")?;
    let policy = row.get::<_, Option<Value>>("policy").map(|policy| policy_of(&policy)).unwrap_or_default();
    let offered = |column| whole(row.get(column));
    let total = |of: fn(&HostRow) -> u64| booked.iter().map(of).sum();
    let host = HostView {
        cpu_millis: Amount { total: offered("cpu_millis"), booked: total(|row| row.cpu_millis) },
        memory_bytes: Amount { total: offered("memory_bytes"), booked: total(|row| row.memory_bytes) },
        hugepages_1gi: Amount { total: offered("hugepages_1gi"), booked: total(|row| row.hugepages_1gi) },
        disk_bytes: Amount {
            total: row.get::<_, Option<i64>>("disk_bytes").map_or(Amount::UNBOUNDED.total, whole),
            booked: total(|row| row.disk_bytes),
        },
    };
    let mut gpus = BTreeMap::new();
    for device in devices.iter().filter(|device| device.health != "absent") {
        *gpus.entry(device.model.clone()).or_insert(0) += 1;
    }
    let machine = Machine {
        name: name.clone(),
        gone: matches!(state, NodeState::Revoked | NodeState::Removed),
        gpus,
        cpu_millis: host.cpu_millis.total,
        memory_bytes: host.memory_bytes.total,
        hugepages_1gi: host.hugepages_1gi.total,
        disk_bytes: host.disk_bytes.total,
        labels: labels.clone(),
    };
    let view = NodeView {
        id,
        name: name.into(),
        standing: standing(row, state),
        held_whole: booked.iter().any(|row| row.whole_node),
        labels,
        host,
        numa: numa(&topology, &booked, &Reserve::of(&policy), &CpuSet::default()),
        devices: devices.into_iter().map(device).collect(),
    };
    Ok(ReadNode {
        id,
        pool_id: row.opt_id("pool_id"),
        version: row.get("version"),
        offer_version: row.get("offer_version"),
        kept_for: row.opt_id("kept_for"),
        policy: crate::pools::placement_of(&policy),
        machine,
        view,
    })
}

fn undecodable(column: &'static str) -> StoreError {
    StoreError::decode("books_nodes", format!("column {column:?}"))
}

fn list<T: DeserializeOwned>(value: Option<Value>, column: &'static str) -> Result<Vec<T>, StoreError> {
    value.map_or(Ok(Vec::new()), |value| serde_json::from_value(value).map_err(|_| undecodable(column)))
}

fn standing(row: &Row, state: NodeState) -> Standing {
    let text = |column| row.get::<_, Option<String>>(column).unwrap_or_default();
    let cordoned = row.opt_ts("cordoned_at").map(|at| {
        let (by, why) = (text("cordoned_by"), text("cordon_reason"));
        // The moment as a number: who shows it knows the time.
        Arc::new(Cordon { by, why, when: at.micros().to_string() })
    });
    let quarantined = row.opt_ts("quarantined_at").map(|_| text("quarantine_reason").into());
    Standing { state, cordoned, draining: row.opt_ts("draining_at").is_some(), quarantined }
}

fn device(row: DeviceRow) -> DeviceView {
    let unhealthy = (row.health != "healthy").then(|| {
        let reason = if row.reason.is_empty() { row.health } else { row.reason };
        reason.into()
    });
    DeviceView {
        atom: AtomId::from(row.atom.as_str()),
        model: row.model.into(),
        memory_bytes: row.memory_bytes,
        numa: row.numa,
        index: row.index,
        island: row.island,
        booked: row.booked,
        unhealthy,
    }
}

/// With the CPUs that are neither the host's own nor pinned.
pub(crate) fn numa(
    topology: &[NumaRow],
    booked: &[HostRow],
    reserve: &Reserve,
    pinned: &CpuSet,
) -> Vec<NumaView> {
    // A list that does not parse leaves its node without CPUs to float on, which is no restriction.
    let sets: Vec<CpuSet> =
        topology.iter().map(|numa| CpuSet::parse(&numa.cpus).unwrap_or_default()).collect();
    let reserved = usize::try_from(reserve.cpu_millis / 1000).unwrap_or(usize::MAX);
    let open = floating(&sets, reserved, &CpuSet::default(), pinned);
    let promised = |id: u16, of: fn(&HostRow) -> u64| promised(booked, id, of);
    topology
        .iter()
        .zip(open)
        .map(|(numa, cpus)| NumaView {
            id: numa.id,
            cpus,
            memory_bytes: Amount {
                total: numa.memory_bytes,
                booked: promised(numa.id, |row| row.memory_bytes),
            },
            hugepages_1gi: Amount {
                total: numa.hugepages_1gi,
                booked: promised(numa.id, |row| row.hugepages_1gi),
            },
        })
        .collect()
}

/// What the bookings that are bound to one NUMA node promise of it.
pub(super) fn promised(booked: &[HostRow], id: u16, of: fn(&HostRow) -> u64) -> u64 {
    booked.iter().map(|row| share(row, id, of(row))).sum()
}

/// The bound amount's part on one NUMA node: equal shares, the first ones what does not divide.
fn share(row: &HostRow, id: u16, amount: u64) -> u64 {
    let count = row.mems.len() as u64;
    match row.mems.iter().position(|mem| *mem == id) {
        Some(at) => amount / count + u64::from((at as u64) < amount % count),
        None => 0,
    }
}
