//! What a tenant has here, for whoever deletes the tenant: instances with their disks, and then its images.

use kernel::ports::tenants::{Belongings, CLEARED_AT_ONCE, counted};
use kernel::{BoxFuture, Fault};
use model::{ImageId, InstanceId, TenantId};
use store::{IsRetryable, Op, RowExt, Tx};

use crate::{Instances, sql};

const TENANT_INSTANCE: Op = Op::new("instance_tenant_end");
const TENANT_IMAGE: Op = Op::new("image_tenant_end");
/// As the specification has it, in the events of what goes.
const REASON: &str = "tenant deleted";

impl Belongings for Instances {
    fn left<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
    ) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        Box::pin(async move {
            let row = tx.query_one(&sql::TENANT_HAS, &[&tenant_id.uuid()]).await?;
            let has = [counted(row.get("instances"), "instance"), counted(row.get("images"), "image")];
            Ok(has.into_iter().flatten().collect())
        })
    }

    fn clear(&self, tenant_id: TenantId) -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move {
            let instances = self.store().read(&sql::TENANT_INSTANCES, &[&tenant_id.uuid()]).await?;
            for row in &instances {
                let id: InstanceId = row.id("instance_id");
                let asked = self.store().tx(TENANT_INSTANCE, |tx| Box::pin(self.delete_in(tx, id, REASON)));
                went(asked.await, id)?;
            }
            let images = self.store().read(&sql::TENANT_IMAGES, &[&tenant_id.uuid()]).await?;
            for row in &images {
                let id: ImageId = row.id("image_id");
                let (name, sha256) = (&row.get::<_, String>("name"), &row.get::<_, String>("sha256"));
                let gone = crate::images::Gone { id, tenant_id, name, sha256, reason: REASON };
                let asked =
                    self.store().tx(TENANT_IMAGE, |tx| Box::pin(crate::images::delete_in(self, tx, gone)));
                went(asked.await, id)?;
            }
            Ok(instances.len().max(images.len()) >= CLEARED_AT_ONCE)
        })
    }
}

/// One that cannot go does not keep the others; a database that is away does.
fn went(asked: Result<(), Fault>, id: impl std::fmt::Display) -> Result<(), Fault> {
    match asked {
        Err(err) if !err.is_retryable() => {
            tracing::error!(%id, err = kit::chain(&err), "it cannot go with its tenant");
            Ok(())
        }
        done => done,
    }
}
