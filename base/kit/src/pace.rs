//! A loop with much to do does more of it at once, less often.

use std::time::Duration;

use crate::Clock;

/// How often a loop that takes whatever has come takes its turn. A turn that found a crowd is followed by the next no sooner
/// than a while after it began: what comes meanwhile shares the price of one turn. A loop that finds less never waits.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    crowd: usize,
    every: Duration,
    /// When the next turn may begin, by the monotonic clock.
    next: Duration,
}

impl Pace {
    /// `crowd`: how many things of one turn have the next one begin `every` later at the earliest.
    pub const fn new(crowd: usize, every: Duration) -> Self {
        Self { crowd, every, next: Duration::ZERO }
    }

    /// Says that a turn began at `began`, by the monotonic clock, and how many things it found.
    pub fn took(&mut self, began: Duration, found: usize) {
        self.next = if found >= self.crowd { began + self.every } else { Duration::ZERO };
    }

    /// How long the next turn is to wait.
    pub fn rest(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    /// Returns when the next turn may begin.
    pub async fn wait(&self, clock: &dyn Clock) {
        let rest = self.rest(clock.monotonic());
        if !rest.is_zero() {
            clock.sleep(rest).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Timestamp;

    use super::*;
    use crate::ManualClock;

    const EVERY: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_crowd_has_the_next_turn_wait_and_few_do_not() {
        let clock = ManualClock::at(Timestamp::from_millis(0));
        let mut pace = Pace::new(4, EVERY);
        pace.wait(&clock).await;
        assert_eq!(clock.monotonic(), Duration::ZERO, "the first turn is not waited for");
        pace.took(clock.monotonic(), 4);
        clock.advance(Duration::from_millis(5));
        assert_eq!(
            pace.rest(clock.monotonic()),
            Duration::from_millis(15),
            "what the turn itself took counts"
        );
        pace.wait(&clock).await;
        assert_eq!(clock.monotonic(), EVERY);
        pace.wait(&clock).await;
        assert_eq!(clock.monotonic(), EVERY, "waited for once");
        pace.took(clock.monotonic(), 3);
        assert_eq!(pace.rest(clock.monotonic()), Duration::ZERO, "three are no crowd");
    }
}
