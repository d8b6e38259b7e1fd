//! Why one node does not take a claim.

use std::fmt;
use std::sync::Arc;

use model::label::CAPABILITY_PREFIX;
use model::lifecycle::NodeState;
use model::unit::GIB;

use crate::claim::Claim;
use crate::snapshot::{Device, ModelSym, Node, Snapshot};
use crate::view::{Amount, Cordon, Text};

/// Checked in this order; the first that fails is given. `total` and `has` say what the node could ever give,
/// `free` what it can give now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    NotReady {
        state: NodeState,
    },
    Cordoned(Arc<Cordon>),
    Draining,
    Quarantined {
        why: Text,
    },
    Avoided,
    LacksCapability {
        name: String,
    },
    LabelMismatch {
        key: String,
        wanted: String,
        has: Option<Text>,
    },
    /// A whole-node claim has it.
    HeldWhole,
    /// GPUs, but none of the model wanted.
    WrongModel {
        wanted: String,
        has: Vec<Text>,
    },
    /// GPUs of the model, but the largest is too small.
    GpuMemory {
        has_bytes: u64,
        wanted_bytes: u64,
    },
    /// It never could: it has no more in all.
    GpusTotal {
        has: u32,
        wanted: u32,
    },
    /// It cannot until devices are well again. `left` are well, free or not.
    GpusUnhealthy {
        unhealthy: u32,
        why: Text,
        left: u32,
        wanted: u32,
    },
    GpusFree {
        free: u32,
        has: u32,
        unhealthy: u32,
        wanted: u32,
    },
    /// A whole node is wanted and something is booked on this one.
    NotEmpty {
        gpus: u32,
        cpu_millis: u64,
        memory_bytes: u64,
    },
    CpuFree {
        free_millis: u64,
        total_millis: u64,
        wanted_millis: u64,
    },
    MemoryFree {
        free_bytes: u64,
        total_bytes: u64,
        wanted_bytes: u64,
    },
    HugepagesFree {
        free: u64,
        total: u64,
        wanted: u64,
    },
    DiskFree {
        free_bytes: u64,
        total_bytes: u64,
        wanted_bytes: u64,
    },
}

/// None when the node takes the claim.
pub(super) fn of(snapshot: &Snapshot, node: &Node, claim: &Claim) -> Option<Reason> {
    standing(node)
        .or_else(|| claim.avoid.contains(&node.id).then_some(Reason::Avoided))
        .or_else(|| labels(snapshot, node, claim))
        .or_else(|| node.held_whole.then_some(Reason::HeldWhole))
        .or_else(|| gpus(snapshot, node, claim))
        .or_else(|| in_use(node, claim))
        .or_else(|| host(node, claim))
}

fn standing(node: &Node) -> Option<Reason> {
    let standing = &node.standing;
    if standing.state != NodeState::Ready {
        return Some(Reason::NotReady { state: standing.state });
    }
    if let Some(cordon) = &standing.cordoned {
        return Some(Reason::Cordoned(cordon.clone()));
    }
    if standing.draining {
        return Some(Reason::Draining);
    }
    standing.quarantined.as_ref().map(|why| Reason::Quarantined { why: why.clone() })
}

fn labels(snapshot: &Snapshot, node: &Node, claim: &Claim) -> Option<Reason> {
    let value = |key: &str| {
        let pairs = node.labels.iter().map(|symbol| snapshot.labels.text(*symbol));
        pairs.filter(|(known, _)| known.as_ref() == key).map(|(_, value)| value.clone()).next()
    };
    let lacks = |name: &&String| value(&format!("{CAPABILITY_PREFIX}{name}")).as_deref() != Some("1");
    if let Some(name) = claim.capabilities.iter().find(lacks) {
        return Some(Reason::LacksCapability { name: name.clone() });
    }
    claim.selector.iter().find_map(|(key, wanted)| {
        let has = value(key);
        let matches = has.as_deref() == Some(wanted.as_str());
        (!matches).then(|| Reason::LabelMismatch { key: key.clone(), wanted: wanted.clone(), has })
    })
}

