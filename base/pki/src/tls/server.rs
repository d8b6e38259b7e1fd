//! The gateway's side.

use std::sync::Arc;

use model::Timestamp;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::CertificateDer;

use super::{ALPN_H2, TlsClock, TlsError, TlsIdentity, provider};
use crate::identity::{IdentityRefused, NodeTrust, PeerIdentity};

/// A gateway's configuration. A client certificate is optional, because a node that joins has none yet; one that is
/// given must chain to a node CA. After accepting, ask `peer_identity`, then the revocations.
pub fn server_config<D: AsRef<[u8]>>(
    identity: &TlsIdentity,
    node_cas: &[D],
    clock: TlsClock,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for der in node_cas {
        roots.add(CertificateDer::from(der.as_ref())).map_err(TlsError::NodeCa)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| match error {
            VerifierBuilderError::NoRootAnchors => TlsError::NoNodeCa,
            other => TlsError::NodeCa(rustls::Error::General(other.to_string())),
        })?;
    let (chain, key) = identity.parts();
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(clock))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Provider)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Identity)?;
    // Resumption skips the client certificate: no tickets, no stored sessions, no early data.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    Ok(Arc::new(config))
}

/// Who the client is: `None` when it gave no certificate. To be asked after the handshake of every connection.
pub fn peer_identity(
    connection: &ServerConnection,
    trust: &NodeTrust,
    at: Timestamp,
) -> Result<Option<PeerIdentity>, IdentityRefused> {
    match connection.peer_certificates() {
        None | Some([]) => Ok(None),
        Some([leaf, ..]) => PeerIdentity::from_certificate_der(leaf, trust, at).map(Some),
    }
}
