//! `instances.resize`: another flavor for one that is stopped, where it is.
//!
//! What it books and what it counts for change together with its row, or not at all. Its host has it in the new size from its
//! next start on, and grows its disk then.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::instances::{Instance, ResizeInstance};
use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::{DesiredPower, InstanceState};
use model::{ErrorCode, FlavorId};
use store::{Op, RowExt, Tx};

use crate::change::node_key;
use crate::create::{Stop, parts};
use crate::read::SEE;
use crate::state::{Shape, Subject, stored};
use crate::{Instances, sql, view};

const INSTANCE_RESIZE: Op = Op::new("instance_resize");
const ACTION: &str = api::instances::Resize::ACTION;

pub(crate) async fn resize(
    instances: Instances,
    call: Arc<Call>,
    request: ResizeInstance,
) -> Result<Instance, Fault> {
    let found = instances.named(&call, ACTION, request.tenant, &request.id).await?;
    call.require_on(ACTION, SEE, &found.subject.resource(), "instance", &request.id).await?;
    let (id, before) = (found.subject.id, &found.subject);
    let (flavor_id, flavor_name) = parts(&request.flavor);
    let values: [&(dyn store::Param + Sync); 3] = [&before.pool_id.uuid(), &flavor_id, &flavor_name];
    let Some(flavor) = instances.store().read_opt(&sql::FLAVOR_FIND, &values).await? else {
        return Err(ApiError::not_found("flavor", &request.flavor)
            .detail("pool", before.pool_name.as_str())
            .into());
    };
    let after = &Subject {
        flavor_id: flavor.id::<FlavorId>("flavor_id"),
        flavor_name: flavor.get("name"),
        shape: Shape::of_row(&flavor),
        ..before.clone()
    };
    check(&before.shape, &after.shape)?;
    // Whoever may resize it must be allowed what it becomes.
    call.require_in(ACTION, &after.resource()).await?;
    call.about(format!("instance/{id}"));
    let this = &instances;
    let done = call
        .tx(instances.store(), INSTANCE_RESIZE, |tx| Box::pin(async move { this.resize_in(tx, after).await }))
        .await;
    match done {
        Ok(()) => {}
        Err(stop) => return Err(instances.resize_refusal(after, stop).await),
    }
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    Ok(view::instance(&instances.settled(id, wait).await?))
}

/// What no host can do to what is there.
fn check(before: &Shape, after: &Shape) -> Result<(), ApiError> {
    let unsupported = |reason: &str, message: String| {
        Err(ApiError::new(ErrorCode::Unsupported, message).detail("reason", reason))
    };
    if (before.gpus, &before.gpu_model) != (after.gpus, &after.gpu_model)
        && (before.gpus, after.gpus) != (0, 0)
    {
        let message =
            format!("the instance has {} GPUs and the flavor {}: make a new one", before.gpus, after.gpus);
        return unsupported("gpus", message);
    }
    if after.disk_gib < before.disk_gib {
        let message = format!(
            "the instance's disk has {} GiB and the flavor {}: a disk never shrinks",
            before.disk_gib, after.disk_gib
        );
        return unsupported("disk", message);
    }
    Ok(())
}

impl Instances {
    async fn resize_in(&self, tx: &mut Tx<'_>, after: &Subject) -> Result<(), Stop> {
        let id = after.id;
        let Some(held) = self.locked(tx, id).await? else {
            return Err(Stop::Fault(ApiError::not_found("instance", id).into()));
        };
        let refused = |message: String| {
            Stop::Fault(ApiError::invalid_state(message).detail("state", held.state.name()).into())
        };
        if (held.state, held.desired) != (InstanceState::Stopped, DesiredPower::Stopped) {
            let state = held.state.name();
            return Err(refused(format!(
                "the instance is {state}: run `better-compute instances stop {id} --wait` first"
            )));
        }
        let Some(node_id) = held.node_id else {
            return Err(refused("the instance is on no host".to_owned()));
        };
        if let Some(name) = self.capacity().room_lacks(tx, &after.room()).await? {
            let message = format!("its host's daemon does not advertise {name}: update it");
            let refused = ApiError::new(ErrorCode::Unsupported, message).detail("reason", "capability");
            return Err(Stop::Fault(refused.into()));
        }
        // It may have become another since it was read.
        check(&held.shape, &after.shape).map_err(|refused| Stop::Fault(refused.into()))?;
        let shape = &after.shape;
        let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let values: [&(dyn store::Param + Sync); 6] = [
            &id.uuid(),
            &after.flavor_id.uuid(),
            &small(shape.vcpu),
            &stored(shape.memory_mib),
            &stored(shape.disk_gib),
            &shape.gpu_model,
        ];
        tx.execute(&sql::INSTANCE_RESHAPE, &values).await?;
        let mut data = held.data(held.state, held.desired);
        data["flavor"] = after.flavor_name.clone().into();
        self.tell(tx, EventKind::InstanceResized, id, held.tenant_id, data).await?;
        wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        // Last: whoever books on the node waits from here on.
        match self.capacity().room_resize(tx, &after.room()).await? {
            true => Ok(()),
            false => Err(refused("the instance is on no host".to_owned())),
        }
    }

    async fn resize_refusal(&self, after: &Subject, stop: Stop) -> Fault {
        let room = &after.room();
        match stop {
            Stop::Fault(fault) => fault,
            Stop::OverQuota => match self.capacity().room_refusal(room).await {
                Ok(Some(refusal)) => refusal.into(),
                Ok(None) => try_again().into(),
                Err(err) => err.into(),
            },
            Stop::Taken => match self.capacity().room_short_of(room).await {
                Ok(Some(resource)) => {
                    let message = format!(
                        "its host has too little {resource} for {} vCPUs, {} MiB and a disk of {} GiB: choose a smaller flavor, or make a new instance",
                        after.shape.vcpu, after.shape.memory_mib, after.shape.disk_gib
                    );
                    ApiError::new(ErrorCode::CapacityUnavailable, message).detail("resource", resource).into()
                }
                Ok(None) => try_again().into(),
                Err(err) => err.into(),
            },
            Stop::NoAddress | Stop::Earlier(_) => try_again().into(),
        }
    }
}

fn try_again() -> ApiError {
    ApiError { retry_after: Some(1), ..ApiError::new(ErrorCode::Unavailable, "its host was busy: try again") }
}
