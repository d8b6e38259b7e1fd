//! The first line of `/proc/stat`: where the CPUs' time went, in ticks.

/// Time over all CPUs since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    pub total: u64,
    /// Time the hypervisor gave to others while a task here was ready.
    pub steal: u64,
}

impl CpuTimes {
    /// The stolen share since `earlier`, in hundredths of a percent. Absent when no time passed or the counters went
    /// back, as they may when a CPU goes offline.
    pub fn steal_centi_percent_since(&self, earlier: &CpuTimes) -> Option<u32> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        let steal = self.steal.checked_sub(earlier.steal)?.min(total);
        u32::try_from(u128::from(steal) * 10_000 / u128::from(total)).ok()
    }
}

/// Absent for a kernel too old to count steal, or a text that is something else.
pub fn parse(text: &str) -> Option<CpuTimes> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; guest time that may follow is part of user and nice already.
    let mut ticks = [0u64; 8];
    let mut words = line.split_whitespace();
    for tick in &mut ticks {
        *tick = words.next()?.parse().ok()?;
    }
    let total = ticks.iter().try_fold(0u64, |sum, tick| sum.checked_add(*tick))?;
    Some(CpuTimes { total, steal: ticks[7] })
}
