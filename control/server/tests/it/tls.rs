use std::sync::Arc;
use std::time::Duration;

use kernel::CallLimits;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::world::{World, config};

fn write_pair(dir: &std::path::Path) -> CertificateDer<'static> {
    let pair = rcgen::generate_simple_self_signed(vec!["api.example.test".to_owned()]).unwrap();
    std::fs::write(dir.join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), pair.cert.pem()).unwrap();
    pair.cert.der().clone()
}

/// Asks for `/healthz` over TLS, trusting one certificate.
async fn healthz(world: &World, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("api.example.test").unwrap();
    let socket = TcpStream::connect(world.address()).await?;
    let mut tls = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    tls.write_all(b"GET /healthz HTTP/1.1\r\nhost: api.example.test\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    tls.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_pair(dir.path());
    let config = config().with_tls(dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let world = World::with(config, CallLimits::default()).await;
    assert!(world.server.url().starts_with("https://"));
    assert!(healthz(&world, &first).await.unwrap().starts_with("HTTP/1.1 200"));

    // Half a pair does not fit: the one before stays in use.
    std::fs::write(dir.path().join("cert.pem"), "no certificate").unwrap();
    assert!(healthz(&world, &first).await.unwrap().starts_with("HTTP/1.1 200"));

    let second = write_pair(dir.path());
    let answer = testkit::eventually(Duration::from_secs(15), || async {
        healthz(&world, &second).await.map_err(|err| err.to_string())
    })
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"));
    assert!(healthz(&world, &first).await.is_err(), "the first certificate is not shown any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_not_spoken_where_tls_is() {
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path());
    let config = config().with_tls(dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let world = World::with(config, CallLimits::default()).await;
    let mut socket = TcpStream::connect(world.address()).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}