/// The devices of one model that are large enough.
#[derive(Default, Clone, Copy)]
struct Count {
    has: u32,
    healthy: u32,
    free: u32,
}

fn gpus(snapshot: &Snapshot, node: &Node, claim: &Claim) -> Option<Reason> {
    let wanted = claim.gpus;
    if wanted == 0 {
        return None;
    }
    let name_of = |device: &Device| &snapshot.model_names[device.model as usize];
    if node.devices.is_empty() {
        return Some(Reason::GpusTotal { has: 0, wanted });
    }
    let named = |device: &&Device| claim.model.as_ref().is_none_or(|name| name_of(device).as_ref() == name);
    let Some(largest) = node.devices.iter().filter(named).map(|device| device.memory_bytes).max() else {
        let mut has: Vec<Text> = node.devices.iter().map(|device| name_of(device).clone()).collect();
        has.sort_unstable();
        has.dedup();
        return Some(Reason::WrongModel { wanted: claim.model.clone().unwrap_or_default(), has });
    };
    let wanted_bytes = claim.gpu_memory_bytes_min;
    if largest < wanted_bytes {
        return Some(Reason::GpuMemory { has_bytes: largest, wanted_bytes });
    }
    let able = || node.devices.iter().filter(named).filter(|device| device.memory_bytes >= wanted_bytes);
    // Of several models the one that comes nearest counts: a hold never mixes them.
    let models = able().map(|device| (device.model, count(able(), device.model)));
    let (model, count) = models.max_by_key(|(_, count)| count.nearness(wanted))?;
    let unhealthy = count.has - count.healthy;
    if count.has < wanted && unhealthy == 0 {
        return Some(Reason::GpusTotal { has: count.has, wanted });
    }
    if count.healthy < wanted {
        let mut ill = able().filter(|device| device.model == model);
        let why = ill.find_map(|device| device.unhealthy.clone())?;
        return Some(Reason::GpusUnhealthy { unhealthy, why, left: count.healthy, wanted });
    }
    let Count { has, free, .. } = count;
    (free < wanted).then_some(Reason::GpusFree { free, has, unhealthy, wanted })
}

impl Count {
    fn nearness(&self, wanted: u32) -> (bool, bool, bool, u32) {
        (self.free >= wanted, self.healthy >= wanted, self.has >= wanted, self.free)
    }
}

fn count<'a>(devices: impl Iterator<Item = &'a Device>, model: ModelSym) -> Count {
    devices.filter(|device| device.model == model).fold(Count::default(), |count, device| Count {
        has: count.has + 1,
        healthy: count.healthy + u32::from(device.unhealthy.is_none()),
        free: count.free + u32::from(device.is_free()),
    })
}

fn in_use(node: &Node, claim: &Claim) -> Option<Reason> {
    (claim.whole_node && !node.is_unused()).then(|| Reason::NotEmpty {
        gpus: node.devices.iter().filter(|device| device.booked).count() as u32,
        cpu_millis: node.host.cpu_millis.booked,
        memory_bytes: node.host.memory_bytes.booked,
    })
}

fn host(node: &Node, claim: &Claim) -> Option<Reason> {
    let short = |amount: Amount, wanted: u64| amount.free() < wanted;
    let host = &node.host;
    if short(host.cpu_millis, claim.cpu_millis) {
        return Some(Reason::CpuFree {
            free_millis: host.cpu_millis.free(),
            total_millis: host.cpu_millis.total,
            wanted_millis: claim.cpu_millis,
        });
    }
    if short(host.memory_bytes, claim.memory_bytes) {
        return Some(Reason::MemoryFree {
            free_bytes: host.memory_bytes.free(),
            total_bytes: host.memory_bytes.total,
            wanted_bytes: claim.memory_bytes,
        });
    }
    if short(host.hugepages_1gi, claim.hugepages_1gi) {
        return Some(Reason::HugepagesFree {
            free: host.hugepages_1gi.free(),
            total: host.hugepages_1gi.total,
            wanted: claim.hugepages_1gi,
        });
    }
    short(host.disk_bytes, claim.disk_bytes).then(|| Reason::DiskFree {
        free_bytes: host.disk_bytes.free(),
        total_bytes: host.disk_bytes.total,
        wanted_bytes: claim.disk_bytes,
    })
}

