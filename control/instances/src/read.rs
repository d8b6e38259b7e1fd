//! Reading instances, once or until they settle.

use std::sync::Arc;
use std::time::Duration;

use api::instances::{GetInstance, Instance, ListInstances};
use api::{List, Method, Ref};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::ports::tunnels::{InstanceDoor, InstanceDoors};
use kernel::wait::until_settled;
use kernel::{ApiError, BoxFuture, Call, Fault};
use model::{Id, InstanceId, TenantId};
use store::StoreError;
use uuid::Uuid;

use crate::create::KIND;
use crate::state::Stored;
use crate::{Instances, sql, view};

/// What a caller must be allowed to do to know that an instance is there.
pub(crate) const SEE: &str = api::instances::Get::ACTION;
/// Of those that share a name, the newest are looked at, and this many are told.
const NAMESAKES_MAX: i64 = 100;
const TOLD_MAX: usize = 10;

impl Instances {
    pub(crate) async fn stored(&self, id: InstanceId) -> Result<Option<Stored>, StoreError> {
        let row = self.store().read_opt(&sql::INSTANCE_GET, &[&id.uuid()]).await?;
        row.as_ref().map(Stored::of_row).transpose()
    }

    pub(crate) async fn stored_or_not_found(&self, id: InstanceId) -> Result<Stored, Fault> {
        self.stored(id).await?.ok_or_else(|| ApiError::not_found("instance", id).into())
    }

    /// The instance as it is, or as it is once nothing is under way.
    pub(crate) async fn settled(&self, id: InstanceId, wait: Option<Duration>) -> Result<Stored, Fault> {
        until_settled(self.clock(), self.rng(), wait, || {
            Box::pin(async move {
                let found = self.stored_or_not_found(id).await?;
                let done = found.is_settled();
                Ok((found, done))
            })
        })
        .await
    }

    /// The instance a call names. One that is not there is decided on too, as every call is.
    pub(crate) async fn named(
        &self,
        call: &Call,
        action: &str,
        tenant: Option<api::Id<TenantId>>,
        instance: &Ref<InstanceId>,
    ) -> Result<Stored, Fault> {
        let tenant_id = tenant.map_or(call.principal.tenant_id, api::Id::get);
        let (found, on) = match instance {
            Ref::Id(id) => (self.stored(*id).await?, Resource::one(KIND, id, call.principal.tenant_id)),
            Ref::Name(name) => (self.called(call, tenant_id, name).await?, Resource::any(KIND, tenant_id)),
        };
        if let Some(found) = found {
            return Ok(found);
        }
        call.decide(action, &on).await?;
        Err(ApiError::not_found("instance", instance).into())
    }

    /// By its name, which several may have. Those that have ended left theirs to others.
    async fn called(&self, call: &Call, tenant_id: TenantId, name: &str) -> Result<Option<Stored>, Fault> {
        let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &name, &NAMESAKES_MAX];
        let rows = self.store().read(&sql::INSTANCES_NAMED, &values).await?;
        let mut found: Vec<Stored> = rows.iter().map(Stored::of_row).collect::<Result<_, _>>()?;
        if found.len() > 1 {
            // One that the caller may not see is in nobody's way, and is not told of.
            found = call.filter(SEE, found, |one| one.subject.resource()).await?;
        }
        // With as many as are looked at there may be more that are not.
        let all = rows.len() < usize::try_from(NAMESAKES_MAX).expect("it is small");
        match found.len() {
            0 | 1 if all => Ok(found.pop()),
            count => {
                let ids: Vec<String> =
                    found.iter().take(TOLD_MAX).map(|one| one.subject.id.to_string()).collect();
                let message = format!(
                    "{count} instances are called {name}: give the id of one; better-compute instances list --name {name} \
                     tells them apart"
                );
                Err(ApiError::invalid("/id", message).detail("instances", ids).into())
            }
        }
    }
}

impl InstanceDoors for Instances {
    fn instance(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<InstanceDoor>, Fault>> {
        Box::pin(async move {
            let Some(found) = self.stored(id).await? else { return Ok(None) };
            let node_id = found.placed.as_ref().map(|placed| placed.node_id);
            Ok(Some(InstanceDoor { resource: found.subject.resource(), state: found.state, node_id }))
        })
    }
}

pub(crate) async fn get(
    instances: Instances,
    call: Arc<Call>,
    request: GetInstance,
) -> Result<Instance, Fault> {
    let found = instances.named(&call, SEE, request.tenant, &request.id).await?;
    call.require_visible(SEE, &found.subject.resource(), "instance", &request.id).await?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    let found = match wait {
        Some(_) => instances.settled(found.subject.id, wait).await?,
        None => found,
    };
    Ok(view::instance(&found))
}

fn parts<T: Id>(reference: Option<&Ref<T>>) -> (Option<Uuid>, Option<&str>) {
    reference.map_or((None, None), crate::create::parts)
}

pub(crate) async fn list(
    instances: Instances,
    call: Arc<Call>,
    request: ListInstances,
) -> Result<List<Instance>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::instances::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
    }
    let page = Page::of::<InstanceId>(request.limit, request.cursor.as_ref())?;
    let (pool_id, pool_name) = parts(request.pool.as_ref());
    let (node_id, node_name) = parts(request.node.as_ref());
    let state = request.state.map(|state| state.0);
    // Asking for those that were deleted asks for them.
    let deleted = request.include_deleted || state.is_some_and(|state| state.terminal());
    let state = state.map(|state| state.name());
    let name = request.name.as_ref().map(|name| name.as_str());
    let values: [&(dyn store::Param + Sync); 10] = [
        &tenant_id.uuid(),
        &page.before,
        &pool_id,
        &pool_name,
        &node_id,
        &node_name,
        &state,
        &name,
        &deleted,
        &page.fetch(),
    ];
    let rows = instances.store().read(&sql::INSTANCES_LIST, &values).await?;
    let found: Vec<Stored> = rows.iter().map(Stored::of_row).collect::<Result<_, _>>()?;
    let (found, cursor) = page.cut(found, |one| one.subject.id);
    let shown = call.filter(action, found, |one| one.subject.resource()).await?;
    Ok(List::new(shown.iter().map(view::instance).collect(), cursor))
}
