//! What a guest is told at its first boot: kept as a secret, of the tenant's by name or of the instance's own, which goes with it.

use std::sync::Arc;

use api::instances::{CreateInstance, UserData, user_data};
use api::secrets::Hidden;
use kernel::ports::iam::Resource;
use kernel::ports::secrets::{SecretKeeper, SecretUse, SecretUses};
use kernel::{ApiError, BoxFuture, Call, Fault};
use model::lifecycle::DesiredPower;
use model::{ErrorCode, InstanceId, SecretId, TenantId};
use store::{RowExt, Tx};

use crate::state::{Subject, desired_of};
use crate::{Instances, sql};

/// Who may have a guest read a secret may read it.
const MANAGE: &str = "compute:secrets:manage";

/// What a create says of it.
pub(crate) enum Told {
    Nothing,
    /// The tenant's, under this name.
    Secret(SecretId, String),
    Own(Hidden),
}

fn no_secret(name: &str) -> ApiError {
    let message = format!(
        "the tenant has no secret {name}; put it first: better-compute secrets put {name} --file FILE"
    );
    ApiError::invalid("/userData", message)
}

impl Instances {
    fn keeper(&self) -> Result<&Arc<dyn SecretKeeper>, Fault> {
        let keeper = self.0.keeper.get().ok_or_else(|| {
            ApiError::new(ErrorCode::Unsupported, "this control plane keeps no user data of instances")
        })?;
        keeper.usable()?;
        Ok(keeper)
    }

    /// The request as it is told from others under the same idempotency key. User data itself is not hashed into a row: whoever
    /// reads the row could try what it may have been.
    pub(crate) fn told_apart(&self, request: &CreateInstance) -> Result<CreateInstance, Fault> {
        let mut apart = request.clone();
        if let Some(UserData::Own(text)) = request.user_data.as_ref().map(user_data) {
            let mark = self.keeper()?.mark(text.as_bytes())?;
            apart.user_data = Some(Hidden::new(mark));
        }
        Ok(apart)
    }

    /// What is to be told, once it is decided that the caller may have it told. Before any look at the tenant's secrets.
    pub(crate) async fn told(
        &self,
        call: &Call,
        tenant_id: TenantId,
        request: &CreateInstance,
    ) -> Result<Told, Fault> {
        let Some(given) = &request.user_data else { return Ok(Told::Nothing) };
        match user_data(given) {
            UserData::Own(_) => {
                self.keeper()?;
                Ok(Told::Own(given.clone()))
            }
            UserData::Secret(name) => {
                call.require(MANAGE, &Resource::one("compute-tenant", tenant_id, tenant_id)).await?;
                let found = self.keeper()?.named(tenant_id, name).await?;
                let id = found.ok_or_else(|| no_secret(name))?;
                Ok(Told::Secret(id, name.to_owned()))
            }
        }
    }

    /// The secret that the instance's row is to name, in the transaction that makes the row.
    pub(crate) async fn keep_in(
        &self,
        tx: &mut Tx<'_>,
        subject: &Subject,
        told: &Told,
    ) -> Result<Option<SecretId>, Fault> {
        let tenant_id = subject.tenant_id;
        match told {
            Told::Nothing => Ok(None),
            Told::Secret(id, name) => match self.keeper()?.hold(tx, tenant_id, *id).await? {
                true => Ok(Some(*id)),
                // Deleted since it was looked for.
                false => Err(no_secret(name).into()),
            },
            Told::Own(text) => {
                let value = text.expose().as_bytes();
                self.keeper()?.keep(tx, tenant_id, subject.id, value).await.map(Some)
            }
        }
    }

    /// Of an instance whose row names it no more.
    pub(crate) async fn forget_in(&self, tx: &mut Tx<'_>, id: InstanceId) -> Result<(), Fault> {
        match self.0.keeper.get() {
            Some(keeper) => keeper.forget(tx, id).await,
            None => Ok(()),
        }
    }
}

impl SecretUses for Instances {
    fn of_instance<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        instance_id: InstanceId,
    ) -> BoxFuture<'a, Result<Option<SecretUse>, Fault>> {
        Box::pin(async move {
            let Some(row) = tx.query_opt(&sql::INSTANCE_SECRET, &[&instance_id.uuid()]).await? else {
                return Ok(None);
            };
            Ok(Some(SecretUse {
                tenant_id: row.id("tenant_id"),
                place: row.opt_id("node_id").zip(row.opt_id("allocation_id")),
                going: desired_of(&row)? == DesiredPower::Deleted,
                secret_id: row.opt_id("user_data_secret"),
            }))
        })
    }
}