impl Reason {
    /// One stable word for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Reason::NotReady { .. } => "not-ready",
            Reason::Cordoned(_) => "cordoned",
            Reason::Draining => "draining",
            Reason::Quarantined { .. } => "quarantined",
            Reason::Avoided => "avoided",
            Reason::LacksCapability { .. } => "lacks-capability",
            Reason::LabelMismatch { .. } => "label-mismatch",
            Reason::HeldWhole => "held-whole",
            Reason::WrongModel { .. } => "wrong-model",
            Reason::GpuMemory { .. } => "gpu-memory",
            Reason::GpusTotal { .. } => "gpus-total",
            Reason::GpusUnhealthy { .. } => "gpus-unhealthy",
            Reason::GpusFree { .. } => "gpus-free",
            Reason::NotEmpty { .. } => "not-empty",
            Reason::CpuFree { .. } => "cpu-free",
            Reason::MemoryFree { .. } => "memory-free",
            Reason::HugepagesFree { .. } => "hugepages-free",
            Reason::DiskFree { .. } => "disk-free",
        }
    }

    /// Whether the node would pass this check once what is booked on it is given back.
    pub fn passes_with_time(&self) -> bool {
        match self {
            Reason::HeldWhole | Reason::GpusFree { .. } | Reason::NotEmpty { .. } => true,
            Reason::CpuFree { total_millis, wanted_millis, .. } => total_millis >= wanted_millis,
            Reason::MemoryFree { total_bytes, wanted_bytes, .. }
            | Reason::DiskFree { total_bytes, wanted_bytes, .. } => total_bytes >= wanted_bytes,
            Reason::HugepagesFree { total, wanted, .. } => total >= wanted,
            Reason::NotReady { .. }
            | Reason::Cordoned(_)
            | Reason::Draining
            | Reason::Quarantined { .. }
            | Reason::Avoided
            | Reason::LacksCapability { .. }
            | Reason::LabelMismatch { .. }
            | Reason::WrongModel { .. }
            | Reason::GpuMemory { .. }
            | Reason::GpusTotal { .. }
            | Reason::GpusUnhealthy { .. } => false,
        }
    }

    /// Reasons with the same text here are one group: words count, numbers do not.
    pub(super) fn group(&self) -> String {
        let words = match self {
            Reason::NotReady { state } => state.name().to_owned(),
            Reason::Cordoned(cordon) => format!("{}\0{}\0{}", cordon.by, cordon.why, cordon.when),
            Reason::Quarantined { why } | Reason::GpusUnhealthy { why, .. } => why.to_string(),
            Reason::LacksCapability { name } => name.clone(),
            Reason::LabelMismatch { key, .. } => key.clone(),
            Reason::WrongModel { has, .. } => has.join("\0"),
            // A node that never could is another matter than one that cannot now.
            Reason::CpuFree { .. }
            | Reason::MemoryFree { .. }
            | Reason::HugepagesFree { .. }
            | Reason::DiskFree { .. } => self.passes_with_time().to_string(),
            Reason::Draining
            | Reason::Avoided
            | Reason::HeldWhole
            | Reason::GpuMemory { .. }
            | Reason::GpusTotal { .. }
            | Reason::GpusFree { .. }
            | Reason::NotEmpty { .. } => String::new(),
        };
        format!("{}\0{words}", self.name())
    }

    /// How near the node comes to passing, among reasons of one group.
    pub(super) fn nearness(&self) -> u64 {
        match self {
            Reason::GpuMemory { has_bytes, .. } => *has_bytes,
            Reason::GpusTotal { has, .. } => u64::from(*has),
            Reason::GpusUnhealthy { left, .. } => u64::from(*left),
            Reason::GpusFree { free, .. } => u64::from(*free),
            Reason::NotEmpty { gpus, .. } => u64::from(u32::MAX - gpus),
            Reason::CpuFree { free_millis, .. } => *free_millis,
            Reason::MemoryFree { free_bytes, .. } | Reason::DiskFree { free_bytes, .. } => *free_bytes,
            Reason::HugepagesFree { free, .. } => *free,
            Reason::NotReady { .. }
            | Reason::Cordoned(_)
            | Reason::Draining
            | Reason::Quarantined { .. }
            | Reason::Avoided
            | Reason::LacksCapability { .. }
            | Reason::LabelMismatch { .. }
            | Reason::HeldWhole
            | Reason::WrongModel { .. } => 0,
        }
    }
}

