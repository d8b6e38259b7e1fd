//! From a bearer token to its user.
//!
//! Every call asks the database, by primary key and in one statement that also reads the time and the version that decisions
//! go by; calls that come while it is being asked share the next one. Nothing is remembered, so a revoked token, a disabled user and an expiry hold from the next call on, in every
//! process.

use std::time::Duration;

use kernel::call::Principal;
use kernel::ports::iam::{AuthenticationPort, Identity};
use kernel::{ApiError, BoxFuture, Fault};
use model::{ErrorCode, TokenId};
use store::{Row, RowExt, StoreError};
use uuid::Uuid;

use crate::{Iam, secret, sql};

/// When a token was used is kept to this resolution, so that it costs a write a minute and not one a call.
const LAST_USED_RESOLUTION: Duration = Duration::from_secs(60);

impl AuthenticationPort for Iam {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        Box::pin(async move {
            let Some(token) = secret::parse(token) else {
                return Err(refused(None, "malformed"));
            };
            let row = self.authenticating.ask(token.id().uuid(), |ids| self.look_up(ids)).await?;
            let Some(kept) = row.get::<_, Option<&[u8]>>("secret_sha256") else {
                return Err(refused(Some(token.id()), "unknown"));
            };
            if !secret::matches(&token, kept) {
                return Err(refused(Some(token.id()), "wrong secret"));
            }
            let identity = identity(&row, token.id())?;
            let used = row.opt_ts("last_used_at");
            if used.is_none_or(|used| identity.now.since(used) >= LAST_USED_RESOLUTION) {
                self.used(token.id()).await;
            }
            Ok(identity)
        })
    }

    fn again(&self, token_id: TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        Box::pin(async move {
            let row = self.authenticating.ask(token_id.uuid(), |ids| self.look_up(ids)).await?;
            match row.get::<_, Option<&[u8]>>("secret_sha256") {
                Some(_) => identity(&row, token_id),
                None => Err(refused(Some(token_id), "unknown")),
            }
        })
    }
}

/// Of a token that is there.
fn identity(row: &Row, token_id: TokenId) -> Result<Identity, Fault> {
    let now = row.ts("now");
    if row.opt_ts("revoked_at").is_some() {
        return Err(refused(Some(token_id), "revoked"));
    }
    if row.ts("expires_at") <= now {
        return Err(refused(Some(token_id), "expired"));
    }
    if row.opt_ts("disabled_at").is_some() {
        return Err(refused(Some(token_id), "disabled user"));
    }
    Ok(Identity {
        principal: principal(row, token_id),
        now,
        iam_version: Some(row.get("version")),
        observe_only: row.get("observe_only"),
    })
}

impl Iam {
    async fn look_up(&self, ids: Vec<Uuid>) -> Result<Vec<Row>, StoreError> {
        self.store.read(&sql::TOKENS_AUTHENTICATE, &[&ids]).await
    }

    /// A failure is logged and forgotten: it is for people, and no reason to refuse a call.
    async fn used(&self, token_id: TokenId) {
        let resolution_secs = i64::try_from(LAST_USED_RESOLUTION.as_secs()).expect("a minute fits");
        if let Err(err) = self.store.execute(&sql::TOKEN_USED, &[&token_id.uuid(), &resolution_secs]).await {
            tracing::warn!(%token_id, err = kit::chain(&err), "failed to note the use of a token");
        }
    }
}

fn principal(row: &Row, token_id: TokenId) -> Principal {
    Principal {
        user_id: row.id("user_id"),
        tenant_id: row.id("tenant_id"),
        name: row.get("name"),
        kind: if row.get::<_, &str>("kind") == "person" { "person" } else { "service" },
        token_id,
    }
}

/// The caller hears one answer for every reason, and the log hears which.
fn refused(token_id: Option<TokenId>, reason: &'static str) -> Fault {
    let token_id = token_id.map(|id| id.to_string());
    tracing::info!(token_id, reason, "token refused");
    ApiError::new(ErrorCode::Unauthenticated, "the token is not valid: it is unknown, revoked or expired")
        .into()
}
