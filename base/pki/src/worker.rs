//! Who may sign intent. An offline root key certifies worker keys; worker keys sign commands and specs; nodes trust
//! only the roots.

use model::{DeploymentId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, Fields, Reader};
use crate::key::{KeyId, SIGNATURE_BYTES, Signature, SigningKey, VerifyingKey};
use crate::purpose::Purpose;

/// A statement is about 350 bytes; the rest is room for a later version.
pub const WORKER_CERTIFICATE_BYTES_MAX: usize = 2048;
pub const INTENT_SIGNATURE_BYTES_MAX: usize = WORKER_CERTIFICATE_BYTES_MAX + 1 + SIGNATURE_BYTES;

/// What a worker key may sign.
pub const SIGNED_BY_WORKERS: &[Purpose] = &[
    Purpose::Command,
    Purpose::DesiredState,
    Purpose::DeploymentEpoch,
    Purpose::ExecTicket,
    Purpose::SecretAnswer,
];

const VERSION: u8 = 1;

/// What a root says about a worker key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerKeyStatement {
    pub key: VerifyingKey,
    pub not_before: Timestamp,
    /// The last instant the key's signatures are taken.
    pub not_after: Timestamp,
    pub deployment_id: DeploymentId,
}

// An unknown member is refused: a later version could narrow what the key may do, and reading past that would widen it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StatementJson {
    v: u64,
    deployment_id: String,
    spki: String,
    not_before: String,
    not_after: String,
}

impl WorkerKeyStatement {
    fn render(&self) -> Vec<u8> {
        codec::to_json(&StatementJson {
            v: 1,
            deployment_id: self.deployment_id.to_string(),
            spki: codec::to_base64url(self.key.spki_der()),
            not_before: self.not_before.to_string(),
            not_after: self.not_after.to_string(),
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let fields = Fields("worker key statement");
        let json: StatementJson = codec::from_json(fields.0, bytes, WORKER_CERTIFICATE_BYTES_MAX)?;
        fields.version(json.v)?;
        let statement = Self {
            key: VerifyingKey::from_spki_der(&fields.bytes(&json.spki)?)
                .map_err(|_| fields.error("its key is not a P-256 key"))?,
            not_before: fields.time(&json.not_before)?,
            not_after: fields.time(&json.not_after)?,
            deployment_id: fields.parse(&json.deployment_id, "its deployment id is not one")?,
        };
        if statement.not_before < statement.not_after {
            Ok(statement)
        } else {
            Err(fields.error("its validity is empty"))
        }
    }
}

/// A statement under a root's signature. Bytes: 0x01, the root's key id (8), the signature (64), the statement's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCertificate {
    root_key_id: KeyId,
    signature: Signature,
    statement: Vec<u8>,
    parsed: WorkerKeyStatement,
}

impl WorkerCertificate {
    pub fn issue(root: &SigningKey, statement: WorkerKeyStatement) -> Self {
        let bytes = statement.render();
        Self {
            root_key_id: root.verifying_key().key_id(),
            signature: root.sign(Purpose::WorkerKey, &bytes),
            statement: bytes,
            parsed: statement,
        }
    }

    pub fn root_key_id(&self) -> KeyId {
        self.root_key_id
    }

    /// What the certificate claims; `CommandVerifier` decides whether to believe it.
    pub fn statement(&self) -> &WorkerKeyStatement {
        &self.parsed
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(self.root_key_id.as_bytes());
        out.extend_from_slice(&self.signature.to_bytes());
        out.extend_from_slice(&self.statement);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader =
            Reader::versioned("worker certificate", bytes, WORKER_CERTIFICATE_BYTES_MAX, VERSION)?;
        let root_key_id = KeyId::from_bytes(reader.array()?);
        let signature = Signature::from_bytes(reader.take(SIGNATURE_BYTES)?)
            .map_err(|_| reader.error("its signature is not one"))?;
        let statement = reader.rest().to_vec();
        let parsed = WorkerKeyStatement::parse(&statement)?;
        Ok(Self { root_key_id, signature, statement, parsed })
    }
}

/// What travels beside a command or a spec. Bytes: 0x01, the worker's signature (64), the worker certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntentSignature {
    pub signature: Signature,
    pub worker_certificate: WorkerCertificate,
}

impl IntentSignature {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.signature.to_bytes());
        out.extend_from_slice(&self.worker_certificate.encode());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::versioned("intent signature", bytes, INTENT_SIGNATURE_BYTES_MAX, VERSION)?;
        let signature = Signature::from_bytes(reader.take(SIGNATURE_BYTES)?)
            .map_err(|_| reader.error("its signature is not one"))?;
        Ok(Self { signature, worker_certificate: WorkerCertificate::decode(reader.rest())? })
    }
}

