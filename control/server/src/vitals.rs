//! What a process says of itself: whether it can do its work, and what it counted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use kernel::run::Running;
use serde_json::json;

use crate::answer::{json, plain};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::{Cidr, Parts};

const TEXT: &str = "text/plain; charset=utf-8";

/// Shared by every listener that shows it.
pub struct Vitals {
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
}

impl Vitals {
    /// Of a process without the API.
    pub fn new(running: &Running, parts: &Parts) -> Arc<Self> {
        Self::with(running, parts, Metrics::without_api(running, parts))
    }

    pub(crate) fn of_api(running: &Running, parts: &Parts) -> Arc<Self> {
        Self::with(running, parts, Metrics::new(running, parts))
    }

    fn with(running: &Running, parts: &Parts, metrics: Metrics) -> Arc<Self> {
        let health = Health::new(running.store.clone(), running.clock.clone(), parts.ready.clone());
        Arc::new(Self { health, metrics })
    }

    pub(crate) async fn readyz(&self) -> Response {
        match self.health.ready().await {
            Ok(()) => plain(StatusCode::OK, TEXT, "ready\n"),
            Err(why) => {
                json(StatusCode::SERVICE_UNAVAILABLE, json!({"ready": false, "reason": why}).to_string())
            }
        }
    }

    pub(crate) fn metrics(&self) -> Response {
        let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        plain(StatusCode::OK, content_type, self.metrics.text())
    }
}

/// The process runs.
pub(crate) fn healthy() -> Response {
    plain(StatusCode::OK, TEXT, "ok\n")
}

/// Whether an address may read `/metrics`: the machine itself, and who is named.
pub(crate) fn may_read(source_ip: IpAddr, metrics_from: &[Cidr]) -> bool {
    source_ip.is_loopback() || metrics_from.iter().any(|block| block.contains(source_ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_for_the_machine_itself_and_who_is_named() {
        let named = ["10.0.0.0/24".parse().expect("a block")];
        for (peer, allowed) in [("127.0.0.1", true), ("::1", true), ("10.0.0.9", true), ("10.0.1.9", false)] {
            assert_eq!(may_read(peer.parse().expect("an address"), &named), allowed, "{peer}");
        }
    }
}
