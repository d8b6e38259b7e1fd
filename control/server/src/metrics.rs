//! What is counted. Labels are method names, error codes and routes of ours, so their number is known.

use std::time::Duration;

use kernel::Answer;
use kernel::run::Running;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// From a read on this machine to the longest wait.
const BUCKETS_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 40.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodCode {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: &'static str,
}

#[derive(Clone)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS_SECONDS)
    }
}

pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<MethodCode, Counter>,
    call_seconds: Family<Method, Histogram, Buckets>,
    pub(crate) connections: Gauge,
    pub(crate) streams: Gauge,
    pub(crate) streams_cut: Counter,
}

impl Metrics {
    /// Of a process that takes no calls.
    pub(crate) fn without_api(running: &Running, others: &crate::Parts) -> Self {
        let mut registry = Registry::with_prefix("better_compute");
        for register in &others.metrics {
            register(&mut registry);
        }
        running.store.register_metrics(&mut registry);
        running.register_metrics(&mut registry);
        Self {
            registry,
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(Buckets),
            connections: Gauge::default(),
            streams: Gauge::default(),
            streams_cut: Counter::default(),
        }
    }

    pub(crate) fn new(running: &Running, others: &crate::Parts) -> Self {
        let mut metrics = Self::without_api(running, others);
        let api = metrics.registry.sub_registry_with_prefix("api");
        api.register("calls", "Calls by method and outcome", metrics.calls.clone());
        api.register("call_seconds", "Time of a call, its wait included", metrics.call_seconds.clone());
        api.register("connections", "Open connections", metrics.connections.clone());
        api.register("event_streams", "Open event streams", metrics.streams.clone());
        api.register(
            "event_streams_cut",
            "Event streams ended because the client was slow",
            metrics.streams_cut.clone(),
        );
        metrics
    }

    pub(crate) fn called(&self, answer: &Answer) {
        let method = answer.method.unwrap_or("none");
        let code = answer.code.map_or("OK", model::ErrorCode::name);
        self.calls.get_or_create(&MethodCode { method, code }).inc();
        self.observe(method, answer.took);
    }

    fn observe(&self, method: &'static str, took: Duration) {
        self.call_seconds.get_or_create(&Method { method }).observe(took.as_secs_f64());
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string does not fail");
        text
    }
}
