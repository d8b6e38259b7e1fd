//! Tokens: what a user shows to be known as itself. Only a hash is kept.

use model::{TenantId, TokenId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::users::User;
use crate::{Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Name, Named, Secret, Time};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    pub id: Id<TokenId>,
    pub user: Named<UserId>,
    pub name: String,
    pub created_at: Time,
    pub expires_at: Time,
    /// Kept to a coarse resolution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    pub age_seconds: u64,
    /// Zero when it is over.
    pub expires_in_seconds: u64,
}

/// A token that was just made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    pub token: Token,
    /// `bct_…`. Only in the first answer: one that an idempotency key found again leaves it out, since nothing can tell it
    /// any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// One year and a day.
pub const TOKEN_HOURS_MAX: u64 = 366 * 24;
/// Thirty days.
pub const TOKEN_HOURS_DEFAULT: u64 = 30 * 24;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// The caller when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Id<UserId>>,
    /// For lists; need not be unique.
    pub name: Name,
    /// 720, which is 30 days, when neither this nor `expiresAt` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_hours: Option<Int<1, TOKEN_HOURS_MAX>>,
    /// At most 366 days ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTokens {
    /// Only this user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<Id<UserId>>,
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Also those that are revoked or expired.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeToken {
    pub id: Id<TokenId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetIdentity {}

/// Who the caller is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub user: User,
    pub token: Token,
    /// From the root down to the user's own.
    pub tenants: Vec<Named<TenantId>>,
}

fn check_create(request: &CreateToken) -> Result<(), InvalidRequest> {
    if request.expires_in_hours.is_some() && request.expires_at.is_some() {
        return Err(InvalidRequest::new("/expiresAt", "give expiresInHours or expiresAt, not both"));
    }
    Ok(())
}

method!(Create, "tokens"."create", Key, "compute-token", CreateToken => CreatedToken, [NotFound, Conflict], "Makes a token for a user; its secret is told once.", check = check_create);
method!(List, "tokens"."list", Read, "compute-token", ListTokens => crate::List<Token>, [NotFound], "Lists tokens, without their secrets.");
method!(Revoke, "tokens"."revoke", Natural, "compute-token", RevokeToken => Token, [NotFound], "Ends a token at once.");
method!(Whoami, "tokens"."whoami", Read, "compute-token", GetIdentity => Identity, [], "Tells who the caller is and until when.");
