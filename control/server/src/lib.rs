//! The HTTP front: routes from the method table, the event stream, health and metrics.
//!
//! ```text
//! accept -> TLS -> client's address -> route -> caller -> body -> kernel::Pipeline -> JSON
//!                                        +----> event stream
//! ```
//!
//! Nothing here knows a resource. What a request means, and whether it may, is the pipeline's.

mod address;
mod answer;
mod bodies;
mod content;
mod health;
mod metrics;
mod ops;
mod routes;
mod serve;
mod stream;
mod tail;
mod tls;
mod vitals;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kernel::Pipeline;
use kernel::events::EventReader;
use kernel::run::Running;
use prometheus_client::registry::Registry;
use serde_json::Value;

pub use address::{Cidr, CidrError};
pub use ops::{OpsConfig, serve_ops};
pub use serve::{Server, ServerError};
pub use tls::{TlsError, TlsFiles};
pub use vitals::Vitals;

/// Adds the metrics of another part of the process to what `/metrics` shows.
pub type RegisterMetrics = Arc<dyn Fn(&mut Registry) + Send + Sync>;
/// Why another part of the process cannot do its work, if it cannot.
pub type ReadyCheck = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Other parts of the process, as far as this one speaks for them.
#[derive(Clone, Default)]
pub struct Parts {
    pub metrics: Vec<RegisterMetrics>,
    pub ready: Vec<ReadyCheck>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parts({} metrics, {} ready checks)", self.metrics.len(), self.ready.len())
    }
}

/// How the API is reached.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Terminates TLS here. The files are read again when they change.
    pub tls: Option<TlsFiles>,
    /// Proxies whose `X-Forwarded-For` is believed. They terminate TLS where `tls` is absent.
    pub trusted_proxies: Vec<Cidr>,
    /// Who may read `/metrics`, beside the machine itself.
    pub metrics_from: Vec<Cidr>,
    /// How long one call may take. Above the longest `wait`, 30 s.
    pub deadline: Duration,
    /// A client of the event stream that takes nothing for this long is cut; it resumes where it was.
    pub slow_after: Duration,
    /// What `/.well-known/better-compute` answers: the gateway's address and the pins a machine joins with.
    pub discovery: Value,
    pub parts: Parts,
}

impl ServerConfig {
    /// Plain HTTP on this address, which must be of the loopback interface.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            trusted_proxies: Vec::new(),
            metrics_from: Vec::new(),
            deadline: Duration::from_secs(40),
            slow_after: Duration::from_secs(30),
            discovery: Value::Object(serde_json::Map::new()),
            parts: Parts::default(),
        }
    }

    /// Whether a peer may speak plain HTTP: where TLS is not terminated here, only the machine itself and the proxies that
    /// terminate it may, since anybody else's token would cross the network in the clear.
    pub(crate) fn takes_plain(&self, peer: IpAddr) -> bool {
        let peer = address::canonical(peer);
        peer.is_loopback() || self.trusted_proxies.iter().any(|block| block.contains(peer))
    }

    /// TLS with this certificate chain and key, both PEM.
    pub fn with_tls(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some(TlsFiles { certificates: certificates.into(), key: key.into() });
        self
    }
}

/// What every request is served from.
struct Shared {
    pipeline: Arc<Pipeline>,
    running: Running,
    reader: EventReader,
    tail: tail::Tail,
    vitals: Arc<Vitals>,
    config: ServerConfig,
    openapi: bytes::Bytes,
    discovery: bytes::Bytes,
    streams: stream::Streams,
    bodies: bodies::Bodies,
    contents: content::Places,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_the_machine_itself_and_its_proxies() {
        let mut config = ServerConfig::new("0.0.0.0:8080".parse().expect("an address"));
        config.trusted_proxies = vec!["10.0.0.0/24".parse().expect("a block")];
        for (peer, taken) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.7", true),
            ("10.0.1.7", false),
            ("203.0.113.9", false),
        ] {
            assert_eq!(config.takes_plain(peer.parse().expect("an address")), taken, "{peer}");
        }
    }
}
