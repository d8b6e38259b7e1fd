//! An instance as callers see it, computed from what is stored.

use api::instances::Instance;
use api::{Condition, Named, Word};
use model::Timestamp;
use model::condition::Severity;
use model::lifecycle::{InstanceState, NodeState};
use model::unit::mib_to_gib_up;

use crate::advice::with_next;
use crate::fence::waits_for;
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
    if let Some((reason, message)) = waits_for(stored) {
        conditions.push(condition("HostLost", Severity::Warning, reason, message, stored.state_since));
    }
    if let (Some(at), Some(placed)) = (stored.exhausted_at, &stored.placed) {
        let (host, message) = (placed.node_name.as_str(), stored.said_message.clone());
        conditions.push(condition("HostResourcesExhausted", Severity::Warning, host, message, at));
    } else if let Some(at) = stored.said_at {
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
        let (reason, subject) = (&stored.said_reason, &stored.subject);
        let failed = stored.state == InstanceState::Error;
        let message = with_next(&stored.said_message, reason, failed, subject.id, &subject.image_name);
        conditions.push(condition(kind, severity, reason, message, at));
    }
    if !stored.exhausted_hosts.is_empty() {
        let hosts = stored.exhausted_hosts.join(",");
        conditions.push(condition("ExhaustedHosts", Severity::Warning, "avoided", hosts, stored.state_since));
    }
    if let Some(stuck) = stuck(stored) {
        let since = stored.state_since;
        conditions.push(condition("Stuck", Severity::Warning, stored.state.name(), stuck, since));
    }
    if let Some(placed) = stored.placed.as_ref().filter(|_| stored.state != InstanceState::Lost) {
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
    (lasted >= patience).then(|| {
        let (state, minutes, id) = (stored.state.name(), lasted.as_secs() / 60, stored.subject.id);
        match &stored.placed {
            Some(placed) => format!(
                "it has been {state} for {minutes} minutes: host {} has not reported otherwise; better-compute instances \
                 recover {id} asks it once more",
                placed.node_name
            ),
            None => format!("it has been {state} for {minutes} minutes: no host has taken it"),
        }
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
