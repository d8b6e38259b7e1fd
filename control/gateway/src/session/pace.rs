//! How fast a node may report what is stored row by row.

use std::time::Duration;

/// Events, and their bytes: a rack that comes up reports a few hundred at once. Past it the session is not read until it has
/// caught up, and the daemon's journal keeps the rest.
const EVENTS: Rate = Rate { per_second: 100.0, burst: 1_000.0 };
const EVENT_BYTES: Rate = Rate { per_second: (1 << 20) as f64, burst: (8 << 20) as f64 };
/// Inventory: the burst takes every section at its largest. No daemon reports it again and again.
const INVENTORY_BYTES: Rate = Rate { per_second: (2 << 20) as f64 / 60.0, burst: (16 << 20) as f64 };

/// Questions for secrets: a host that comes up makes some dozens of instances. A worker judges each.
const SECRETS: Rate = Rate { per_second: 2.0, burst: 120.0 };

#[derive(Debug, Clone, Copy)]
struct Rate {
    per_second: f64,
    burst: f64,
}

/// A token bucket that may be overdrawn by what has been received already.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    level: f64,
    at: Duration,
}

impl Bucket {
    fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, level: rate.burst, at: now }
    }

    fn level(&mut self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * self.rate.per_second).min(self.rate.burst);
        self.at = self.at.max(now);
        self.level
    }

    fn spend(&mut self, cost: usize, now: Duration) {
        self.level = self.level(now) - cost as f64;
    }
}

#[derive(Debug)]
pub(super) struct Pace {
    events: Bucket,
    event_bytes: Bucket,
    inventory_bytes: Bucket,
    secrets: Bucket,
}

impl Pace {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            events: Bucket::new(EVENTS, now),
            event_bytes: Bucket::new(EVENT_BYTES, now),
            inventory_bytes: Bucket::new(INVENTORY_BYTES, now),
            secrets: Bucket::new(SECRETS, now),
        }
    }

    pub(super) fn events(&mut self, count: usize, bytes: usize, now: Duration) {
        self.events.spend(count, now);
        self.event_bytes.spend(bytes, now);
    }

    /// Whether so much inventory is still in its rate.
    pub(super) fn inventory(&mut self, bytes: usize, now: Duration) -> bool {
        self.inventory_bytes.spend(bytes, now);
        self.inventory_bytes.level >= 0.0
    }

    /// Whether a question for a secret is still in its rate; one that is not costs nothing.
    pub(super) fn secret(&mut self, now: Duration) -> bool {
        let room = self.secrets.level(now) >= 1.0;
        if room {
            self.secrets.spend(1, now);
        }
        room
    }

    /// Whether more events came than may have by now.
    pub(super) fn is_ahead(&mut self, now: Duration) -> bool {
        self.events.level(now) < 0.0 || self.event_bytes.level(now) < 0.0
    }
}
