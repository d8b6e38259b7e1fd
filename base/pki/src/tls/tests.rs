use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
};
use rustls_pki_types::ServerName;

use super::*;
use crate::ca::{CertificateAuthority, Validity};
use crate::identity::{NodeTrust, PeerIdentity};
use crate::testing::{at, authority, node_name, trust_domain};
use crate::{Pin, SeededEntropy};

const DAY: u64 = 86_400;

struct Lab {
    serving_ca: CertificateAuthority,
    node_ca: CertificateAuthority,
    /// Seconds after `at(0)` that both ends read.
    now: Arc<AtomicU64>,
}

impl Lab {
    fn new() -> Self {
        Self {
            serving_ca: authority("serving CA", 2),
            node_ca: authority("node CA", 1),
            now: Arc::new(AtomicU64::new(60)),
        }
    }

    fn clock(&self) -> TlsClock {
        let now = self.now.clone();
        TlsClock::new(move || at(now.load(Ordering::Relaxed)))
    }

    /// The gateway `gw.example.test`, its leaf from `ca` valid for 30 days, sending the CA too if `with_ca`.
    fn gateway_identity(ca: &CertificateAuthority, with_ca: bool) -> TlsIdentity {
        let entropy = SeededEntropy::new(11);
        let key = SigningKey::generate(&entropy);
        let validity = Validity::starting(at(0), Duration::from_secs(30 * DAY));
        let names = ["gw.example.test", "127.0.0.1"];
        let leaf = ca.issue_serving(&names, key.verifying_key(), validity, &entropy).unwrap();
        let mut chain = vec![leaf.der];
        if with_ca {
            chain.push(ca.certificate_der().to_vec());
        }
        TlsIdentity { chain, key }
    }

    fn server(&self, identity: &TlsIdentity) -> Arc<ServerConfig> {
        server_config(identity, &[self.node_ca.certificate_der()], self.clock()).unwrap()
    }

    fn node_identity(ca: &CertificateAuthority, issued: u64) -> TlsIdentity {
        let entropy = SeededEntropy::new(12);
        let key = SigningKey::generate(&entropy);
        let leaf = ca.issue_node(&node_name(1), key.verifying_key(), at(issued), &entropy).unwrap();
        TlsIdentity { chain: vec![leaf.der], key }
    }

    fn client_options(&self, identity: Option<TlsIdentity>) -> ClientOptions {
        ClientOptions {
            serving_ca_pins: vec![self.serving_ca.pin()],
            known_cas: vec![],
            identity,
            clock: self.clock(),
            protocol: ALPN_H2,
        }
    }

    fn client(&self, identity: Option<TlsIdentity>) -> Arc<ClientConfig> {
        client_config(&self.client_options(identity)).unwrap()
    }

    fn identify(&self, connection: &ServerConnection) -> Option<PeerIdentity> {
        let trust = NodeTrust::new(trust_domain(), &[self.node_ca.certificate_der()]).unwrap();
        peer_identity(connection, &trust, at(self.now.load(Ordering::Relaxed))).unwrap()
    }
}

/// Runs a handshake in memory, and one exchange of data, so that tickets sent after the handshake would arrive too.
fn connect(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), name)?;
    let mut server = ServerConnection::new(server.clone())?;
    // A full TLS 1.3 handshake takes three flights; ten rounds leave no doubt.
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        feed(&wire, |mut part| server.read_tls(&mut part).unwrap());
        server.process_new_packets()?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        feed(&wire, |mut part| client.read_tls(&mut part).unwrap());
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

fn feed(mut wire: &[u8], mut read: impl FnMut(&[u8]) -> usize) {
    while !wire.is_empty() {
        let taken = read(wire);
        wire = &wire[taken..];
    }
}

fn refused(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>, name: &str) -> rustls::Error {
    connect(client, server, name).map(|_| ()).expect_err("the handshake must fail")
}

#[test]
fn a_node_and_a_gateway_know_each_other() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    let client = lab.client(Some(Lab::node_identity(&lab.node_ca, 0)));
    for name in ["gw.example.test", "127.0.0.1"] {
        let (client, server) = connect(&client, &server, name).unwrap();
        assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        assert_eq!(client.alpn_protocol(), Some(ALPN_H2));
        assert_eq!(lab.identify(&server).unwrap().node_id, node_name(1).node_id);
    }
}

#[test]
fn a_joining_node_connects_without_a_certificate() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    let (_, server) = connect(&lab.client(None), &server, "gw.example.test").unwrap();
    assert_eq!(lab.identify(&server), None);
}

#[test]
fn a_known_ca_stands_in_for_one_not_sent_and_still_needs_its_pin() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, false));
    refused(&lab.client(None), &server, "gw.example.test");
    let mut options = lab.client_options(None);
    options.known_cas = vec![lab.serving_ca.certificate_der().to_vec()];
    connect(&client_config(&options).unwrap(), &server, "gw.example.test").unwrap();
    options.serving_ca_pins = vec![Pin::from_bytes([7; 32])];
    refused(&client_config(&options).unwrap(), &server, "gw.example.test");
}

#[test]
fn a_wrong_pin_is_refused() {
    let lab = Lab::new();
    let other = authority("serving CA", 3);
    let server = lab.server(&Lab::gateway_identity(&other, true));
    let error = refused(&lab.client(None), &server, "gw.example.test");
    assert_eq!(error, rustls::CertificateError::UnknownIssuer.into());
    let mut options = lab.client_options(None);
    options.serving_ca_pins.clear();
    assert!(matches!(client_config(&options), Err(TlsError::NoPin)));
}

