//! What the daemon's https clients have in common: whom they believe, and that neither their environment nor who answers
//! decides where they go.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("bcd/", env!("CARGO_PKG_VERSION"));

/// Where distributions keep their authorities: Debian, Fedora, Alpine and openSUSE.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    #[error("set up TLS: no certificate authorities in {bundle:?}")]
    Roots { bundle: PathBuf },
    #[error("set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("set up an https client")]
    Client(#[source] reqwest::Error),
}

/// With the system's certificate authorities, or those of one PEM bundle, and what `also` sets.
pub(crate) fn client(
    authorities: Option<&Path>,
    also: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client, HttpsError> {
    let system = || SYSTEM_BUNDLES.iter().map(Path::new).find(|path| path.is_file());
    let bundle = authorities.or_else(system).unwrap_or(Path::new(SYSTEM_BUNDLES[0]));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(HttpsError::Tls)?
        .with_root_certificates(roots(bundle)?)
        .with_no_client_auth();
    tls.resumption = Resumption::disabled();
    let client = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT_LIMIT)
        .https_only(true)
        .http1_only()
        .redirect(redirect::Policy::none())
        // The daemon's environment decides nothing; its gateway is reached without a proxy too.
        .no_proxy()
        .tls_backend_preconfigured(tls);
    also(client).build().map_err(|source| HttpsError::Client(source.without_url()))
}

fn roots(bundle: &Path) -> Result<RootCertStore, HttpsError> {
    let none = || HttpsError::Roots { bundle: bundle.to_owned() };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(bundle).map_err(|_| none())? {
        // A system's bundle may hold one that rustls does not take; the others still count.
        let _ = roots.add(certificate.map_err(|_| none())?);
    }
    if roots.is_empty() { Err(none()) } else { Ok(roots) }
}
