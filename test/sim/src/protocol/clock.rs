//! Virtual time: it stands still until the world moves it, and whoever sleeps is told when that would end.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use agent::testing::START;
use futures::future::BoxFuture;
use kit::Clock;
use model::Timestamp;

/// Microseconds since the start of a run.
pub type Micros = u64;

pub const MILLI: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// In whole microseconds, rounded up: what is due then is due at that time.
pub fn micros_up(duration: Duration) -> Micros {
    Micros::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(Micros::MAX)
}

/// The one time of a world.
#[derive(Debug, Default)]
pub struct Time {
    now: AtomicU64,
    next: AtomicU64,
    sleepers: Mutex<BTreeSet<(Micros, u64)>>,
}

impl Time {
    pub fn now(&self) -> Micros {
        self.now.load(Ordering::Relaxed)
    }

    pub fn set(&self, now: Micros) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// When the first of those that sleep would wake, after now. One that is overdue sleeps in a process that is stopped.
    pub fn deadline(&self) -> Option<Micros> {
        let after = (self.now().saturating_add(1), 0);
        self.sleepers().range(after..).next().map(|(due, _)| *due)
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, BTreeSet<(Micros, u64)>> {
        self.sleepers.lock().expect("no holder of this lock panics")
    }
}

/// The moment on a clock that is right.
pub fn moment(now: Micros) -> Timestamp {
    START.saturating_add(Duration::from_micros(now))
}

/// One machine's clock.
#[derive(Debug)]
pub struct SimClock {
    time: Arc<Time>,
    /// What its wall clock shows too much, in microseconds.
    skew: AtomicI64,
    /// How long it stood still.
    lost: AtomicU64,
}

impl SimClock {
    pub fn new(time: Arc<Time>) -> Self {
        Self { time, skew: AtomicI64::new(0), lost: AtomicU64::new(0) }
    }

    /// Its machine does not run for so long, and its clock neither.
    pub fn stand_still(&self, micros: Micros) {
        self.lost.fetch_add(micros, Ordering::Relaxed);
    }

    pub fn has_stood_still(&self) -> bool {
        self.lost.load(Ordering::Relaxed) > 0
    }

    /// When this moment of its own is.
    pub fn world_time(&self, own: Micros) -> Micros {
        own.saturating_add(self.lost.load(Ordering::Relaxed))
    }

    pub fn set_skew(&self, micros: i64) {
        self.skew.store(micros, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let skew = self.skew.load(Ordering::Relaxed);
        Timestamp::from_micros(moment(self.time.now()).micros().saturating_add(skew))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.time.now().saturating_sub(self.lost.load(Ordering::Relaxed)))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let length = micros_up(duration);
        let due = self.time.now().saturating_add(length);
        let key = (due, self.time.next.fetch_add(1, Ordering::Relaxed));
        self.time.sleepers().insert(key);
        Box::pin(Sleep { time: self.time.clone(), key })
    }
}

struct Sleep {
    time: Arc<Time>,
    key: (Micros, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.time.now() < self.key.0 {
            return Poll::Pending;
        }
        self.time.sleepers().remove(&self.key);
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.time.sleepers().remove(&self.key);
    }
}
