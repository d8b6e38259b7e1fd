//! The control plane's answer to a join or a renewal: a certificate, whose node this now is, and what to trust.

use model::{DeploymentId, NodeId, Role, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, Fields};
use crate::csr::csr_sha256;
use crate::identity::{IdentityRefused, PeerIdentity};
use crate::key::{Pin, SigningKey, VerifyingKey, parse_hex};
use crate::purpose::Purpose;
use crate::signed::{SIGNED_BYTES_MAX, SignedMessage, SignedRefused};
use crate::tls::CHAIN_CERTIFICATES_MAX;
use crate::trust::{TrustBundle, TrustRefused};
use crate::x509::CERTIFICATE_BYTES_MAX;

/// The body of a join response, before it is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinResponse {
    pub node_id: NodeId,
    pub site_id: SiteId,
    pub role: Role,
    /// DER, the node's certificate first.
    pub chain: Vec<Vec<u8>>,
    pub csr_sha256: [u8; 32],
    pub trust_bundle: SignedMessage,
    /// The server's time when it answered.
    pub served_at: Timestamp,
    pub deployment_id: DeploymentId,
    pub deployment_epoch: u64,
}

// Unknown members are ignored for the reason given at the trust bundle: the reader may be the older one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResponseJson {
    v: u64,
    node_id: String,
    site_id: String,
    role: String,
    certificate_chain: Vec<String>,
    csr_sha256: String,
    trust_bundle: String,
    served_at: String,
    deployment_id: String,
    deployment_epoch: u64,
}

impl JoinResponse {
    /// Compact JSON: `{v:1, nodeId, siteId, role, certificateChain, csrSha256 (hex), trustBundle, servedAt,
    /// deploymentId, deploymentEpoch}`; certificates and the signed bundle's bytes are base64url.
    pub fn render(&self) -> Vec<u8> {
        codec::to_json(&ResponseJson {
            v: 1,
            node_id: self.node_id.to_string(),
            site_id: self.site_id.to_string(),
            role: self.role.name().to_owned(),
            certificate_chain: self.chain.iter().map(|der| codec::to_base64url(der)).collect(),
            csr_sha256: hex::encode(self.csr_sha256),
            trust_bundle: codec::to_base64url(&self.trust_bundle.encode()),
            served_at: self.served_at.to_string(),
            deployment_id: self.deployment_id.to_string(),
            deployment_epoch: self.deployment_epoch,
        })
    }

    pub fn parse(body: &[u8]) -> Result<Self, DecodeError> {
        let fields = Fields("join response");
        let json: ResponseJson = codec::from_json(fields.0, body, SIGNED_BYTES_MAX)?;
        fields.version(json.v)?;
        let chain = &json.certificate_chain;
        if chain.is_empty() || chain.len() > CHAIN_CERTIFICATES_MAX {
            return Err(fields.error("its certificate chain is empty or too long"));
        }
        let certificate = |text: &String| match fields.bytes(text) {
            Ok(der) if der.len() > CERTIFICATE_BYTES_MAX => {
                Err(fields.error("a certificate in it is too long"))
            }
            other => other,
        };
        Ok(Self {
            node_id: fields.parse(&json.node_id, "its node id is not one")?,
            site_id: fields.parse(&json.site_id, "its site id is not one")?,
            role: Role::parse(&json.role).ok_or_else(|| fields.error("its role is not one"))?,
            chain: chain.iter().map(certificate).collect::<Result<_, _>>()?,
            csr_sha256: parse_hex(&json.csr_sha256)
                .ok_or_else(|| fields.error("its CSR digest is not hexadecimal"))?,
            trust_bundle: SignedMessage::decode(&fields.bytes(&json.trust_bundle)?)?,
            served_at: fields.time(&json.served_at)?,
            deployment_id: fields.parse(&json.deployment_id, "its deployment id is not one")?,
            deployment_epoch: json.deployment_epoch,
        })
    }

    pub fn sign(&self, join_signing_key: &SigningKey) -> SignedMessage {
        SignedMessage::sign(join_signing_key, Purpose::JoinResponse, self.render())
    }
}

/// What the node asked, against which the answer is held.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The join-signing keys this node was installed with, or those of the bundle it holds.
    pub pins: &'a [Pin],
    pub csr_der: &'a [u8],
    /// The CSR's key.
    pub key: &'a VerifyingKey,
    pub role: Role,
    /// At a renewal, and for a machine told which node it is.
    pub node_id: Option<NodeId>,
    pub at: Timestamp,
}

/// A join response that passed every check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    pub response: JoinResponse,
    pub bundle: TrustBundle,
    /// What the node's own certificate says.
    pub identity: PeerIdentity,
}

/// Why a join response was not believed.
#[derive(Debug, thiserror::Error)]
pub enum ResponseRefused {
    #[error("believe a join response")]
    Malformed(#[from] DecodeError),
    #[error("believe a join response")]
    Signed(#[from] SignedRefused),
    #[error("believe a join response: its trust bundle")]
    Trust(#[from] TrustRefused),
    #[error("believe a join response: its certificate")]
    Certificate(#[from] IdentityRefused),
    #[error("believe a join response: it answers another CSR")]
    OtherCsr,
    #[error("believe a join response: its certificate is for another key")]
    OtherKey,
    #[error("believe a join response: it makes this a {given} where {asked} was asked", given = .given.name(), asked = .asked.name())]
    OtherRole { asked: Role, given: Role },
    #[error("believe a join response: it is for node {given}, not for {asked}")]
    OtherNode { asked: NodeId, given: NodeId },
    #[error("believe a join response: its certificate names another node, site or role than it does")]
    NameMismatch,
    #[error("believe a join response: its trust bundle is of another deployment or epoch")]
    BundleMismatch,
}

/// Verifies an encoded `SignedMessage` holding a join response: its signer is pinned, it answers our CSR, the leaf is
/// ours, valid, from the bundle's node CA and named as the response says, the role is the one asked, and the bundle is
/// signed by the same pinned keys for the same deployment.
pub fn verify_join_response(encoded: &[u8], expected: &Expected<'_>) -> Result<Joined, ResponseRefused> {
    let message = SignedMessage::decode(encoded)?;
    let response = JoinResponse::parse(message.verify(Purpose::JoinResponse, expected.pins)?)?;
    if response.csr_sha256 != csr_sha256(expected.csr_der) {
        return Err(ResponseRefused::OtherCsr);
    }
    if response.role != expected.role {
        return Err(ResponseRefused::OtherRole { asked: expected.role, given: response.role });
    }
    if let Some(asked) = expected.node_id.filter(|asked| *asked != response.node_id) {
        return Err(ResponseRefused::OtherNode { asked, given: response.node_id });
    }
    let bundle = TrustBundle::verify(&response.trust_bundle, expected.pins)?;
    let deployment = (response.deployment_id, response.deployment_epoch);
    if (bundle.deployment_id, bundle.deployment_epoch) != deployment {
        return Err(ResponseRefused::BundleMismatch);
    }
    let trust = bundle.node_trust().expect("a parsed bundle holds usable node CAs");
    let leaf = response.chain.first().expect("a parsed chain is not empty");
    let identity = PeerIdentity::from_certificate_der(leaf, &trust, expected.at)?;
    if identity.key != *expected.key {
        return Err(ResponseRefused::OtherKey);
    }
    let named = (identity.node_id, identity.site_id, identity.role);
    if named != (response.node_id, response.site_id, response.role) {
        return Err(ResponseRefused::NameMismatch);
    }
    Ok(Joined { response, bundle, identity })
}

#[cfg(test)]
mod tests;
