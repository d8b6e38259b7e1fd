//! What certificates and CSRs share: the adapter that lets our keys sign for rcgen, and strict reading of P-256 parts.

use model::Timestamp;
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::key::{SigningKey, VerifyingKey};

/// A P-256 certificate of ours is under 1 KiB.
pub const CERTIFICATE_BYTES_MAX: usize = 8 * 1024;

/// A key of ours in the shape rcgen asks for.
pub(crate) struct RcgenKey<'a> {
    key: &'a SigningKey,
    point: Vec<u8>,
}

impl<'a> RcgenKey<'a> {
    pub(crate) fn new(key: &'a SigningKey) -> Self {
        Self { key, point: key.verifying_key().sec1_uncompressed() }
    }
}

impl PublicKeyData for RcgenKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for RcgenKey<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.key.sign_parts(&[message]).to_der())
    }
}

/// The public half alone, for the subject of a certificate.
pub(crate) struct RcgenPublic(pub Vec<u8>);

impl PublicKeyData for RcgenPublic {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// One certificate and nothing after it.
pub(crate) fn parse_certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return None;
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

/// ecdsa-with-SHA256 with no parameters (RFC 5758), in DER.
const ECDSA_SHA256: [u8; 12] = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// Whether `der` is exactly `signed`, the ECDSA-SHA256 algorithm and `signature`, with `signature` by `key` over
/// `signed`. The algorithm and the framing are outside the signature, and the parser is lenient about them: comparing
/// with the one right encoding leaves no second text of the same certificate.
pub(crate) fn is_signed(der: &[u8], signed: &[u8], signature: &[u8], key: &VerifyingKey) -> bool {
    let mut content = signed.to_vec();
    content.extend_from_slice(&ECDSA_SHA256);
    // A bit string with no unused bits.
    content.push(0x03);
    push_der_length(&mut content, signature.len() + 1);
    content.push(0);
    content.extend_from_slice(signature);
    let mut whole = vec![0x30];
    push_der_length(&mut whole, content.len());
    whole.extend_from_slice(&content);
    whole == der && key.verify_der(signed, signature).is_ok()
}

fn push_der_length(out: &mut Vec<u8>, len: usize) {
    match len {
        0..=0x7f => out.push(len as u8),
        0x80..=0xff => out.extend_from_slice(&[0x81, len as u8]),
        _ => {
            let len = u16::try_from(len).expect("certificates and CSRs are bounded far below 64 KiB");
            out.push(0x82);
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
}

/// Whether `issuer` signed this certificate, the algorithm inside being the one outside.
pub(crate) fn is_signed_by(certificate: &X509Certificate<'_>, issuer: &VerifyingKey) -> bool {
    certificate.signature_algorithm == certificate.tbs_certificate.signature
        && is_signed(
            certificate.as_raw(),
            certificate.tbs_certificate.as_ref(),
            &certificate.signature_value.data,
            issuer,
        )
}

/// Certificates count whole seconds.
pub(crate) fn seconds(time: Timestamp) -> i64 {
    time.micros().div_euclid(1_000_000)
}

/// X.509 ends with the year 9999.
pub(crate) fn to_x509_time(time: Timestamp) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds(time))
        .ok()
        .filter(|time| (1950..=9999).contains(&time.year()))
}

pub(crate) fn from_x509_seconds(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds.saturating_mul(1_000_000))
}
