//! What is counted of instances: those that are stuck, and those that hosts hold without a place.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use model::PoolId;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use store::RowExt;

use crate::Instances;
use crate::sql::lost as sql;

const PERIOD: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolState {
    /// By its id, of which there are as many as pools.
    pool: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    pool: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    stuck: Family<PoolState, Gauge>,
    orphans: Family<OfPool, Gauge>,
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("instances");
        let stuck = "Instances whose state lasts longer than it may, by pool and state";
        registry.register("stuck", stuck, self.stuck.clone());
        let orphans = "Instances that hosts hold and that have no place there, by the hosts' pool";
        registry.register("orphaned", orphans, self.orphans.clone());
    }
}

/// Counts again. Every process that works says the same.
pub(crate) struct Vitals(pub Instances);

impl Pass for Vitals {
    fn name(&self) -> &'static str {
        "instance-vitals"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn singleton(&self) -> bool {
        false
    }

    fn acts(&self) -> bool {
        false
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let (store, metrics) = (self.0.store(), self.0.metrics());
            let stuck = store.read(&sql::STUCK_COUNT, &[]).await?;
            let orphans = store.read(&sql::ORPHANS_COUNT, &[]).await?;
            metrics.stuck.clear();
            for row in &stuck {
                let pool = row.id::<PoolId>("pool_id").to_string();
                let labels = PoolState { pool, state: row.get("state") };
                metrics.stuck.get_or_create(&labels).set(row.get("instances"));
            }
            metrics.orphans.clear();
            for row in &orphans {
                let labels = OfPool { pool: row.id::<PoolId>("pool_id").to_string() };
                metrics.orphans.get_or_create(&labels).set(row.get("instances"));
            }
            Ok(PassOutcome::Idle)
        })
    }
}
