//! `joinTokens`. The secret is in the answer that made it, and nowhere else.

use std::sync::Arc;

use api::join_tokens::{self as api_tokens, CreateJoinToken, CreatedJoinToken, JoinToken, JoinTokenState};
use api::{Id, List, Named, Secret, Word};
use kernel::events::{self, EventKind};
use kernel::idempotency::{self, Key};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Module};
use model::{JoinTokenId, Role, SiteId, TenantId, Timestamp};
use store::{Op, Row, RowExt};

use super::{on, refs, sql};
use crate::core::{AsEntropy, Fleet};

const KIND: &str = "compute-join-token";
const CREATE: Op = Op::new("join_token_create");
const REVOKE: Op = Op::new("join_token_revoke");

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, api_tokens::Create, create);
    let module = on!(module, fleet, api_tokens::List, list);
    on!(module, fleet, api_tokens::Revoke, revoke)
}

async fn create(fleet: Fleet, call: Arc<Call>, request: CreateJoinToken) -> Result<CreatedJoinToken, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    call.require("compute:joinTokens:create", &Resource::any(KIND, root)).await?;
    let key = request.idempotency_key.as_ref().map(api::IdempotencyKey::as_str);
    let key = Key::of(&call, root, key, &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(fleet.store()).await?
    {
        return replayed(&fleet, &call, &made).await;
    }
    let site_id = refs::site(fleet.store(), &request.site).await?;
    let pool_id = match &request.pool {
        None => None,
        Some(pool) => {
            let tenant = request.tenant.map(|tenant| tenant.0);
            // A token with a pool adopts: it takes what adopting takes.
            Some(refs::pool_to_adopt_into(fleet.store(), &call, tenant, pool).await?.uuid())
        }
    };
    let id: JoinTokenId = fleet.id();
    call.about(format!("join-token/{id}"));
    let token = pki::token::JoinToken::generate(id, &AsEntropy(fleet.rng()));
    let hash = token.hash();
    let role = request.role.map_or(Role::Node, |role| role.0).name();
    let uses_max = i32::try_from(request.uses_max.map_or(1, api::Int::get)).unwrap_or(i32::MAX);
    let hours = request.expires_in_hours.map_or(api_tokens::JOIN_TOKEN_HOURS_DEFAULT, api::Int::get) as f64;
    let (user, deferred, key, rng, about) =
        (call.principal.user_id.uuid(), request.deferred, key.as_ref(), fleet.rng(), &*call);
    let earlier: Option<String> = call
        .tx(fleet.store(), CREATE, |tx| {
            Box::pin(async move {
                if let Some(key) = key
                    && let Some(made) = key.claim(tx, &id.to_string()).await?
                {
                    about.about(format!("join-token/{made}"));
                    return Ok(Some(made));
                }
                let secret: &[u8] = hash.as_bytes();
                tx.execute(
                    &sql::JOIN_TOKEN_INSERT,
                    &[
                        &id.uuid(),
                        &site_id.uuid(),
                        &pool_id,
                        &role,
                        &secret,
                        &uses_max,
                        &deferred,
                        &user,
                        &hours,
                    ],
                )
                .await?;
                let data = serde_json::json!({ "siteId": site_id.to_string(), "revoked": false });
                events::append(tx, rng, EventKind::JoinTokenChanged, id, Some(root), data).await?;
                Ok::<_, Fault>(None)
            })
        })
        .await?;
    if let Some(made) = earlier {
        return replayed(&fleet, &call, &made).await;
    }
    let join_token = read(&fleet, &call, id).await?;
    Ok(CreatedJoinToken { join_token, secret: Some(Secret::new(token.reveal().to_string())) })
}

async fn replayed(fleet: &Fleet, call: &Call, made: &str) -> Result<CreatedJoinToken, Fault> {
    let id = idempotency::made(made)?;
    Ok(CreatedJoinToken { join_token: read(fleet, call, id).await?, secret: None })
}

