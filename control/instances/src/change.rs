//! What callers want of an instance that is there. Only intent is written, under a new revision; the host does the rest.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::instances::{ChangeInstance, Instance};
use kernel::events::EventKind;
use kernel::module::{wake, wake_in};
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::{DesiredPower, InstanceEvent, InstanceState};
use model::{InstanceId, NodeId, PoolId, TenantId, Timestamp};
use serde_json::{Value, json};
use store::{Op, RowExt, StoreError, Tx};

use crate::fence::{Fence, Host};
use crate::read::SEE;
use crate::reconcile::{QUEUE, instance_key};
use crate::state::{Shape, desired_of, patience, state_of, step, whole};
use crate::{Instances, sql, view};

const INSTANCE_CHANGE: Op = Op::new("instance_change");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Start,
    Stop,
    Reboot,
    Delete,
}

impl Ask {
    const fn desired(self) -> DesiredPower {
        match self {
            Ask::Start | Ask::Reboot => DesiredPower::Running,
            Ask::Stop => DesiredPower::Stopped,
            Ask::Delete => DesiredPower::Deleted,
        }
    }

    const fn event(self) -> InstanceEvent {
        match self {
            Ask::Start | Ask::Reboot => InstanceEvent::StartAsked,
            Ask::Stop => InstanceEvent::StopAsked,
            Ask::Delete => InstanceEvent::DeleteAsked,
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Ask::Start => "started",
            Ask::Stop => "stopped",
            Ask::Reboot => "started anew",
            Ask::Delete => "deleted",
        }
    }

    /// Whether it is so, or on its way, already.
    fn is_met(self, state: InstanceState, desired: DesiredPower) -> bool {
        match self {
            // One that failed is tried again.
            Ask::Start | Ask::Stop => desired == self.desired() && state != InstanceState::Error,
            Ask::Delete => desired == DesiredPower::Deleted,
            Ask::Reboot => false,
        }
    }

    /// The state after it, or why it cannot be asked for.
    fn judge(self, state: InstanceState) -> Result<InstanceState, ApiError> {
        let refused = |state: InstanceState| {
            let state = state.name();
            ApiError::invalid_state(format!("the instance is {state}: it cannot be {}", self.verb()))
                .detail("state", state)
        };
        if self == Ask::Reboot && state != InstanceState::Running {
            return Err(refused(state));
        }
        state.next(self.event()).map_err(|_| refused(state))
    }
}

/// An instance whose row is locked.
pub(crate) struct Locked {
    pub id: InstanceId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub state: InstanceState,
    pub desired: DesiredPower,
    pub revision: u64,
    pub shape: Shape,
    pub said_reason: String,
    pub said_message: String,
    /// Since when its host has no room to start it, and how often it was placed elsewhere for that.
    pub exhausted_at: Option<Timestamp>,
    pub exhausted_moves: i32,
    /// Where it is.
    pub node_id: Option<NodeId>,
}

impl Locked {
    /// What events of it say.
    pub fn data(&self, state: InstanceState, desired: DesiredPower) -> Value {
        json!({
            "state": state.name(), "desiredState": desired.name(), "poolId": self.pool_id.to_string(),
            "nodeId": self.node_id.map(|node_id| node_id.to_string()),
        })
    }
}

pub(crate) async fn start(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    change(instances, call, request, api::instances::Start::ACTION, Ask::Start).await
}

pub(crate) async fn stop(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    change(instances, call, request, api::instances::Stop::ACTION, Ask::Stop).await
}

pub(crate) async fn reboot(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    change(instances, call, request, api::instances::Reboot::ACTION, Ask::Reboot).await
}

pub(crate) async fn delete(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
) -> Result<Instance, Fault> {
    change(instances, call, request, api::instances::Delete::ACTION, Ask::Delete).await
}

async fn change(
    instances: Instances,
    call: Arc<Call>,
    request: ChangeInstance,
    action: &'static str,
    ask: Ask,
) -> Result<Instance, Fault> {
    let found = instances.named(&call, action, request.tenant, &request.id).await?;
    call.require_on(action, SEE, &found.subject.resource(), "instance", &request.id).await?;
    let id = found.subject.id;
    call.about(format!("instance/{id}"));
    let this = &instances;
    call.tx(instances.store(), INSTANCE_CHANGE, |tx| {
        Box::pin(async move { this.change_in(tx, id, ask, None).await })
    })
    .await?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    Ok(view::instance(&instances.settled(id, wait).await?))
}

impl Instances {
    pub(crate) async fn locked(&self, tx: &mut Tx<'_>, id: InstanceId) -> Result<Option<Locked>, StoreError> {
        let Some(row) = tx.query_opt(&sql::INSTANCE_LOCK, &[&id.uuid()]).await? else { return Ok(None) };
        let place = tx.query_opt(&sql::INSTANCE_PLACE, &[&id.uuid()]).await?;
        Ok(Some(Locked {
            id,
            tenant_id: row.id("tenant_id"),
            pool_id: row.id("pool_id"),
            state: state_of(&row)?,
            desired: desired_of(&row)?,
            revision: whole(row.get("revision")),
            shape: Shape::of_row(&row),
            said_reason: row.get("said_reason"),
            said_message: row.get("said_message"),
            exhausted_at: row.opt_ts("exhausted_at"),
            exhausted_moves: row.get("exhausted_moves"),
            node_id: place.map(|row| row.id("node_id")),
        }))
    }

