//! Handlers of work queues.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kit::{TaskKind, Wake, Waker};
use store::work::{self, Claimed, Completion, Failure, Queue};
use store::{Op, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Running, may_act};
use crate::fault::Fault;
use crate::module::{QueueHandler, queue};

const DISPATCH: TaskKind = TaskKind::fatal("queue_dispatch");
const ITEM: TaskKind = TaskKind::isolated("queue_item");
const OP_CLAIM: Op = Op::new("work_claim");
const OP_EXTEND: Op = Op::new("work_extend");
const OP_SETTLE: Op = Op::new("work_settle");

/// A claim is taken over this long after its holder last kept it.
const CLAIM_FOR: Duration = Duration::from_secs(60);
/// Three chances to keep it before that.
const CLAIM_KEPT_EVERY: Duration = Duration::from_secs(20);
/// Without any wake-up, how often to look: the price of a signal lost with its connection.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at least: what is due may be just being claimed by another process.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// One transaction claims at most this many: what it costs to lose with the process.
const BATCH_MAX: u32 = 32;

/// Runs the handlers' queues until the supervisor stops, up to `concurrency` keys of each queue at once.
pub fn run_queues(running: &Running, handlers: &[Arc<dyn QueueHandler>], concurrency: usize) {
    for handler in handlers {
        let (handler, context) = (handler.clone(), running.clone());
        running.supervisor.spawn(DISPATCH, move |cancel| async move {
            let dispatcher = Dispatcher::new(context, handler, concurrency);
            cancel.run_until_cancelled(dispatcher.run()).await;
            Ok::<(), Infallible>(())
        });
    }
}

pub(super) struct Dispatcher {
    running: Running,
    handler: Arc<dyn QueueHandler>,
    queue: Queue,
    permits: Arc<Semaphore>,
    /// Signalled when an item ends, since then there is room for another.
    freed: Waker,
    wake: Wake,
}

impl Dispatcher {
    pub(super) fn new(running: Running, handler: Arc<dyn QueueHandler>, concurrency: usize) -> Self {
        let (wake, freed) = Wake::new();
        let queue = queue(handler.queue());
        Self { running, handler, queue, permits: Arc::new(Semaphore::new(concurrency.max(1))), freed, wake }
    }

    async fn run(mut self) {
        let mut signal = self.running.signals.of(work::CHANNEL);
        loop {
            signal.borrow_and_update();
            let pause = match self.pass().await {
                Ok(pause) => pause,
                Err(err) => {
                    let err = kit::chain(&err);
                    tracing::warn!(queue = self.queue.name(), err, "failed to claim work");
                    LOOK_EVERY
                }
            };
            let pause = self.running.jittered(pause.clamp(PAUSE_MIN, LOOK_EVERY));
            // Both arms are cancel-safe: a signal that is not looked at stays.
            tokio::select! {
                _ = signal.changed() => {}
                () = self.wake.wait(pause) => {}
            }
        }
    }

    /// Claims what there is room for and starts it. Returns how long nothing more is due.
    async fn pass(&self) -> Result<Duration, StoreError> {
        loop {
            let room = u32::try_from(self.permits.available_permits()).unwrap_or(u32::MAX).min(BATCH_MAX);
            if room == 0 {
                return Ok(LOOK_EVERY);
            }
            let (claimed, pause) = self.claim(room).await?;
            let full = claimed.len() == room as usize;
            for item in claimed {
                let permit = self.permits.clone().try_acquire_owned().expect("only this loop takes permits");
                self.start(item, permit);
            }
            if !full {
                return Ok(pause);
            }
        }
    }

    pub(super) async fn claim(&self, room: u32) -> Result<(Vec<Claimed>, Duration), StoreError> {
        let (queue, holder, acts) = (self.queue, self.running.holder(), self.handler.acts());
        self.running
            .store
            .tx(OP_CLAIM, |tx| {
                Box::pin(async move {
                    if acts && !may_act(tx).await? {
                        return Ok((Vec::new(), LOOK_EVERY));
                    }
                    let claimed = work::claim(tx, queue, holder, room, CLAIM_FOR).await?;
                    if !claimed.is_empty() {
                        return Ok((claimed, Duration::ZERO));
                    }
                    let due = work::next_due(tx, queue).await?;
                    let now = tx.now().await?;
                    Ok::<_, StoreError>((claimed, due.map_or(LOOK_EVERY, |due| due.since(now))))
                })
            })
            .await
    }

