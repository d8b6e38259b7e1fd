//! Tenants: whose things are. They form a tree with one root; a policy bound in one speaks about all below it.

use model::TenantId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::method;
use crate::{Cursor, Id, IdempotencyKey, Limit, Name, Named, Time};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    pub id: Id<TenantId>,
    pub name: String,
    /// Absent for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Named<TenantId>>,
    pub created_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTenant {
    /// Unique below its parent.
    pub name: Name,
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id<TenantId>>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetTenant {
    pub id: Id<TenantId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTenants {
    /// Only those directly below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteTenant {
    /// Without users, policies, pools, tenants below it, or a reservation that ever was. Its quotas go with it.
    pub id: Id<TenantId>,
}

method!(Create, "tenants"."create", Key, "compute-tenant", CreateTenant => Tenant, [NotFound, Conflict], "Creates a tenant below another.");
method!(Get, "tenants"."get", Read, "compute-tenant", GetTenant => Tenant, [NotFound], "Shows a tenant.");
method!(List, "tenants"."list", Read, "compute-tenant", ListTenants => crate::List<Tenant>, [], "Lists tenants.");
method!(Delete, "tenants"."delete", Natural, "compute-tenant", DeleteTenant => Tenant, [NotFound, InvalidState], "Deletes an empty tenant, and answers what it was.");
