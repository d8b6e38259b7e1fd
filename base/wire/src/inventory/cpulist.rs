//! Lists of CPUs in the kernel's text form: `0-3,8,10-11`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// CPUs are numbered below this. The kernel's own ceiling (CONFIG_NR_CPUS) is 8192.
pub const CPUS_MAX: u32 = 8192;

/// Longest text of a list: every other CPU of the most there can be, as machines write it that number their sockets in
/// turn.
pub const CPU_LIST_BYTES_MAX: usize = CPUS_MAX as usize / 2 * 5;

/// A set of CPU numbers, kept as ranges in rising order that neither overlap nor touch.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuList {
    ranges: Vec<(u32, u32)>,
}

/// A text is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a CPU list: numbers below {CPUS_MAX} and ranges, like 0-3,8")]
pub struct CpuListError {
    given: String,
}

impl CpuList {
    pub fn from_cpus(cpus: impl IntoIterator<Item = u32>) -> Self {
        Self::from_ranges(cpus.into_iter().map(|cpu| (cpu, cpu)).collect())
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self { ranges: merged }
    }

    pub fn count(&self) -> usize {
        self.ranges.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// In rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let text = text.trim();
        let refused = || CpuListError { given: text.chars().take(64).collect() };
        if text.is_empty() {
            return Ok(Self::default());
        }
        let number = |digits: &str| -> Option<u32> {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            if plain { digits.parse().ok().filter(|cpu| *cpu < CPUS_MAX) } else { None }
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => ranges.push((first, last)),
                _ => return Err(refused()),
            }
        }
        Ok(Self::from_ranges(ranges))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.ranges.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuList({self})")
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