    fn start(&self, item: Claimed, permit: OwnedSemaphorePermit) {
        let (running, handler, freed) = (self.running.clone(), self.handler.clone(), self.freed.clone());
        self.running.supervisor.spawn(ITEM, move |_| async move {
            let done = run_item(&running, &*handler, &item).await;
            drop(permit);
            freed.wake();
            done
        });
    }
}

/// Runs the handler on one key and settles it. Keeps the claim meanwhile; a claim that was lost ends the run.
pub(super) async fn run_item(
    running: &Running,
    handler: &dyn QueueHandler,
    item: &Claimed,
) -> Result<(), StoreError> {
    let started = running.clock.monotonic();
    let handled = AssertUnwindSafe(handler.handle(&item.key)).catch_unwind();
    // Either side may be dropped at any await: the handler's transactions roll back, a renewal is repeated.
    let handled = match futures::future::select(handled, Box::pin(keep_claim(running, item))).await {
        futures::future::Either::Left((handled, _)) => handled,
        futures::future::Either::Right(((), _)) => {
            tracing::warn!(queue = item.queue.name(), key = item.key, "claim was lost during the pass");
            running.metrics.worked(
                item.queue.name(),
                "lost",
                running.clock.monotonic().saturating_sub(started),
            );
            return Ok(());
        }
    };
    let (outcome, err) = match handled {
        Ok(Ok(again)) => (Outcome::Done(again), None),
        Ok(Err(fault)) => (Outcome::Failed(told(&fault)), Some(told(&fault))),
        Err(_) => (Outcome::Failed("it panicked".to_owned()), Some("it panicked".to_owned())),
    };
    let took = running.clock.monotonic().saturating_sub(started);
    running.metrics.worked(item.queue.name(), if err.is_some() { "failed" } else { "ok" }, took);
    if let Some(err) = err {
        let (queue, key, attempt) = (item.queue.name(), &item.key, item.attempts + 1);
        tracing::warn!(queue, key, attempt, err, "work failed");
    }
    settle(running, item, &outcome).await
}

enum Outcome {
    /// Well, and to be looked at again after this long.
    Done(Option<Duration>),
    Failed(String),
}

/// A refusal's text is for the caller of an API; here it is the reason of a failed pass.
fn told(fault: &Fault) -> String {
    match fault {
        Fault::Refused(error) => format!("{}: {}", error.code.name(), error.message),
        Fault::Store(_) | Fault::Internal { .. } => kit::chain(fault),
    }
}

/// Returns when the claim is lost.
async fn keep_claim(running: &Running, item: &Claimed) {
    loop {
        running.clock.sleep(CLAIM_KEPT_EVERY).await;
        let kept = running
            .store
            .tx(OP_EXTEND, |tx| Box::pin(async move { work::extend(tx, item, CLAIM_FOR).await }));
        match kept.await {
            Ok(true) => {}
            Ok(false) => return,
            // The claim may lapse meanwhile; then settling finds it lost.
            Err(err) => {
                let err = kit::chain(&err);
                tracing::warn!(queue = item.queue.name(), key = item.key, err, "failed to keep a claim");
            }
        }
    }
}

async fn settle(running: &Running, item: &Claimed, outcome: &Outcome) -> Result<(), StoreError> {
    let pause = work::backoff(item.attempts, &*running.rng);
    let parked = running
        .store
        .tx(OP_SETTLE, |tx| {
            Box::pin(async move {
                let lost = match outcome {
                    Outcome::Done(None) => work::complete(tx, item).await? == Completion::Lost,
                    Outcome::Done(Some(again)) => {
                        work::reschedule(tx, item, *again).await? == Completion::Lost
                    }
                    Outcome::Failed(err) => match work::fail(tx, item, err, pause).await? {
                        Failure::Parked => return Ok(true),
                        Failure::Retry => false,
                        Failure::Lost => true,
                    },
                };
                if lost {
                    tracing::info!(queue = item.queue.name(), key = item.key, "work was taken over");
                }
                Ok::<_, StoreError>(false)
            })
        })
        .await?;
    if parked {
        tracing::error!(queue = item.queue.name(), key = item.key, "work failed too often and was parked");
    }
    Ok(())
}
