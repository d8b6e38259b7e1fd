//! CPU sets in the kernel's list format: `0-3,8`.

use std::fmt;

/// CPU numbers are below this: the most a Linux kernel is built for on x86 (`NR_CPUS`).
pub const CPU_MAX: u16 = 8192;
/// Longer than the longest list of CPUs below [`CPU_MAX`] that alternate.
const TEXT_LEN_MAX: usize = 32 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    #[error("a CPU list has at most 32768 characters, this one has {0}")]
    TooLong(usize),
    #[error("{0:?} is not a CPU or a range of CPUs below 8192, like 8 or 0-3")]
    Malformed(String),
}

/// A set of CPUs (or of NUMA nodes, which use the same format), as inclusive ranges in ascending order that neither
/// overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuSet(Box<[(u16, u16)]>);

impl CpuSet {
    /// Parses the kernel's format (cpuset(7), "List format", without strides). An empty text is the empty set.
    pub fn parse(text: &str) -> Result<CpuSet, CpuListError> {
        if text.len() > TEXT_LEN_MAX {
            return Err(CpuListError::TooLong(text.len()));
        }
        if text.is_empty() {
            return Ok(CpuSet::default());
        }
        let ranges = text.split(',').map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => Ok((first, last)),
                _ => Err(CpuListError::Malformed(part.chars().take(32).collect())),
            }
        });
        Ok(CpuSet::merge(ranges.collect::<Result<_, _>>()?))
    }

    pub fn from_cpus(cpus: impl IntoIterator<Item = u16>) -> CpuSet {
        CpuSet::merge(cpus.into_iter().map(|cpu| (cpu, cpu)).collect())
    }

    fn merge(mut ranges: Vec<(u16, u16)>) -> CpuSet {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        CpuSet(merged.into())
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    pub fn union<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> CpuSet {
        CpuSet::merge(sets.into_iter().flat_map(|set| set.0.iter().copied()).collect())
    }

    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet::from_cpus(self.iter().filter(|cpu| !other.contains(*cpu)))
    }
}

fn number(text: &str) -> Option<u16> {
    // `parse` alone would take a sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|cpu| digits && *cpu < CPU_MAX)
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// The CPUs of each NUMA node that a hold may float on: all but the host's own (the lowest `reserve` of those that
/// are not isolated), the isolated ones (the kernel does not balance load onto them, so a floating workload would
/// pile up on one) and those pinned to a virtual machine.
pub fn floating(numa: &[CpuSet], reserve: usize, isolated: &CpuSet, pinned: &CpuSet) -> Vec<CpuSet> {
    let all = CpuSet::union(numa);
    let host = CpuSet::from_cpus(all.iter().filter(|cpu| !isolated.contains(*cpu)).take(reserve));
    let taken = CpuSet::union([&host, isolated, pinned]);
    numa.iter().map(|cpus| cpus.without(&taken)).collect()
}

#[cfg(test)]
mod tests;
