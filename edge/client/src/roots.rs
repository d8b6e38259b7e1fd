//! TLS by rustls with ring and with roots that are named: nothing is taken from a process-wide default.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::ConfigError;

/// Where distributions keep their bundle: Debian, Fedora, Alpine and openSUSE, in that order.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// TLS that trusts the authorities in `ca_file`, or the system's.
pub fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, ConfigError> {
    let path = match ca_file {
        Some(path) => path.to_owned(),
        None => SYSTEM_BUNDLES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.is_file())
            .ok_or(ConfigError::NoSystemRoots)?,
    };
    let roots = read(&path, ca_file.is_some())?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ConfigError::Tls)
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
}

/// A bundle of the system may hold a certificate rustls does not take; a file that somebody named may not.
fn read(path: &Path, strict: bool) -> Result<RootCertStore, ConfigError> {
    let failed = |source| ConfigError::Roots { path: path.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
        let added = roots.add(certificate.map_err(failed)?);
        if strict {
            added.map_err(ConfigError::Tls)?;
        }
    }
    match roots.is_empty() {
        true => Err(ConfigError::NoRoots { path: path.to_owned() }),
        false => Ok(roots),
    }
}

#[cfg(test)]
mod tests;
