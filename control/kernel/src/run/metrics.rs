//! How often and how long work and passes run. Labels are names of queues and passes, which are constants.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// From a pass that finds nothing to one that a slow database holds up.
const BUCKETS_SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    name: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: &'static str,
}

#[derive(Clone)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS_SECONDS)
    }
}

type Times = Family<Name, Histogram, Buckets>;

#[derive(Clone)]
pub(super) struct Metrics {
    work: Family<Labels, Counter>,
    work_seconds: Times,
    work_together_seconds: Times,
    parked: Family<Name, Gauge>,
    passes: Family<Labels, Counter>,
    pass_seconds: Times,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            work: Family::default(),
            work_seconds: Family::new_with_constructor(Buckets),
            work_together_seconds: Family::new_with_constructor(Buckets),
            parked: Family::default(),
            passes: Family::default(),
            pass_seconds: Family::new_with_constructor(Buckets),
        }
    }
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("run");
        registry.register("work", "Keys of queues handled, by result", self.work.clone());
        registry.register("work_seconds", "Time of handling a key", self.work_seconds.clone());
        let parked = "Keys that failed too often and wait for a person: work.listParked names them";
        registry.register("work_parked", parked, self.parked.clone());
        let together = self.work_together_seconds.clone();
        registry.register("work_together_seconds", "Time of handling keys in one transaction", together);
        registry.register("passes", "Passes run, by result", self.passes.clone());
        registry.register("pass_seconds", "Time of a pass", self.pass_seconds.clone());
    }

    pub(super) fn worked(&self, name: &'static str, result: &'static str, took: Duration) {
        self.work.get_or_create(&Labels { name, result }).inc();
        self.work_seconds.get_or_create(&Name { name }).observe(took.as_secs_f64());
    }

    /// How many keys of a queue wait for a person. Every process that looks at the queue says the same.
    pub(super) fn parked(&self, name: &'static str, keys: u32) {
        self.parked.get_or_create(&Name { name }).set(i64::from(keys));
    }

    /// Of keys that were handled together: each took its part of the time.
    pub(super) fn worked_together(
        &self,
        name: &'static str,
        result: &'static str,
        keys: usize,
        took: Duration,
    ) {
        self.work.get_or_create(&Labels { name, result }).inc_by(keys as u64);
        self.work_together_seconds.get_or_create(&Name { name }).observe(took.as_secs_f64());
    }

    pub(super) fn passed(&self, name: &'static str, result: &'static str, took: Duration) {
        self.passes.get_or_create(&Labels { name, result }).inc();
        self.pass_seconds.get_or_create(&Name { name }).observe(took.as_secs_f64());
    }
}
