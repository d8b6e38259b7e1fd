//! The audit log: who asked for what, what was decided and by which statement, and how it ended.

use model::{AuditId, RequestId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, Limit, Text, Time, Word};

words! {
    Decision, "decision" {
        Allowed = "allowed",
        Denied = "denied",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    pub id: Id<AuditId>,
    pub at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// The caller's name.
    pub principal: String,
    /// `usr_…`; absent for the system itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    pub action: String,
    pub resource: String,
    /// `allowed` or `denied`.
    pub decision: String,
    /// `ok`, or the error's code.
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Id<RequestId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ip: Option<String>,
    pub detail: Map<String, Value>,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListAudit {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// A user's id or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<Text<1, 128>>,
    /// Exactly, or with a trailing `*`: `compute:reservations:*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Text<1, 128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Text<1, 128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Word<Decision>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Id<RequestId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

method!(List, "audit"."list", Read, "compute-audit", ListAudit => crate::List<AuditEntry>, [NotFound], "Lists who did what, newest first.");
