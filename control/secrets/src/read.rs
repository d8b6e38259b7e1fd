//! Reading what there is to know of secrets.

use std::sync::Arc;

use api::secrets::{GetSecret, KeptSecret, ListSecrets};
use api::{List, Method, Ref};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{SecretId, TenantId};
use uuid::Uuid;

use crate::view::{KIND, Stored, view};
use crate::{Secrets, sql};

/// What a caller must be allowed to do to know that a secret is there.
pub(crate) const SEE: &str = api::secrets::Get::ACTION;

impl Secrets {
    /// A secret that a call names. One that is not there is decided on too, as every call is.
    pub(crate) async fn found(
        &self,
        call: &Call,
        action: &str,
        tenant_id: TenantId,
        secret: &Ref<SecretId>,
    ) -> Result<Stored, Fault> {
        let (id, name): (Option<Uuid>, Option<&str>) = match secret {
            Ref::Id(id) => (Some(id.uuid()), None),
            Ref::Name(name) => (None, Some(name)),
        };
        let row = self.store().read_opt(&sql::SECRET_FIND, &[&tenant_id.uuid(), &id, &name]).await?;
        if let Some(row) = row {
            return Ok(Stored::of_row(&row));
        }
        call.decide(action, &Resource::any(KIND, tenant_id)).await?;
        Err(ApiError::not_found("secret", secret).into())
    }
}

pub(crate) async fn get(secrets: Secrets, call: Arc<Call>, request: GetSecret) -> Result<KeptSecret, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let found = secrets.found(&call, SEE, tenant_id, &request.secret).await?;
    call.require_visible(SEE, &found.resource(), "secret", &request.secret).await?;
    Ok(view(&found))
}

pub(crate) async fn list(
    secrets: Secrets,
    call: Arc<Call>,
    request: ListSecrets,
) -> Result<List<KeptSecret>, Fault> {
    let action = api::secrets::List::ACTION;
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
    let page = Page::of::<SecretId>(request.limit, request.cursor.as_ref())?;
    let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &page.before, &page.fetch()];
    let rows = secrets.store().read(&sql::SECRETS_LIST, &values).await?;
    let found: Vec<Stored> = rows.iter().map(Stored::of_row).collect();
    let (found, cursor) = page.cut(found, |one| one.id);
    let shown = call.filter(action, found, Stored::resource).await?;
    Ok(List::new(shown.iter().map(view).collect(), cursor))
}