async fn list(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_tokens::ListJoinTokens,
) -> Result<List<JoinToken>, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    let site = match &request.site {
        None => None,
        Some(site) => Some(refs::visible_site(fleet.store(), &call, site).await?.uuid()),
    };
    let limit = api::limit_or_default(request.limit);
    let after = refs::after::<JoinTokenId>(request.cursor.as_ref())?;
    let one: Option<uuid::Uuid> = None;
    let rows = fleet
        .store()
        .read(&sql::JOIN_TOKENS, &[&one, &after, &site, &request.include_ended, &refs::sql_limit(limit)])
        .await?;
    let cursor = refs::next::<JoinTokenId>(&rows, limit, "join_token_id");
    let items = rows.iter().map(|row| view(row, call.now)).collect::<Result<Vec<_>, _>>()?;
    let items = call.filter("compute:joinTokens:list", items, |token| resource(token.id.0, root)).await?;
    Ok(List::new(items, cursor))
}

async fn revoke(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_tokens::RevokeJoinToken,
) -> Result<JoinToken, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    let id = request.id.0;
    let on = resource(id, root);
    call.require_on("compute:joinTokens:revoke", "compute:joinTokens:list", &on, "join token", id).await?;
    let token = read(&fleet, &call, id).await?;
    if request.dry_run || token.state.0 == JoinTokenState::Revoked {
        return Ok(token);
    }
    call.about(format!("join-token/{id}"));
    let (site_id, rng) = (token.site.id.0, fleet.rng());
    call.tx(fleet.store(), REVOKE, |tx| {
        Box::pin(async move {
            if tx.execute(&sql::JOIN_TOKEN_REVOKE, &[&id.uuid()]).await? == 0 {
                return Ok(());
            }
            let data = serde_json::json!({ "siteId": site_id.to_string(), "revoked": true });
            events::append(tx, rng, EventKind::JoinTokenChanged, id, Some(root), data).await?;
            Ok::<_, Fault>(())
        })
    })
    .await?;
    read(&fleet, &call, id).await
}

fn resource(id: JoinTokenId, root: TenantId) -> Resource {
    Resource::one(KIND, id, root)
}

async fn read(fleet: &Fleet, call: &Call, id: JoinTokenId) -> Result<JoinToken, Fault> {
    let none: Option<uuid::Uuid> = None;
    let row = fleet
        .store()
        .read_opt(&sql::JOIN_TOKENS, &[&Some(id.uuid()), &none, &none, &true, &1i64])
        .await?
        .ok_or_else(|| ApiError::not_found("join token", id))?;
    view(&row, call.now)
}

fn view(row: &Row, now: Timestamp) -> Result<JoinToken, Fault> {
    let (created_at, expires_at, revoked_at) =
        (row.ts("created_at"), row.ts("expires_at"), row.opt_ts("revoked_at"));
    let count = |column: &str| u32::try_from(row.get::<_, i32>(column)).unwrap_or(0);
    let (uses, uses_max) = (count("uses"), count("uses_max"));
    let state = match revoked_at {
        Some(_) => JoinTokenState::Revoked,
        None if expires_at <= now => JoinTokenState::Expired,
        None if uses >= uses_max => JoinTokenState::Used,
        None => JoinTokenState::Active,
    };
    let named = |id: &str, name: &str| {
        row.opt_id(id).map(|id| (id, row.get::<_, Option<String>>(name).unwrap_or_default()))
    };
    let site_id: SiteId = row.id("site_id");
    Ok(JoinToken {
        id: Id(row.id("join_token_id")),
        site: Named::new(site_id, row.get::<_, String>("site_name")),
        pool: row.opt_id("pool_id").map(|id| Named::new(id, row.get::<_, String>("pool_name"))),
        role: Word(Role::parse(row.get("role")).unwrap_or(Role::Node)),
        state: Word(state),
        uses,
        uses_max,
        deferred: row.get("deferred"),
        created_by: named("created_by", "user_name").map(|(id, name)| Named::new(id, name)),
        created_at: created_at.into(),
        expires_at: expires_at.into(),
        revoked_at: revoked_at.map(Into::into),
        age_seconds: now.since(created_at).as_secs(),
        expires_in_seconds: expires_at.since(now).as_secs(),
    })
}
