//! Policies: documents that say who may do what. A policy does nothing until a binding gives it to a user.

use model::{PolicyId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::{Cursor, Deleted, Id, Int, Limit, Name, Named, Object, Ref, Time};

/// As many bytes of JSON as a document may have.
pub const POLICY_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    pub id: Id<PolicyId>,
    pub tenant: Named<TenantId>,
    pub name: String,
    /// Goes up with each put.
    pub version: u64,
    /// Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Object<POLICY_BYTES_MAX>>,
    pub created_at: Time,
    pub updated_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutPolicy {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Unique in its tenant; the policy of that name is replaced.
    pub name: Name,
    /// `{"version": 1, "statements": […]}`.
    pub document: Object<POLICY_BYTES_MAX>,
    /// Refuses with CONFLICT when the stored version is another one; 0 when there must be none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<Int<0, 9_007_199_254_740_991>>,
    /// Checks the document and changes nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetPolicy {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub policy: Ref<PolicyId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListPolicies {
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
pub struct DeletePolicy {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub policy: Ref<PolicyId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

method!(Put, "policies"."put", Natural, "compute-policy", PutPolicy => Policy, [NotFound, Conflict, InvalidConfig], "Writes a policy; it holds from the next call on.");
method!(Get, "policies"."get", Read, "compute-policy", GetPolicy => Policy, [NotFound], "Shows a policy with its document.");
method!(List, "policies"."list", Read, "compute-policy", ListPolicies => crate::List<Policy>, [NotFound], "Lists policies, without their documents.");
method!(Delete, "policies"."delete", Natural, "compute-policy", DeletePolicy => Deleted, [NotFound, Conflict], "Deletes a policy that no binding uses.");
