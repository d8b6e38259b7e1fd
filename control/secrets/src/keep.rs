//! Secrets for modules whose things use them.

use kernel::ports::secrets::SecretKeeper;
use kernel::{BoxFuture, Fault, ResultExt};
use model::{InstanceId, SecretId, TenantId};
use store::{RowExt, Tx};

use crate::{Secrets, sql};

/// What marks of values are for: they stand for them in hashes of requests.
const MARK: &str = "secrets/mark";

impl SecretKeeper for Secrets {
    fn usable(&self) -> Result<(), Fault> {
        self.ring().map(drop)
    }

    fn named<'a>(
        &'a self,
        tenant_id: TenantId,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretId>, Fault>> {
        Box::pin(async move {
            let none: Option<uuid::Uuid> = None;
            let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &none, &Some(name)];
            let row = self.store().read_opt(&sql::SECRET_FIND, &values).await?;
            Ok(row.map(|row| row.id("secret_id")))
        })
    }

    fn hold<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
        secret_id: SecretId,
    ) -> BoxFuture<'a, Result<bool, Fault>> {
        Box::pin(async move {
            let held = tx.query_opt(&sql::SECRET_HOLD, &[&secret_id.uuid(), &tenant_id.uuid()]).await?;
            Ok(held.is_some())
        })
    }

    fn keep<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
        instance_id: InstanceId,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<SecretId, Fault>> {
        Box::pin(async move {
            let id: SecretId = self.id();
            self.insert(tx, tenant_id, id, None, Some(instance_id.uuid()), value).await?;
            Ok(id)
        })
    }

    fn forget<'a>(&'a self, tx: &'a mut Tx<'_>, instance_id: InstanceId) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            tx.execute(&sql::SECRET_FORGET, &[&instance_id.uuid()]).await?;
            Ok(())
        })
    }

    fn mark(&self, value: &[u8]) -> Result<String, Fault> {
        self.ring()?.mark(value, MARK).map(hex::encode).doing("mark a secret")
    }
}
