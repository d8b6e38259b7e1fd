//! Virtual time, and what waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use kit::{Clock, Rng, SeededRng};
use model::Timestamp;
use tokio::sync::{Notify, Semaphore};

use super::event::Event;
use super::exec::{ProcessId, Task};

/// 2030-01-01: a moment that no test mistakes for now.
pub const EPOCH_MS: i64 = 1_893_456_000_000;

/// What every part of the simulation shares. One thread uses it; the locks are for the ports, which must be `Send`.
pub struct Core {
    now: AtomicI64,
    state: Mutex<State>,
    /// Transactions and statements under way: while there are any, time stands still.
    io: AtomicUsize,
    /// The one task that can be woken while others than the simulation's own run: 0 for every one.
    only: AtomicU64,
    /// One at a time, first come first served.
    pub(super) turns: Arc<Semaphore>,
    /// A connection broke, and what it held may still be held.
    broken: AtomicBool,
    /// Something was woken.
    pub(super) woken: Notify,
    /// Decides everything that is not said by something else.
    pub rng: Arc<dyn Rng>,
    spent: Mutex<BTreeMap<&'static str, Spent>>,
}

/// Transactions and statements of one name.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    pub count: u64,
    /// Of real time.
    pub time: Duration,
}

#[derive(Default)]
struct State {
    seq: u64,
    timers: BTreeMap<(i64, u64), Waker>,
    events: BTreeMap<(i64, u64), Event>,
    ready: Vec<u64>,
    spawned: Vec<Task>,
    killed: BTreeSet<ProcessId>,
}

/// What comes next in time.
pub enum Due {
    Timer(Waker),
    Event(Event),
}

impl Core {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicI64::new(EPOCH_MS * 1000),
            state: Mutex::default(),
            io: AtomicUsize::new(0),
            only: AtomicU64::new(0),
            turns: Arc::new(Semaphore::new(1)),
            broken: AtomicBool::new(false),
            woken: Notify::new(),
            rng: Arc::new(SeededRng::new(seed)),
            spent: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn spent(&self, name: &'static str, time: Duration) {
        let mut spent = self.spent.lock().expect("no holder of this lock panics");
        let spent = spent.entry(name).or_default();
        spent.count += 1;
        spent.time += time;
    }

