//! A run in figures: how many a second, how long each took, and the worst stretch of it.

mod figure;

use std::fmt;
use std::time::Duration;

pub use figure::{Better, Bound, COLUMNS, FIGURES_FILE, Figure, Held, Verdict};

/// A run is looked at in this many parts of equal length, of which the slowest is shown; in more when it lasts longer than
/// a hundred seconds, so that none is longer than [`PART_MAX`].
const PARTS_MIN: usize = 10;
const PART_MAX: Duration = Duration::from_secs(10);

/// When something ended, counted from the start of the run, and how long it took.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub at: Duration,
    pub took: Duration,
}

/// One measured run.
#[derive(Debug, Clone)]
pub struct Run {
    pub what: String,
    /// From the start to the end.
    pub lasted: Duration,
    pub samples: Vec<Sample>,
    /// What one sample stands for: 64 when 64 records went in one commit.
    pub units: u32,
}

impl Run {
    pub fn new(what: impl Into<String>, lasted: Duration, samples: Vec<Sample>) -> Self {
        Self { what: what.into(), lasted, samples, units: 1 }
    }

    pub fn of_units(self, units: u32) -> Self {
        Self { units, ..self }
    }

    /// Units a second.
    pub fn rate(&self) -> f64 {
        per_second(self.samples.len() * self.units as usize, self.lasted)
    }

    /// Units a second in the slowest part of the run.
    pub fn slowest(&self) -> f64 {
        let parts = self.lasted.as_nanos().div_ceil(PART_MAX.as_nanos());
        let parts = usize::try_from(parts).unwrap_or(PARTS_MIN).max(PARTS_MIN);
        let part = self.lasted / parts as u32;
        let mut counts = vec![0_usize; parts];
        for sample in &self.samples {
            let at = sample.at.as_nanos().checked_div(part.as_nanos()).unwrap_or(0);
            counts[usize::try_from(at).unwrap_or(parts).min(parts - 1)] += 1;
        }
        let fewest = counts.iter().min().copied().unwrap_or(0);
        per_second(fewest * self.units as usize, part)
    }

    /// How long a sample took, at `percent` of them from the fastest; zero when there are none.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut took: Vec<Duration> = self.samples.iter().map(|sample| sample.took).collect();
        took.sort_unstable();
        // The nearest rank: the 99th of 100.
        let rank = (took.len() * percent).div_ceil(100).max(1);
        took.get(rank - 1).copied().unwrap_or_default()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<44} {:>9.0}/s   slowest part {:>9.0}/s   p50 {:>9}   p99 {:>9}   max {:>9}",
            self.what,
            self.rate(),
            self.slowest(),
            short(self.percentile(50)),
            short(self.percentile(99)),
            short(self.percentile(100)),
        )
    }
}

/// The middle of several runs' rates.
pub fn median(runs: &[Run]) -> f64 {
    let mut rates: Vec<f64> = runs.iter().map(Run::rate).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

pub fn per_second(count: usize, lasted: Duration) -> f64 {
    if lasted.is_zero() { 0.0 } else { count as f64 / lasted.as_secs_f64() }
}

/// In the unit that shows three digits or so.
pub fn short(took: Duration) -> String {
    let micros = took.as_nanos() as f64 / 1e3;
    match micros {
        _ if micros < 1.0 => format!("{:.0} ns", micros * 1e3),
        _ if micros < 1e3 => format!("{micros:.1} us"),
        _ if micros < 1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests;
