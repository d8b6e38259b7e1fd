//! Bindings: a user holds a policy in a tenant, over that tenant's resources and those of all below it.

use model::{BindingId, PolicyId, TenantId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::{Cursor, Deleted, Id, Limit, Named, Ref, Time};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    pub id: Id<BindingId>,
    /// Where the policy is held.
    pub tenant: Named<TenantId>,
    pub policy: Named<PolicyId>,
    pub user: Named<UserId>,
    pub created_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutBinding {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// A name is looked for in the tenant, then in those above it.
    pub policy: Ref<PolicyId>,
    pub user: Ref<UserId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListBindings {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Id<UserId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Id<PolicyId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteBinding {
    pub id: Id<BindingId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

method!(Put, "bindings"."put", Natural, "compute-binding", PutBinding => Binding, [NotFound], "Gives a user a policy in a tenant.");
method!(List, "bindings"."list", Read, "compute-binding", ListBindings => crate::List<Binding>, [NotFound], "Lists who holds which policy.");
method!(Delete, "bindings"."delete", Natural, "compute-binding", DeleteBinding => Deleted, [NotFound, Conflict], "Takes a policy from a user.");
