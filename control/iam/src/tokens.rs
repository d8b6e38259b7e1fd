//! Tokens. A secret is in the answer that made it and nowhere else.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::tokens::{
    CreateToken, CreatedToken, GetIdentity, Identity, ListTokens, RevokeToken, TOKEN_HOURS_DEFAULT,
    TOKEN_HOURS_MAX, Token,
};
use api::users::User;
use api::{Named, Secret};
use kernel::events::{self, EventKind};
use kernel::idempotency::{self, Key};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{TenantId, Timestamp, TokenId, UserId};
use serde_json::json;
use store::{Op, Row, RowExt};

use crate::{Iam, secret, sql, version};

const OP_CREATE: Op = Op::new("token_create");
const OP_REVOKE: Op = Op::new("token_revoke");

/// Tenants in which a user holds policies, looked at before somebody else makes a token for it.
const HELD_TENANTS_MAX: i64 = 256;

const HOUR: Duration = Duration::from_secs(3600);

fn resource(token_id: impl std::fmt::Display, user_id: UserId, tenant_id: TenantId) -> Resource {
    Resource::one("compute-token", token_id, tenant_id).with("resource.userId", user_id.to_string())
}

struct Found {
    view: Token,
    user_id: UserId,
    tenant_id: TenantId,
}

fn found(row: &Row, now: Timestamp) -> Found {
    let (created_at, expires_at) = (row.ts("created_at"), row.ts("expires_at"));
    let revoked_at = row.opt_ts("revoked_at");
    let left = if revoked_at.is_some() { Duration::ZERO } else { expires_at.since(now) };
    let user_id: UserId = row.id("user_id");
    let view = Token {
        id: row.id::<TokenId>("token_id").into(),
        user: Named::new(user_id, row.get::<_, String>("user_name")),
        name: row.get("name"),
        created_at: created_at.into(),
        expires_at: expires_at.into(),
        last_used_at: row.opt_ts("last_used_at").map(Into::into),
        revoked_at: revoked_at.map(Into::into),
        age_seconds: now.since(created_at).as_secs(),
        expires_in_seconds: left.as_secs(),
    };
    Found { view, user_id, tenant_id: row.id("tenant_id") }
}

impl Iam {
    async fn token(&self, call: &Call, token_id: TokenId) -> Result<Found, Fault> {
        let row = self.store.read_opt(&sql::TOKEN_GET, &[&token_id.uuid()]).await?;
        let row = row.ok_or_else(|| ApiError::not_found("token", token_id))?;
        Ok(found(&row, call.now))
    }

    /// A token is worth everything that its user may do, so whoever makes one for another user needs the right in every
    /// tenant where that user holds a policy.
    async fn require_over(&self, call: &Call, user: &User) -> Result<(), Fault> {
        let user_id = user.id.get();
        let rows =
            self.store.read(&sql::BINDING_TENANTS_OF_USER, &[&user_id.uuid(), &HELD_TENANTS_MAX]).await?;
        if rows.len() as i64 == HELD_TENANTS_MAX {
            return Err(ApiError::invalid_state("the user holds policies in too many tenants").into());
        }
        for row in &rows {
            call.require("compute:tokens:create", &resource("*", user_id, row.id("tenant_id"))).await?;
        }
        Ok(())
    }
}

fn expiry(request: &CreateToken, now: Timestamp) -> Result<Timestamp, ApiError> {
    let latest = now.saturating_add(HOUR * u32::try_from(TOKEN_HOURS_MAX).expect("a year of hours fits"));
    let Some(at) = request.expires_at else {
        let hours = request.expires_in_hours.map_or(TOKEN_HOURS_DEFAULT, api::Int::get);
        return Ok(now.saturating_add(HOUR * u32::try_from(hours).expect("bounded by its type")));
    };
    if at.0 <= now || at.0 > latest {
        let message = format!("expected a time from now to {TOKEN_HOURS_MAX} hours ahead");
        return Err(ApiError::invalid("/expiresAt", message).detail("latest", latest.to_string()));
    }
    Ok(at.0)
}

