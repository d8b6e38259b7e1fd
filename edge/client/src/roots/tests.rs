use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use kit::{ManualClock, SeededRng};
use model::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;

use crate::{Client, ClientError, Config};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names are fine");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("ring makes keys");
        Authority(CertifiedIssuer::self_signed(params, key).expect("it signs itself"))
    }

    /// A server for `localhost` that answers one request and ends.
    fn serve(&self) -> (String, std::thread::JoinHandle<()>) {
        let key = KeyPair::generate().expect("ring makes keys");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
        let certificate = params.signed_by(&key, &self.0).expect("the authority signs");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .expect("they belong together");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let thread = std::thread::spawn(move || {
            let (socket, _) = listener.accept().expect("somebody connects");
            let session =
                rustls::ServerConnection::new(Arc::new(config)).expect("the configuration is sound");
            let mut stream = rustls::StreamOwned::new(session, socket);
            let mut request = [0; 4096];
            // A client that does not trust us leaves during the handshake.
            if stream.read(&mut request).is_ok_and(|read| read > 0) {
                let body = "{\"items\":[]}";
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).and_then(|()| stream.flush());
            }
        });
        (format!("https://localhost:{port}"), thread)
    }
}

async fn call(server: &Authority, trusted: &Authority) -> Result<serde_json::Value, ClientError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ca_file = folder.path().join("ca.pem");
    std::fs::write(&ca_file, trusted.0.pem()).expect("it can be written");
    let (url, thread) = server.serve();
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    let client = Client::new(Config::new(url).ca_file(&ca_file), clock, Arc::new(SeededRng::new(1)));
    let row = api::find("nodes.list").expect("it is in the table");
    let answer = client.expect("the file holds an authority").call_value(row, json!({})).await;
    thread.join().expect("the server ends");
    answer
}

#[tokio::test]
async fn a_server_of_the_named_authority_is_trusted() {
    let authority = Authority::new();
    let answer = call(&authority, &authority).await;
    assert_eq!(answer.expect("it is trusted"), json!({"items": []}));
}

#[tokio::test]
async fn a_server_of_another_authority_gets_no_request() {
    let error = call(&Authority::new(), &Authority::new()).await.expect_err("it is not trusted");
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error:?}");
    assert!(kit::chain(&error).contains("invalid peer certificate"), "{}", kit::chain(&error));
}
