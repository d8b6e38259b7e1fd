//! One key under a lease: run by its handler, and settled.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use store::work::{self, Claimed, Outcome, Settled};
use store::{Op, StoreError};

use super::Running;
use super::queues::CLAIM_FOR;
use crate::fault::Fault;
use crate::module::QueueHandler;

const OP_EXTEND: Op = Op::new("work_extend");
const OP_SETTLE: Op = Op::new("work_settle");
/// Three chances to keep a claim before it lapses.
const CLAIM_KEPT_EVERY: Duration = Duration::from_secs(20);

/// Runs the handler on one key, keeping the claim meanwhile. None when the claim was lost, which ends the run.
pub(super) async fn run_claimed(
    running: &Running,
    handler: &dyn QueueHandler,
    item: &Claimed,
) -> Option<Outcome> {
    let started = running.clock.monotonic();
    let took = || running.clock.monotonic().saturating_sub(started);
    let handled = AssertUnwindSafe(handler.handle(&item.key)).catch_unwind();
    // Either side may be dropped at any await: the handler's transactions roll back, a renewal is repeated.
    let handled = match futures::future::select(handled, Box::pin(keep_claim(running, item))).await {
        futures::future::Either::Left((handled, _)) => handled,
        futures::future::Either::Right(((), _)) => {
            tracing::warn!(queue = item.queue.name(), key = item.key, "claim was lost during the pass");
            running.metrics.worked(item.queue.name(), "lost", took());
            return None;
        }
    };
    let err = match handled {
        Ok(Ok(again)) => {
            running.metrics.worked(item.queue.name(), "ok", took());
            return Some(again.map_or(Outcome::Done, Outcome::Again));
        }
        Ok(Err(fault)) => told(&fault),
        Err(_) => "it panicked".to_owned(),
    };
    running.metrics.worked(item.queue.name(), "failed", took());
    let (queue, key, attempt) = (item.queue.name(), &item.key, item.attempts + 1);
    tracing::warn!(queue, key, attempt, err, "work failed");
    Some(Outcome::Failed(err, work::backoff(item.attempts, &*running.rng)))
}

/// Runs a key and settles it by itself.
pub(super) async fn run_and_settle(
    running: &Running,
    handler: &dyn QueueHandler,
    item: &Claimed,
) -> Result<(), StoreError> {
    let Some(outcome) = run_claimed(running, handler, item).await else { return Ok(()) };
    let ended = [(item.clone(), outcome)];
    let settle = ended.as_slice();
    let settled =
        running.store.tx(OP_SETTLE, |tx| Box::pin(async move { work::settle(tx, settle).await })).await?;
    say_settled(&ended, &settled);
    Ok(())
}

/// Says what a person should know.
pub(super) fn say_settled(ended: &[(Claimed, Outcome)], settled: &Settled) {
    let named = |at: &usize| ended.get(*at).map(|(item, _)| item);
    for item in settled.lost.iter().filter_map(named) {
        tracing::info!(queue = item.queue.name(), key = item.key, "work was taken over");
    }
    for item in settled.parked.iter().filter_map(named) {
        tracing::error!(queue = item.queue.name(), key = item.key, "work failed too often and was parked");
    }
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
