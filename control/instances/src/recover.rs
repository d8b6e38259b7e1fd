//! Ways out of where an instance is stuck: its host is asked once more, or it is taken off a host that is fenced.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::instances::{ChangeInstance, Instance};
use kernel::events::EventKind;
use kernel::module::{wake, wake_in};
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::InstanceId;
use model::lifecycle::{DesiredPower, InstanceEvent, InstanceState};
use store::{Op, RowExt, Tx};

use crate::change::node_key;
use crate::fence::{Fence, Host};
use crate::lost::Why;
use crate::read::SEE;
use crate::reconcile::{QUEUE, instance_key};
use crate::sql::lost as sql;
use crate::state::{patience, step};
use crate::view::stuck;
use crate::{Instances, view};

const INSTANCE_RECOVER: Op = Op::new("instance_recover");
const INSTANCE_FORCE_RELEASE: Op = Op::new("instance_force_release");
const RELEASED: &str = "it was taken off its host by force";

pub(crate) async fn recover(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    let action = api::instances::Recover::ACTION;
    let found = instances.named(&call, action, request.tenant, &request.id).await?;
    call.require_on(action, SEE, &found.subject.resource(), "instance", &request.id).await?;
    let id = found.subject.id;
    call.about(format!("instance/{id}"));
    let this = &instances;
    call.tx(instances.store(), INSTANCE_RECOVER, |tx| Box::pin(async move { this.recover_in(tx, id).await }))
        .await?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    Ok(view::instance(&instances.settled(id, wait).await?))
}

pub(crate) async fn force_release(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    let action = api::instances::ForceRelease::ACTION;
    let found = instances.named(&call, action, request.tenant, &request.id).await?;
    call.require_on(action, SEE, &found.subject.resource(), "instance", &request.id).await?;
    let id = found.subject.id;
    call.about(format!("instance/{id}"));
    let (this, by, is_stuck) = (&instances, call.principal.name.as_str(), stuck(&found).is_some());
    call.tx(instances.store(), INSTANCE_FORCE_RELEASE, |tx| {
        Box::pin(async move { this.force_release_in(tx, id, by, is_stuck).await })
    })
    .await?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    Ok(view::instance(&instances.settled(id, wait).await?))
}

fn refused(state: InstanceState, why: String) -> Fault {
    ApiError::invalid_state(why).detail("state", state.name()).into()
}

impl Instances {
    async fn recover_in(&self, tx: &mut Tx<'_>, id: InstanceId) -> Result<(), Fault> {
        let Some(held) = self.locked(tx, id).await? else {
            return Err(ApiError::not_found("instance", id).into());
        };
        let state = match held.state {
            // It is as it was asked to be.
            InstanceState::Running | InstanceState::Stopped => return Ok(()),
            InstanceState::Deleted => {
                return Err(refused(held.state, "the instance is deleted: nothing of it is left".to_owned()));
            }
            InstanceState::Pending | InstanceState::Scheduling => {
                wake(tx, QUEUE, &instance_key(id)).await?;
                return Ok(());
            }
            InstanceState::Error => match held.desired {
                DesiredPower::Running => step(held.state, InstanceEvent::StartAsked)?,
                DesiredPower::Stopped => step(held.state, InstanceEvent::StopAsked)?,
                DesiredPower::Deleted => step(held.state, InstanceEvent::DeleteAsked)?,
            },
            InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Stopping
            | InstanceState::Deleting
            | InstanceState::Lost => held.state,
        };
        tx.execute(&sql::INSTANCE_ASK, &[&id.uuid(), &state.name()]).await?;
        if state != held.state {
            let kind = match held.desired {
                DesiredPower::Running => EventKind::InstanceStarting,
                DesiredPower::Stopped => EventKind::InstanceStopping,
                DesiredPower::Deleted => EventKind::InstanceDeleting,
            };
            self.tell(tx, kind, id, held.tenant_id, held.data(state, held.desired)).await?;
        }
        if let Some(node_id) = held.node_id {
            wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        }
        let again = patience(state).unwrap_or(Duration::ZERO);
        wake_in(tx, QUEUE, &instance_key(id), again).await?;
        Ok(())
    }

    /// `is_stuck` when its host had the time to delete it.
    async fn force_release_in(
        &self,
        tx: &mut Tx<'_>,
        id: InstanceId,
        by: &str,
        is_stuck: bool,
    ) -> Result<(), Fault> {
        let place = tx.query_opt(&crate::sql::INSTANCE_PLACE, &[&id.uuid()]).await?;
        let on_host = match place {
            Some(place) => self.on_host(tx, place.id("node_id"), id).await?,
            None => None,
        };
        let Some((host, held)) = on_host else {
            let Some(held) = self.locked(tx, id).await? else {
                return Err(ApiError::not_found("instance", id).into());
            };
            return Err(refused(
                held.state,
                "the instance is on no host: nothing of it is to be released".into(),
            ));
        };
        let deleting = held.state == InstanceState::Deleting;
        match host.fence() {
            Fence::DeclaredDead if deleting => self.end_on(tx, &held, &host, RELEASED).await,
            // What the host has is named in its spec as to be deleted, whatever becomes of the record.
            Fence::Reports if deleting && is_stuck => self.end_on(tx, &held, &host, RELEASED).await,
            Fence::DeclaredDead => self.recreate_in(tx, &held, &host, Why::Asked(by)).await,
            Fence::Open => Err(not_fenced(held.state, &host)),
            Fence::Reports => Err(reports(held.state, &host, id)),
        }
    }
}

fn not_fenced(state: InstanceState, host: &Host) -> Fault {
    let (name, is) = (&host.name, host.state.name());
    let why = format!(
        "host {name} is {is} and may run the instance: nobody may take its place before the host is fenced. If nothing runs \
         there any more: better-compute nodes abandon {name}"
    );
    ApiError::invalid_state(why)
        .detail("state", state.name())
        .detail("node", name.clone())
        .detail("fence", format!("better-compute nodes abandon {name}"))
        .into()
}

fn reports(state: InstanceState, host: &Host, id: InstanceId) -> Fault {
    let name = &host.name;
    let why = match state == InstanceState::Deleting {
        true => format!(
            "host {name} reports, and is deleting the instance: it can be taken off by force when that takes too long"
        ),
        false => format!(
            "host {name} reports, and has the instance: better-compute instances recover {id} asks it once more, \
             better-compute instances delete {id} ends it"
        ),
    };
    refused(state, why)
}
