//! Users: people and the service accounts of programs. What one may do, its bindings say.

use model::{TenantId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, IdempotencyKey, InvalidRequest, Limit, Name, Named, Text, Time, Word};

words! {
    UserKind, "user kind" {
        Person = "person",
        Service = "service",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub id: Id<UserId>,
    pub tenant: Named<TenantId>,
    pub kind: Word<UserKind>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// When its tokens stopped working.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled_at: Option<Time>,
    pub created_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateUser {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub kind: Word<UserKind>,
    /// Unique in its tenant.
    pub name: Name,
    /// 3 to 254 characters with one `@`. For people, never used to sign in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<Text<3, 254>>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetUser {
    pub id: Id<UserId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListUsers {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word<UserKind>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DisableUser {
    /// Not the caller.
    pub id: Id<UserId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnableUser {
    pub id: Id<UserId>,
}

fn check_create(request: &CreateUser) -> Result<(), InvalidRequest> {
    match &request.email {
        Some(email) if email.as_str().matches('@').count() != 1 => {
            Err(InvalidRequest::new("/email", "expected an e-mail address, which has one '@'"))
        }
        _ => Ok(()),
    }
}

method!(Create, "users"."create", Key, "compute-user", CreateUser => User, [NotFound, Conflict], "Creates a user: a person, or the service account of a program.", check = check_create);
method!(Get, "users"."get", Read, "compute-user", GetUser => User, [NotFound], "Shows a user.");
method!(List, "users"."list", Read, "compute-user", ListUsers => crate::List<User>, [NotFound], "Lists the users of a tenant.");
method!(Disable, "users"."disable", Natural, "compute-user", DisableUser => User, [NotFound, InvalidState], "Stops every token of a user from working, from the next call on.");
method!(Enable, "users"."enable", Natural, "compute-user", EnableUser => User, [NotFound], "Lets a disabled user's tokens work again, as far as they are neither revoked nor expired.");
