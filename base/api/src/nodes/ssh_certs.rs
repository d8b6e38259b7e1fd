//! Certificates for OpenSSH: logins on nodes for an emergency, which need neither the daemon nor a gateway.

use model::{NodeId, SshCertId, TenantId, UserId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, Int, InvalidRequest, Limit, Many, Named, Ref, Text, Time, Word};

words! {
    SshCertState, "SSH certificate state" {
        Valid = "valid",
        /// Its time is over.
        Expired = "expired",
        /// Its node was told to take it no more.
        Revoked = "revoked",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshCert {
    pub id: Id<SshCertId>,
    /// By which it is revoked and sshd's log names it: decimal digits, more than a JSON number holds.
    pub serial: String,
    /// Whose the node is.
    pub tenant: Named<TenantId>,
    pub state: Word<SshCertState>,
    pub node: Named<NodeId>,
    pub account: String,
    /// `<account>@<node id>`: it opens this account on this node, and nothing else.
    pub principals: Vec<String>,
    /// Of the key that it is about, as `ssh-keygen -l` shows it.
    pub key_fingerprint: String,
    pub issued_to: Named<UserId>,
    pub reason: String,
    pub source_ip: String,
    pub created_at: Time,
    /// It lets nobody in from then on.
    pub valid_before: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// Why it was revoked: one stable word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoke_reason: Option<String>,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuedSshCert {
    pub cert: SshCert,
    /// The line of an OpenSSH `-cert.pub` file. It is told this once.
    pub certificate: String,
    /// The node's own name for itself, where its address is not known better.
    pub hostname: String,
}

/// One line of an OpenSSH public key file.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct PublicKeyLine(Text<1, 8192>);

impl PublicKeyLine {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl std::fmt::Debug for PublicKeyLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for PublicKeyLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Before anything is said of its length or its lines: none of those is the trouble with it.
        if text.contains("PRIVATE KEY") {
            return Err(D::Error::custom(
                "this is a private key: give the public one, the file that ends in .pub, and replace this one",
            ));
        }
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Text::parse(line).map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for PublicKeyLine {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PublicKeyLine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 8192 })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssueSshCert {
    /// One that is in a pool.
    pub node: Ref<NodeId>,
    /// One of those that the pool's policy names in `sshAccounts`.
    pub account: Text<1, 32>,
    /// One line of an OpenSSH `.pub` file: Ed25519, ECDSA, or RSA from 2048 bits on.
    pub public_key: PublicKeyLine,
    /// 60 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_minutes: Option<Int<1, 720>>,
    /// What for: kept with it, and told in its event.
    pub reason: Text<1, 200>,
    /// Addresses and networks from which alone it lets in. Through a tunnel one comes from the node itself.
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub source_addresses: Many<Text<1, 43>, 16>,
    /// Whether ports may be forwarded through a login.
    #[serde(default, skip_serializing_if = "is_false")]
    pub port_forwarding: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeSshCert {
    /// Decimal digits.
    pub serial: Text<1, 19>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSshCerts {
    /// Whose nodes. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    /// Also those that are expired or revoked.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

fn check_revoke(request: &RevokeSshCert) -> Result<(), InvalidRequest> {
    let serial = request.serial.as_str();
    let plain = serial.bytes().all(|digit| digit.is_ascii_digit()) && !serial.starts_with('0');
    if plain && serial.parse::<i64>().is_ok() {
        return Ok(());
    }
    Err(InvalidRequest::new("/serial", "a serial is a number above 0, in decimal digits"))
}

method!(Issue, "nodes"."issueSshCert", Natural, "compute-node", IssueSshCert => IssuedSshCert, [NotFound, InvalidState, Unsupported], "Certifies an OpenSSH key for an account of a node, for a while.");
method!(Revoke, "nodes"."revokeSshCert", Natural, "compute-node", RevokeSshCert => SshCert, [NotFound], "Revokes an SSH certificate on its node. Who is logged in by it stays so.", check = check_revoke);
method!(List, "nodes"."listSshCerts", Read, "compute-node", ListSshCerts => crate::List<SshCert>, [NotFound], "Lists SSH certificates for nodes.");
