//! The certificate, read from files and read again when they change.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kernel::run::Running;
use kit::TaskKind;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

const RELOAD: TaskKind = TaskKind::isolated("tls_reload");
/// Certificates are renewed days ahead; a look costs two small reads.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// PEM files: the chain, leaf first, and its private key (PKCS#8, PKCS#1 or SEC 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificates: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The source names no bytes of the key.
    #[error("parse {path:?} as PEM")]
    Parse {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("find a certificate in {path:?}")]
    Empty { path: PathBuf },
    #[error("use the certificate and key together")]
    Use(#[from] rustls::Error),
}

#[derive(PartialEq, Eq)]
struct Pem {
    certificates: Vec<u8>,
    key: zeroize::Zeroizing<Vec<u8>>,
}

impl TlsFiles {
    async fn read(&self) -> Result<Pem, TlsError> {
        let read = async |path: &PathBuf| {
            tokio::fs::read(path).await.map_err(|source| TlsError::Read { path: path.clone(), source })
        };
        Ok(Pem { certificates: read(&self.certificates).await?, key: read(&self.key).await?.into() })
    }

    fn config(&self, pem: &Pem) -> Result<Arc<ServerConfig>, TlsError> {
        let malformed = |path: &PathBuf| {
            let path = path.clone();
            move |source| TlsError::Parse { path, source }
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem.certificates)
            .collect::<Result<_, _>>()
            .map_err(malformed(&self.certificates))?;
        if chain.is_empty() {
            return Err(TlsError::Empty { path: self.certificates.clone() });
        }
        let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(malformed(&self.key))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Reads the files, and goes on reading them. A pair that cannot be used leaves the one before in use.
pub(crate) async fn watch(
    files: TlsFiles,
    running: &Running,
) -> Result<watch::Receiver<Arc<ServerConfig>>, TlsError> {
    let mut last = files.read().await?;
    let (sender, receiver) = watch::channel(files.config(&last)?);
    let clock = running.clock.clone();
    running.supervisor.spawn(RELOAD, move |cancel| async move {
        while cancel.run_until_cancelled(clock.sleep(LOOK_EVERY)).await.is_some() {
            let read = match files.read().await {
                Ok(read) if read == last => continue,
                Ok(read) => read,
                Err(err) => {
                    tracing::warn!(err = kit::chain(&err), "failed to read the API's certificate again");
                    continue;
                }
            };
            match files.config(&read) {
                Ok(config) => {
                    tracing::info!("the API's certificate was read again");
                    sender.send_replace(config);
                }
                // A pair is written one file after the other; in between it does not fit.
                Err(err) => tracing::warn!(err = kit::chain(&err), "failed to use the API's new certificate"),
            }
            last = read;
        }
        Ok::<(), Infallible>(())
    });
    Ok(receiver)
}
