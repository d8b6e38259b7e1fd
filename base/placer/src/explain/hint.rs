//! What would fit instead. Every hint was tried on the same snapshot before it is given.

use std::fmt;

use model::NodeId;
use model::unit::GIB;

use super::Reason;
use crate::claim::{Claim, Policy};
use crate::placement::Placement;
use crate::snapshot::Snapshot;
use crate::view::Text;

/// Ways to split a claim over nodes that are tried.
const SPLIT_MAX: u32 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The most GPUs that fit one node now, with all else in proportion.
    Gpus { gpus: u32 },
    /// As many GPUs in all on several nodes at once, `gpus` on each, with all else in proportion.
    Split { nodes: u32, gpus: u32 },
    /// As many GPUs of another model.
    Model { model: Text },
    /// The most CPU that fits, in whole CPUs.
    CpuMillis { cpu_millis: u64 },
    /// The most memory that fits, in whole GiB.
    MemoryBytes { memory_bytes: u64 },
    /// The most pages of 1 GiB that fit.
    Hugepages1gi { hugepages_1gi: u64 },
    /// The most disk that fits, in whole GiB.
    DiskBytes { disk_bytes: u64 },
    /// A node whose labels do not match would take it.
    WithoutSelector,
    /// A node to avoid would take it.
    WithoutAvoid,
    /// Nodes on which only present bookings are in the way of the first check that fails.
    Wait { nodes: usize },
}

pub(super) fn hints(
    snapshot: &Snapshot,
    claim: &Claim,
    policy: Policy,
    nodes: &[(NodeId, Reason)],
) -> Vec<Hint> {
    let fits = |change: &dyn Fn(&mut Claim)| {
        let mut changed = claim.clone();
        change(&mut changed);
        snapshot.find(&changed, policy)
    };
    let most = |wanted: u64, change: &dyn Fn(&mut Claim, u64)| {
        largest(wanted, |amount| fits(&|claim| change(claim, amount)).is_some())
    };
    let mut hints = Vec::new();
    if let Some(gpus) = most(u64::from(claim.gpus), &|claim, gpus| *claim = part(claim, gpus as u32)) {
        hints.push(Hint::Gpus { gpus: gpus as u32 });
    }
    hints.extend(split(snapshot, claim, policy));
    if claim.model.is_some()
        && let Some(found) = fits(&|claim| claim.model = None)
        && let Some(model) = model_of(snapshot, &found)
    {
        hints.push(Hint::Model { model });
    }
    if let Some(cpus) = most(claim.cpu_millis.div_ceil(1000), &|claim, cpus| claim.cpu_millis = cpus * 1000) {
        hints.push(Hint::CpuMillis { cpu_millis: cpus * 1000 });
    }
    if let Some(gib) = most(claim.memory_bytes.div_ceil(GIB), &|claim, gib| claim.memory_bytes = gib * GIB) {
        hints.push(Hint::MemoryBytes { memory_bytes: gib * GIB });
    }
    if let Some(pages) = most(claim.hugepages_1gi, &|claim, pages| claim.hugepages_1gi = pages) {
        hints.push(Hint::Hugepages1gi { hugepages_1gi: pages });
    }
    if let Some(gib) = most(claim.disk_bytes.div_ceil(GIB), &|claim, gib| claim.disk_bytes = gib * GIB) {
        hints.push(Hint::DiskBytes { disk_bytes: gib * GIB });
    }
    if !claim.selector.is_empty() && fits(&|claim| claim.selector.clear()).is_some() {
        hints.push(Hint::WithoutSelector);
    }
    if !claim.avoid.is_empty() && fits(&|claim| claim.avoid.clear()).is_some() {
        hints.push(Hint::WithoutAvoid);
    }
    let waiting = nodes.iter().filter(|(_, reason)| reason.passes_with_time()).count();
    if waiting > 0 {
        hints.push(Hint::Wait { nodes: waiting });
    }
    hints
}

/// The largest amount under `wanted`, above 0, that fits: less never fits worse than more.
fn largest(wanted: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    if wanted < 2 || !fits(1) {
        return None;
    }
    let (mut yes, mut no) = (1, wanted);
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if fits(middle) { yes = middle } else { no = middle }
    }
    Some(yes)
}

/// The claim with fewer GPUs and with its share of the host.
fn part(claim: &Claim, gpus: u32) -> Claim {
    let share = |amount: u64| {
        let share = (u128::from(amount) * u128::from(gpus)).div_ceil(u128::from(claim.gpus.max(1)));
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    Claim {
        gpus,
        cpu_millis: share(claim.cpu_millis),
        memory_bytes: share(claim.memory_bytes),
        hugepages_1gi: share(claim.hugepages_1gi),
        disk_bytes: share(claim.disk_bytes),
        ..claim.clone()
    }
}

/// The fewest nodes that take the GPUs in equal parts.
fn split(snapshot: &Snapshot, claim: &Claim, policy: Policy) -> Option<Hint> {
    (2..=claim.gpus.min(SPLIT_MAX)).filter(|nodes| claim.gpus.is_multiple_of(*nodes)).find_map(|nodes| {
        let mut part = part(claim, claim.gpus / nodes);
        for _ in 0..nodes {
            part.avoid.insert(snapshot.find(&part, policy)?.booking.node);
        }
        Some(Hint::Split { nodes, gpus: part.gpus })
    })
}

fn model_of(snapshot: &Snapshot, found: &Placement) -> Option<Text> {
    let node = snapshot.node(found.booking.node)?;
    let device = &node.devices[node.device_at(found.booking.atoms.first()?.as_str())?];
    Some(snapshot.model_names[device.model as usize].clone())
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::Gpus { gpus: 1 } => f.write_str("1 GPU would fit"),
            Hint::Gpus { gpus } => write!(f, "{gpus} GPUs would fit"),
            Hint::Split { nodes, gpus } => write!(f, "{nodes} nodes with {gpus} each would take it"),
            Hint::Model { model } => write!(f, "{model} would fit"),
            Hint::CpuMillis { cpu_millis } => write!(f, "{} CPUs would fit", cpu_millis / 1000),
            Hint::MemoryBytes { memory_bytes } => write!(f, "{} GiB of memory would fit", memory_bytes / GIB),
            Hint::Hugepages1gi { hugepages_1gi } => write!(f, "{hugepages_1gi} pages of 1 GiB would fit"),
            Hint::DiskBytes { disk_bytes } => write!(f, "{} GiB of disk would fit", disk_bytes / GIB),
            Hint::WithoutSelector => f.write_str("it would fit without the label selector"),
            Hint::WithoutAvoid => f.write_str("it would fit on a node to avoid"),
            Hint::Wait { nodes: 1 } => f.write_str("1 node waits for what is booked on it"),
            Hint::Wait { nodes } => write!(f, "{nodes} nodes wait for what is booked on them"),
        }
    }
}
