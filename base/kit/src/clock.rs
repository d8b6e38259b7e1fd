//! Time as a port. Nothing reads it from the air.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use model::Timestamp;

/// Wall time for what is stored and shown, monotonic time for ages and deadlines, and sleep.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    /// Time since an arbitrary start; never goes back, whatever happens to the wall clock.
    fn monotonic(&self) -> Duration;
    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()>;
}

/// The machine's own clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that moves when told, for tests of what decides by time. Sleep returns at once after moving it.
#[derive(Debug)]
pub struct ManualClock {
    wall_micros: AtomicI64,
    monotonic_micros: AtomicI64,
}

impl ManualClock {
    pub fn at(now: Timestamp) -> Self {
        Self { wall_micros: AtomicI64::new(now.micros()), monotonic_micros: AtomicI64::new(0) }
    }

    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("tests advance by less than 292,000 years");
        self.wall_micros.fetch_add(micros, Ordering::SeqCst);
        self.monotonic_micros.fetch_add(micros, Ordering::SeqCst);
    }

    /// Moves the wall clock alone, as an administrator or a bad time server does.
    pub fn set_wall(&self, now: Timestamp) {
        self.wall_micros.store(now.micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.wall_micros.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        let micros = self.monotonic_micros.load(Ordering::SeqCst);
        Duration::from_micros(u64::try_from(micros).expect("monotonic time only advances"))
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.advance(duration);
        Box::pin(tokio::task::yield_now())
    }
}
