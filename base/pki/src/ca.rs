//! Certificate authorities: one signs the gateways' serving certificates, one the nodes' client certificates. Both are
//! self-signed P-256 with a path length of 0 (RFC 5280), and each certificate lasts as long as its caller decides.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use model::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, DnsName};

use crate::entropy::{self, Entropy};
use crate::key::{Pin, SigningKey, VerifyingKey, parse_hex};
use crate::spiffe::NodeName;
use crate::x509::{
    RcgenKey, RcgenPublic, from_x509_seconds, is_signed_by, parse_certificate, seconds, to_x509_time,
};

/// How long a node certificate lasts. Short, because revocation then only has to cover a day.
pub const NODE_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How much earlier than its issue a certificate begins, for clocks that run behind.
pub const NOT_BEFORE_ALLOWANCE: Duration = Duration::from_secs(5 * 60);
/// A gateway answers to a handful of names.
pub const SERVING_NAMES_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaError {
    #[error("load a certificate authority: the certificate is not a self-signed P-256 authority")]
    NotAnAuthority,
    #[error("load a certificate authority: the key is not the certificate's")]
    OtherKey,
    #[error("issue a certificate: its validity is empty or outside the years 1950 to 9999")]
    Validity,
    #[error("issue a serving certificate: name {0:?} is neither a DNS name nor an IP address")]
    ServingName(String),
    #[error("issue a serving certificate: it needs 1 to {SERVING_NAMES_MAX} names")]
    ServingNames,
    #[error("issue a certificate: its fields do not encode")]
    Encode(#[source] rcgen::Error),
}

/// A certificate's serial: 128 random bits, positive. Text form: 32 lowercase hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial([u8; 16]);

impl Serial {
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    fn generate(entropy: &dyn Entropy) -> Self {
        loop {
            let bytes = entropy::bytes::<16>(entropy);
            if bytes != [0; 16] {
                return Self(bytes);
            }
        }
    }

    /// From a certificate's DER integer: positive, and no longer than the 16 bytes we issue.
    pub(crate) fn from_der_integer(raw: &[u8]) -> Option<Self> {
        let magnitude = match raw {
            [0, rest @ ..] => rest,
            [first, ..] if *first >= 0x80 => return None,
            other => other,
        };
        let mut bytes = [0u8; 16];
        let start = bytes.len().checked_sub(magnitude.len())?;
        bytes[start..].copy_from_slice(magnitude);
        (bytes != [0; 16]).then_some(Self(bytes))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read a serial: it is 32 lowercase hexadecimal characters, not all zero")]
pub struct SerialError;

impl FromStr for Serial {
    type Err = SerialError;
    fn from_str(text: &str) -> Result<Self, SerialError> {
        parse_hex(text).filter(|bytes| *bytes != [0; 16]).map(Self).ok_or(SerialError)
    }
}

/// From when to when, both inclusive, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    /// From `NOT_BEFORE_ALLOWANCE` before `at` to `lifetime` after it.
    pub fn starting(at: Timestamp, lifetime: Duration) -> Self {
        Self { not_before: at.saturating_sub(NOT_BEFORE_ALLOWANCE), not_after: at.saturating_add(lifetime) }
    }
}

/// A certificate just made, with what the database keeps of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    pub der: Vec<u8>,
    pub serial: Serial,
    pub validity: Validity,
    pub spki_pin: Pin,
}

/// A CA's key and certificate. `Debug` shows the key id only.
#[derive(Clone)]
pub struct CertificateAuthority {
    key: SigningKey,
    certificate: Vec<u8>,
}

impl CertificateAuthority {
    /// Makes a new authority named `common_name`.
    pub fn create(common_name: &str, validity: Validity, entropy: &dyn Entropy) -> Result<Self, CaError> {
        let key = SigningKey::generate(entropy);
        let (mut params, _) = params(common_name, validity, Serial::generate(entropy))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = false;
        let certificate = params.self_signed(&RcgenKey::new(&key)).map_err(CaError::Encode)?;
        Ok(Self { certificate: certificate.der().to_vec(), key })
    }

    /// Takes a stored authority; the key must be the certificate's.
    pub fn load(certificate_der: Vec<u8>, key: SigningKey) -> Result<Self, CaError> {
        let root = RootCertificate::parse(&certificate_der).ok_or(CaError::NotAnAuthority)?;
        if root.key != *key.verifying_key() {
            return Err(CaError::OtherKey);
        }
        Ok(Self { key, certificate: certificate_der })
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.certificate
    }

    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    pub fn pin(&self) -> Pin {
        self.key.verifying_key().pin()
    }

    /// A gateway's certificate for TLS: serverAuth only, DNS names and IP addresses as subject alternative names.
    pub fn issue_serving(
        &self,
        names: &[&str],
        key: &VerifyingKey,
        validity: Validity,
        entropy: &dyn Entropy,
    ) -> Result<IssuedCertificate, CaError> {
        if names.is_empty() || names.len() > SERVING_NAMES_MAX {
            return Err(CaError::ServingNames);
        }
        let serial = Serial::generate(entropy);
        let (mut params, validity) = params("better-compute gateway", validity, serial)?;
        params.subject_alt_names = names.iter().map(|name| serving_name(name)).collect::<Result<_, _>>()?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, key, serial, validity)
    }

    /// A node's certificate: clientAuth only, the SPIFFE id as its one subject alternative name, valid for
    /// `NODE_CERTIFICATE_LIFETIME` from `at`.
    pub fn issue_node(
        &self,
        name: &NodeName,
        key: &VerifyingKey,
        at: Timestamp,
        entropy: &dyn Entropy,
    ) -> Result<IssuedCertificate, CaError> {
        let serial = Serial::generate(entropy);
        let validity = Validity::starting(at, NODE_CERTIFICATE_LIFETIME);
        let (mut params, validity) = params(&name.node_id.to_string(), validity, serial)?;
        let uri = name.to_string().try_into().map_err(CaError::Encode)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, key, serial, validity)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        key: &VerifyingKey,
        serial: Serial,
        validity: Validity,
    ) -> Result<IssuedCertificate, CaError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = CertificateDer::from(self.certificate.as_slice());
        let issuer =
            Issuer::from_ca_cert_der(&certificate, RcgenKey::new(&self.key)).map_err(CaError::Encode)?;
        let subject = RcgenPublic(key.sec1_uncompressed());
        let issued = params.signed_by(&subject, &issuer).map_err(CaError::Encode)?;
        Ok(IssuedCertificate { der: issued.der().to_vec(), serial, validity, spki_pin: key.pin() })
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateAuthority({})", self.key.verifying_key().key_id())
    }
}

