//! An https server for tests: each connection is one request, answered with the bytes that its turn has.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// What is said to a request, and with that the connection ends.
pub(super) type Answer = Vec<u8>;

pub(super) struct Server {
    dir: TempDir,
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// For these names and addresses, with answers one after the other; the last one is what all others get too.
pub(super) async fn serve(names: &[&str], answers: Vec<Answer>) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(dir.path().join("ca.pem"), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let serving = async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Whoever comes without a request has no turn.
            let _ = answer(&acceptor, stream, &answers, &seen).await;
        }
    };
    let serving = tokio::runtime::Handle::current().spawn(serving);
    Server { dir, port, requests, serving }
}

async fn answer(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    answers: &[Answer],
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n") {
        got.push(stream.read_u8().await?);
    }
    let turn = {
        let mut seen = seen.lock().unwrap();
        seen.push(String::from_utf8(got).unwrap().to_ascii_lowercase());
        seen.len() - 1
    };
    stream.write_all(&answers[turn.min(answers.len() - 1)]).await?;
    stream.shutdown().await
}

impl Server {
    pub fn authorities(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub fn url(&self, host: &str, rest: &str) -> String {
        format!("https://{host}:{}/{rest}", self.port)
    }

    /// What was asked, in small letters.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// From where each request would have the file.
    pub fn offsets(&self) -> Vec<u64> {
        let offset = |request: &String| {
            let (_, rest) = request.split_once("range: bytes=").unwrap_or(("", "0-"));
            rest.split_once('-').unwrap().0.parse().unwrap()
        };
        self.requests().iter().map(offset).collect()
    }
}

/// An answer with headers and a body; its length is among the headers unless they say otherwise.
pub(super) fn said(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut head = format!("HTTP/1.1 {status} So\r\nconnection: close\r\n");
    let sized = ["content-length", "transfer-encoding"];
    if !headers.iter().any(|(name, _)| sized.contains(name)) {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// From one byte of a file to its end, of which so many bytes come.
pub(super) fn part(file: &[u8], from: usize, come: usize) -> Answer {
    let length = (file.len() - from).to_string();
    let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
    let headers = [("content-range", range.as_str()), ("content-length", length.as_str())];
    said(206, &headers, &file[from..from + come])
}

/// The whole file, of which so many bytes come.
pub(super) fn whole(file: &[u8], come: usize) -> Answer {
    said(200, &[("content-length", &file.len().to_string())], &file[..come])
}

pub(super) fn moved(to: &str) -> Answer {
    said(302, &[("location", to)], b"")
}
