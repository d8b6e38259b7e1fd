//! The gateway: holds the nodes' sessions, sends what is stored for them and stores what they answer.
//!
//! ```text
//! TCP -> admission -> TLS 1.3 -> HTTP/2 -> Join, Renew -> an inbox, answered by a worker
//!                               -> two connections of a tunnel, joined
//!                                       -> Session -> core (no I/O) <-> hub -> DeliveryStore
//! ```
//! It knows no resource, holds no key that signs intent, and judges no report. The core of a session is `session`; `hub` holds
//! the sessions of one lease and makes one statement of what many of them have to say.

pub mod drive;
pub mod session;

mod admission;
mod body;
mod connection;
mod hub;
mod live;
mod metrics;
mod named;
mod nodes;
mod places;
mod server;
mod service;
mod stream;
mod threads;
mod time;
mod tunnels;

#[cfg(feature = "testing")]
pub mod conformance;
#[cfg(feature = "testing")]
pub mod memory;

pub use metrics::Metrics;
pub use server::{Gateway, GatewayConfig, GatewayParts, Timing, Tls};
pub use tunnels::TunnelParts;
