//! The gateway's side.

use std::sync::Arc;

use model::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, ServerConnection,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{ALPN_H2, ALPN_TUNNEL, CHAIN_CERTIFICATES_MAX, TlsClock, TlsError, TlsIdentity, provider};
use crate::ca::RootCertificate;
use crate::identity::{IdentityRefused, NodeTrust, PeerIdentity, verify_issued};

/// A gateway's configuration. A client certificate is optional, because a node that joins has none yet; one that is
/// given must be issued by a node CA itself. After accepting, ask `peer_identity`, then the revocations.
pub fn server_config<D: AsRef<[u8]>>(
    identity: &TlsIdentity,
    node_cas: &[D],
    clock: TlsClock,
) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = Arc::new(NodeVerifier::new(node_cas)?);
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
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_TUNNEL.to_vec()];
    Ok(Arc::new(config))
}

/// Who the client is: `None` when it gave no certificate. To be asked after the handshake of every connection, which has to be one
/// under a [`server_config`] of the same node CAs: that has checked who issued the certificate.
pub fn peer_identity(
    connection: &ServerConnection,
    trust: &NodeTrust,
    at: Timestamp,
) -> Result<Option<PeerIdentity>, IdentityRefused> {
    match connection.peer_certificates() {
        None | Some([]) => Ok(None),
        Some([leaf, ..]) => PeerIdentity::of_verified(leaf, trust, at).map(Some),
    }
}

/// Takes what a node CA issued itself, and nothing that a standard would allow beyond that. A fleet that comes back has one signature
/// of its certificates checked each, here, and not a second time for its names.
#[derive(Debug)]
struct NodeVerifier {
    roots: Vec<RootCertificate>,
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl NodeVerifier {
    fn new<D: AsRef<[u8]>>(node_cas: &[D]) -> Result<Self, TlsError> {
        let read = |der: &D| RootCertificate::parse(der.as_ref()).ok_or(TlsError::NodeCa);
        let roots = node_cas.iter().map(read).collect::<Result<Vec<RootCertificate>, _>>()?;
        if roots.is_empty() {
            return Err(TlsError::NoNodeCa);
        }
        let hints = roots.iter().map(|root| DistinguishedName::from(root.subject.clone())).collect();
        Ok(Self { roots, hints, algorithms: provider().signature_verification_algorithms })
    }
}

impl ClientCertVerifier for NodeVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() >= CHAIN_CERTIFICATES_MAX {
            return Err(CertificateError::BadEncoding.into());
        }
        let at = Timestamp::from_millis(i64::try_from(now.as_secs()).unwrap_or(i64::MAX / 1000) * 1000);
        match verify_issued(end_entity, &self.roots, at) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(IdentityRefused::Malformed) => Err(CertificateError::BadEncoding.into()),
            Err(IdentityRefused::Issuer) => Err(CertificateError::UnknownIssuer.into()),
            Err(IdentityRefused::Validity) => Err(CertificateError::Expired.into()),
            Err(IdentityRefused::Usage) => Err(CertificateError::InvalidPurpose.into()),
            Err(
                IdentityRefused::Key
                | IdentityRefused::Serial
                | IdentityRefused::Authority
                | IdentityRefused::Name
                | IdentityRefused::TrustDomain
                | IdentityRefused::Extension,
            ) => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Never reached: the configuration offers TLS 1.3 alone.
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
