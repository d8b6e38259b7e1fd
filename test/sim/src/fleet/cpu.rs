//! One processor for a simulation and its database.
//!
//! They take turns: each waits while the other works. On two processors every turn ends in a wake-up of one that had gone to
//! sleep, which in a virtual machine takes longer than most statements; on one it is a change of context.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// How many simulations of this process run on each.
static TAKEN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// This thread, and whatever it starts, runs on one processor until this is dropped, on the same thread.
pub struct OneCpu {
    cpu: usize,
    before: CpuSet,
}

impl OneCpu {
    /// The one that fewest simulations of this process run on, and this one rather than another.
    ///
    /// `None` where the system does not say or allow it: everything works then, and takes longer.
    pub fn take() -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let here = sched_getcpu();
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
        let cpu = allowed.min_by_key(|cpu| (taken.get(cpu).copied().unwrap_or(0), *cpu != here))?;
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).ok()?;
        *taken.entry(cpu).or_default() += 1;
        Some(Self { cpu, before })
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.cpu) {
            *count -= 1;
        }
        let _ = sched_setaffinity(None, &self.before);
    }
}
