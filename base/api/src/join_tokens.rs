//! Join tokens: what a machine shows when it joins the fleet.

use model::{JoinTokenId, PoolId, Role, SiteId, TenantId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Named, Ref, Secret, Time, Word};

words! {
    JoinTokenState, "join token state" {
        Active = "active",
        /// Every use is spent.
        Used = "used",
        Expired = "expired",
        Revoked = "revoked",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinToken {
    pub id: Id<JoinTokenId>,
    pub site: Named<SiteId>,
    /// Machines are adopted into it as they join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Named<PoolId>>,
    pub role: Word<Role>,
    pub state: Word<JoinTokenState>,
    pub uses: u32,
    pub uses_max: u32,
    /// A person approves each join.
    pub deferred: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<Named<UserId>>,
    pub created_at: Time,
    pub expires_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    pub age_seconds: u64,
    /// Zero when it is over.
    pub expires_in_seconds: u64,
}

/// A join token that was just made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedJoinToken {
    pub join_token: JoinToken,
    /// `bcjt_…`. Only in the first answer: one that an idempotency key found again leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// A day: longer than installing a rack takes.
pub const JOIN_TOKEN_HOURS_DEFAULT: u64 = 24;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateJoinToken {
    pub site: Ref<SiteId>,
    /// Adopts each machine into this pool as it joins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Ref<PoolId>>,
    /// Whose pool a name means. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// `node` when not given; `site` for the agent that boots bare metal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Word<Role>>,
    /// 1 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses_max: Option<Int<1, 100_000>>,
    /// A person approves each join with `joinRequests.approve`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deferred: bool,
    /// 24 when not given; 30 days at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_hours: Option<Int<1, 720>>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListJoinTokens {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Ref<SiteId>>,
    /// Also those that are used up, revoked or expired.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeJoinToken {
    pub id: Id<JoinTokenId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

fn check_create(request: &CreateJoinToken) -> Result<(), InvalidRequest> {
    match request.role {
        Some(Word(Role::Ramdisk)) => {
            Err(InvalidRequest::new("/role", "a ramdisk joins by its site agent's word: give node or site"))
        }
        Some(Word(Role::Site)) if request.pool.is_some() => {
            Err(InvalidRequest::new("/pool", "a site agent is in no pool"))
        }
        _ => Ok(()),
    }
}

method!(Create, "joinTokens"."create", Key, "compute-join-token", CreateJoinToken => CreatedJoinToken, [NotFound, Conflict], "Makes a token that machines join with; its secret is told once.", check = check_create);
method!(List, "joinTokens"."list", Read, "compute-join-token", ListJoinTokens => crate::List<JoinToken>, [NotFound], "Lists join tokens, without their secrets.");
method!(Revoke, "joinTokens"."revoke", Natural, "compute-join-token", RevokeJoinToken => JoinToken, [NotFound], "Ends a join token; machines that joined with it stay.");
