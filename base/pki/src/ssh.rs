//! What a node's sshd is told to trust: CA keys, principals, and a revocation list (OpenSSH's PROTOCOL.krl); and the
//! user certificates those CAs sign. Keys and principals become lines of sshd's files, so anything that could add a line or an option is refused, never repaired.

use std::fmt;
use std::str::FromStr;

use model::{NodeId, Timestamp};
use ssh_key::{HashAlg, PublicKey};

mod certificate;
mod source;

pub use certificate::{
    SSH_CERTIFICATE_LIFETIME_MAX, SSH_PRINCIPALS_MAX, SSH_SOURCES_MAX, SshUserCertificate,
    UserCertificateRequest, issue_user_certificate, ssh_ca_public_key,
};
pub use source::SourceAddress;

/// An RSA key of 16,384 bits is under 3 KiB.
pub const SSH_KEY_LINE_BYTES_MAX: usize = 8 * 1024;
/// What a principals file's name may hold.
pub const PRINCIPAL_CHARS_MAX: usize = 64;
/// A KRL of this many serials is 8 MB, and a deployment revokes a handful.
pub const KRL_SERIALS_MAX: usize = 1_000_000;

/// No shorter RSA key is certified.
pub const RSA_BITS_MIN: u32 = 2048;

const KEY_TYPES: [&str; 5] =
    ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    #[error("read an SSH public key: it is longer than {SSH_KEY_LINE_BYTES_MAX} bytes")]
    KeyTooLong,
    #[error("read an SSH public key: it holds a control character or spans lines")]
    KeyControl,
    #[error(
        "read an SSH public key: it is not one '<type> <base64> [comment]' of a known type, without options"
    )]
    Key,
    #[error(
        "read an SSH principal: it is <account>@<node id>, the account 1 to 32 of a-z, 0-9, '_', '-', '.'"
    )]
    Principal,
    #[error("write an SSH revocation list: it holds more than {KRL_SERIALS_MAX} serials, or serial 0")]
    KrlSerials,
    #[error(
        "read a source address: it is an IP address, or a network by its first address, like 10.0.0.0/24"
    )]
    Source,
    #[error("issue an SSH certificate: {problem}")]
    Certificate { problem: &'static str },
}

/// One OpenSSH public key (RFC 4253 section 6.6 in the format of sshd(8)), safe to write as a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshPublicKey {
    line: String,
    blob: Vec<u8>,
    fingerprint: String,
    rsa_bits: Option<u32>,
}

impl SshPublicKey {
    /// The line as it was given, without a newline.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The key's wire encoding.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// As `ssh-keygen -l` and sshd's log show it: `SHA256:` and 43 characters.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The length of an RSA key; absent for any other.
    pub fn rsa_bits(&self) -> Option<u32> {
        self.rsa_bits
    }
}

impl FromStr for SshPublicKey {
    type Err = SshError;

    fn from_str(text: &str) -> Result<Self, SshError> {
        if text.len() > SSH_KEY_LINE_BYTES_MAX {
            return Err(SshError::KeyTooLong);
        }
        // Unicode's line and paragraph separators too: who displays the file may break lines there.
        if text.chars().any(|c| c.is_control() || c == '\u{2028}' || c == '\u{2029}') {
            return Err(SshError::KeyControl);
        }
        let mut words = text.splitn(3, ' ');
        let (kind, encoded) = (words.next().unwrap_or(""), words.next().ok_or(SshError::Key)?);
        let untidy = |comment: &str| comment.is_empty() || comment.trim() != comment;
        if !KEY_TYPES.contains(&kind) || words.next().is_some_and(untidy) {
            return Err(SshError::Key);
        }
        let key = PublicKey::from_openssh(&format!("{kind} {encoded}")).map_err(|_| SshError::Key)?;
        let blob = key.to_bytes().map_err(|_| SshError::Key)?;
        // One encoding: what is written is what was checked.
        let again = key.to_openssh().map_err(|_| SshError::Key)?;
        if again.trim_end() != format!("{kind} {encoded}") {
            return Err(SshError::Key);
        }
        let fingerprint = key.fingerprint(HashAlg::Sha256).to_string();
        let rsa_bits = key.key_data().rsa().map(|rsa| rsa.key_size());
        Ok(Self { line: text.to_owned(), blob, fingerprint, rsa_bits })
    }
}

