//! Who is let in now and who is told when to come back.
//!
//! A refusal hands out the next free moment, so that a fleet that arrives at one instant comes back spread over the time it
//! takes to serve it, and not at one instant again.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use kit::Rng;

/// The furthest moment that is handed out. Whoever comes back then and is refused again is given another.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// What a wait is at least: less is not worth the handshake.
const WAIT_MIN: Duration = Duration::from_millis(250);
/// What is counted at once: addresses that join, which are a data centre if they are so many, or nodes that connect.
const COUNTED_MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Level {
    tokens: f64,
    at: Duration,
}

impl Level {
    fn refill(&mut self, per_second: f64, burst: f64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * per_second).min(burst);
        self.at = now;
    }

    fn take(&mut self) -> bool {
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }
}

/// A token bucket that tells those it turns away when it will have room.
#[derive(Debug)]
pub(crate) struct Admission {
    per_second: f64,
    burst: f64,
    state: Mutex<(Level, Duration)>,
}

impl Admission {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let level = Level { tokens: f64::from(burst), at: Duration::ZERO };
        Self {
            per_second: f64::from(per_second.max(1)),
            burst: f64::from(burst.max(1)),
            state: Mutex::new((level, Duration::ZERO)),
        }
    }

    /// Lets one in, or says how long to wait.
    pub(crate) fn admit(&self, now: Duration, rng: &dyn Rng) -> Result<(), Duration> {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        let (level, next_free) = &mut *state;
        level.refill(self.per_second, self.burst, now);
        if level.take() {
            return Ok(());
        }
        *next_free = (*next_free).max(now) + Duration::from_secs_f64(1.0 / self.per_second);
        let wait = next_free.saturating_sub(now);
        if wait > WAIT_MAX {
            *next_free = now;
        }
        Err(jittered(wait.min(WAIT_MAX), rng))
    }
}

/// Between the wait and a quarter more, and never nothing.
pub(crate) fn jittered(wait: Duration, rng: &dyn Rng) -> Duration {
    let wait = wait.max(WAIT_MIN);
    let quarter = u64::try_from(wait.as_micros() / 4).unwrap_or(u64::MAX);
    wait + Duration::from_micros(rng.below(quarter))
}

/// A bucket for each of many: joins by where they come from, since they need no certificate, and sessions by their node.
#[derive(Debug)]
pub(crate) struct Each<K> {
    per_second: f64,
    burst: f64,
    levels: Mutex<HashMap<K, Level>>,
}

impl<K: Eq + Hash + Copy> Each<K> {
    pub(crate) fn new(per_second: f64, burst: u32) -> Self {
        Self { per_second, burst: f64::from(burst), levels: Mutex::default() }
    }

    pub(crate) fn admit(&self, key: K, now: Duration) -> bool {
        let mut levels = self.levels.lock().expect("no holder of this lock panics");
        if !levels.contains_key(&key) && levels.len() >= COUNTED_MAX {
            self.forget(&mut levels, now);
        }
        let level = levels.entry(key).or_insert(Level { tokens: self.burst, at: now });
        level.refill(self.per_second, self.burst, now);
        level.take()
    }

    /// Makes room in a full table, which must turn nobody away: those that are full again need no counting, and then those go that
    /// were seen longest ago, an eighth at a time so that not every newcomer looks through all of it.
    fn forget(&self, levels: &mut HashMap<K, Level>, now: Duration) {
        levels.retain(|_, level| {
            level.tokens + now.saturating_sub(level.at).as_secs_f64() * self.per_second < self.burst
        });
        if levels.len() < COUNTED_MAX {
            return;
        }
        let mut by_age: Vec<(Duration, K)> = levels.iter().map(|(key, level)| (level.at, *key)).collect();
        by_age.select_nth_unstable_by_key(COUNTED_MAX / 8, |(at, _)| *at);
        for (_, key) in &by_age[..COUNTED_MAX / 8] {
            levels.remove(key);
        }
    }
}

/// A household or a host is given a whole /64, so that is what is counted.
pub(crate) fn counted_as(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests;
