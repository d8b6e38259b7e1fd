//! Certificate signing requests (PKCS#10, RFC 2986): a node's way to name its key and prove it holds it.

use rcgen::{CertificateParams, DistinguishedName, DnType};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::key::{SigningKey, VerifyingKey};
use crate::x509::{RcgenKey, is_signed};

/// A P-256 CSR is about 250 bytes.
pub const CSR_BYTES_MAX: usize = 4096;

/// Why a CSR was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CsrRefused {
    #[error("read a CSR: it is longer than {CSR_BYTES_MAX} bytes")]
    TooLong,
    #[error("read a CSR: it is not one PKCS#10 request in DER")]
    Malformed,
    #[error("read a CSR: its key is not a P-256 key")]
    Key,
    #[error("read a CSR: it is not signed with its own key by ECDSA with SHA-256")]
    Signature,
}

/// A CSR in DER for `key`. `common_name` helps a human reading it; who signs decides every name.
pub fn make_csr(key: &SigningKey, common_name: &str) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let request = params
        .serialize_request(&RcgenKey::new(key))
        .expect("a request with one name and a P-256 key encodes");
    request.der().to_vec()
}

/// What binds a join, a renewal and their answers to one CSR.
pub fn csr_sha256(csr_der: &[u8]) -> [u8; 32] {
    Sha256::digest(csr_der).into()
}

/// The key a CSR asks a certificate for, once its signature by that key is verified. Subject, attributes and
/// requested extensions are ignored: the control plane names nodes, nodes do not.
pub fn verify_csr(csr_der: &[u8]) -> Result<VerifyingKey, CsrRefused> {
    if csr_der.len() > CSR_BYTES_MAX {
        return Err(CsrRefused::TooLong);
    }
    let Ok(([], request)) = X509CertificationRequest::from_der(csr_der) else {
        return Err(CsrRefused::Malformed);
    };
    let info = &request.certification_request_info;
    let key = VerifyingKey::from_spki_der(info.subject_pki.raw).map_err(|_| CsrRefused::Key)?;
    if !is_signed(csr_der, info.raw, &request.signature_value.data, &key) {
        return Err(CsrRefused::Signature);
    }
    Ok(key)
}

#[cfg(test)]
mod tests;
