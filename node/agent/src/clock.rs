//! Server time as this node knows it: what a gateway last said, carried on by the node's own monotonic clock.

use std::time::Duration;

use kit::mutant;
use model::Timestamp;

/// The clocks at one moment, read once at the edge and handed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub monotonic: Duration,
    /// The machine's wall clock: never trusted for a deadline.
    pub wall: Timestamp,
}

impl Now {
    pub fn read(clock: &dyn kit::Clock) -> Self {
        Self { monotonic: clock.monotonic(), wall: clock.now() }
    }
}

/// How far a stated time may be behind the highest seen, or ahead of what our own clock expects.
pub const ALLOWANCE: Duration = Duration::from_secs(5 * 60);

/// A stated time that is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeRefused {
    #[error("take the gateway's time {stated}: it is more than 5 minutes before {highest}, seen earlier")]
    Behind { stated: Timestamp, highest: Timestamp },
    #[error("take the gateway's time {stated}: it is after {limit}, when this node's certificate ended")]
    Ahead { stated: Timestamp, limit: Timestamp },
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ServerClock {
    /// A stated time and the monotonic time it was taken at.
    base: Option<(Timestamp, Duration)>,
    /// The same of the last Welcome: however often a gateway speaks after it, it moves no further from this than the allowance.
    welcomed: Option<(Timestamp, Duration)>,
}

/// What of a stated time may outlive the session. A gateway is not believed further than the machine's own clock bears it
/// out: one that lied once would else have every honest one refused from then on, until the certificate had run out.
pub fn durable_ms(stated_ms: u64, now: Now) -> u64 {
    if mutant::on("agent.time-mark-as-stated") {
        return stated_ms;
    }
    let latest = now.wall.saturating_add(ALLOWANCE).millis();
    stated_ms.min(u64::try_from(latest).unwrap_or(0))
}

impl ServerClock {
    /// Server time; `None` before the first Welcome of this process.
    pub fn now(&self, now: Now) -> Option<Timestamp> {
        let (stated, at) = self.base?;
        Some(stated.saturating_add(now.monotonic.saturating_sub(at)))
    }

    /// For ages and retention, where a guess does no harm: server time, or without it the later of the wall clock and the mark.
    pub fn estimate(&self, now: Now, mark_ms: u64) -> Timestamp {
        self.now(now).unwrap_or_else(|| now.wall.max(from_ms(mark_ms)))
    }

    /// A Welcome's time. Refused when it is far behind `mark_ms`, or past `limit`, until when this session could have been
    /// opened at all. Within the allowance an earlier time never moves the clock back; beyond it, and not below the mark,
    /// it was an earlier gateway's time that was wrong.
    pub fn welcome(
        &mut self,
        stated_ms: u64,
        mark_ms: u64,
        limit: Timestamp,
        now: Now,
    ) -> Result<(), TimeRefused> {
        let stated = from_ms(stated_ms);
        let highest = from_ms(mark_ms);
        if mutant::on("agent.welcome-of-any-age") {
            self.base = Some((stated, now.monotonic));
            self.welcomed = self.base;
            return Ok(());
        }
        if highest.since(stated) > ALLOWANCE {
            return Err(TimeRefused::Behind { stated, highest });
        }
        if stated.since(limit) > ALLOWANCE {
            return Err(TimeRefused::Ahead { stated, limit });
        }
        let stated = stated.max(highest);
        if self.now(now).is_some_and(|expected| expected.since(stated) > ALLOWANCE) {
            self.base = None;
        }
        self.forward(stated, now);
        self.welcomed = self.base;
        Ok(())
    }

    /// A heartbeat's time. False when it is implausibly ahead of our own count since the Welcome: then it is ignored.
    pub fn heartbeat(&mut self, stated_ms: u64, now: Now) -> bool {
        let stated = from_ms(stated_ms);
        let expected =
            self.welcomed.map(|(welcomed, at)| welcomed.saturating_add(now.monotonic.saturating_sub(at)));
        if expected.is_some_and(|expected| stated.since(expected) > ALLOWANCE) {
            return false;
        }
        self.forward(stated, now);
        true
    }

    fn forward(&mut self, stated: Timestamp, now: Now) {
        if self.now(now).is_none_or(|expected| stated > expected) {
            self.base = Some((stated, now.monotonic));
        }
    }
}

fn from_ms(ms: u64) -> Timestamp {
    // The range of microseconds ends 292,000 years from now; a larger statement is cut to it.
    Timestamp::from_micros(i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000))
}

#[cfg(test)]
mod tests;
