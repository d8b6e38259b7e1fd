//! Who a peer is, from its certificate. Strict on purpose: what our own CA does not issue is refused, even where the
//! standards would allow it.

use model::{NodeId, Role, SiteId, Timestamp};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{X509Certificate, X509Version};

use crate::ca::{RootCertificate, Serial};
use crate::key::VerifyingKey;
use crate::spiffe::{NodeName, TrustDomain};
use crate::x509::{from_x509_seconds, is_signed_by, parse_certificate, seconds};

/// A deployment has one node CA, and a second while it rotates.
pub const NODE_CAS_MAX: usize = 8;

/// Why a certificate does not identify a node of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRefused {
    #[error("identify a node: the certificate is not one X.509 v3 certificate")]
    Malformed,
    #[error("identify a node: no trusted node CA signed the certificate")]
    Issuer,
    #[error("identify a node: the certificate is not valid at that time")]
    Validity,
    #[error("identify a node: the key is not a P-256 key")]
    Key,
    #[error("identify a node: the serial is not 1 to 16 bytes and positive")]
    Serial,
    #[error("identify a node: a certificate authority is no node")]
    Authority,
    #[error("identify a node: the certificate is not for client authentication alone")]
    Usage,
    #[error("identify a node: the one subject alternative name is not a node's SPIFFE id")]
    Name,
    #[error("identify a node: the SPIFFE id belongs to another trust domain")]
    TrustDomain,
    #[error("identify a node: an extension is unknown and critical, or given twice")]
    Extension,
}

/// A node CA certificate was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("trust node CAs: they are 1 to {NODE_CAS_MAX} self-signed P-256 authorities")]
pub struct NodeTrustError;

/// Whose node certificates are believed.
#[derive(Debug, Clone)]
pub struct NodeTrust {
    trust_domain: TrustDomain,
    roots: Vec<RootCertificate>,
}

impl NodeTrust {
    pub fn new<D: AsRef<[u8]>>(trust_domain: TrustDomain, node_cas: &[D]) -> Result<Self, NodeTrustError> {
        if node_cas.is_empty() || node_cas.len() > NODE_CAS_MAX {
            return Err(NodeTrustError);
        }
        let roots = node_cas
            .iter()
            .map(|der| RootCertificate::parse(der.as_ref()).ok_or(NodeTrustError))
            .collect::<Result<_, _>>()?;
        Ok(Self { trust_domain, roots })
    }

    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }
}

/// What a verified node certificate says. Whether it is revoked is for the caller to ask, by `serial` or `node_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    pub node_id: NodeId,
    pub site_id: SiteId,
    pub role: Role,
    pub serial: Serial,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub key: VerifyingKey,
}

impl PeerIdentity {
    /// Verifies one certificate issued directly by a trusted node CA, valid at `at`.
    pub fn from_certificate_der(
        der: &[u8],
        trust: &NodeTrust,
        at: Timestamp,
    ) -> Result<Self, IdentityRefused> {
        verify_issued(der, &trust.roots, at)?;
        Self::of_verified(der, trust, at)
    }

    /// Of a certificate that [`verify_issued`] has taken: its signature is not looked at again.
    pub(crate) fn of_verified(der: &[u8], trust: &NodeTrust, at: Timestamp) -> Result<Self, IdentityRefused> {
        let certificate = parse_v3(der)?;
        if !trust.roots.iter().any(|root| root.subject == certificate.issuer().as_raw()) {
            return Err(IdentityRefused::Issuer);
        }
        let (not_before, not_after) = validity_at(&certificate, at)?;
        let name = name_in(&certificate)?;
        if name.trust_domain != trust.trust_domain {
            return Err(IdentityRefused::TrustDomain);
        }
        Ok(Self {
            node_id: name.node_id,
            site_id: name.site_id,
            role: name.role,
            serial: Serial::from_der_integer(certificate.raw_serial()).ok_or(IdentityRefused::Serial)?,
            not_before: from_x509_seconds(not_before),
            not_after: from_x509_seconds(not_after),
            key: VerifyingKey::from_spki_der(certificate.public_key().raw)
                .map_err(|_| IdentityRefused::Key)?,
        })
    }
}

/// Whether one of `roots`, valid at `at` as the certificate has to be, signed it itself, for a node's client authentication alone.
pub(crate) fn verify_issued(
    der: &[u8],
    roots: &[RootCertificate],
    at: Timestamp,
) -> Result<(), IdentityRefused> {
    let certificate = parse_v3(der)?;
    let root = roots
        .iter()
        .find(|root| root.subject == certificate.issuer().as_raw() && is_signed_by(&certificate, &root.key))
        .ok_or(IdentityRefused::Issuer)?;
    validity_at(&certificate, at)?;
    if !root.is_valid_at(at) {
        return Err(IdentityRefused::Validity);
    }
    name_in(&certificate).map(drop)
}

fn parse_v3(der: &[u8]) -> Result<X509Certificate<'_>, IdentityRefused> {
    let certificate = parse_certificate(der).ok_or(IdentityRefused::Malformed)?;
    match certificate.version() {
        X509Version::V3 => Ok(certificate),
        _ => Err(IdentityRefused::Malformed),
    }
}

/// In seconds, once `at` is between them.
fn validity_at(certificate: &X509Certificate<'_>, at: Timestamp) -> Result<(i64, i64), IdentityRefused> {
    let validity = certificate.validity();
    let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    match (not_before..=not_after).contains(&seconds(at)) {
        true => Ok((not_before, not_after)),
        false => Err(IdentityRefused::Validity),
    }
}

/// The name, once every extension is one we issue with the value we issue.
fn name_in(certificate: &X509Certificate<'_>) -> Result<NodeName, IdentityRefused> {
    let mut name = None;
    let (mut digital_signature, mut client_auth) = (false, false);
    certificate.extensions_map().map_err(|_| IdentityRefused::Extension)?;
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                return Err(IdentityRefused::Authority);
            }
            ParsedExtension::BasicConstraints(_)
            | ParsedExtension::AuthorityKeyIdentifier(_)
            | ParsedExtension::SubjectKeyIdentifier(_) => {}
            // Bit 0 of KeyUsage is digitalSignature; any other bit is one we never grant.
            ParsedExtension::KeyUsage(usage) => digital_signature = usage.flags == 1,
            ParsedExtension::ExtendedKeyUsage(usage) => {
                let others = usage.any
                    || usage.server_auth
                    || usage.code_signing
                    || usage.email_protection
                    || usage.time_stamping
                    || usage.ocsp_signing
                    || !usage.other.is_empty();
                client_auth = usage.client_auth && !others;
            }
            ParsedExtension::SubjectAlternativeName(names) => match names.general_names[..] {
                [GeneralName::URI(uri)] => name = uri.parse().ok(),
                _ => return Err(IdentityRefused::Name),
            },
            _ if extension.critical => return Err(IdentityRefused::Extension),
            _ => {}
        }
    }
    if !digital_signature || !client_auth {
        return Err(IdentityRefused::Usage);
    }
    name.ok_or(IdentityRefused::Name)
}

#[cfg(test)]
mod tests;
