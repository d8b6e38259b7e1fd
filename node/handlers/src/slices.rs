//! The cgroup slice of a hold with limits, as a port: `bcd.slice/bcd-alloc.slice/bcd-alloc-<allocation>.slice`.
//!
//! The daemon makes the slice and keeps its limits in force; whoever starts a workload puts it there. Nothing here ever
//! ends a process: a slice goes only when it is empty.

mod fake;
mod systemd;

use futures::future::BoxFuture;
use model::AllocationId;
use wire::inventory::CpuList;

pub use fake::FakeSlices;
pub use systemd::SystemdSlices;

/// Advertised where the host can keep limits.
pub const CAPABILITY_LIMITS: &str = "devices.limits";
/// Enough for any job, and few enough that a fork bomb leaves the host its process ids.
pub const TASKS_MAX: u64 = 65_536;

/// What a hold may use. Zero and empty say nothing about that resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SliceLimits {
    /// 1000 a CPU.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub cpus: CpuList,
    /// NUMA nodes.
    pub mems: CpuList,
    /// Pages of 1 GiB.
    pub hugepages_1gi: u64,
}

impl SliceLimits {
    pub fn is_none(&self) -> bool {
        *self == SliceLimits::default()
    }
}

/// The slice's unit name, which is also what a workload is told.
pub fn name(allocation: AllocationId) -> String {
    format!("bcd-alloc-{allocation}.slice")
}

/// The allocation a slice is of.
pub fn allocation_of(name: &str) -> Option<AllocationId> {
    name.strip_prefix("bcd-alloc-")?.strip_suffix(".slice")?.parse().ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is gone, or was not there.
    Gone,
    /// Something runs in it: it stays.
    InUse,
}

/// The host cannot keep limits, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this host keeps no limits: {why}")]
pub struct NoLimits {
    pub why: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    #[error(transparent)]
    NoLimits(#[from] NoLimits),
    #[error("{doing} slice {slice}: {why}")]
    Refused { doing: &'static str, slice: String, why: String },
    #[error("{doing} slice {slice}")]
    Io {
        doing: &'static str,
        slice: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{doing} slice {slice}")]
    Command {
        doing: &'static str,
        slice: String,
        #[source]
        source: hw::CommandError,
    },
}

/// Keeps the slices of holds.
pub trait Slices: Send + Sync + 'static {
    /// Whether limits can be kept here at all.
    fn support(&self) -> Result<(), NoLimits>;
    /// The allocations that have a slice on the host, in order; none where limits cannot be kept.
    fn list(&self) -> BoxFuture<'_, Result<Vec<AllocationId>, SliceError>>;
    /// Whether the slice is there with exactly these limits in force.
    fn in_force<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<bool, SliceError>>;
    /// Makes the slice, or changes its limits. When it returns they are in force. What runs in it goes on.
    fn apply<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<(), SliceError>>;
    /// Takes an empty slice away.
    fn remove(&self, allocation: AllocationId) -> BoxFuture<'_, Result<Removal, SliceError>>;
}

#[cfg(test)]
mod tests;
