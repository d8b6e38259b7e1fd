//! Tenants: whose things are. They form a tree with one root; a policy bound in one speaks about all below it.

use model::TenantId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, IdempotencyKey, Limit, Name, Named, Time, Wait, Word};

words! {
    TenantState, "tenant state" {
        Active = "active",
        /// It gets nothing new, and what it has is on its way out.
        Deleting = "deleting",
        /// Nothing that it had is left.
        Deleted = "deleted",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    pub id: Id<TenantId>,
    pub name: String,
    /// Absent for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Named<TenantId>>,
    pub state: Word<TenantState>,
    /// Of one that is being deleted, or would be: what it still has, like `3 instances`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Time>,
    pub age_seconds: u64,
    /// Nothing was changed; this is what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
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
    /// Until it is not being deleted any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTenants {
    /// Only those directly below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Also those that were deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteTenant {
    /// Without tenants below it and without pools: those are never deleted with it.
    pub id: Id<TenantId>,
    /// With all that it has: instances with their disks, reservations, images, secrets, policies. Its users are disabled at once.
    /// One that has something is refused without this, by a message that says what it has.
    #[serde(default, skip_serializing_if = "is_false")]
    pub with_contents: bool,
    /// Decides and looks, and changes nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Until nothing that it had is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

method!(Create, "tenants"."create", Key, "compute-tenant", CreateTenant => Tenant, [NotFound, Conflict], "Creates a tenant below another.");
method!(Get, "tenants"."get", Read, "compute-tenant", GetTenant => Tenant, [NotFound], "Shows a tenant.");
method!(List, "tenants"."list", Read, "compute-tenant", ListTenants => crate::List<Tenant>, [], "Lists tenants.");
method!(Delete, "tenants"."delete", Natural, "compute-tenant", DeleteTenant => Tenant, [NotFound, InvalidState], "Deletes a tenant: an empty one, or one with all that it has.");
