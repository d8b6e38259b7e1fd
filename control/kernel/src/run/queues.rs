//! Handlers of work queues.
//!
//! A look settles what has ended since the last one and takes what is woken. Where the handler can handle keys together,
//! they are taken, handled and settled in one transaction; when that fails, its keys are taken one by one, so that the one
//! that is to blame fails alone, waits alone, and is parked alone. The first keys of a process are taken one by one too: a
//! key that ends its process leaves no trace in a transaction, and does under a lease.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use kit::{Pace, TaskKind, Wake, Waker};
use store::work::{self, Claimed, Floor, Outcome, Outlook, Queue, Taken};
use store::{ErrorKind, Op, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::item::{run_claimed, say_settled};
use super::{Running, may_act};
use crate::fault::Fault;
use crate::module::{HandleTogether, QueueHandler, queue};

const DISPATCH: TaskKind = TaskKind::fatal("queue_dispatch");
const ITEM: TaskKind = TaskKind::isolated("queue_item");
const OP_CLAIM: Op = Op::new("work_claim");
const OP_TOGETHER: Op = Op::new("work_together");

/// A claim is taken over this long after its holder last kept it.
pub(super) const CLAIM_FOR: Duration = Duration::from_secs(60);
/// Without any wake-up, how often to look: the price of a signal lost with its connection.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at least: what is due may be just being claimed by another process.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// When others have the keys of some wake-ups: about as long as they do.
const HELD_PAUSE: Duration = Duration::from_millis(20);
/// Keys for later and keys that failed are looked at this often at most, as there are few of them.
const LATER_PAUSE: Duration = Duration::from_millis(250);
/// Keys handled together: a crowd of them has the next ones wait for more.
const TOGETHER_PACE: Pace = Pace::new(8, Duration::from_millis(30));
/// One transaction claims at most this many: what it costs to lose with the process.
const BATCH_MAX: u32 = 32;
/// A process begins with this many keys one by one, if there are as many.
const CAREFUL_FIRST: u32 = 8;

/// Runs the handlers' queues until the supervisor stops, up to `concurrency` keys of each queue at once, or one transaction
/// of keys where they are handled together.
pub fn run_queues(running: &Running, handlers: &[Arc<dyn QueueHandler>], concurrency: usize) {
    for handler in handlers {
        let (handler, context) = (handler.clone(), running.clone());
        running.supervisor.spawn(DISPATCH, move |cancel| async move {
            let mut dispatcher = Dispatcher::new(context, handler, concurrency);
            cancel.run_until_cancelled(dispatcher.run()).await;
            dispatcher.finish().await;
            Ok::<(), Infallible>(())
        });
    }
}

pub(super) struct Dispatcher {
    running: Running,
    handler: Arc<dyn QueueHandler>,
    queue: Queue,
    concurrency: u32,
    permits: Arc<Semaphore>,
    /// Signalled when an item ends, since then there is room for another.
    freed: Waker,
    wake: Wake,
    ended: Arc<Mutex<Vec<(Claimed, Outcome)>>>,
    at: Mutex<At>,
}

/// Where a dispatcher is in its queue.
#[derive(Debug, Clone, Copy)]
struct At {
    floor: Floor,
    /// Keys to take one by one before they are taken together.
    careful: u32,
    /// When keys with a row in `work` may be looked at next, by the monotonic clock.
    later_from: Duration,
    pace: Pace,
}

impl Dispatcher {
    pub(super) fn new(running: Running, handler: Arc<dyn QueueHandler>, concurrency: usize) -> Self {
        let (wake, freed) = Wake::new();
        let (queue, concurrency) = (queue(handler.queue()), concurrency.max(1));
        let permits = Arc::new(Semaphore::new(concurrency));
        let concurrency = u32::try_from(concurrency).unwrap_or(u32::MAX);
        let at = At {
            floor: Floor::default(),
            careful: CAREFUL_FIRST,
            later_from: Duration::ZERO,
            pace: TOGETHER_PACE,
        };
        let ended = Arc::default();
        Self { running, handler, queue, concurrency, permits, freed, wake, ended, at: Mutex::new(at) }
    }

    async fn run(&mut self) {
        let mut signal = self.running.signals.of_queue(self.queue.name());
        loop {
            signal.borrow_and_update();
            let pause = match self.pass().await {
                Ok(pause) => pause,
                Err(err) => {
                    self.say_failed(&err);
                    LOOK_EVERY
                }
            };
            let pause = self.running.jittered(pause.clamp(PAUSE_MIN, LOOK_EVERY));
            // Both arms are cancel-safe: a signal that is not looked at stays.
            tokio::select! {
                _ = signal.changed() => {}
                () = self.wake.wait(pause) => {}
            }
            let pace = self.at().pace;
            pace.wait(&*self.running.clock).await;
        }
    }

    /// Looks until nothing is left, and starts what is to be run one by one. Returns how long nothing more is due.
    async fn pass(&self) -> Result<Duration, StoreError> {
        loop {
            let room = u32::try_from(self.permits.available_permits()).unwrap_or(u32::MAX);
            let (claimed, pause) = self.look(room).await?;
            for item in claimed {
                let permit = self.permits.clone().try_acquire_owned().expect("only this loop takes permits");
                self.start(item, permit);
            }
            if !pause.is_zero() {
                return Ok(pause);
            }
        }
    }

    /// Lets what was started come to its end, and settles it.
    async fn finish(&self) {
        // An error is a closed semaphore, which nobody closes.
        let _all = self.permits.acquire_many(self.concurrency).await;
        if self.has_ended()
            && let Err(err) = self.under_lease(0, 0, false).await
        {
            let err = kit::chain(&err);
            tracing::warn!(queue = self.queue.name(), err, "failed to settle work: it is done once more");
        }
    }

    /// One look: settles what has ended, handles what can be handled together, and claims up to `room` keys to be run one by
    /// one. How long to wait before the next look, unless something signals: not at all when there may be more.
    pub(super) async fn look(&self, room: u32) -> Result<(Vec<Claimed>, Duration), StoreError> {
        let now = self.running.clock.monotonic();
        let at = self.at();
        let room = room.min(BATCH_MAX);
        let mut later = now >= at.later_from;
        let mut looked = Looked { claimed: Vec::new(), pause: LOOK_EVERY };
        if !later {
            looked.pause = at.later_from.saturating_sub(now);
        }
        let together = self.handler.together();
        // Trouble with keys that are handled together holds up none under a lease.
        let (mut wakes, mut trouble) = (room, None);
        if let Some(together) = together {
            if at.careful == 0 {
                // The same transaction says whether anything is due under a lease, which hardly ever is.
                match self.all_together(together, later).await {
                    Ok((pause, outlook)) => {
                        looked.pause = looked.pause.min(pause);
                        if let Some(outlook) = outlook {
                            later = room > 0 && outlook.due_in == Some(Duration::ZERO);
                            if !later {
                                looked.pause = looked.pause.min(self.nothing_due(outlook, room));
                            }
                        }
                    }
                    Err(err) => trouble = Some(err),
                }
            }
            wakes = room.min(self.at().careful);
        }
        if later || wakes > 0 || self.has_ended() {
            let rows = if later { room } else { 0 };
            let Looked { claimed, pause } = self.under_lease(rows, wakes, later).await?;
            looked = Looked { claimed, pause: looked.pause.min(pause) };
        }
        if let Some(together) = together
            && at.careful > 0
            && self.at().careful == 0
        {
            match self.all_together(together, false).await {
                Ok((pause, _)) => looked.pause = looked.pause.min(pause),
                Err(err) => trouble = Some(err),
            }
        }
        if room == 0 && together.is_none() {
            // An item that ends wakes the loop.
            looked.pause = LOOK_EVERY;
        }
        match trouble {
            None => Ok((looked.claimed, looked.pause)),
            Some(err) if looked.claimed.is_empty() => Err(err),
            // What is claimed is this process's to run.
            Some(err) => {
                self.say_failed(&err);
                Ok((looked.claimed, LOOK_EVERY))
            }
        }
    }

    fn say_failed(&self, err: &StoreError) {
        tracing::warn!(queue = self.queue.name(), err = kit::chain(err), "failed to claim work");
    }

    fn at(&self) -> At {
        *self.at.lock().expect("no holder of this lock panics")
    }

    fn move_to(&self, change: impl FnOnce(&mut At)) {
        change(&mut self.at.lock().expect("no holder of this lock panics"));
    }

    fn has_ended(&self) -> bool {
        !self.ended.lock().expect("no holder of this lock panics").is_empty()
    }

    /// Settles what has ended, and claims up to `rows` keys that have a row in `work` and up to `wakes` that are woken.
    async fn under_lease(&self, rows: u32, wakes: u32, later: bool) -> Result<Looked, StoreError> {
        // They stay until they are settled: this may be dropped at any await, or fail.
        let ended = self.ended.lock().expect("no holder of this lock panics").clone();
        let (settle, at) = (ended.as_slice(), self.at());
        let (queue, holder, acts) = (self.queue, self.running.holder(), self.handler.acts());
        let done = self.running.store.tx(OP_CLAIM, |tx| {
            Box::pin(async move {
                let settled =
                    if settle.is_empty() { Default::default() } else { work::settle(tx, settle).await? };
                let mut floor = at.floor;
                let (mut claimed, mut taken, mut outlook) = (Vec::new(), Taken::default(), None);
                if later {
                    outlook = Some(work::outlook(tx, queue).await?);
                }
                // Nearly always nothing is due.
                let due = outlook.is_some_and(|outlook| outlook.due_in == Some(Duration::ZERO));
                if due && rows > 0 && (!acts || may_act(tx).await?) {
                    claimed = work::claim(tx, queue, holder, rows, CLAIM_FOR).await?;
                    outlook = Some(work::outlook(tx, queue).await?);
                }
                let wakes = wakes.saturating_sub(u32::try_from(claimed.len()).unwrap_or(u32::MAX));
                if wakes > 0 {
                    taken = work::take(tx, queue, &mut floor, wakes, acts).await?;
                    // Of keys that were woken together there may be more than there is room for.
                    let surplus = taken.keys.split_off(taken.keys.len().min(wakes as usize));
                    work::put_back(tx, queue, surplus);
                    claimed.extend(work::start(tx, queue, &taken.keys, holder, CLAIM_FOR).await?);
                }
                Ok::<_, StoreError>((settled, claimed, taken, floor, wakes, outlook))
            })
        });
        let (settled, claimed, taken, floor, asked, outlook) = done.await?;
        self.ended.lock().expect("no holder of this lock panics").drain(..ended.len());
        say_settled(&ended, &settled);
        self.took(&taken, floor, asked, later);
        let full = asked > 0 && taken.seen >= asked || rows > 0 && claimed.len() >= rows as usize;
        let mut pause = if full || taken.folded > 0 { Duration::ZERO } else { held_pause(&taken) };
        if let Some(outlook) = outlook {
            self.running.metrics.parked(queue.name(), outlook.parked);
            // What is due but another process's is looked at with the period.
            if let (Some(due_in), true) = (outlook.due_in, rows > 0) {
                pause = pause.min(due_in.max(LATER_PAUSE));
            }
        }
        Ok(Looked { claimed, pause })
    }

    /// Notes what was taken to be run one by one.
    fn took(&self, taken: &Taken, floor: Floor, asked: u32, later: bool) {
        let now = self.running.clock.monotonic();
        let keys = u32::try_from(taken.keys.len()).unwrap_or(u32::MAX);
        self.move_to(|at| {
            at.floor = floor;
            if later {
                at.later_from = now + LATER_PAUSE;
            }
            if taken.folded > 0 {
                at.later_from = now;
            }
            if asked > 0 {
                // Fewer than asked for are all there are: whatever was to be found has been.
                at.careful = if taken.seen < asked { 0 } else { at.careful.saturating_sub(keys.max(1)) };
            }
        });
    }

    /// Notes that no key with a row in `work` is due. How long that is so.
    fn nothing_due(&self, outlook: Outlook, room: u32) -> Duration {
        let now = self.running.clock.monotonic();
        self.move_to(|at| at.later_from = now + LATER_PAUSE);
        self.running.metrics.parked(self.queue.name(), outlook.parked);
        match outlook.due_in {
            Some(due_in) if room > 0 => due_in.max(LATER_PAUSE),
            Some(_) | None => LOOK_EVERY,
        }
    }

    /// Takes, handles and settles keys in one transaction. How long to wait before the next look, and with `later` how it stands
    /// with keys that have a row in `work`, unless the transaction failed.
    async fn all_together(
        &self,
        together: &dyn HandleTogether,
        later: bool,
    ) -> Result<(Duration, Option<Outlook>), StoreError> {
        let (queue, acts, floor) = (self.queue, self.handler.acts(), self.at().floor);
        let (started, asked) = (self.running.clock.monotonic(), together.keys_max());
        let count = Mutex::new(0);
        let tried = &count;
        let handled = self.running.store.tx(OP_TOGETHER, |tx| {
            Box::pin(async move {
                let mut floor = floor;
                let taken = work::take(tx, queue, &mut floor, asked, acts).await?;
                *tried.lock().expect("no holder of this lock panics") = taken.keys.len();
                if !taken.keys.is_empty() {
                    for (key, pause) in together.handle_all(tx, &taken.keys).await? {
                        work::enqueue(tx, queue, &key, pause).await?;
                    }
                }
                let outlook = if later { Some(work::outlook(tx, queue).await?) } else { None };
                Ok::<_, Fault>((taken, floor, outlook))
            })
        });
        let handled = AssertUnwindSafe(handled).catch_unwind().await;
        let keys = *count.lock().expect("no holder of this lock panics");
        let took = self.running.clock.monotonic().saturating_sub(started);
        let why = match handled {
            Ok(Ok((taken, floor, outlook))) => {
                self.move_to(|at| {
                    at.floor = floor;
                    at.pace.took(started, keys);
                    if taken.folded > 0 {
                        at.later_from = Duration::ZERO;
                    }
                });
                if keys > 0 {
                    self.running.metrics.worked_together(queue.name(), "ok", keys, took);
                }
                let more = taken.seen >= asked || taken.folded > 0;
                return Ok((if more { Duration::ZERO } else { held_pause(&taken) }, outlook));
            }
            Ok(Err(Fault::Store(err))) if says_nothing_of_keys(&err) => return Err(err),
            Ok(Err(fault)) => kit::chain(&fault),
            Err(_) => "it panicked".to_owned(),
        };
        if keys == 0 {
            let err = StoreError::decode("work_take", format!("taking work failed: {why}"));
            return Err(err);
        }
        self.running.metrics.worked_together(queue.name(), "failed", keys, took);
        tracing::warn!(queue = queue.name(), keys, err = why, "work failed together and is done one by one");
        self.move_to(|at| at.careful = u32::try_from(keys).unwrap_or(u32::MAX));
        Ok((Duration::ZERO, None))
    }

    fn start(&self, item: Claimed, permit: OwnedSemaphorePermit) {
        let (running, handler, freed) = (self.running.clone(), self.handler.clone(), self.freed.clone());
        let ended = self.ended.clone();
        self.running.supervisor.spawn(ITEM, move |_| async move {
            if let Some(outcome) = run_claimed(&running, &*handler, &item).await {
                ended.lock().expect("no holder of this lock panics").push((item, outcome));
            }
            drop(permit);
            freed.wake();
            Ok::<(), Infallible>(())
        });
    }
}

struct Looked {
    claimed: Vec<Claimed>,
    pause: Duration,
}

fn held_pause(taken: &Taken) -> Duration {
    if taken.held > 0 { HELD_PAUSE } else { LOOK_EVERY }
}

/// The database's trouble, or an outcome that is not known: the same keys may do well at the next look.
fn says_nothing_of_keys(err: &StoreError) -> bool {
    err.retryable() || *err.kind() == ErrorKind::CommitUnknown
}
