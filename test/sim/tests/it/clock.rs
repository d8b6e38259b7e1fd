//! A clock that the test moves.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use kit::{Clock, SystemClock};
use model::Timestamp;

/// Wall time moves when a test says so; what only waits, waits.
pub struct HandClock {
    millis: AtomicI64,
    machine: SystemClock,
}

/// 2026-03-01.
const START: i64 = 1_772_323_200_000;

impl HandClock {
    pub fn new() -> Self {
        Self { millis: AtomicI64::new(START), machine: SystemClock::new() }
    }

    /// Back to where it began.
    pub fn begin(&self) {
        self.millis.store(START, Ordering::SeqCst);
    }

    pub fn pass(&self, seconds: u64) {
        self.millis
            .fetch_add(i64::try_from(seconds * 1_000).expect("tests take days at most"), Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.machine.sleep(duration)
    }
}
