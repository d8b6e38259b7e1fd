//! Making the months ahead, dropping those past their keeping, and forgetting old idempotency keys.

use std::time::Duration;

use kernel::{BoxFuture, Fault, Pass, PassOutcome, idempotency};
use store::{Store, partition};

/// A month is made a month ahead, so a day without a pass costs nothing.
const EVERY: Duration = Duration::from_secs(3600);

pub(crate) struct Retention {
    store: Store,
}

impl Retention {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }
}

impl Pass for Retention {
    fn name(&self) -> &'static str {
        "retention"
    }

    fn period(&self) -> Duration {
        EVERY
    }

    /// Without next month's partition no call could be entered in the audit log, observe-only or not.
    fn acts(&self) -> bool {
        false
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let changed = partition::pass(&self.store, &partition::DEFAULTS).await?;
            if changed.made > 0 || changed.dropped > 0 {
                tracing::info!(made = changed.made, dropped = changed.dropped, "months of history changed");
            }
            let forgotten = idempotency::prune(&self.store).await?;
            Ok(if forgotten > 0 { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}