/// A worker key with its certificate: what signs intent.
#[derive(Debug, Clone)]
pub struct IntentSigner {
    key: SigningKey,
    certificate: WorkerCertificate,
}

impl IntentSigner {
    /// `None` when the certificate is for another key.
    pub fn new(key: SigningKey, certificate: WorkerCertificate) -> Option<Self> {
        (certificate.parsed.key == *key.verifying_key()).then_some(Self { key, certificate })
    }

    /// The caller signs only the purposes of `SIGNED_BY_WORKERS`; no verifier takes another.
    pub fn sign(&self, purpose: Purpose, body: &[u8]) -> IntentSignature {
        IntentSignature {
            signature: self.key.sign(purpose, body),
            worker_certificate: self.certificate.clone(),
        }
    }

    pub fn certificate(&self) -> &WorkerCertificate {
        &self.certificate
    }
}

/// Why intent was not believed. Each is final for these bytes, `WorkerExpired` apart, which depends on the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureRefused {
    #[error("verify intent: it is not signed")]
    Missing,
    #[error("verify intent: the signature is malformed")]
    Malformed,
    #[error("verify intent: a worker key does not sign {0}")]
    NotDelegated(Purpose),
    #[error("verify intent: root key {0} is not trusted")]
    UnknownRoot(KeyId),
    #[error("verify intent: the root's signature over the worker key does not verify")]
    BadRootSignature,
    #[error("verify intent: the worker key belongs to another deployment")]
    OtherDeployment,
    #[error("verify intent: the worker key is not valid at that time")]
    WorkerExpired,
    #[error("verify intent: the worker's signature does not verify")]
    BadSignature,
}

/// Verifies intent against a deployment's command-signing roots. Pure: the caller says at which time.
#[derive(Debug, Clone)]
pub struct CommandVerifier {
    deployment_id: DeploymentId,
    roots: Vec<VerifyingKey>,
}

impl CommandVerifier {
    /// Without roots every verification refuses.
    pub fn new(deployment_id: DeploymentId, roots: &[VerifyingKey]) -> Self {
        Self { deployment_id, roots: roots.to_vec() }
    }

    /// `at` is the server's time as this node knows it, and for intent read back from the journal the time it was
    /// accepted. `None` is refused as `Missing`.
    pub fn verify(
        &self,
        purpose: Purpose,
        body: &[u8],
        intent: Option<&IntentSignature>,
        at: Timestamp,
    ) -> Result<(), SignatureRefused> {
        let intent = intent.ok_or(SignatureRefused::Missing)?;
        if !SIGNED_BY_WORKERS.contains(&purpose) {
            return Err(SignatureRefused::NotDelegated(purpose));
        }
        let worker = self.believe_worker(&intent.worker_certificate, at)?;
        worker.verify(purpose, body, &intent.signature).map_err(|_| SignatureRefused::BadSignature)
    }

    /// `verify` over an encoded `IntentSignature`; empty bytes are `Missing`.
    pub fn verify_bytes(
        &self,
        purpose: Purpose,
        body: &[u8],
        intent: &[u8],
        at: Timestamp,
    ) -> Result<(), SignatureRefused> {
        if intent.is_empty() {
            return Err(SignatureRefused::Missing);
        }
        let intent = IntentSignature::decode(intent).map_err(|_| SignatureRefused::Malformed)?;
        self.verify(purpose, body, Some(&intent), at)
    }

    fn believe_worker<'c>(
        &self,
        certificate: &'c WorkerCertificate,
        at: Timestamp,
    ) -> Result<&'c VerifyingKey, SignatureRefused> {
        let root = self
            .roots
            .iter()
            .find(|root| root.key_id() == certificate.root_key_id)
            .ok_or(SignatureRefused::UnknownRoot(certificate.root_key_id))?;
        root.verify(Purpose::WorkerKey, &certificate.statement, &certificate.signature)
            .map_err(|_| SignatureRefused::BadRootSignature)?;
        let statement = &certificate.parsed;
        if statement.deployment_id != self.deployment_id {
            return Err(SignatureRefused::OtherDeployment);
        }
        if at < statement.not_before || at > statement.not_after {
            return Err(SignatureRefused::WorkerExpired);
        }
        Ok(&statement.key)
    }
}

#[cfg(test)]
mod tests;