    /// Asks for the end of an instance, for a reason that its event gives.
    pub(crate) async fn delete_in(&self, tx: &mut Tx<'_>, id: InstanceId, reason: &str) -> Result<(), Fault> {
        self.change_in(tx, id, Ask::Delete, Some(reason)).await
    }

    async fn change_in(
        &self,
        tx: &mut Tx<'_>,
        id: InstanceId,
        ask: Ask,
        reason: Option<&str>,
    ) -> Result<(), Fault> {
        let Some(held) = self.locked(tx, id).await? else {
            return Err(ApiError::not_found("instance", id).into());
        };
        if ask.is_met(held.state, held.desired) {
            return Ok(());
        }
        let (state, desired) = (ask.judge(held.state)?, ask.desired());
        let starts = matches!(ask, Ask::Start | Ask::Reboot);
        tx.execute(&sql::INSTANCE_WANT, &[&id.uuid(), &state.name(), &desired.name(), &starts]).await?;
        let kind = match ask {
            Ask::Start | Ask::Reboot => EventKind::InstanceStarting,
            Ask::Stop => EventKind::InstanceStopping,
            Ask::Delete => EventKind::InstanceDeleting,
        };
        let mut data = held.data(state, desired);
        if let Some(reason) = reason {
            data["reason"] = reason.into();
        }
        self.tell(tx, kind, id, held.tenant_id, data).await?;
        // What never had a host, and what was given up with its host, has nobody to say that nothing of it is there.
        if ask == Ask::Delete {
            let Some(node_id) = held.node_id else {
                step(state, InstanceEvent::SeenAbsent)?;
                return self.end_in(tx, &held, "it was on no host").await;
            };
            let host = Host::seen(tx, node_id).await?.filter(|_| held.state == InstanceState::Lost);
            if let Some(host) = host.filter(|host| host.fence() == Fence::DeclaredDead) {
                let held = Locked { state, ..held };
                return self.end_on(tx, &held, &host, "its host was given up").await;
            }
        }
        if let Some(node_id) = held.node_id {
            wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        }
        if let Some(patience) = patience(state) {
            wake_in(tx, QUEUE, &instance_key(id), patience).await?;
        }
        Ok(())
    }

    /// Ends an instance of which nothing is anywhere: all that it held is free from here on.
    pub(crate) async fn end_in(&self, tx: &mut Tx<'_>, held: &Locked, reason: &str) -> Result<(), Fault> {
        let id = held.id;
        if tx.execute(&sql::INSTANCE_END, &[&id.uuid()]).await? == 0 {
            return Err(StoreError::decode("instance_end", "an instance that had ended").into());
        }
        self.forget_in(tx, id).await?;
        if !kit::mutant::on("instances.address-kept") {
            tx.execute(&sql::ADDRESSES_RETURN, &[&id.uuid()]).await?;
        }
        let data = json!({
            "state": InstanceState::Deleted.name(), "desiredState": DesiredPower::Deleted.name(),
            "poolId": held.pool_id.to_string(), "reason": reason,
        });
        self.tell(tx, EventKind::InstanceDeleted, id, held.tenant_id, data).await?;
        // Last: whoever books on the node waits from here on.
        self.capacity().room_free(tx, id, held.pool_id).await?;
        Ok(())
    }
}

/// The spec queue's key for a node.
pub(crate) fn node_key(node_id: NodeId) -> String {
    node_id.uuid().hyphenated().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_already_is_not_asked_for_again() {
        let (running, stopped) = (DesiredPower::Running, DesiredPower::Stopped);
        assert!(Ask::Start.is_met(InstanceState::Provisioning, running));
        assert!(!Ask::Start.is_met(InstanceState::Error, running));
        assert!(!Ask::Start.is_met(InstanceState::Stopping, stopped));
        assert!(Ask::Stop.is_met(InstanceState::Stopping, stopped));
        assert!(!Ask::Reboot.is_met(InstanceState::Running, running));
        assert!(Ask::Delete.is_met(InstanceState::Deleted, DesiredPower::Deleted));
    }

    #[test]
    fn only_what_runs_starts_anew_and_nothing_that_goes_starts_or_stops() {
        assert_eq!(Ask::Reboot.judge(InstanceState::Running), Ok(InstanceState::Starting));
        for (ask, state) in [
            (Ask::Reboot, InstanceState::Stopped),
            (Ask::Reboot, InstanceState::Provisioning),
            (Ask::Start, InstanceState::Deleting),
            (Ask::Stop, InstanceState::Deleted),
            (Ask::Start, InstanceState::Lost),
        ] {
            let refused = ask.judge(state).unwrap_err();
            assert_eq!(refused.code, model::ErrorCode::InvalidState, "{ask:?} {state:?}");
        }
    }
}
