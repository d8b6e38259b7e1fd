//! A TLS front before the private server's socket, as a managed database has one.

use std::path::PathBuf;
use std::sync::Arc;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use store::{ErrorKind, Secret, Store, StoreConfig, sql};
use testkit::{TestDb, db};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// What a client sends before TLS: its length, and a code that is no protocol version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

struct Front {
    listener: TcpListener,
    acceptor: tokio_rustls::TlsAcceptor,
    socket: PathBuf,
}

impl Front {
    /// Serves one connection.
    async fn serve(&self) -> std::io::Result<()> {
        let (mut tcp, _) = self.listener.accept().await?;
        let mut request = [0; 8];
        tcp.read_exact(&mut request).await?;
        assert_eq!(request, SSL_REQUEST);
        tcp.write_all(b"S").await?;
        let mut client = self.acceptor.accept(tcp).await?;
        let mut server = UnixStream::connect(&self.socket).await?;
        copy_bidirectional(&mut client, &mut server).await.map(drop)
    }
}

/// A front with a certificate for `localhost`, and the certificate's file.
async fn front(db: &TestDb, dir: &std::path::Path) -> (Front, PathBuf, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let roots = dir.join("roots.pem");
    std::fs::write(&roots, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(made.cert.der().to_vec())], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (credentials, rest) = db.url.split_once('@').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    let socket = PathBuf::from(host.replace("%2F", "/")).join(".s.PGSQL.5432");
    let url = format!("{credentials}@HOST:{port}/{database}?sslmode=verify-full");
    (Front { listener, acceptor: tokio_rustls::TlsAcceptor::from(Arc::new(config)), socket }, roots, url)
}

#[tokio::test]
async fn a_database_over_tls_is_verified_by_chain_and_name() {
    if std::env::var_os("BC_TEST_DATABASE_URL").is_some() {
        eprintln!("skipped: the front needs the private server's socket");
        return;
    }
    let db = db().await;
    let dir = tempfile::tempdir().unwrap();
    let (front, roots, url) = front(&db, dir.path()).await;
    let config = |host: &str, roots: Option<PathBuf>| StoreConfig {
        pool_size: 1,
        tls_roots: roots,
        ..StoreConfig::new(Secret::new(url.replace("HOST", host)))
    };

    let store = async {
        let store = Store::open(config("localhost", Some(roots.clone()))).await.unwrap();
        let row = store.read_one(&sql("over_tls", "SELECT 42 AS v"), &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>("v"), 42);
        store.close();
        drop(store);
    };
    // How the connection ends is not the point.
    let (_ended, ()) = tokio::join!(front.serve(), store);

    for wrong in [config("127.0.0.1", Some(roots)), config("localhost", None)] {
        let (served, opened) = tokio::join!(front.serve(), Store::open(wrong));
        assert!(served.is_err());
        let Err(err) = opened else { panic!("an unverified server was believed") };
        assert!(matches!(err.kind(), ErrorKind::Unavailable { .. } | ErrorKind::Decode { .. }), "{err}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_across_the_network() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = async {
        let (mut tcp, _): (TcpStream, _) = listener.accept().await.unwrap();
        let mut request = [0; 8];
        tcp.read_exact(&mut request).await.unwrap();
        assert_eq!(request, SSL_REQUEST, "TLS is asked for although the URL does not say so");
        tcp.write_all(b"N").await.unwrap();
        let mut more = Vec::new();
        tcp.read_to_end(&mut more).await.unwrap();
        more
    };
    let config = StoreConfig::new(Secret::new(format!("postgres://bc:hunter2@127.0.0.1:{port}/bc")));
    let (sent, opened) = tokio::join!(plain, Store::open(config));
    assert!(opened.is_err());
    assert!(sent.is_empty(), "nothing is said in the open");
}