    /// Transactions and statements of all processes, by name.
    pub fn transactions(&self) -> BTreeMap<&'static str, Spent> {
        self.spent.lock().expect("no holder of this lock panics").clone()
    }

    /// Since the simulation's epoch.
    pub fn elapsed(&self) -> Duration {
        let micros = self.now.load(Ordering::Relaxed) - EPOCH_MS * 1000;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Time that nobody lived through, before anything runs.
    pub fn skip(&self, by: Duration) {
        self.now.fetch_add(micros(by), Ordering::Relaxed);
    }

    /// Up to `below`, uniformly.
    pub fn up_to(&self, below: Duration) -> Duration {
        Duration::from_micros(self.rng.below(u64::try_from(below.as_micros()).unwrap_or(u64::MAX).max(1)))
    }

    pub fn between(&self, from: Duration, to: Duration) -> Duration {
        from + self.up_to(to.saturating_sub(from))
    }

    /// True once in `of` times.
    pub fn one_in(&self, of: u64) -> bool {
        self.rng.below(of) == 0
    }

    pub fn pick<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        from.get(usize::try_from(self.rng.below(from.len() as u64)).unwrap_or(0))
    }

    /// Has `event` happen after `delay`.
    pub fn post(&self, delay: Duration, event: Event) {
        let at = self.now.load(Ordering::Relaxed).saturating_add(micros(delay));
        self.post_at(at, event);
    }

    /// Not before anything that was posted for the same moment.
    pub fn post_at(&self, at: i64, event: Event) {
        let mut state = self.state();
        state.seq += 1;
        let key = (at.max(self.now.load(Ordering::Relaxed)), state.seq);
        state.events.insert(key, event);
    }

    pub(super) fn spawn(&self, process: ProcessId, name: &'static str, future: BoxFuture<'static, ()>) {
        self.state().spawned.push(Task::new(process, name, future));
    }

    pub(super) fn take_spawned(&self) -> Vec<Task> {
        std::mem::take(&mut self.state().spawned)
    }

    /// While the database's connections run, what they say late to a task that does not wait for them must change nothing:
    /// when it comes depends on the machine.
    pub(super) fn hears_only(&self, task: u64) {
        self.only.store(task, Ordering::Relaxed);
    }

    pub(super) fn hears(&self, task: u64) -> bool {
        let only = self.only.load(Ordering::Relaxed);
        only == 0 || only == task
    }

    /// Waits for something outside of the simulation.
    pub(super) async fn outside<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        self.hears_only(u64::MAX);
        let began = Instant::now();
        let done = work.await;
        self.spent(name, began.elapsed());
        self.hears_only(0);
        done
    }

    pub(super) fn wake(&self, task: u64) {
        self.state().ready.push(task);
        self.woken.notify_one();
    }

    /// One of those that are ready, by the seed.
    pub(super) fn take_ready(&self) -> Option<u64> {
        let mut state = self.state();
        let count = state.ready.len() as u64;
        if count == 0 {
            return None;
        }
        let at = if count == 1 { 0 } else { usize::try_from(self.rng.below(count)).unwrap_or(0) };
        Some(state.ready.swap_remove(at))
    }

    pub(super) fn unready(&self, task: u64) {
        self.state().ready.retain(|ready| *ready != task);
    }

    /// The process ends where it stands.
    /// A connection broke in a transaction. What it held is let go before anything else happens, however fast the server is.
    pub fn broke(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn take_broken(&self) -> bool {
        self.broken.swap(false, Ordering::Relaxed)
    }

    pub fn kill(&self, process: ProcessId) {
        self.state().killed.insert(process);
    }

    pub(super) fn take_killed(&self) -> BTreeSet<ProcessId> {
        std::mem::take(&mut self.state().killed)
    }

    pub(super) fn has_killed(&self, process: ProcessId) -> bool {
        self.state().killed.contains(&process)
    }

    pub fn io(&self) -> usize {
        self.io.load(Ordering::Relaxed)
    }

    /// Time stands still until this is dropped.
    pub fn hold_time(self: &Arc<Self>) -> Held {
        self.io.fetch_add(1, Ordering::Relaxed);
        Held(self.clone())
    }

    /// When the next thing happens.
    pub(super) fn next_at(&self) -> Option<i64> {
        let state = self.state();
        let timer = state.timers.first_key_value().map(|(key, _)| key.0);
        let event = state.events.first_key_value().map(|(key, _)| key.0);
        [timer, event].into_iter().flatten().min()
    }

    /// Moves time to the next thing that happens, and takes it.
    pub(super) fn advance(&self) -> Option<Due> {
        let mut state = self.state();
        let timer = state.timers.first_key_value().map(|(key, _)| *key);
        let event = state.events.first_key_value().map(|(key, _)| *key);
        let timer_first = match (timer, event) {
            (Some(timer), Some(event)) => timer < event,
            (timer, _) => timer.is_some(),
        };
        let key = if timer_first { timer? } else { event? };
        self.now.fetch_max(key.0, Ordering::Relaxed);
        if timer_first {
            state.timers.remove(&key).map(Due::Timer)
        } else {
            state.events.remove(&key).map(Due::Event)
        }
    }

    fn arm(&self, at: i64, key: &mut Option<(i64, u64)>, waker: &Waker) {
        let mut state = self.state();
        let key = key.get_or_insert_with(|| {
            state.seq += 1;
            (at, state.seq)
        });
        state.timers.insert(*key, waker.clone());
    }

    fn disarm(&self, key: (i64, u64)) {
        self.state().timers.remove(&key);
    }
}

pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

/// Keeps time where it is.
pub struct Held(Arc<Core>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.io.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The clock of one machine: the simulation's, apart from how wrong its wall clock is.
pub struct SimClock {
    core: Arc<Core>,
    skew_micros: AtomicI64,
}

impl SimClock {
    pub fn new(core: &Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core: core.clone(), skew_micros: AtomicI64::new(0) })
    }

    pub fn set_skew(&self, micros: i64) {
        self.skew_micros.store(micros, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.core.now().micros() + self.skew_micros.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.core.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let until = self.core.now().micros().saturating_add(micros(duration));
        Box::pin(Sleep { core: self.core.clone(), until, key: None })
    }
}

struct Sleep {
    core: Arc<Core>,
    until: i64,
    key: Option<(i64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.core.now().micros() >= this.until {
            return Poll::Ready(());
        }
        this.core.arm(this.until, &mut this.key, cx.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.disarm(key);
        }
    }
}

/// Rings until somebody has heard it. One listener.
#[derive(Clone, Default)]
pub struct Bell(Arc<Mutex<(bool, Option<Waker>)>>);

impl Bell {
    pub fn ring(&self) {
        let waker = {
            let mut state = self.0.lock().expect("no holder of this lock panics");
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Until it rings, or `at_most` has passed.
    pub async fn wait(&self, clock: &SimClock, at_most: Duration) {
        let rung = futures::future::poll_fn(|cx| {
            let mut state = self.0.lock().expect("no holder of this lock panics");
            if std::mem::take(&mut state.0) {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        });
        futures::future::select(rung, clock.sleep(at_most)).await;
    }
}
