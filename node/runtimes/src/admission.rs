//! Whether the host can give an instance its memory and its disk. What is committed counts, not what is used: a guest that
//! has not touched its memory yet will.

use std::fmt;

use model::unit::MIB;

use crate::instance::MemoryPlace;

/// For the kernel, the daemon and everything else that is nobody's workload.
pub const HEADROOM_BYTES: u64 = 1 << 30;
/// What every hypervisor process needs beside its guest's memory, at least.
const OVERHEAD_BYTES: u64 = 256 * MIB;
/// And the share of the guest's memory on top: page tables, device queues.
const OVERHEAD_SHARE: u64 = 32;

/// The words that a refusal begins with. The control plane places such an instance elsewhere.
pub const EXHAUSTED: &str = "ResourcesExhausted";

/// What a guest of this memory takes of the host.
pub const fn committed_bytes(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_add(memory_bytes / OVERHEAD_SHARE).saturating_add(OVERHEAD_BYTES)
}

/// The host's memory, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMemory {
    pub total_bytes: u64,
    /// Of all huge page pools: taken whether used or not.
    pub hugetlb_bytes: u64,
    pub free_pages: Vec<FreePages>,
}

/// Huge pages of one size that nobody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreePages {
    /// None on a kernel that does not split its pools by node.
    pub numa_node: Option<u32>,
    pub page_bytes: u64,
    pub pages: u64,
}

impl HostMemory {
    fn free_pages(&self, place: &MemoryPlace) -> u64 {
        let near = |pool: &&FreePages| {
            place.mems.is_empty() || pool.numa_node.is_none_or(|node| place.mems.contains(&node))
        };
        let pools = self.free_pages.iter().filter(|pool| pool.page_bytes == place.hugepage_bytes);
        pools.filter(near).map(|pool| pool.pages).fold(0, u64::saturating_add)
    }
}

/// What was promised before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    bytes: u64,
}

impl Promised {
    /// An instance that runs or is paused, or whose start was admitted in this pass. Huge pages that it has are none of the
    /// normal ones.
    pub fn instance(self, memory_bytes: u64, place: &MemoryPlace) -> Self {
        Self { bytes: self.bytes.saturating_add(normal_bytes(memory_bytes, place)) }
    }

    /// The memory limit of a hold.
    pub fn hold(self, limit_bytes: u64) -> Self {
        Self { bytes: self.bytes.saturating_add(limit_bytes) }
    }
}

/// What it takes of normal pages.
fn normal_bytes(memory_bytes: u64, place: &MemoryPlace) -> u64 {
    let committed = committed_bytes(memory_bytes);
    if place.hugepage_bytes == 0 { committed } else { committed.saturating_sub(memory_bytes) }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    Fits,
    /// The host's memory is not known: the start goes on, and somebody should be told.
    Unchecked,
    Exhausted(Exhausted),
}

/// Why an instance does not start here for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exhausted {
    /// Of what there is too little.
    pub what: &'static str,
    pub needed_bytes: u64,
    pub left_bytes: u64,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, left) = (self.needed_bytes.div_ceil(MIB), self.left_bytes / MIB);
        write!(f, "{EXHAUSTED}: {needed} MiB of {} needed, {left} MiB left on this host", self.what)
    }
}

/// Decides about one start. A resume is none: its memory is promised already.
pub fn admit(
    host: Option<&HostMemory>,
    promised: Promised,
    memory_bytes: u64,
    place: &MemoryPlace,
) -> Admission {
    let Some(host) = host else { return Admission::Unchecked };
    let room = host.total_bytes.saturating_sub(host.hugetlb_bytes).saturating_sub(HEADROOM_BYTES);
    let left_bytes = room.saturating_sub(promised.bytes);
    let needed_bytes = normal_bytes(memory_bytes, place);
    if needed_bytes > left_bytes {
        return Admission::Exhausted(Exhausted { what: "memory", needed_bytes, left_bytes });
    }
    let page = place.hugepage_bytes;
    let left_bytes = host.free_pages(place).saturating_mul(page);
    if page > 0 && memory_bytes > left_bytes {
        let what = "memory in huge pages";
        return Admission::Exhausted(Exhausted { what, needed_bytes: memory_bytes, left_bytes });
    }
    Admission::Fits
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// Of a file system that instances are on, left for the daemon's journal and for what it does not know of: a twentieth, and
/// at least this.
pub const KEPT_BYTES_MIN: u64 = 2 << 30;
const KEPT_SHARE: u64 = 20;

impl Space {
    /// Where 0 is to be kept nothing is.
    pub fn left(self, kept_bytes_min: u64) -> u64 {
        let kept = if kept_bytes_min == 0 { 0 } else { (self.total_bytes / KEPT_SHARE).max(kept_bytes_min) };
        self.free_bytes.saturating_sub(kept)
    }
}

/// Decides about one disk that may still grow by so many bytes, beside others that may by `promised_bytes`. Disks hold what
/// was written on them and no more, and a guest may write all of its disk at any time.
pub fn admit_disk(
    space: Space,
    kept_bytes_min: u64,
    promised_bytes: u64,
    needed_bytes: u64,
) -> Result<(), Exhausted> {
    let left_bytes = space.left(kept_bytes_min).saturating_sub(promised_bytes);
    match needed_bytes <= left_bytes {
        true => Ok(()),
        false => Err(Exhausted { what: "disk", needed_bytes, left_bytes }),
    }
}

#[cfg(test)]
mod tests;
