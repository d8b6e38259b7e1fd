//! The agent's side.

use std::sync::Arc;

use model::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{CHAIN_CERTIFICATES_MAX, TlsClock, TlsError, TlsIdentity, provider};
use crate::ca::RootCertificate;
use crate::key::Pin;

/// Whom an agent talks to, and as whom.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// SPKI pins of serving CAs, self-signed P-256 authorities as `ca` makes them. A chain must end in one of them; no
    /// other root counts.
    pub serving_ca_pins: Vec<Pin>,
    /// Serving CA certificates (DER) already held, for gateways that send only their leaf. A pin decides all the same.
    pub known_cas: Vec<Vec<u8>>,
    /// The node certificate, once there is one.
    pub identity: Option<TlsIdentity>,
    pub clock: TlsClock,
    /// [`super::ALPN_H2`] or [`super::ALPN_TUNNEL`].
    pub protocol: &'static [u8],
}

/// An agent's configuration: the server's chain must end in a pinned CA, be valid now and carry the name asked for.
pub fn client_config(options: &ClientOptions) -> Result<Arc<ClientConfig>, TlsError> {
    if options.serving_ca_pins.is_empty() {
        return Err(TlsError::NoPin);
    }
    let provider = provider();
    let verifier = PinnedServerVerifier {
        pins: options.serving_ca_pins.clone(),
        known_cas: options.known_cas.iter().map(|der| CertificateDer::from(der.clone())).collect(),
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_details(provider, Arc::new(options.clock.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Provider)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &options.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.parts();
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Identity)?
        }
    };
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.alpn_protocols = vec![options.protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Takes a CA from the chain (or those held) only by its pin, then lets webpki build and check the path to it.
#[derive(Debug)]
struct PinnedServerVerifier {
    pins: Vec<Pin>,
    known_cas: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedServerVerifier {
    /// The pinned authorities among the certificates at hand. webpki takes a trust anchor as given, so that it is an
    /// authority and still valid is checked here.
    fn anchors(&self, presented: &[CertificateDer<'_>], now: UnixTime) -> Result<RootCertStore, Error> {
        let at = Timestamp::from_millis(i64::try_from(now.as_secs()).unwrap_or(i64::MAX / 1000) * 1000);
        let mut anchors = RootCertStore::empty();
        let mut expired = false;
        for der in presented.iter().chain(&self.known_cas) {
            let Some(root) = RootCertificate::parse(der) else { continue };
            if !self.pins.contains(&root.key.pin()) {
                continue;
            }
            if root.is_valid_at(at) {
                anchors.add(der.clone())?;
            } else {
                expired = true;
            }
        }
        match (anchors.is_empty(), expired) {
            (false, _) => Ok(anchors),
            (true, true) => Err(CertificateError::Expired.into()),
            (true, false) => Err(CertificateError::UnknownIssuer.into()),
        }
    }
}

impl ServerCertVerifier for PinnedServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if intermediates.len() >= CHAIN_CERTIFICATES_MAX {
            return Err(CertificateError::BadEncoding.into());
        }
        let anchors = self.anchors(intermediates, now)?;
        let leaf = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&leaf, &anchors, intermediates, now, self.algorithms.all)?;
        verify_server_name(&leaf, server_name)?;
        Ok(ServerCertVerified::assertion())
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
