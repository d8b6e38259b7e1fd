//! Whether the host can give an instance its memory. What is committed counts, not what is used: a guest that has not
//! touched its memory yet will.

use std::fmt;

use model::unit::MIB;

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

/// The host, as `/proc/meminfo` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    pub total_bytes: u64,
    /// Of all huge page pools: taken whether used or not.
    pub hugetlb_bytes: u64,
}

/// What was promised before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    bytes: u64,
}

impl Promised {
    /// An instance that runs or is paused, or whose start was admitted in this pass.
    pub fn instance(self, memory_bytes: u64) -> Self {
        Self { bytes: self.bytes.saturating_add(committed_bytes(memory_bytes)) }
    }

    /// The memory limit of a hold.
    pub fn hold(self, limit_bytes: u64) -> Self {
        Self { bytes: self.bytes.saturating_add(limit_bytes) }
    }
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
    pub needed_bytes: u64,
    pub left_bytes: u64,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, left) = (self.needed_bytes.div_ceil(MIB), self.left_bytes / MIB);
        write!(f, "{EXHAUSTED}: {needed} MiB of memory needed, {left} MiB left on this host")
    }
}

/// Decides about one start. A resume is none: its memory is promised already.
pub fn admit(host: Option<HostMemory>, promised: Promised, memory_bytes: u64) -> Admission {
    let Some(host) = host else { return Admission::Unchecked };
    let room = host.total_bytes.saturating_sub(host.hugetlb_bytes).saturating_sub(HEADROOM_BYTES);
    let left_bytes = room.saturating_sub(promised.bytes);
    let needed_bytes = committed_bytes(memory_bytes);
    match needed_bytes <= left_bytes {
        true => Admission::Fits,
        false => Admission::Exhausted(Exhausted { needed_bytes, left_bytes }),
    }
}

#[cfg(test)]
mod tests;