fn params(
    common_name: &str,
    validity: Validity,
    serial: Serial,
) -> Result<(CertificateParams, Validity), CaError> {
    let mut params = CertificateParams::default();
    params.not_before = to_x509_time(validity.not_before).ok_or(CaError::Validity)?;
    params.not_after = to_x509_time(validity.not_after).ok_or(CaError::Validity)?;
    if params.not_before >= params.not_after {
        return Err(CaError::Validity);
    }
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    let whole = |time| from_x509_seconds(seconds(time));
    let validity = Validity { not_before: whole(validity.not_before), not_after: whole(validity.not_after) };
    Ok((params, validity))
}

fn serving_name(name: &str) -> Result<SanType, CaError> {
    let refused = || CaError::ServingName(name.chars().take(64).collect());
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    DnsName::try_from(name).map_err(|_| refused())?;
    Ok(SanType::DnsName(name.to_owned().try_into().map_err(|_| refused())?))
}

/// A trusted CA certificate, read once.
#[derive(Debug, Clone)]
pub(crate) struct RootCertificate {
    pub(crate) subject: Vec<u8>,
    pub(crate) key: VerifyingKey,
    not_before: i64,
    not_after: i64,
}

impl RootCertificate {
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        let certificate = parse_certificate(der)?;
        let may_sign = certificate.key_usage().ok()?.is_some_and(|usage| usage.value.key_cert_sign());
        let key = VerifyingKey::from_spki_der(certificate.public_key().raw).ok()?;
        if !certificate.is_ca()
            || !may_sign
            || certificate.subject().as_raw() != certificate.issuer().as_raw()
            || !is_signed_by(&certificate, &key)
        {
            return None;
        }
        Some(Self {
            subject: certificate.subject().as_raw().to_vec(),
            key,
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    pub(crate) fn is_valid_at(&self, at: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&seconds(at))
    }
}

#[cfg(test)]
mod tests;
