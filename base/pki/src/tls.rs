//! TLS between nodes and gateways: TLS 1.3 only, P-256 certificates of our own CAs, never the system's roots, and never
//! a resumed session, because resumption skips the certificate check and would let a revoked node back in.
//!
//! The two ends of a tunnel speak TLS too, by themselves, through a gateway that can neither read nor change what they say:
//! each knows the other's key beforehand, and no certificate is asked for (RFC 7250).
//!
//! The clock is an argument like everywhere. The handshake's own randomness is the provider's (ring): rustls offers no
//! other way, and nothing outside the handshake depends on it.

use std::fmt;
use std::sync::Arc;

use model::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};

use crate::key::SigningKey;

mod client;
mod ends;
mod server;

pub use client::{ClientOptions, client_config};
pub use ends::{end_client, end_server};
pub use server::{peer_identity, server_config};

/// What gRPC speaks.
pub const ALPN_H2: &[u8] = b"h2";
/// What ends of tunnels speak to a gateway.
pub const ALPN_TUNNEL: &[u8] = b"bct/1";
/// A leaf, and room for an authority above it and one being rotated in.
pub const CHAIN_CERTIFICATES_MAX: usize = 4;

/// A TLS configuration could not be made from its parts.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("set up TLS: the certificate and the key do not go together")]
    Identity(#[source] rustls::Error),
    #[error("set up TLS: a node CA certificate is not a self-signed P-256 authority")]
    NodeCa,
    #[error("set up TLS: no node CA is given to verify clients with")]
    NoNodeCa,
    #[error("set up TLS: no pin is given to verify the server with")]
    NoPin,
    #[error("set up TLS: the provider does not offer TLS 1.3")]
    Provider(#[source] rustls::Error),
}

/// Tells the handshake what time it is.
#[derive(Clone)]
pub struct TlsClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl TlsClock {
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }
}

impl fmt::Debug for TlsClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClock")
    }
}

impl TimeProvider for TlsClock {
    fn current_time(&self) -> Option<UnixTime> {
        // Before 1970 there is no such time, and the handshake fails rather than guess.
        let seconds = u64::try_from(crate::x509::seconds((self.0)())).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

/// A certificate chain, leaf first, with the leaf's key.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    pub chain: Vec<Vec<u8>>,
    pub key: SigningKey,
}

impl TlsIdentity {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = self.chain.iter().map(|der| CertificateDer::from(der.clone())).collect();
        let key = PrivatePkcs8KeyDer::from(self.key.to_pkcs8_der().to_vec());
        (chain, key.into())
    }
}

/// AES-128 first: it is as strong as P-256 is, and processors have instructions for the SHA-256 beside it where SHA-384 takes a tenth of
/// a handshake.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

#[cfg(test)]
mod tests;
