//! What a decision says.

use model::NodeId;

use crate::{AtomId, CpuSet};

/// What is taken of one node, and given back the same way. It can be rebuilt from a stored row: the amounts bound to
/// NUMA nodes follow from `mems`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    pub node: NodeId,
    pub atoms: Vec<AtomId>,
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
    pub disk_bytes: u64,
    /// NUMA nodes the memory and pages are bound to, ascending; empty when bound to none. They carry equal shares,
    /// the first ones what does not divide.
    pub mems: Vec<u16>,
    pub whole_node: bool,
}

impl Booking {
    /// The share of `amount` that the NUMA node at `at` in `mems` carries.
    pub(crate) fn share(amount: u64, mems: usize, at: usize) -> u64 {
        let mems = mems as u64;
        amount / mems + u64::from((at as u64) < amount % mems)
    }
}

/// What the node is told to confine the hold to, beside the amounts of its booking.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// The CPUs of the devices' NUMA nodes that holds may float on, when they are at least as many as were booked;
    /// else empty, for no restriction. Holds on the same NUMA nodes share them: the quota divides the time, the set
    /// only keeps the work near its devices.
    pub cpus: CpuSet,
    /// The devices' NUMA nodes, when each has its share of the booked memory and pages unpromised; else empty.
    pub mems: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The node as it was decided on: see [`crate::Snapshot::generation`].
    pub generation: u64,
    pub booking: Booking,
    /// NUMA nodes of the devices, ascending; those of unknown place are left out.
    pub numa_nodes: Vec<u16>,
    pub limits: Limits,
    pub score: Score,
}

/// How good a node is for a claim. The order of the fields is the policy; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    pub devices: DeviceScore,
    /// Host CPU left free, as [`crate::Policy`] counts it.
    pub cpu_millis_left: u64,
    pub memory_bytes_left: u64,
    /// Last, so that no two nodes are equal.
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DeviceScore {
    /// The largest memory among the GPUs taken: a claim that names no model gets the smallest that will do.
    pub gpu_memory_bytes: u64,
    /// GPUs of the model left free, as the policy counts it. For a claim without GPUs: GPUs of any model that are
    /// free on the node and could be stranded, under either policy. For a whole node: GPUs beyond those wanted.
    pub gpus_left: u64,
    pub islands: u32,
    pub numa_nodes: u32,
    /// NVLink islands of which some is taken and some is left.
    pub broken: u32,
}
