//! What a gateway counts. Registered once under `gateway_`.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use wire::proto::agent::{GatewayFrame, NodeFrame, gateway_frame, node_frame};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// From 1 ms to 8 s, doubling.
const LATENCY_BUCKETS: [f64; 14] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0];

/// Cheap to clone; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    sessions: Gauge,
    connections: Gauge,
    handshakes: Family<Kind, Counter>,
    frames_in: Family<Kind, Counter>,
    frames_out: Family<Kind, Counter>,
    ends: Family<Kind, Counter>,
    statements: Family<Kind, Counter>,
    dispatch: Histogram,
    tunnels: Gauge,
    tunnel_ends: Family<Kind, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            sessions: Gauge::default(),
            connections: Gauge::default(),
            handshakes: Family::default(),
            frames_in: Family::default(),
            frames_out: Family::default(),
            ends: Family::default(),
            statements: Family::default(),
            dispatch: Histogram::new(LATENCY_BUCKETS),
            tunnels: Gauge::default(),
            tunnel_ends: Family::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("gateway");
        registry.register("sessions", "Sessions held now", self.sessions.clone());
        registry.register("connections", "TCP connections held now", self.connections.clone());
        registry.register("handshakes", "TLS handshakes by outcome", self.handshakes.clone());
        registry.register("frames_in", "Frames from nodes by kind", self.frames_in.clone());
        registry.register("frames_out", "Frames to nodes by kind", self.frames_out.clone());
        registry.register("session_ends", "Sessions ended by reason", self.ends.clone());
        registry.register("store_calls", "Calls of the delivery store by kind", self.statements.clone());
        registry.register(
            "dispatch_seconds",
            "From a wake-up to the commands in their sessions",
            self.dispatch.clone(),
        );
        registry.register("tunnels", "Tunnels open now", self.tunnels.clone());
        registry.register("tunnel_ends", "Tunnels closed or refused by reason", self.tunnel_ends.clone());
    }

    pub(crate) fn session(&self, change: i64) {
        self.sessions.inc_by(change);
    }

    pub(crate) fn connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    pub(crate) fn handshake(&self, outcome: &'static str) {
        self.handshakes.get_or_create(&Kind { kind: outcome }).inc();
    }

    pub(crate) fn frame_in(&self, frame: &NodeFrame) {
        use node_frame::Frame as F;
        let kind = match &frame.frame {
            None => "unknown",
            Some(F::Hello(_)) => "hello",
            Some(F::Heartbeat(_)) => "heartbeat",
            Some(F::Status(_)) => "status",
            Some(F::CommandUpdate(_)) => "command_update",
            Some(F::Events(_)) => "events",
            Some(F::SpecRequest(_)) => "spec_request",
            Some(F::Inventory(_)) => "inventory",
            Some(F::TunnelRefused(_)) => "tunnel_refused",
            Some(F::SecretRequest(_)) => "secret_request",
        };
        self.frames_in.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn frame_out(&self, frame: &GatewayFrame) {
        use gateway_frame::Frame as F;
        let kind = match &frame.frame {
            None => "unknown",
            Some(F::Welcome(_)) => "welcome",
            Some(F::HeartbeatAck(_)) => "heartbeat_ack",
            Some(F::DesiredState(_)) => "desired_state",
            Some(F::Command(_)) => "command",
            Some(F::Cancel(_)) => "cancel",
            Some(F::Ack(_)) => "ack",
            Some(F::Drain(_)) => "drain",
            Some(F::Revocation(_)) => "revocation",
            Some(F::InventoryRequest(_)) => "inventory_request",
            Some(F::Refusal(_)) => "refusal",
            Some(F::OpenTunnel(_)) => "open_tunnel",
            Some(F::SecretAnswer(_)) => "secret_answer",
        };
        self.frames_out.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn end(&self, reason: &'static str) {
        self.ends.get_or_create(&Kind { kind: reason }).inc();
    }

    pub(crate) fn call(&self, kind: &'static str) {
        self.statements.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn tunnel(&self, change: i64) {
        self.tunnels.inc_by(change);
    }

    pub(crate) fn tunnel_end(&self, reason: &'static str) {
        self.tunnel_ends.get_or_create(&Kind { kind: reason }).inc();
    }

    pub(crate) fn dispatched(&self, took: Duration) {
        self.dispatch.observe(took.as_secs_f64());
    }
}