#[test]
fn a_pinned_ca_beside_a_leaf_it_did_not_sign_is_refused() {
    let lab = Lab::new();
    let other = authority("serving CA", 3);
    let mut identity = Lab::gateway_identity(&other, false);
    identity.chain.push(lab.serving_ca.certificate_der().to_vec());
    refused(&lab.client(None), &lab.server(&identity), "gw.example.test");
}

#[test]
fn a_pinned_leaf_is_no_authority() {
    let lab = Lab::new();
    let identity = Lab::gateway_identity(&authority("serving CA", 3), true);
    let mut options = lab.client_options(None);
    options.serving_ca_pins = vec![identity.key.verifying_key().pin()];
    refused(&client_config(&options).unwrap(), &lab.server(&identity), "gw.example.test");
}

#[test]
fn a_wrong_name_is_refused() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    for name in ["other.example.test", "127.0.0.2"] {
        let error = refused(&lab.client(None), &server, name);
        assert!(
            matches!(
                error,
                rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForNameContext { .. })
            ),
            "{error:?}"
        );
    }
}

#[test]
fn an_expired_gateway_and_an_expired_authority_are_refused() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    for seconds in [31 * DAY, 20 * 365 * DAY] {
        lab.now.store(seconds, Ordering::Relaxed);
        let error = refused(&lab.client(None), &server, "gw.example.test");
        assert!(
            matches!(
                error,
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::Expired | rustls::CertificateError::ExpiredContext { .. }
                )
            ),
            "{error:?}"
        );
    }
}

#[test]
fn a_node_certificate_is_not_a_gateway() {
    let lab = Lab::new();
    let mut identity = Lab::node_identity(&lab.serving_ca, 0);
    identity.chain.push(lab.serving_ca.certificate_der().to_vec());
    refused(&lab.client(None), &lab.server(&identity), "gw.example.test");
}

#[test]
fn a_client_certificate_of_another_ca_or_expired_fails_the_handshake() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    let strange = lab.client(Some(Lab::node_identity(&authority("node CA", 9), 0)));
    refused(&strange, &server, "gw.example.test");
    let good = lab.client(Some(Lab::node_identity(&lab.node_ca, 0)));
    connect(&good, &server, "gw.example.test").unwrap();
    lab.now.store(2 * DAY, Ordering::Relaxed);
    refused(&good, &server, "gw.example.test");
}

#[test]
fn a_gateways_certificate_is_not_a_nodes_whoever_issued_it() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    let client = lab.client(Some(Lab::gateway_identity(&lab.node_ca, false)));
    refused(&client, &server, "gw.example.test");
}

#[test]
fn tls_1_2_is_refused_by_both_ends() {
    let lab = Lab::new();
    let identity = Lab::gateway_identity(&lab.serving_ca, true);
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let (chain, key) = identity.parts();
    let old_server = ServerConfig::builder_with_details(provider(), Arc::new(lab.clock()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    refused(&lab.client(None), &Arc::new(old_server), "gw.example.test");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(lab.serving_ca.certificate_der().to_vec().into()).unwrap();
    let old_client = ClientConfig::builder_with_details(provider(), Arc::new(lab.clock()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    refused(&Arc::new(old_client), &lab.server(&identity), "gw.example.test");
}

/// The client here resumes whenever it can: only the server's configuration keeps it from it.
#[test]
fn a_second_connection_is_never_resumed() {
    let lab = Lab::new();
    let server = lab.server(&Lab::gateway_identity(&lab.serving_ca, true));
    let mut eager = (*lab.client(Some(Lab::node_identity(&lab.node_ca, 0)))).clone();
    eager.resumption = rustls::client::Resumption::in_memory_sessions(32);
    let eager = Arc::new(eager);
    for attempt in 0..3 {
        let (client, server) = connect(&eager, &server, "gw.example.test").unwrap();
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full), "attempt {attempt}");
        assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full), "attempt {attempt}");
        assert!(lab.identify(&server).is_some());
    }
    // The same client against a server that sends tickets does resume, so the check above can fail.
    let mut lax = (*server).clone();
    lax.send_tls13_tickets = 2;
    lax.session_storage = rustls::server::ServerSessionMemoryCache::new(32);
    let lax = Arc::new(lax);
    connect(&eager, &lax, "gw.example.test").unwrap();
    let (client, _) = connect(&eager, &lax, "gw.example.test").unwrap();
    assert_eq!(client.handshake_kind(), Some(HandshakeKind::Resumed));
}

#[test]
fn the_ends_of_a_tunnel_know_each_other_by_their_keys_alone() {
    let entropy = SeededEntropy::new(9);
    let [node, client, other] = [(); 3].map(|()| SigningKey::generate(&entropy));
    let pin = |key: &SigningKey| key.verifying_key().pin();
    let at_node = end_server(&node, pin(&client)).unwrap();
    let of_client = |key: &SigningKey, nodes| end_client(key, nodes).unwrap();
    // Also while the node's key is being renewed.
    let nodes = vec![pin(&other), pin(&node)];
    let (connection, _) = connect(&of_client(&client, nodes), &at_node, "node").unwrap();
    assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(connection.peer_certificates().unwrap()[0].as_ref(), node.verifying_key().spki_der());
    // A gateway that stands between them has neither key.
    refused(&of_client(&other, vec![pin(&node)]), &at_node, "node");
    refused(&of_client(&client, vec![pin(&other)]), &at_node, "node");
    refused(&of_client(&client, vec![pin(&node)]), &end_server(&other, pin(&client)).unwrap(), "node");
    assert!(matches!(end_client(&client, Vec::new()), Err(TlsError::NoPin)));
}
