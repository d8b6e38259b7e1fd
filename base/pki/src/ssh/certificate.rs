//! OpenSSH user certificates (PROTOCOL.certkeys): a short permission to log in as some principals, signed by the
//! deployment's SSH CA. Revoked by serial through the node's revocation list.

use std::time::Duration;

use model::Timestamp;
use p256::ecdsa::signature;
use ssh_key::certificate::{Builder, CertType};
use ssh_key::public::{EcdsaPublicKey, KeyData};

use super::{Principal, RSA_BITS_MIN, SourceAddress, SshError, SshPublicKey};
use crate::entropy::{self, Entropy};
use crate::key::SigningKey;

/// No SSH certificate outlives a day: what must last longer is asked for again.
pub const SSH_CERTIFICATE_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// sshd refuses more than 256; a person needs a few.
pub const SSH_PRINCIPALS_MAX: usize = 64;
/// Networks from which it is taken.
pub const SSH_SOURCES_MAX: usize = 16;
const KEY_ID_CHARS_MAX: usize = 128;

/// What a certificate is to say.
#[derive(Debug, Clone, Copy)]
pub struct UserCertificateRequest<'a> {
    pub key: &'a SshPublicKey,
    /// Shown in sshd's log: who asked, and for what. Printable ASCII without spaces, 1 to 128 characters.
    pub key_id: &'a str,
    pub principals: &'a [Principal],
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// From where alone it is taken; from anywhere when empty.
    pub sources: &'a [SourceAddress],
    /// Whether ports may be forwarded; a terminal always may be asked for, agents and X11 never.
    pub port_forwarding: bool,
}

/// A certificate just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshUserCertificate {
    /// The line of an OpenSSH `-cert.pub` file.
    pub line: String,
    /// Random, from 1 to 2^63 - 1, so that it fits a database's integer.
    pub serial: u64,
}

/// The public half of an SSH CA key, as sshd's `TrustedUserCAKeys` wants it.
pub fn ssh_ca_public_key(ca: &SigningKey) -> SshPublicKey {
    let key = ssh_key::PublicKey::from(KeyData::from(&CaSigner(ca)));
    let line = key.to_openssh().expect("a P-256 key always encodes");
    line.trim_end().parse().expect("what the encoder wrote is one key")
}

/// Signs a user certificate. Without principals, or with a validity that is empty or longer than
/// `SSH_CERTIFICATE_LIFETIME_MAX`, it is refused: a certificate without principals would open every account. So is a
/// short RSA key.
pub fn issue_user_certificate(
    ca: &SigningKey,
    request: &UserCertificateRequest<'_>,
    entropy: &dyn Entropy,
) -> Result<SshUserCertificate, SshError> {
    let refused = |problem| SshError::Certificate { problem };
    if request.principals.is_empty() || request.principals.len() > SSH_PRINCIPALS_MAX {
        return Err(refused("it needs 1 to 64 principals"));
    }
    let printable = request.key_id.bytes().all(|byte| byte.is_ascii_graphic());
    if request.key_id.is_empty() || request.key_id.len() > KEY_ID_CHARS_MAX || !printable {
        return Err(refused("its key id is not 1 to 128 printable characters"));
    }
    let lifetime = request.not_after.since(request.not_before);
    if lifetime < Duration::from_secs(1) || lifetime > SSH_CERTIFICATE_LIFETIME_MAX {
        return Err(refused("its validity is empty or longer than a day"));
    }
    if request.sources.len() > SSH_SOURCES_MAX {
        return Err(refused("it names more than 16 source addresses"));
    }
    if request.key.rsa_bits().is_some_and(|bits| bits < RSA_BITS_MIN) {
        return Err(refused("its RSA key is shorter than 2048 bits"));
    }
    let serial = (u64::from_be_bytes(entropy::bytes(entropy)) >> 1).max(1);
    let unencodable = |_| refused("its fields do not encode");
    let line = build(ca, request, serial, entropy).map_err(unencodable)?;
    Ok(SshUserCertificate { line, serial })
}

fn build(
    ca: &SigningKey,
    request: &UserCertificateRequest<'_>,
    serial: u64,
    entropy: &dyn Entropy,
) -> Result<String, ssh_key::Error> {
    let seconds = |time: Timestamp| u64::try_from(crate::x509::seconds(time)).unwrap_or(0);
    let subject = ssh_key::PublicKey::from_bytes(request.key.blob())?;
    let mut builder = Builder::new(
        entropy::bytes::<32>(entropy),
        subject.key_data().clone(),
        seconds(request.not_before),
        seconds(request.not_after),
    )?;
    builder.serial(serial)?.key_id(request.key_id)?.cert_type(CertType::User)?;
    for principal in request.principals {
        builder.valid_principal(principal.to_string())?;
    }
    if !request.sources.is_empty() {
        let sources: Vec<String> = request.sources.iter().map(ToString::to_string).collect();
        builder.critical_option("source-address", sources.join(","))?;
    }
    // sshd wants extensions in lexical order.
    if request.port_forwarding {
        builder.extension("permit-port-forwarding", "")?;
    }
    builder.extension("permit-pty", "")?;
    builder.sign(&CaSigner(ca))?.to_openssh()
}

/// Our key in the shape ssh-key asks for.
struct CaSigner<'a>(&'a SigningKey);

impl signature::Signer<ssh_key::Signature> for CaSigner<'_> {
    fn try_sign(&self, message: &[u8]) -> Result<ssh_key::Signature, signature::Error> {
        let raw = self.0.sign_parts(&[message]).to_bytes();
        let signature = p256::ecdsa::Signature::from_slice(&raw)?;
        ssh_key::Signature::try_from(signature).map_err(|_| signature::Error::new())
    }
}

impl From<&CaSigner<'_>> for KeyData {
    fn from(signer: &CaSigner<'_>) -> Self {
        let point = signer.0.verifying_key().sec1_uncompressed();
        KeyData::Ecdsa(
            EcdsaPublicKey::from_sec1_bytes(&point).expect("the point is an uncompressed P-256 point"),
        )
    }
}
