//! Typed ids. The text form is a TypeID: a prefix, `_`, and a UUID in 26 characters of Crockford base32
//! (lowercase, no padding), as the TypeID specification 0.3 gives it. The database stores the UUID.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const SUFFIX_LEN: usize = 26;

/// Why a text is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{given:?} is not {} {kind} id: one starts with {prefix:?}", article(.kind))]
    WrongPrefix { kind: &'static str, prefix: &'static str, given: String },
    #[error(
        "{given:?} is not {} {kind} id: after {prefix:?} come 26 characters of 0-9 and a-z without i, l, o, u",
        article(.kind)
    )]
    Malformed { kind: &'static str, prefix: &'static str, given: String },
}

/// What comes before the name of a kind of id: an instance, a user, an SSH certificate.
pub fn article(kind: &str) -> &'static str {
    // As they are spoken: no kind's "u" is a vowel, and "SSH" is spelled out.
    match kind.starts_with(['a', 'e', 'i', 'o', 'S']) {
        true => "an",
        false => "a",
    }
}

/// Encodes a UUID as 26 characters: 128 bits, most significant first, with two leading zero bits.
fn encode(uuid: Uuid) -> [u8; SUFFIX_LEN] {
    let mut value = uuid.as_u128();
    let mut out = [0u8; SUFFIX_LEN];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    out
}

fn decode(text: &str) -> Option<Uuid> {
    let bytes = text.as_bytes();
    // The first character carries 3 bits: above '7' the value would not fit 128 bits.
    if bytes.len() != SUFFIX_LEN || bytes[0] > b'7' {
        return None;
    }
    let mut value: u128 = 0;
    for byte in bytes {
        let digit = ALPHABET.iter().position(|known| known == byte)?;
        value = (value << 5) | digit as u128;
    }
    Some(Uuid::from_u128(value))
}

/// What every id type offers.
pub trait Id:
    Copy + Eq + Ord + fmt::Display + fmt::Debug + FromStr<Err = IdError> + Send + Sync + 'static
{
    /// What the id names, in words for messages: `node`, `reservation`.
    const KIND: &'static str;
    /// The text before the suffix, with its underscore: `node_`.
    const PREFIX: &'static str;
    fn from_uuid(uuid: Uuid) -> Self;
    fn uuid(self) -> Uuid;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            pub const fn from_uuid(uuid: Uuid) -> Self { Self(uuid) }
            pub const fn uuid(self) -> Uuid { self.0 }
        }

        impl Id for $name {
            const KIND: &'static str = $kind;
            const PREFIX: &'static str = $prefix;
            fn from_uuid(uuid: Uuid) -> Self { Self(uuid) }
            fn uuid(self) -> Uuid { self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let suffix = encode(self.0);
                f.write_str($prefix)?;
                f.write_str(std::str::from_utf8(&suffix).expect("the alphabet is ASCII"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(self, f) }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let shown = || text.chars().take(64).collect::<String>();
                let Some(suffix) = text.strip_prefix($prefix) else {
                    return Err(IdError::WrongPrefix { kind: $kind, prefix: $prefix, given: shown() });
                };
                decode(suffix)
                    .map(Self)
                    .ok_or_else(|| IdError::Malformed { kind: $kind, prefix: $prefix, given: shown() })
            }
        }
    )*

    /// Every id kind with its prefix, for docs and for the test that no two share one.
    pub const ID_KINDS: &[(&str, &str)] = &[$(($kind, $prefix)),*];
    };
}

ids! {
    TenantId, "tenant", "tnt_";
    UserId, "user", "usr_";
    TokenId, "token", "tok_";
    PolicyId, "policy", "pol_";
    BindingId, "binding", "bind_";
    SiteId, "site", "site_";
    PoolId, "pool", "pool_";
    NodeId, "node", "node_";
    JoinTokenId, "join token", "jt_";
    JoinRequestId, "join request", "jreq_";
    CommandId, "command", "cmd_";
    BatchId, "batch", "batch_";
    ReservationId, "reservation", "rsv_";
    /// One placed attempt of a reservation on one node. A re-placement makes a new one.
    AllocationId, "allocation", "alloc_";
    /// A virtual machine of a tenant.
    InstanceId, "instance", "inst_";
    /// One way into an instance or a node, for one connection.
    TunnelId, "tunnel", "tun_";
    SshCertId, "SSH certificate", "sshc_";
    /// A value of a tenant that is told to machines and to nobody else.
    SecretId, "secret", "sec_";
    QuotaId, "quota", "quota_";
    FlavorId, "flavor", "flv_";
    ImageId, "image", "img_";
    EventId, "event", "evt_";
    AuditId, "audit entry", "aud_";
    RequestId, "request", "req_";
    GatewayId, "gateway", "gw_";
    WorkId, "work item", "work_";
    /// Made with the journal file; a lost journal comes back under another one.
    JournalId, "journal", "jrn_";
    /// One process start of the daemon.
    IncarnationId, "incarnation", "inc_";
    DeploymentId, "deployment", "dep_";
}

#[cfg(test)]
mod tests;
