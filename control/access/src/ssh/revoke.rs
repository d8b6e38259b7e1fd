//! `nodes.revokeSshCert`, and revoking as such: the node is told the serial, and refuses it from its next spec on.

use std::sync::Arc;

use api::Method;
use api::nodes::ssh_certs::{RevokeSshCert, SshCert};
use kernel::events::{self, EventKind};
use kernel::module::wake;
use kernel::ports::iam::Resource;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use serde_json::Value;
use store::{Op, Tx};

use super::view::{KIND, Stored, view};
use super::{read, spec_key};
use crate::Access;
use crate::sql::ssh as sql;

const CERT_REVOKE: Op = Op::new("ssh_cert_revoke");

pub(super) async fn revoke(
    access: Access,
    call: Arc<Call>,
    request: RevokeSshCert,
) -> Result<SshCert, Fault> {
    let action = api::nodes::ssh_certs::Revoke::ACTION;
    let serial = request.serial.as_str();
    let number: i64 = serial.parse().unwrap_or_default();
    let row = access.store().read_opt(&sql::CERT_BY_SERIAL, &[&number]).await?;
    let Some(stored) = row.as_ref().map(Stored::of_row) else {
        call.decide(action, &Resource::any(KIND, call.principal.tenant_id)).await?;
        return Err(ApiError::not_found("SSH certificate", serial).into());
    };
    let see = api::nodes::ssh_certs::List::ACTION;
    call.require_on(action, see, &stored.resource(), "SSH certificate", serial).await?;
    call.about(format!("ssh-cert/{}", stored.id));
    let (this, cert) = (&access, &stored);
    call.tx(access.store(), CERT_REVOKE, |tx| {
        Box::pin(async move {
            this.revoke_cert(tx, cert, "revoked-by-call").await?;
            Ok::<_, Fault>(())
        })
    })
    .await?;
    Ok(view(&read::one(&access, stored.id).await?))
}

impl Access {
    /// What was told of it, unless it was revoked before or its time is over.
    pub(super) async fn revoke_cert(
        &self,
        tx: &mut Tx<'_>,
        cert: &Stored,
        reason: &'static str,
    ) -> Result<Option<Value>, Fault> {
        if tx.execute(&sql::CERT_REVOKE, &[&cert.id.uuid(), &reason]).await? == 0 {
            return Ok(None);
        }
        wake(tx, SPEC_QUEUE, &spec_key(cert.node_id)).await?;
        let mut data = cert.data();
        data["reason"] = reason.into();
        let kind = EventKind::NodeSshCertRevoked;
        events::append(tx, &*self.0.rng, kind, cert.node_id, Some(cert.tenant_id), data.clone()).await?;
        Ok(Some(data))
    }
}
