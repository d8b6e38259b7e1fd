//! What a node is told to trust: one versioned bundle, signed by the join-signing key it pinned when it joined.

use model::{DeploymentId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, Fields};
use crate::identity::{NODE_CAS_MAX, NodeTrust, NodeTrustError};
use crate::key::{Pin, SigningKey, VerifyingKey};
use crate::purpose::Purpose;
use crate::signed::{SIGNED_BYTES_MAX, SignedMessage, SignedRefused};
use crate::spiffe::TrustDomain;
use crate::x509::CERTIFICATE_BYTES_MAX;

/// More roots or pins than any rotation needs at once.
pub const TRUSTED_KEYS_MAX: usize = 64;

/// A deployment's trust. Versions order bundles within one deployment epoch, and epochs order them across a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustBundle {
    /// From 1, counted up with every change of the content.
    pub version: u64,
    pub deployment_id: DeploymentId,
    pub deployment_epoch: u64,
    pub trust_domain: TrustDomain,
    /// Keys that certify worker keys. Empty: intent is not signed yet.
    pub command_roots: Vec<VerifyingKey>,
    /// SPKI pins of the CAs whose gateways a node talks to.
    pub serving_ca_pins: Vec<Pin>,
    /// SPKI pins of the keys that sign join responses and trust bundles.
    pub join_signing_pins: Vec<Pin>,
    /// Node CA certificates, DER.
    pub node_cas: Vec<Vec<u8>>,
    pub issued_at: Timestamp,
}

// Unknown members are ignored here: bundles reach agents older than the control plane that wrote them, and refusing
// the whole bundle would keep an agent from a rotated root or pin. A member that an old agent must not miss comes with
// a new `v`, which it refuses.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BundleJson {
    v: u64,
    version: u64,
    deployment_id: String,
    deployment_epoch: u64,
    trust_domain: String,
    command_roots: Vec<String>,
    serving_ca_pins: Vec<String>,
    join_signing_pins: Vec<String>,
    #[serde(rename = "nodeCAs")]
    node_cas: Vec<String>,
    issued_at: String,
}

/// Why a bundle was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TrustRefused {
    #[error("take a trust bundle")]
    Signed(#[from] SignedRefused),
    #[error("take a trust bundle")]
    Malformed(#[from] DecodeError),
    #[error("take a trust bundle: it belongs to deployment {given}, this node to {held}")]
    OtherDeployment { held: DeploymentId, given: DeploymentId },
    #[error("take a trust bundle: it names another trust domain than this node's certificate")]
    OtherTrustDomain,
    #[error(
        "take a trust bundle: epoch {given_epoch} version {given} is older than epoch {held_epoch} version {held}"
    )]
    Older { held_epoch: u64, held: u64, given_epoch: u64, given: u64 },
    #[error("take a trust bundle: version {version} is held with other content")]
    Conflict { version: u64 },
}

impl TrustBundle {
    /// Compact JSON: `{v:1, version, deploymentId, deploymentEpoch, trustDomain, commandRoots, servingCaPins,
    /// joinSigningPins, nodeCAs, issuedAt}`; keys and certificates are base64url of DER, pins lowercase hexadecimal.
    pub fn render(&self) -> Vec<u8> {
        codec::to_json(&BundleJson {
            v: 1,
            version: self.version,
            deployment_id: self.deployment_id.to_string(),
            deployment_epoch: self.deployment_epoch,
            trust_domain: self.trust_domain.to_string(),
            command_roots: self.command_roots.iter().map(|key| codec::to_base64url(key.spki_der())).collect(),
            serving_ca_pins: self.serving_ca_pins.iter().map(Pin::to_string).collect(),
            join_signing_pins: self.join_signing_pins.iter().map(Pin::to_string).collect(),
            node_cas: self.node_cas.iter().map(|der| codec::to_base64url(der)).collect(),
            issued_at: self.issued_at.to_string(),
        })
    }

