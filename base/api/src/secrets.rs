//! Secrets: values that machines are told and no caller is told again.

use std::fmt;

use model::{SecretId, TenantId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroize;

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Deleted, Id, Int, InvalidRequest, Limit, Name, Named, Ref, Time};

/// As many bytes as a value may have: user data is the longest.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Base64 of the largest value.
const TEXT_CHARS_MAX: usize = SECRET_BYTES_MAX.div_ceil(3) * 4;

/// A text that is kept secret: its `Debug` says how long it is, and it is wiped from memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl Hidden {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes, hidden]", self.0.len())
    }
}

impl Serialize for Hidden {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Self(String::deserialize(deserializer)?);
        match text.0.is_empty() {
            true => Err(D::Error::custom("expected a text that is not empty")),
            false => Ok(text),
        }
    }
}

impl JsonSchema for Hidden {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Hidden".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX, "writeOnly": true })
    }
}

words! {
    /// How a value is written in a request.
    Encoding, "encoding" {
        /// As it is.
        Text = "text",
        /// For bytes that are no text: with padding, and without line ends.
        Base64 = "base64",
    }
}

/// What there is to know of a secret. Its value is not among it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeptSecret {
    pub id: Id<SecretId>,
    pub tenant: Named<TenantId>,
    pub name: String,
    /// Goes up with each put.
    pub version: u64,
    /// Of its value.
    pub size_bytes: u64,
    pub created_at: Time,
    pub updated_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutSecret {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Unique in its tenant; the value under that name is replaced.
    pub name: Name,
    /// At most 64 KiB. No call tells it again.
    pub value: Hidden,
    /// `text` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<crate::Word<Encoding>>,
    /// Refuses with CONFLICT when the stored version is another one; 0 when there must be none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<Int<0, 9_007_199_254_740_991>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetSecret {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub secret: Ref<SecretId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSecrets {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteSecret {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub secret: Ref<SecretId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

fn check_put(request: &PutSecret) -> Result<(), InvalidRequest> {
    let text = request.value.expose();
    let most = match request.encoding.map_or(Encoding::Text, |encoding| encoding.0) {
        Encoding::Text => SECRET_BYTES_MAX,
        Encoding::Base64 => TEXT_CHARS_MAX,
    };
    match text.len() > most {
        true => {
            let message = format!("the value is longer than {SECRET_BYTES_MAX} bytes");
            Err(InvalidRequest::new("/value", message))
        }
        false => Ok(()),
    }
}

method!(Put, "secrets"."put", Natural, "compute-secret", PutSecret => KeptSecret, [NotFound, Conflict, Unsupported], "Keeps a value, in the place of what was kept under its name.", check = check_put);
method!(Get, "secrets"."get", Read, "compute-secret", GetSecret => KeptSecret, [NotFound], "Shows what there is to know of a secret, and not its value.");
method!(List, "secrets"."list", Read, "compute-secret", ListSecrets => crate::List<KeptSecret>, [NotFound], "Lists secrets, without their values.");
method!(Delete, "secrets"."delete", Natural, "compute-secret", DeleteSecret => Deleted, [NotFound, Conflict], "Deletes a secret that no instance names.");
