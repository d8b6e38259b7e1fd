//! Whether the host can keep what a new hold is promised. What is committed counts, not what is used: a workload that has
//! not touched its memory yet will.

use super::cdi::Hold;
use super::observe::Memory;
use crate::slices::SliceLimits;

/// For the kernel, the daemon and everything else that is nobody's workload.
const HEADROOM_BYTES: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    Fits,
    /// What it depends on cannot be read.
    Unchecked(&'static str),
    Exhausted(String),
}

/// `bound` are the holds on the host, whatever their binding.
pub fn admit<'a>(
    memory: Option<&Memory>,
    wanted: &SliceLimits,
    bound: impl Iterator<Item = &'a Hold>,
) -> Admission {
    if wanted.memory_bytes == 0 && wanted.hugepages_1gi == 0 {
        return Admission::Fits;
    }
    let Some(memory) = memory else { return Admission::Unchecked("the host's memory cannot be read") };
    let (mut bytes, mut pages) = (0u64, 0u64);
    for hold in bound {
        bytes = bytes.saturating_add(hold.memory_bytes);
        pages = pages.saturating_add(hold.hugepages_1gi);
    }
    let room = memory.total_bytes.saturating_sub(memory.hugetlb_bytes).saturating_sub(HEADROOM_BYTES);
    let left = room.saturating_sub(bytes);
    if wanted.memory_bytes > left {
        return Admission::Exhausted(format!(
            "it asks for {} bytes of memory, {left} are not promised yet",
            wanted.memory_bytes
        ));
    }
    if wanted.hugepages_1gi == 0 {
        return Admission::Fits;
    }
    let Some(pool) = memory.pages_1gi else {
        return Admission::Unchecked("the host's huge page pools cannot be read");
    };
    let left = pool.saturating_sub(pages);
    if wanted.hugepages_1gi > left {
        let asked = wanted.hugepages_1gi;
        return Admission::Exhausted(format!(
            "it asks for {asked} pages of 1 GiB, {left} are not promised yet"
        ));
    }
    Admission::Fits
}

#[cfg(test)]
mod tests;