    pub fn parse(body: &[u8]) -> Result<Self, DecodeError> {
        let fields = Fields("trust bundle");
        let json: BundleJson = codec::from_json(fields.0, body, SIGNED_BYTES_MAX)?;
        fields.version(json.v)?;
        if json.node_cas.len() > NODE_CAS_MAX
            || [&json.command_roots, &json.serving_ca_pins, &json.join_signing_pins]
                .iter()
                .any(|list| list.len() > TRUSTED_KEYS_MAX)
        {
            return Err(fields.error("it lists more keys than a node keeps"));
        }
        // Without these a node could never reach or believe the control plane again.
        if json.serving_ca_pins.is_empty() || json.join_signing_pins.is_empty() || json.node_cas.is_empty() {
            return Err(fields.error("it leaves nothing to trust"));
        }
        let pins = |list: &[String]| -> Result<Vec<Pin>, DecodeError> {
            list.iter()
                .map(|text| fields.parse(text, "a pin in it is not 64 lowercase hexadecimal characters"))
                .collect()
        };
        let root = |text: &String| {
            VerifyingKey::from_spki_der(&fields.bytes(text)?)
                .map_err(|_| fields.error("a root in it is not a P-256 key"))
        };
        let bundle = Self {
            version: json.version,
            deployment_id: fields.parse(&json.deployment_id, "its deployment id is not one")?,
            deployment_epoch: json.deployment_epoch,
            trust_domain: fields.parse(&json.trust_domain, "its trust domain is not one")?,
            command_roots: json.command_roots.iter().map(root).collect::<Result<_, _>>()?,
            serving_ca_pins: pins(&json.serving_ca_pins)?,
            join_signing_pins: pins(&json.join_signing_pins)?,
            node_cas: json.node_cas.iter().map(|text| fields.bytes(text)).collect::<Result<_, _>>()?,
            issued_at: fields.time(&json.issued_at)?,
        };
        if bundle.node_cas.iter().any(|der| der.len() > CERTIFICATE_BYTES_MAX) || bundle.node_trust().is_err()
        {
            return Err(fields.error("a node CA in it is not a self-signed P-256 authority"));
        }
        Ok(bundle)
    }

    pub fn sign(&self, join_signing_key: &SigningKey) -> SignedMessage {
        SignedMessage::sign(join_signing_key, Purpose::TrustBundle, self.render())
    }

    /// Reads a signed bundle whose signer is one of `pins`.
    pub fn verify(message: &SignedMessage, pins: &[Pin]) -> Result<Self, TrustRefused> {
        Ok(Self::parse(message.verify(Purpose::TrustBundle, pins)?)?)
    }

    /// What replaces this bundle, given a signed one: `Some` when it is newer, `None` when it is the one held.
    /// The signer must be pinned in the bundle held, so a stolen old key cannot bring itself back.
    pub fn replaced_by(&self, message: &SignedMessage) -> Result<Option<Self>, TrustRefused> {
        let given = Self::verify(message, &self.join_signing_pins)?;
        if given.deployment_id != self.deployment_id {
            return Err(TrustRefused::OtherDeployment {
                held: self.deployment_id,
                given: given.deployment_id,
            });
        }
        if given.trust_domain != self.trust_domain {
            return Err(TrustRefused::OtherTrustDomain);
        }
        match given.order().cmp(&self.order()) {
            std::cmp::Ordering::Greater => Ok(Some(given)),
            std::cmp::Ordering::Equal if given == *self => Ok(None),
            std::cmp::Ordering::Equal => Err(TrustRefused::Conflict { version: self.version }),
            std::cmp::Ordering::Less => Err(TrustRefused::Older {
                held_epoch: self.deployment_epoch,
                held: self.version,
                given_epoch: given.deployment_epoch,
                given: given.version,
            }),
        }
    }

    fn order(&self) -> (u64, u64) {
        (self.deployment_epoch, self.version)
    }

    pub fn node_trust(&self) -> Result<NodeTrust, NodeTrustError> {
        NodeTrust::new(self.trust_domain.clone(), &self.node_cas)
    }
}

#[cfg(test)]
mod tests;
