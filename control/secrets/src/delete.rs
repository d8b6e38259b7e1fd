//! `secrets.delete`: one that no instance names. An instance may be made anew on another host, and would then miss it.

use std::sync::Arc;

use api::secrets::DeleteSecret;
use api::{Deleted, Method};
use kernel::events::{self, EventKind};
use kernel::ports::tenants::{Belongings, CLEARED_AT_ONCE, counted};
use kernel::{ApiError, BoxFuture, Call, Fault};
use model::{InstanceId, SecretId, TenantId};
use serde_json::json;
use store::{Op, RowExt, Tx};

use crate::read::SEE;
use crate::view::Stored;
use crate::{Secrets, sql};

const SECRET_DELETE: Op = Op::new("secret_delete");
const TENANT_SECRETS: Op = Op::new("secret_tenant_end");

pub(crate) async fn delete(
    secrets: Secrets,
    call: Arc<Call>,
    request: DeleteSecret,
) -> Result<Deleted, Fault> {
    let action = api::secrets::Delete::ACTION;
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let found = &secrets.found(&call, action, tenant_id, &request.secret).await?;
    call.require_on(action, SEE, &found.resource(), "secret", &request.secret).await?;
    let (id, dry_run) = (found.id, request.dry_run);
    call.about(format!("secret/{id}"));
    let this = &secrets;
    let deleted =
        call.tx(secrets.store(), SECRET_DELETE, |tx| Box::pin(this.delete_in(tx, found, dry_run))).await;
    deleted.map_err(|fault| match &fault {
        // An instance was made in the meantime.
        Fault::Store(err) if err.is_foreign_key("instances_user_data") => in_use(&found.name, None).into(),
        Fault::Store(_) | Fault::Refused(_) | Fault::Internal { .. } => fault,
    })?;
    Ok(Deleted { id: id.to_string(), dry_run })
}

fn in_use(name: &str, by: Option<InstanceId>) -> ApiError {
    let who = by.map_or_else(|| "an instance".to_owned(), |id| format!("instance {id}"));
    let message = format!(
        "secret {name} is the user data of {who}: delete that first, or put another value: better-compute secrets put {name} --file FILE"
    );
    let refusal = ApiError::conflict(message);
    match by {
        Some(id) => refusal.detail("instanceId", id.to_string()),
        None => refusal,
    }
}

impl Secrets {
    async fn delete_in(&self, tx: &mut Tx<'_>, found: &Stored, dry_run: bool) -> Result<(), Fault> {
        let id: SecretId = found.id;
        if let Some(row) = tx.query_opt(&sql::SECRET_USED, &[&id.uuid()]).await? {
            return Err(in_use(&found.name, Some(row.id("instance_id"))).into());
        }
        if dry_run {
            return Ok(());
        }
        self.gone_in(tx, id, found.tenant_id, &found.name).await
    }

    async fn gone_in(
        &self,
        tx: &mut Tx<'_>,
        id: SecretId,
        tenant_id: TenantId,
        name: &str,
    ) -> Result<(), Fault> {
        if tx.execute(&sql::SECRET_DELETE, &[&id.uuid()]).await? > 0 {
            let (kind, data) = (EventKind::SecretDeleted, json!({ "name": name }));
            events::append(tx, &*self.0.rng, kind, id, Some(tenant_id), data).await?;
        }
        Ok(())
    }
}

/// Secrets that a tenant put, for whoever deletes the tenant: each goes when no instance names it any more.
impl Belongings for Secrets {
    fn left<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
    ) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(async move {
            let row = tx.query_one(&sql::TENANT_HAS, &[&tenant_id.uuid()]).await?;
            Ok(counted(row.get("secrets"), "secret").into_iter().collect())
        })
    }

    fn clear(&self, tenant_id: TenantId) -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move {
            let unused = self.store().read(&sql::TENANT_SECRETS, &[&tenant_id.uuid()]).await?;
            let unused: &Vec<(SecretId, String)> =
                &unused.iter().map(|row| (row.id("secret_id"), row.get("name"))).collect();
            self.store()
                .tx(TENANT_SECRETS, |tx| {
                    Box::pin(async move {
                        for (id, name) in unused {
                            self.gone_in(tx, *id, tenant_id, name).await?;
                        }
                        Ok::<_, Fault>(())
                    })
                })
                .await?;
            Ok(unused.len() >= CLEARED_AT_ONCE)
        })
    }
}
