//! A node's first message. The join token travels sealed to the control plane's join key, so a gateway carries it
//! without reading it, and bound to one CSR and one moment, so a gateway cannot spend it on a key of its own.

use std::time::Duration;

use model::{Role, Timestamp};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::codec::{self, DecodeError, Fields};
use crate::csr::{CsrRefused, csr_sha256, verify_csr};
use crate::entropy::Entropy;
use crate::key::{VerifyingKey, parse_hex};
use crate::seal::{self, DecryptionKey, EncryptionKey, OpenError};
use crate::token::JoinToken;

/// How far a join's time may be from the server's, both ways: a machine's first clock is often a little off, and a
/// deferred join is sealed again at every retry.
pub const JOIN_AGE_MAX: Duration = Duration::from_secs(10 * 60);
/// The payload is about 300 bytes.
pub const JOIN_PAYLOAD_BYTES_MAX: usize = 2048;
const HOSTNAME_CHARS_MAX: usize = 253;

/// What a join carries beside its CSR.
#[derive(Debug, Clone)]
pub struct JoinPayload {
    pub token: JoinToken,
    pub issued_at: Timestamp,
    pub hostname: String,
    pub role: Role,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PayloadJson {
    v: u64,
    token: Zeroizing<String>,
    csr_sha256: String,
    issued_at: String,
    hostname: String,
    role: String,
}

/// A payload that opened, bound to a CSR that verified. Whether the token is good is for the caller to ask.
#[derive(Debug, Clone)]
pub struct JoinRequest {
    pub token: JoinToken,
    pub issued_at: Timestamp,
    pub hostname: String,
    pub role: Role,
    /// The key the CSR asks a certificate for.
    pub key: VerifyingKey,
    pub csr_sha256: [u8; 32],
}

/// Why a join was refused before its token was even looked up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefused {
    #[error("open a join")]
    Sealed(#[from] OpenError),
    #[error("open a join")]
    Malformed(#[from] DecodeError),
    #[error("open a join")]
    Csr(#[from] CsrRefused),
    #[error("open a join: the token was sealed for another CSR")]
    OtherCsr,
    #[error("open a join: it was sealed more than {} minutes from now", JOIN_AGE_MAX.as_secs() / 60)]
    Age,
}

/// Seals a join for `csr_der` to the control plane's join key. JSON inside:
/// `{v:1, token, csrSha256 (hex), issuedAt, hostname, role}`; the JWE's `kid` is the join key's id.
pub fn seal_join(payload: &JoinPayload, csr_der: &[u8], to: &EncryptionKey, entropy: &dyn Entropy) -> String {
    let json = PayloadJson {
        v: 1,
        token: payload.token.reveal(),
        csr_sha256: hex::encode(csr_sha256(csr_der)),
        issued_at: payload.issued_at.to_string(),
        hostname: payload.hostname.clone(),
        role: payload.role.name().to_owned(),
    };
    let plaintext = Zeroizing::new(codec::to_json(&json));
    let kid = to.key_id().to_string();
    seal::seal(&plaintext, to, &kid, entropy).expect("a join payload is small and a key id is plain")
}

/// Opens a sealed join beside its CSR, at the server's time.
pub fn open_join(
    sealed: &str,
    key: &DecryptionKey,
    csr_der: &[u8],
    at: Timestamp,
) -> Result<JoinRequest, JoinRefused> {
    let csr_key = verify_csr(csr_der)?;
    let plaintext = seal::open(sealed, key, &key.encryption_key().key_id().to_string())?;
    let fields = Fields("join payload");
    let json: PayloadJson = codec::from_json(fields.0, &plaintext, JOIN_PAYLOAD_BYTES_MAX)?;
    fields.version(json.v)?;
    let bound_to =
        parse_hex(&json.csr_sha256).ok_or_else(|| fields.error("its CSR digest is not hexadecimal"))?;
    let csr_sha256 = csr_sha256(csr_der);
    if bound_to != csr_sha256 {
        return Err(JoinRefused::OtherCsr);
    }
    let issued_at = fields.time(&json.issued_at)?;
    if !codec::within(issued_at, at, JOIN_AGE_MAX) {
        return Err(JoinRefused::Age);
    }
    if !is_hostname(&json.hostname) {
        return Err(fields
            .error("its hostname is not 1 to 253 characters of A-Z, a-z, 0-9, '.', '_', '-'")
            .into());
    }
    Ok(JoinRequest {
        token: fields.parse(&json.token, "its token is not a join token")?,
        issued_at,
        hostname: json.hostname,
        role: Role::parse(&json.role).ok_or_else(|| fields.error("its role is not one"))?,
        key: csr_key,
        csr_sha256,
    })
}

/// A name shown to operators, not one trusted for anything.
fn is_hostname(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= HOSTNAME_CHARS_MAX
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests;
