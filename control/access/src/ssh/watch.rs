//! Looks at each certificate while it is good: whether its holder may still have it.

use std::time::Duration;

use api::Ref;
use api::nodes::ssh_certs::SshCertState;
use kernel::module::QueueHandler;
use kernel::{BoxFuture, Fault, audit};
use model::{ErrorCode, SshCertId};
use store::Op;
use uuid::Uuid;

use super::issue::ISSUE;
use super::view::{Stored, of_account};
use crate::Access;
use crate::sql::ssh as sql;

/// The queue of certificates to look at. Key: the certificate's UUID.
pub(super) const QUEUE: &str = "ssh-cert";
/// Nobody is thrown out by it: it is how long somebody who may not any more could still log in anew.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);

const CERT_WATCH: Op = Op::new("ssh_cert_watch");

pub(super) struct CertWatch(pub Access);

impl QueueHandler for CertWatch {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    /// It only ever takes back.
    fn acts(&self) -> bool {
        false
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match Uuid::parse_str(key) {
                Ok(id) => self.0.look_at_cert(SshCertId::from_uuid(id)).await,
                Err(_) => Ok(None),
            }
        })
    }
}

impl Access {
    async fn look_at_cert(&self, id: SshCertId) -> Result<Option<Duration>, Fault> {
        let Some(row) = self.store().read_opt(&sql::CERT_GET, &[&id.uuid()]).await? else {
            return Ok(None);
        };
        let cert = Stored::of_row(&row);
        match cert.state() {
            SshCertState::Revoked | SshCertState::Expired => return Ok(None),
            SshCertState::Valid => {}
        }
        match self.may_not_be_held(&cert).await {
            Ok(Some(reason)) => self.take_back(&cert, reason).await?,
            Ok(None) => {}
            // Asked again as soon as ever, as with tunnels.
            Err(fault) => {
                tracing::warn!(ssh_cert_id = %id, err = kit::chain(&fault), "whether a certificate is still good is not known now");
            }
        }
        Ok(Some(LOOK_EVERY))
    }

    /// Why it may not, if so: decided anew, as its holder and its node are now.
    async fn may_not_be_held(&self, cert: &Stored) -> Result<Option<&'static str>, Fault> {
        let identity = match self.0.authentication.again(cert.token_id).await {
            Ok(identity) => identity,
            Err(Fault::Refused(refusal)) if refusal.code == ErrorCode::Unauthenticated => {
                return Ok(Some("token-over"));
            }
            Err(fault) => return Err(fault),
        };
        let Some(node) = self.0.nodes.node(&Ref::Id(cert.node_id)).await? else {
            return Ok(Some("node-gone"));
        };
        let resource = of_account(node.resource, &cert.account);
        let allowed = self.allows(&identity, &cert.source_ip, ISSUE, &resource).await?;
        Ok((!allowed).then_some("not-allowed"))
    }

    async fn take_back(&self, cert: &Stored, reason: &'static str) -> Result<(), Fault> {
        self.store()
            .tx(CERT_WATCH, |tx| {
                Box::pin(async move {
                    if let Some(data) = self.revoke_cert(tx, cert, reason).await? {
                        let (action, resource) =
                            ("compute:nodes:revokeSshCert", format!("ssh-cert/{}", cert.id));
                        let tenant_id = Some(cert.tenant_id);
                        audit::write_system(tx, self.id(), tenant_id, action, &resource, data).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }
}
