//! The same decisions in the plainest way: views in a list, every node looked at. It shares with the crate only the
//! choice of devices, which has its own test against every possible choice.

#![allow(dead_code)]

use std::collections::BTreeMap;

use placer::{
    Booking, Cell, Claim, DeviceScore, DeviceView, NO_ISLAND, NO_NUMA, NodeView, Policy, Score, choose,
};

pub struct Naive {
    pub nodes: BTreeMap<model::NodeId, NodeView>,
}

pub struct Decision {
    pub score: Score,
    pub atoms: Vec<String>,
}

fn free(device: &&DeviceView) -> bool {
    !device.booked && device.unhealthy.is_none()
}

fn cells(node: &NodeView, name: &str) -> Vec<Cell> {
    let mut cells: BTreeMap<(u16, u16, u64), u16> = BTreeMap::new();
    for device in node.devices.iter().filter(free).filter(|device| &*device.model == name) {
        let key = (device.numa.unwrap_or(NO_NUMA), device.island.unwrap_or(NO_ISLAND), device.memory_bytes);
        *cells.entry(key).or_default() += 1;
    }
    let cell = |((numa, island, memory_bytes), free)| Cell { numa, island, memory_bytes, free };
    cells.into_iter().map(cell).collect()
}

fn unused(node: &NodeView) -> bool {
    let host = &node.host;
    !node.held_whole
        && node.devices.iter().all(|device| !device.booked)
        && [host.cpu_millis, host.memory_bytes, host.hugepages_1gi, host.disk_bytes]
            .iter()
            .all(|amount| amount.booked == 0)
}

fn passes(node: &NodeView, claim: &Claim) -> bool {
    node.standing.takes_work()
        && !node.held_whole
        && (!claim.whole_node || unused(node))
        && !claim.avoid.contains(&node.id)
        && claim.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
        && claim
            .capabilities
            .iter()
            .all(|name| node.labels.get(&format!("bc.dev/cap.{name}")).is_some_and(|value| value == "1"))
        && node.host.cpu_millis.free() >= claim.cpu_millis
        && node.host.memory_bytes.free() >= claim.memory_bytes
        && node.host.hugepages_1gi.free() >= claim.hugepages_1gi
        && node.host.disk_bytes.free() >= claim.disk_bytes
}

fn toward(policy: Policy, claim: &Claim, left: u64) -> u64 {
    match policy {
        Policy::Spread if !claim.whole_node => u64::MAX - left,
        Policy::Spread | Policy::Pack => left,
    }
}

/// The devices of one model on one node: how good, and which.
fn on_model(
    node: &NodeView,
    name: &str,
    claim: &Claim,
    policy: Policy,
) -> Option<(DeviceScore, Vec<String>)> {
    let cells = cells(node, name);
    let able: u32 = cells
        .iter()
        .filter(|cell| cell.memory_bytes >= claim.gpu_memory_bytes_min)
        .map(|cell| u32::from(cell.free))
        .sum();
    let left = u64::from(able.checked_sub(claim.gpus)?);
    if claim.whole_node {
        let gpu_memory_bytes = cells.iter().map(|cell| cell.memory_bytes).max()?;
        let score = DeviceScore { gpu_memory_bytes, gpus_left: left, ..DeviceScore::default() };
        return Some((score, node.devices.iter().map(|device| device.atom.to_string()).collect()));
    }
    let choice = choose(&cells, claim.gpus, claim.gpu_memory_bytes_min)?;
    let mut atoms: Vec<(u16, String)> = Vec::new();
    for (cell, takes) in cells.iter().zip(&choice.takes) {
        let alike = |device: &&DeviceView| {
            &*device.model == name
                && device.numa.unwrap_or(NO_NUMA) == cell.numa
                && device.island.unwrap_or(NO_ISLAND) == cell.island
                && device.memory_bytes == cell.memory_bytes
        };
        let taken = node.devices.iter().filter(free).filter(alike).take(usize::from(*takes));
        atoms.extend(taken.map(|device| (device.index, device.atom.to_string())));
    }
    atoms.sort();
    let score = DeviceScore {
        gpu_memory_bytes: choice.memory_bytes,
        gpus_left: toward(policy, claim, left),
        islands: choice.islands,
        numa_nodes: choice.numa_nodes,
        broken: choice.broken,
    };
    Some((score, atoms.into_iter().map(|(_, atom)| atom).collect()))
}

fn decide(node: &NodeView, claim: &Claim, policy: Policy) -> Option<Decision> {
    if !passes(node, claim) {
        return None;
    }
    let (devices, atoms) = if claim.gpus == 0 {
        let gpus_left = node.devices.iter().filter(free).count() as u64;
        let all = || node.devices.iter().map(|device| device.atom.to_string()).collect();
        (
            DeviceScore { gpus_left, ..DeviceScore::default() },
            if claim.whole_node { all() } else { Vec::new() },
        )
    } else {
        let mut names: Vec<&str> = node.devices.iter().map(|device| &*device.model).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| claim.model.as_ref().is_none_or(|wanted| wanted == name));
        names
            .into_iter()
            .filter_map(|name| on_model(node, name, claim, policy))
            .min_by_key(|(score, _)| *score)?
    };
    let score = Score {
        devices,
        cpu_millis_left: toward(policy, claim, node.host.cpu_millis.free() - claim.cpu_millis),
        memory_bytes_left: toward(policy, claim, node.host.memory_bytes.free() - claim.memory_bytes),
        node: node.id,
    };
    Some(Decision { score, atoms })
}

impl Naive {
    pub fn new(nodes: impl IntoIterator<Item = NodeView>) -> Self {
        Self { nodes: nodes.into_iter().map(|node| (node.id, node)).collect() }
    }

    pub fn find(&self, claim: &Claim, policy: Policy) -> Option<Decision> {
        self.nodes
            .values()
            .filter_map(|node| decide(node, claim, policy))
            .min_by_key(|decision| decision.score)
    }

    /// Books (`by` 1) or gives back (`by` -1), trusting the caller.
    pub fn shift(&mut self, booking: &Booking, by: i64) {
        let node = self.nodes.get_mut(&booking.node).expect("booked on a node that is there");
        for device in node.devices.iter_mut().filter(|device| booking.atoms.contains(&device.atom)) {
            assert_ne!(device.booked, by > 0, "{} is booked twice or given back twice", device.atom);
            device.booked = by > 0;
        }
        let add = |amount: &mut placer::Amount, of: u64| {
            amount.booked = amount.booked.checked_add_signed(by * of as i64).expect("never under nothing")
        };
        add(&mut node.host.cpu_millis, booking.cpu_millis);
        add(&mut node.host.memory_bytes, booking.memory_bytes);
        add(&mut node.host.hugepages_1gi, booking.hugepages_1gi);
        add(&mut node.host.disk_bytes, booking.disk_bytes);
        let parts = booking.mems.len() as u64;
        for (nth, numa) in booking.mems.iter().enumerate() {
            let view =
                node.numa.iter_mut().find(|view| view.id == *numa).expect("bound to a NUMA node it has");
            let share = |amount: u64| amount / parts + u64::from((nth as u64) < amount % parts);
            add(&mut view.memory_bytes, share(booking.memory_bytes));
            add(&mut view.hugepages_1gi, share(booking.hugepages_1gi));
        }
        if booking.whole_node {
            node.held_whole = by > 0;
        }
    }
}
