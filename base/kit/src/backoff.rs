//! Exponential backoff with full jitter: a wait is uniform between zero and the current ceiling, so that a
//! fleet which lost its gateway at one instant does not come back at one instant.

use std::time::Duration;

use crate::Rng;

#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    ceiling: Duration,
    attempt: u32,
}

impl Backoff {
    pub const fn new(first: Duration, ceiling: Duration) -> Self {
        Self { first, ceiling, attempt: 0 }
    }

    /// Failures since the last [`reset`](Self::reset).
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How long to wait before the next try.
    pub fn next_wait(&mut self, rng: &dyn Rng) -> Duration {
        let doubled = self.first.saturating_mul(1u32.checked_shl(self.attempt.min(31)).unwrap_or(u32::MAX));
        let ceiling = doubled.min(self.ceiling);
        self.attempt = self.attempt.saturating_add(1);
        Duration::from_micros(rng.below(u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX).max(1)))
    }

    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}
