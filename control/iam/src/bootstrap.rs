//! The first tenant, user, policy and token, and a new token for an administrator who lost theirs. Both need the database and
//! no caller: whoever can run them owns the installation.

use std::time::{Duration, SystemTime};

use kernel::{ApiError, Fault, audit};
use kit::Rng;
use model::{BindingId, PolicyId, TenantId, Timestamp, TokenId, UserId};
use pki::Entropy;
use serde_json::{Value, json};
use store::{Op, RowExt, Store, Tx};
use zeroize::Zeroizing;

use crate::{secret, sql, version};

const OP_BOOTSTRAP: Op = Op::new("iam_bootstrap");
const OP_ADMIN_TOKEN: Op = Op::new("iam_admin_token");

/// The policy that keeps somebody able to repair everything else. It can be neither changed nor deleted.
pub const ADMINISTRATOR: &str = "administrator";
/// The service user that holds it first.
pub const ADMIN: &str = "admin";
const ROOT: &str = "root";

/// The first administrator.
pub struct Bootstrapped {
    pub tenant_id: TenantId,
    pub user_id: UserId,
    pub token_id: TokenId,
    pub expires_at: Timestamp,
    /// `bct_…`, told here and never again.
    pub secret: Zeroizing<String>,
}

fn administrator() -> Value {
    json!({"statements": [{
        "sid": "Everything", "effect": "allow", "actions": ["compute:*"], "resources": ["*"],
    }]})
}

struct Ids {
    tenant_id: TenantId,
    user_id: UserId,
    policy_id: PolicyId,
    binding_id: BindingId,
    audit_id: model::AuditId,
}

/// Makes the root tenant, the service user `admin` with the policy `administrator` over everything, and a token for it.
/// `None` when there is a root tenant already: nothing is changed then.
pub async fn bootstrap(
    store: &Store,
    rng: &dyn Rng,
    entropy: &dyn Entropy,
    valid_for: Duration,
) -> Result<Option<Bootstrapped>, Fault> {
    store
        .tx(OP_BOOTSTRAP, |tx| {
            Box::pin(async move {
                // Two processes that start together meet here.
                version::raise(tx).await?;
                if tx.query_opt(&sql::TENANT_ROOT, &[]).await?.is_some() {
                    return Ok(None);
                }
                let now = tx.now().await?;
                let ids = Ids {
                    tenant_id: rng.id(now),
                    user_id: rng.id(now),
                    policy_id: rng.id(now),
                    binding_id: rng.id(now),
                    audit_id: rng.id(now),
                };
                make(tx, &ids).await?;
                let made = token(tx, rng, entropy, ids.tenant_id, ids.user_id, valid_for).await?;
                Ok::<_, Fault>(Some(made))
            })
        })
        .await
}

async fn make(tx: &mut Tx<'_>, ids: &Ids) -> Result<(), Fault> {
    let (tenant, user, policy) = (ids.tenant_id.uuid(), ids.user_id.uuid(), ids.policy_id.uuid());
    let (no_parent, no_email): (Option<uuid::Uuid>, Option<&str>) = (None, None);
    tx.execute(&sql::TENANT_INSERT, &[&tenant, &no_parent, &ROOT]).await?;
    tx.execute(&sql::USER_INSERT, &[&user, &tenant, &"service", &ADMIN, &no_email]).await?;
    tx.execute(&sql::POLICY_INSERT, &[&policy, &tenant, &ADMINISTRATOR, &administrator()]).await?;
    tx.execute(&sql::BINDING_INSERT, &[&ids.binding_id.uuid(), &tenant, &policy, &user]).await?;
    let (subject, detail) = (format!("user/{}", ids.user_id), json!({}));
    audit::write_system(tx, ids.audit_id, Some(ids.tenant_id), "iam.bootstrap", &subject, detail).await?;
    Ok(())
}

async fn token(
    tx: &mut Tx<'_>,
    rng: &dyn Rng,
    entropy: &dyn Entropy,
    tenant_id: TenantId,
    user_id: UserId,
    valid_for: Duration,
) -> Result<Bootstrapped, Fault> {
    let now = tx.now().await?;
    let token_id: TokenId = rng.id(now);
    let secret = secret::generate(token_id, entropy);
    let expires_at = now.saturating_add(valid_for);
    let row: [&(dyn store::Param + Sync); 5] =
        [&token_id.uuid(), &user_id.uuid(), &ADMIN, &secret.sha256, &SystemTime::from(expires_at)];
    tx.execute(&sql::TOKEN_INSERT, &row).await?;
    let (subject, detail) = (format!("token/{token_id}"), json!({"userId": user_id.to_string()}));
    audit::write_system(tx, rng.id(now), Some(tenant_id), "iam.adminToken", &subject, detail).await?;
    Ok(Bootstrapped { tenant_id, user_id, token_id, expires_at, secret: secret.text })
}

/// Makes another token for the root tenant's `admin`, for an installation whose tokens are lost or expired.
pub async fn admin_token(
    store: &Store,
    rng: &dyn Rng,
    entropy: &dyn Entropy,
    valid_for: Duration,
) -> Result<Bootstrapped, Fault> {
    store
        .tx(OP_ADMIN_TOKEN, |tx| {
            Box::pin(async move {
                version::raise(tx).await?;
                let Some(root) = tx.query_opt(&sql::TENANT_ROOT, &[]).await? else {
                    return Err(ApiError::invalid_state("the installation has no tenant yet").into());
                };
                let tenant_id: TenantId = root.id("tenant_id");
                let admin = tx.query_opt(&sql::USER_GET_BY_NAME, &[&tenant_id.uuid(), &ADMIN]).await?;
                let admin = admin.ok_or_else(|| ApiError::not_found("user", ADMIN))?;
                token(tx, rng, entropy, tenant_id, admin.id("user_id"), valid_for).await
            })
        })
        .await
}
