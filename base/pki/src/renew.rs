//! Renewal: the key being replaced signs for its successor. The answer is a join response, verified as one.

use std::time::Duration;

use model::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ca::Serial;
use crate::codec::{self, DecodeError, Fields, Reader};
use crate::csr::{CsrRefused, csr_sha256, verify_csr};
use crate::entropy::{self, Entropy};
use crate::identity::PeerIdentity;
use crate::key::{SIGNATURE_BYTES, Signature, SigningKey, VerifyingKey, parse_hex};
use crate::purpose::Purpose;

/// How far a proof's time may be from the server's, both ways.
pub const RENEW_AGE_MAX: Duration = Duration::from_secs(10 * 60);
/// A proof is about 400 bytes.
pub const RENEW_PROOF_BYTES_MAX: usize = 2048;

const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StatementJson {
    v: u64,
    node_id: String,
    csr_sha256: String,
    old_serial: String,
    at: String,
    nonce: String,
}

/// What the old key says: this node, this CSR, in place of this certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewStatement {
    pub node_id: NodeId,
    pub csr_sha256: [u8; 32],
    pub old_serial: Serial,
    pub at: Timestamp,
    /// Makes every proof its own, so that one can be remembered as spent.
    pub nonce: [u8; 16],
}

impl RenewStatement {
    pub fn new(
        node_id: NodeId,
        csr_der: &[u8],
        old_serial: Serial,
        at: Timestamp,
        entropy: &dyn Entropy,
    ) -> Self {
        Self { node_id, csr_sha256: csr_sha256(csr_der), old_serial, at, nonce: entropy::bytes(entropy) }
    }

    /// Compact JSON: `{v:1, nodeId, csrSha256 (hex), oldSerial, at, nonce (hex)}`.
    fn render(&self) -> Vec<u8> {
        codec::to_json(&StatementJson {
            v: 1,
            node_id: self.node_id.to_string(),
            csr_sha256: hex::encode(self.csr_sha256),
            old_serial: self.old_serial.to_string(),
            at: self.at.to_string(),
            nonce: hex::encode(self.nonce),
        })
    }

    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let fields = Fields("renewal proof");
        let json: StatementJson = codec::from_json(fields.0, bytes, RENEW_PROOF_BYTES_MAX)?;
        fields.version(json.v)?;
        let not_hex = || fields.error("a digest or nonce in it is not hexadecimal of its length");
        Ok(Self {
            node_id: fields.parse(&json.node_id, "its node id is not one")?,
            csr_sha256: parse_hex(&json.csr_sha256).ok_or_else(not_hex)?,
            old_serial: fields.parse(&json.old_serial, "its serial is not one")?,
            at: fields.time(&json.at)?,
            nonce: parse_hex(&json.nonce).ok_or_else(not_hex)?,
        })
    }
}

/// A statement under the old key's signature. Bytes: 0x01, the signature (64), the statement's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenewProof {
    signature: Signature,
    statement: Vec<u8>,
    parsed: RenewStatement,
}

/// A proof that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The key the CSR asks the next certificate for.
    pub key: VerifyingKey,
    pub nonce: [u8; 16],
}

/// Why a renewal was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewRefused {
    #[error("renew a certificate")]
    Csr(#[from] CsrRefused),
    #[error("renew a certificate: the proof names another node or certificate")]
    OtherCertificate,
    #[error("renew a certificate: the proof is for another CSR")]
    OtherCsr,
    #[error("renew a certificate: the proof was made more than {} minutes from now", RENEW_AGE_MAX.as_secs() / 60)]
    Age,
    #[error("renew a certificate: the old key's signature does not verify")]
    BadSignature,
}

impl RenewProof {
    pub fn sign(old_key: &SigningKey, statement: RenewStatement) -> Self {
        let bytes = statement.render();
        Self { signature: old_key.sign(Purpose::RenewProof, &bytes), statement: bytes, parsed: statement }
    }

    /// What the proof claims, before it is verified: enough to find the certificate it names.
    pub fn statement(&self) -> &RenewStatement {
        &self.parsed
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.signature.to_bytes());
        out.extend_from_slice(&self.statement);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::versioned("renewal proof", bytes, RENEW_PROOF_BYTES_MAX, VERSION)?;
        let signature = Signature::from_bytes(reader.take(SIGNATURE_BYTES)?)
            .map_err(|_| reader.error("its signature is not one"))?;
        let statement = reader.rest().to_vec();
        let parsed = RenewStatement::parse(&statement)?;
        Ok(Self { signature, statement, parsed })
    }

    /// Holds the proof against the certificate being replaced, already verified as `peer`, and the next key's CSR.
    pub fn verify(
        &self,
        peer: &PeerIdentity,
        csr_der: &[u8],
        at: Timestamp,
    ) -> Result<Renewal, RenewRefused> {
        peer.key
            .verify(Purpose::RenewProof, &self.statement, &self.signature)
            .map_err(|_| RenewRefused::BadSignature)?;
        let statement = &self.parsed;
        if (statement.node_id, statement.old_serial) != (peer.node_id, peer.serial) {
            return Err(RenewRefused::OtherCertificate);
        }
        if statement.csr_sha256 != csr_sha256(csr_der) {
            return Err(RenewRefused::OtherCsr);
        }
        if !codec::within(statement.at, at, RENEW_AGE_MAX) {
            return Err(RenewRefused::Age);
        }
        Ok(Renewal { key: verify_csr(csr_der)?, nonce: statement.nonce })
    }
}

#[cfg(test)]
mod tests;
