//! Counters and times per operation and per statement.

use std::time::Duration;

use deadpool_postgres::Pool;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// From a cached read over a unix socket to the default statement timeout.
const BUCKETS_SECONDS: [f64; 12] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpResultLabel {
    op: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementLabel {
    statement: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementErrorLabel {
    statement: &'static str,
    kind: &'static str,
}

#[derive(Clone)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS_SECONDS)
    }
}

type Times<L> = Family<L, Histogram, Buckets>;

/// Reads the pool when it is asked.
#[derive(Debug)]
struct PoolCollector(Pool);

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = self.0.status();
        for (name, help, value) in [
            ("pool_open", "Connections open", status.size),
            ("pool_idle", "Connections nobody uses", status.available),
            ("pool_waiting", "Callers waiting for a connection", status.waiting),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Metrics {
    op_seconds: Times<OpLabel>,
    ops: Family<OpResultLabel, Counter>,
    op_retries: Family<OpLabel, Counter>,
    statement_seconds: Times<StatementLabel>,
    statement_errors: Family<StatementErrorLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            op_seconds: Family::new_with_constructor(Buckets),
            ops: Family::default(),
            op_retries: Family::default(),
            statement_seconds: Family::new_with_constructor(Buckets),
            statement_errors: Family::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry, pool: Pool) {
        let registry = registry.sub_registry_with_prefix("store");
        registry.register("op_seconds", "Time of a transaction with its retries", self.op_seconds.clone());
        registry.register("ops", "Transactions by result", self.ops.clone());
        registry.register("op_retries", "Transactions run again", self.op_retries.clone());
        registry.register("statement_seconds", "Time of a statement", self.statement_seconds.clone());
        registry.register("statement_errors", "Failed statements by kind", self.statement_errors.clone());
        registry.register_collector(Box::new(PoolCollector(pool)));
    }

    pub(crate) fn op_done(&self, op: &'static str, result: &'static str, took: Duration) {
        self.op_seconds.get_or_create(&OpLabel { op }).observe(took.as_secs_f64());
        self.ops.get_or_create(&OpResultLabel { op, result }).inc();
    }

    pub(crate) fn op_retried(&self, op: &'static str) {
        self.op_retries.get_or_create(&OpLabel { op }).inc();
    }

    pub(crate) fn statement_done(&self, statement: &'static str, took: Duration) {
        self.statement_seconds.get_or_create(&StatementLabel { statement }).observe(took.as_secs_f64());
    }

    pub(crate) fn statement_failed(&self, statement: &'static str, kind: &'static str) {
        self.statement_errors.get_or_create(&StatementErrorLabel { statement, kind }).inc();
    }
}
