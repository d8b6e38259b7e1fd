//! Token buckets, one per caller, in a table of bounded size.

use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use crate::bounded::Bounded;

/// How often a caller may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Calls a second that are given back, at least 1.
    pub per_second: u32,
    /// Calls that may come at once after a pause, at least 1.
    pub burst: u32,
}

/// Nanoseconds of credit, so that a bucket is exact without floating point.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    credit_ns: u64,
    at: Duration,
}

#[derive(Debug)]
pub struct Buckets<K> {
    rate: Rate,
    table: Mutex<Bounded<K, Bucket>>,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    /// `callers_max` bounds the table. A caller that was forgotten starts with a full bucket.
    pub fn new(rate: Rate, callers_max: usize) -> Self {
        let rate = Rate { per_second: rate.per_second.max(1), burst: rate.burst.max(1) };
        Self { rate, table: Mutex::new(Bounded::new(callers_max)) }
    }

    /// Takes one call at the monotonic time `now`, or says how long until there is one.
    pub fn take(&self, caller: K, now: Duration) -> Result<(), Duration> {
        let cost_ns = self.cost_ns();
        let mut table = self.table.lock().expect("no holder of this lock panics");
        let mut bucket = self.filled(table.get(&caller).copied(), now);
        let granted = bucket.credit_ns >= cost_ns;
        let missing = Duration::from_nanos(cost_ns.saturating_sub(bucket.credit_ns));
        if granted {
            bucket.credit_ns -= cost_ns;
        }
        table.insert(caller, bucket);
        if granted { Ok(()) } else { Err(missing) }
    }

    /// Gives back one call that was taken.
    pub fn give_back(&self, caller: K, now: Duration) {
        let mut table = self.table.lock().expect("no holder of this lock panics");
        let mut bucket = self.filled(table.get(&caller).copied(), now);
        bucket.credit_ns = (bucket.credit_ns + self.cost_ns()).min(self.full_ns());
        table.insert(caller, bucket);
    }

    fn cost_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.rate.per_second)
    }

    fn full_ns(&self) -> u64 {
        self.cost_ns() * u64::from(self.rate.burst)
    }

    /// The caller's bucket with what it gained until now.
    fn filled(&self, kept: Option<Bucket>, now: Duration) -> Bucket {
        let full_ns = self.full_ns();
        let mut bucket = kept.unwrap_or(Bucket { credit_ns: full_ns, at: now });
        let gained = u64::try_from(now.saturating_sub(bucket.at).as_nanos()).unwrap_or(u64::MAX);
        bucket.credit_ns = bucket.credit_ns.saturating_add(gained).min(full_ns);
        bucket.at = bucket.at.max(now);
        bucket
    }
}

#[cfg(test)]
mod tests;
