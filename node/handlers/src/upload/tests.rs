use std::sync::Arc;

use kit::SystemClock;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;

/// An HTTPS server that takes one request and answers as told; `None` stops reading instead.
struct Storage {
    _dir: TempDir,
    url: String,
    upload: HttpsUpload,
    server: JoinHandle<Vec<u8>>,
}

async fn storage(answer: Option<&'static str>) -> Storage {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let bundle = dir.path().join("ca.pem");
    std::fs::write(&bundle, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let supervised = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else {
            return Vec::new();
        };
        let mut got = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let head = got.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
            let length = head.map_or(usize::MAX, |head| head + content_length(&got[..head]));
            if got.len() >= length {
                break;
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return got,
                Ok(len) => got.extend_from_slice(&buffer[..len]),
            }
        }
        match answer {
            Some(answer) => {
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
            None => std::future::pending().await,
        }
        got
    };
    let runtime = tokio::runtime::Handle::current();
    Storage {
        _dir: dir,
        url: format!("https://localhost:{port}/bucket/bundle?X-Amz-Signature=s3cr3t"),
        upload: HttpsUpload::new(Arc::new(SystemClock::new()), Some(bundle)),
        server: runtime.spawn(supervised),
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap()
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_bundle_arrives_whole_with_its_length() {
    let storage = storage(Some(OK)).await;
    let body: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
    let destination = storage.upload.destination(&storage.url).unwrap();
    storage.upload.put(destination, body.clone().into()).await.unwrap();
    let got = storage.server.await.unwrap();
    let head = got.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let text = String::from_utf8_lossy(&got[..head]).to_ascii_lowercase();
    assert!(text.starts_with("put /bucket/bundle?x-amz-signature=s3cr3t http/1.1"), "{text}");
    assert!(!text.contains("transfer-encoding"), "{text}");
    assert_eq!(&got[head..], body);
}

#[tokio::test]
async fn a_refusal_is_told_by_its_status_and_never_by_the_url() {
    let storage =
        storage(Some("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")).await;
    let destination = storage.upload.destination(&storage.url).unwrap();
    assert!(!format!("{destination:?}").contains("s3cr3t"));
    let error = storage.upload.put(destination, "x".into()).await.unwrap_err();
    assert_eq!(kit::chain(&error), "upload: the storage answered 403");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let moved = "HTTP/1.1 307 Moved\r\nlocation: https://elsewhere.example/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let storage = storage(Some(moved)).await;
    let destination = storage.upload.destination(&storage.url).unwrap();
    let error = storage.upload.put(destination, "x".into()).await.unwrap_err();
    assert!(matches!(error, UploadError::Status { status: 307 }), "{error}");
}

#[tokio::test]
async fn an_authority_nobody_trusts_is_refused_without_the_url() {
    let storage = storage(Some(OK)).await;
    let other = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let bundle = other.path().join("ca.pem");
    std::fs::write(&bundle, made.cert.pem()).unwrap();
    let upload = HttpsUpload::new(Arc::new(SystemClock::new()), Some(bundle));
    let error = upload.put(upload.destination(&storage.url).unwrap(), "x".into()).await.unwrap_err();
    let text = kit::chain(&error);
    assert!(matches!(error, UploadError::Http(_)) && !text.contains("s3cr3t"), "{text}");
}

/// A clock whose sleeps end at once: a storage that does not answer is given up without a wait.
struct Impatient(SystemClock);

impl Clock for Impatient {
    fn now(&self) -> model::Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // The total limit must not win over the stall it is there to back up.
        self.0.sleep(if duration == TOTAL_LIMIT { duration } else { Duration::from_millis(300) })
    }
}

#[tokio::test]
async fn a_storage_that_goes_silent_is_given_up() {
    let mut storage = storage(None).await;
    storage.upload.clock = Arc::new(Impatient(SystemClock::new()));
    let destination = storage.upload.destination(&storage.url).unwrap();
    let error = storage.upload.put(destination, vec![7; 100_000].into()).await.unwrap_err();
    assert!(matches!(error, UploadError::Stalled), "{error}");
    storage.server.abort();
}

#[test]
fn only_a_plain_https_url_is_a_destination() {
    assert!(destination("https://storage.example/bucket/key?sig=x").is_ok());
    for bad in [
        "http://storage.example/",
        "https://user:password@storage.example/",
        "https://",
        "file:///etc/shadow",
        "nonsense",
        "https://storage.example/#fragment",
        &format!("https://storage.example/{}", "x".repeat(URL_BYTES_MAX)),
    ] {
        let error = destination(bad).unwrap_err().to_string();
        assert!(!error.contains("storage.example"), "{error}");
    }
}