pub(crate) async fn create(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: CreateToken,
) -> Result<CreatedToken, Fault> {
    let user_id = request.user.map_or(call.principal.user_id, api::Id::get);
    let user = iam.user(&call, user_id).await?;
    let tenant_id = user.tenant.id.get();
    let asked = resource("*", user_id, tenant_id);
    if user_id == call.principal.user_id {
        call.require("compute:tokens:create", &asked).await?;
    } else {
        call.require_on("compute:tokens:create", "compute:users:get", &asked, "user", user_id).await?;
        iam.require_over(&call, &user).await?;
    }
    if user.disabled_at.is_some() {
        return Err(ApiError::conflict(format!("user {} is disabled", user.name)).into());
    }
    let expires_at = expiry(&request, call.now)?;
    let key = Key::of(&call, tenant_id, request.idempotency_key.as_ref().map(api::Text::as_str), &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(&iam.store).await?
    {
        let token = iam.token(&call, idempotency::made(&made)?).await?.view;
        return Ok(CreatedToken { token, secret: None });
    }

    let token_id: TokenId = iam.rng.id(call.now);
    call.about(format!("token/{token_id}"));
    let secret = secret::generate(token_id, &*iam.entropy);
    let (key, name, rng, sha256) = (key.as_ref(), request.name.as_str(), &*iam.rng, &secret.sha256);
    let made = call.tx(&iam.store, OP_CREATE, |tx| {
        Box::pin(async move {
            if let Some(key) = key
                && let Some(made) = key.claim(tx, &token_id.to_string()).await?
            {
                return idempotency::made(&made);
            }
            let expires_at_time = SystemTime::from(expires_at);
            let row: [&(dyn store::Param + Sync); 5] =
                [&token_id.uuid(), &user_id.uuid(), &name, sha256, &expires_at_time];
            tx.execute(&sql::TOKEN_INSERT, &row).await?;
            version::raise(tx).await?;
            let data =
                json!({"userId": user_id.to_string(), "name": name, "expiresAt": expires_at.to_string()});
            events::append(tx, rng, EventKind::IamTokenCreated, token_id, Some(tenant_id), data).await?;
            Ok::<_, Fault>(token_id)
        })
    });
    let made = made.await?;
    let token = iam.token(&call, made).await?.view;
    // A call at the same time under the same key was first: its secret is not ours to tell.
    let secret = (made == token_id).then(|| Secret::new(secret.text.to_string()));
    Ok(CreatedToken { token, secret })
}

pub(crate) async fn list(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: ListTokens,
) -> Result<api::List<Token>, Fault> {
    let action = "compute:tokens:list";
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    let user_id = request.user.map(api::Id::get);
    let mut asked = Resource::any("compute-token", tenant_id);
    if let Some(user_id) = user_id {
        asked = asked.with("resource.userId", user_id.to_string());
    }
    call.require_in(action, &asked).await?;
    let page = Page::of::<TokenId>(request.limit, request.cursor.as_ref())?;
    let user = user_id.map(UserId::uuid);
    let params: [&(dyn store::Param + Sync); 5] =
        [&tenant_id.uuid(), &user, &request.include_ended, &page.before, &page.fetch()];
    let rows = iam.store.read(&sql::TOKEN_LIST, &params).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<TokenId>("token_id"));
    let items = rows.iter().map(|row| found(row, call.now)).collect();
    let items = call
        .filter(action, items, |token: &Found| resource(token.view.id, token.user_id, token.tenant_id))
        .await?;
    Ok(api::List::new(items.into_iter().map(|token| token.view).collect(), cursor))
}

pub(crate) async fn revoke(iam: Arc<Iam>, call: Arc<Call>, request: RevokeToken) -> Result<Token, Fault> {
    let token_id = request.id.get();
    let token = iam.token(&call, token_id).await?;
    let asked = resource(token_id, token.user_id, token.tenant_id);
    call.require_on("compute:tokens:revoke", "compute:tokens:list", &asked, "token", token_id).await?;
    call.about(format!("token/{token_id}"));
    if request.dry_run || token.view.revoked_at.is_some() {
        return Ok(token.view);
    }
    let (rng, name) = (&*iam.rng, token.view.name.as_str());
    let (user_id, tenant_id) = (token.user_id, token.tenant_id);
    let revoked: Result<(), Fault> = call
        .tx(&iam.store, OP_REVOKE, |tx| {
            Box::pin(async move {
                if tx.execute(&sql::TOKEN_REVOKE, &[&token_id.uuid()]).await? == 0 {
                    return Ok(());
                }
                version::raise(tx).await?;
                let data = json!({"userId": user_id.to_string(), "name": name});
                events::append(tx, rng, EventKind::IamTokenRevoked, token_id, Some(tenant_id), data).await?;
                Ok(())
            })
        })
        .await;
    revoked?;
    Ok(iam.token(&call, token_id).await?.view)
}

pub(crate) async fn whoami(iam: Arc<Iam>, call: Arc<Call>, _: GetIdentity) -> Result<Identity, Fault> {
    call.allow_self();
    let user = iam.user(&call, call.principal.user_id).await?;
    let token = iam.token(&call, call.principal.token_id).await?.view;
    let mut tenants = iam.way_up(call.principal.tenant_id).await?;
    tenants.reverse();
    Ok(Identity { user, token, tenants })
}
