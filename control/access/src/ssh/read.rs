//! Reading SSH certificates.

use std::sync::Arc;

use api::nodes::ssh_certs::{ListSshCerts, SshCert};
use api::{List, Method, Ref};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::SshCertId;

use super::view::{KIND, Stored, view};
use crate::Access;
use crate::sql::ssh as sql;

pub(super) async fn one(access: &Access, id: SshCertId) -> Result<Stored, Fault> {
    let row = access.store().read_opt(&sql::CERT_GET, &[&id.uuid()]).await?;
    Ok(row.as_ref().map(Stored::of_row).ok_or_else(|| ApiError::not_found("SSH certificate", id))?)
}

pub(super) async fn list(
    access: Access,
    call: Arc<Call>,
    request: ListSshCerts,
) -> Result<List<SshCert>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::nodes::ssh_certs::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
    }
    let page = Page::of::<SshCertId>(request.limit, request.cursor.as_ref())?;
    let (node_id, node_name) = match &request.node {
        Some(Ref::Id(id)) => (Some(id.uuid()), None),
        Some(Ref::Name(name)) => (None, Some(name.as_str())),
        None => (None, None),
    };
    let values: [&(dyn store::Param + Sync); 6] =
        [&tenant_id.uuid(), &page.before, &node_id, &node_name, &request.include_ended, &page.fetch()];
    let rows = access.store().read(&sql::CERTS_LIST, &values).await?;
    let found: Vec<Stored> = rows.iter().map(Stored::of_row).collect();
    let (found, cursor) = page.cut(found, |one| one.id);
    let shown = call.filter(action, found, Stored::resource).await?;
    Ok(List::new(shown.iter().map(view).collect(), cursor))
}