/// Who may log in on which node: `<account>@<node id>`. A certificate for one node is none for another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    account: String,
    node_id: NodeId,
}

impl Principal {
    pub fn account(&self) -> &str {
        &self.account
    }

    pub fn node_id(&self) -> NodeId {
        self.node_id
    }
}

impl FromStr for Principal {
    type Err = SshError;

    fn from_str(text: &str) -> Result<Self, SshError> {
        if text.len() > PRINCIPAL_CHARS_MAX {
            return Err(SshError::Principal);
        }
        let (account, node_id) = text.split_once('@').ok_or(SshError::Principal)?;
        let node_id = node_id.parse().map_err(|_| SshError::Principal)?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
        // A leading letter or '_': no option, no hidden file, no parent folder.
        let starts = account.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if !starts || account.len() > 32 || !account.bytes().all(plain) {
            return Err(SshError::Principal);
        }
        Ok(Self { account: account.to_owned(), node_id })
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.account, self.node_id)
    }
}

/// A revocation list of certificate serials.
#[derive(Debug, Clone)]
pub struct Krl<'a> {
    /// Counted up with every change; sshd only reports it.
    pub version: u64,
    pub generated_at: Timestamp,
    /// Each CA with the serials it revoked. The order does not matter, and a serial may repeat.
    pub revoked: &'a [(&'a SshPublicKey, &'a [u64])],
}

impl Krl<'_> {
    /// The file's bytes: format version 1, one section per CA with its serials in ascending order. No signature:
    /// the file reaches the node inside a signed spec.
    pub fn render(&self) -> Result<Vec<u8>, SshError> {
        const MAGIC: u64 = 0x5353_484b_524c_0a00; // "SSHKRL\n\0"
        const FORMAT_VERSION: u32 = 1;
        const SECTION_CERTIFICATES: u8 = 1;
        const SUBSECTION_SERIAL_LIST: u8 = 0x20;
        let total: usize = self.revoked.iter().map(|(_, serials)| serials.len()).sum();
        // Serial 0 is what a certificate without a serial carries: revoking it would revoke all of those.
        if total > KRL_SERIALS_MAX || self.revoked.iter().any(|(_, serials)| serials.contains(&0)) {
            return Err(SshError::KrlSerials);
        }
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        out.extend_from_slice(&self.version.to_be_bytes());
        let generated = u64::try_from(self.generated_at.millis().div_euclid(1000)).unwrap_or(0);
        out.extend_from_slice(&generated.to_be_bytes());
        out.extend_from_slice(&0u64.to_be_bytes()); // flags
        push_string(&mut out, b""); // reserved
        push_string(&mut out, b""); // comment
        for (ca, serials) in self.revoked {
            let mut serials = serials.to_vec();
            serials.sort_unstable();
            serials.dedup();
            if serials.is_empty() {
                continue;
            }
            let list: Vec<u8> = serials.iter().flat_map(|serial| serial.to_be_bytes()).collect();
            let mut section = Vec::new();
            push_string(&mut section, &ca.blob);
            push_string(&mut section, b""); // reserved
            section.push(SUBSECTION_SERIAL_LIST);
            push_string(&mut section, &list);
            out.push(SECTION_CERTIFICATES);
            push_string(&mut out, &section);
        }
        Ok(out)
    }
}

/// An SSH string (RFC 4251 section 5): a 32-bit length, then the bytes.
fn push_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("a KRL's parts are bounded far below 4 GiB");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
