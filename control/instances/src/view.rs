//! An instance as callers see it, computed from what is stored.

use api::instances::Instance;
use api::{Condition, Named, Word};
use model::Timestamp;
use model::condition::Severity;
use model::lifecycle::{InstanceState, NodeState};
use model::unit::mib_to_gib_up;

use crate::state::{Placed, Stored, patience};

pub(crate) fn instance(stored: &Stored) -> Instance {
    let (subject, shape, placed) = (&stored.subject, &stored.subject.shape, stored.placed.as_ref());
    let reason = &stored.waiting_reason;
    Instance {
        id: subject.id.into(),
        name: stored.name.clone(),
        tenant: Named::new(subject.tenant_id, &stored.tenant_name),
        pool: Named::new(subject.pool_id, &subject.pool_name),
        created_by: Named::new(subject.created_by, &stored.created_by_name),
        state: Word(stored.state),
        desired_state: Word(stored.desired),
        conditions: conditions(stored),
        flavor: Named::new(subject.flavor_id, &subject.flavor_name),
        image: Named::new(subject.image_id, &subject.image_name),
        vcpu: shape.vcpu,
        memory_gib: mib_to_gib_up(shape.memory_mib),
        memory_mib: shape.memory_mib,
        disk_gib: shape.disk_gib,
        gpus: shape.gpus,
        node: placed.map(|placed| Named::new(placed.node_id, &placed.node_name)),
        allocation: placed.map(|placed| placed.allocation_id.into()),
        addresses: placed.and_then(|placed| placed.address.clone()).into_iter().collect(),
        network_policy: Word(subject.network_policy),
        login_user: stored.login_user.clone(),
        waiting_reason: (!reason.is_empty()).then(|| reason.clone()),
        created_at: stored.created_at.into(),
        updated_at: stored.updated_at.into(),
        state_since: stored.state_since.into(),
        ended_at: stored.ended_at.map(Into::into),
        age_seconds: stored.now.since(stored.created_at).as_secs(),
    }
}

fn conditions(stored: &Stored) -> Vec<Condition> {
    let condition = |kind: &str, severity, reason: &str, message: String, since: Timestamp| Condition {
        kind: kind.to_owned(),
        severity: Word(severity),
        device: None,
        reason: reason.to_owned(),
        message,
        since: since.into(),
        since_seconds: stored.now.since(since).as_secs(),
    };
    let mut conditions = Vec::new();
    if let Some(at) = stored.said_at {
        let (kind, severity) = match stored.state {
            InstanceState::Error => ("RuntimeError", Severity::Blocking),
            InstanceState::Pending
            | InstanceState::Scheduling
            | InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Running
            | InstanceState::Stopping
            | InstanceState::Stopped
            | InstanceState::Deleting
            | InstanceState::Deleted
            | InstanceState::Lost => ("HostWaits", Severity::Warning),
        };
        conditions.push(condition(kind, severity, &stored.said_reason, stored.said_message.clone(), at));
    }
    if let Some(stuck) = stuck(stored) {
        let since = stored.state_since;
        conditions.push(condition("Stuck", Severity::Warning, stored.state.name(), stuck, since));
    }
    if let Some(placed) = &stored.placed {
        let heard = placed.last_heartbeat_at.unwrap_or(stored.updated_at);
        if let Some((reason, message)) = silence(placed) {
            conditions.push(condition("Degraded", Severity::Warning, reason, message, heard));
        }
        if !placed.degraded.is_empty() {
            let why = placed.degraded.clone();
            let since = placed.placed_at;
            conditions.push(condition("PlacementDegraded", Severity::Warning, "host-cannot", why, since));
        }
    }
    conditions
}

/// What a state that lasts longer than it may waits for.
pub(crate) fn stuck(stored: &Stored) -> Option<String> {
    let lasted = stored.now.since(stored.state_since);
    let patience = patience(stored.state)?;
    let host = stored.placed.as_ref().map_or("a host", |placed| placed.node_name.as_str());
    (lasted >= patience).then(|| {
        let minutes = lasted.as_secs() / 60;
        format!(
            "it has been {} for {minutes} minutes: host {host} has not reported otherwise",
            stored.state.name()
        )
    })
}

fn silence(placed: &Placed) -> Option<(&'static str, String)> {
    let name = &placed.node_name;
    match placed.node_state {
        NodeState::Unreachable | NodeState::Lost => {
            Some(("node-silent", format!("host {name} is not heard of; what runs there is left as it is")))
        }
        NodeState::Revoked | NodeState::Removed => {
            Some(("node-revoked", format!("host {name} is not trusted any more")))
        }
        NodeState::Joined | NodeState::Accepting | NodeState::Ready => None,
    }
}