fn gpus_word(count: u32) -> &'static str {
    if count == 1 { "GPU" } else { "GPUs" }
}

/// GiB with one decimal, rounded down: a free figure must not look like enough when it is not.
fn gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10 / u128::from(GIB)) as u64;
    if tenths.is_multiple_of(10) {
        (tenths / 10).to_string()
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}

fn cpus(millis: u64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotReady { state } => write!(f, "{}, not ready", state.name()),
            Reason::Cordoned(cordon) => {
                write!(f, "cordoned by {}, {} ({:?})", cordon.by, cordon.when, cordon.why)
            }
            Reason::Draining => f.write_str("draining"),
            Reason::Quarantined { why } => write!(f, "quarantined ({why})"),
            Reason::Avoided => f.write_str("among the nodes to avoid"),
            Reason::LacksCapability { name } => {
                write!(f, "its daemon does not advertise {name}: update it")
            }
            Reason::LabelMismatch { key, wanted, has: Some(has) } => {
                write!(f, "label {key}={has}, {wanted} wanted")
            }
            Reason::LabelMismatch { key, wanted, has: None } => write!(f, "no label {key}, {wanted} wanted"),
            Reason::HeldWhole => f.write_str("held whole by another claim"),
            Reason::WrongModel { wanted, has } => write!(f, "{} only, {wanted} wanted", has.join(" and ")),
            Reason::GpuMemory { has_bytes, wanted_bytes } => {
                write!(f, "GPUs of {} GiB, {} GiB wanted", gib(*has_bytes), gib(*wanted_bytes))
            }
            Reason::GpusTotal { has: 0, wanted } => write!(f, "no GPUs, {wanted} wanted"),
            Reason::GpusTotal { has, wanted } => {
                write!(f, "{has} {} in all, {wanted} wanted on one node", gpus_word(*has))
            }
            Reason::GpusUnhealthy { unhealthy, why, left, wanted } => {
                write!(
                    f,
                    "{unhealthy} {} unhealthy ({why}), {left} left, {wanted} wanted",
                    gpus_word(*unhealthy)
                )
            }
            Reason::GpusFree { free, has, unhealthy, wanted } => {
                write!(f, "{free} of {has} {} free, {wanted} wanted", gpus_word(*has))?;
                if *unhealthy > 0 { write!(f, " ({unhealthy} unhealthy)") } else { Ok(()) }
            }
            Reason::NotEmpty { gpus, cpu_millis, memory_bytes } => write!(
                f,
                "in use: {gpus} {}, {} CPUs and {} GiB booked, a whole node wanted",
                gpus_word(*gpus),
                cpus(*cpu_millis),
                gib(*memory_bytes)
            ),
            Reason::CpuFree { free_millis, total_millis, wanted_millis } => {
                let (free, total) = (cpus(*free_millis), cpus(*total_millis));
                write!(f, "{free} of {total} CPUs free, {} wanted", cpus(*wanted_millis))
            }
            Reason::MemoryFree { free_bytes, total_bytes, wanted_bytes } => {
                let (free, total) = (gib(*free_bytes), gib(*total_bytes));
                write!(f, "{free} of {total} GiB of memory free, {} wanted", gib(*wanted_bytes))
            }
            Reason::HugepagesFree { free, total, wanted } => {
                write!(f, "{free} of {total} pages of 1 GiB free, {wanted} wanted")
            }
            Reason::DiskFree { free_bytes, total_bytes, wanted_bytes } => {
                let (free, total) = (gib(*free_bytes), gib(*total_bytes));
                write!(f, "{free} of {total} GiB of disk free, {} wanted", gib(*wanted_bytes))
            }
        }
    }
}
