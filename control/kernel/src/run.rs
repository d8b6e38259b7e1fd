//! What repeats: queues and their handlers, passes, and the relay of events.
//!
//! Each loop looks, acts, and sleeps until it is woken or its period is over. A wake-up during a look means another look.
//! While the deployment is observe-only (its database was found to be older than what it had ordered), queues and
//! passes that act do not run; what only records goes on.

pub mod drive;
mod item;
mod metrics;
mod passes;
mod queues;
mod relay;
mod signals;

use std::sync::Arc;
use std::time::Duration;

use kit::{Clock, Rng, Supervisor};
use store::{Store, StoreError, Tx};

pub use passes::run_passes;
pub use queues::run_queues;
pub use relay::run_relay;
pub use signals::{PLACE_CHANNEL, Signals};

use crate::sql;

/// What every loop needs.
#[derive(Clone)]
pub struct Running {
    pub store: Store,
    pub supervisor: Supervisor,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub signals: Signals,
    metrics: metrics::Metrics,
    /// This process start, in leases and claims. No other process may have the same one.
    holder: Arc<str>,
}

impl Running {
    /// `process` names the process for people, like `api-1`; what makes it unique is added.
    pub fn new(
        process: &str,
        store: Store,
        supervisor: Supervisor,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        let signals = Signals::start(&store, &supervisor);
        Self::with_signals(process, store, supervisor, clock, rng, signals)
    }

    /// Without an ear for the database: whoever drives the passes knows what it signals.
    pub fn driven(
        process: &str,
        store: Store,
        supervisor: Supervisor,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        Self::with_signals(process, store, supervisor, clock, rng, Signals::silent())
    }

    fn with_signals(
        process: &str,
        store: Store,
        supervisor: Supervisor,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        signals: Signals,
    ) -> Self {
        let holder = format!("{process}-{:016x}", rng.u64()).into();
        Self { store, supervisor, clock, rng, signals, metrics: metrics::Metrics::default(), holder }
    }

    /// Adds the `run_…` metrics. Call once per registry.
    pub fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
    }

    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// The period, shortened at random by up to a fifth, so that processes started together do not stay in step.
    fn jittered(&self, period: Duration) -> Duration {
        let fifth = u64::try_from(period.as_micros() / 5).unwrap_or(u64::MAX);
        period.saturating_sub(Duration::from_micros(self.rng.below(fifth)))
    }
}

/// Whether the deployment may act, asked in the transaction that is about to.
pub async fn may_act(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    Ok(tx.query_one(&sql::MAY_ACT, &[]).await?.get("may_act"))
}
