//! What a user sees of a reservation, from stored facts, in one function. Pure.

use api::reservations::{Device, HoldLimits, Reservation};
use api::{Condition, Named, Selector, Word};
use model::Timestamp;
use model::condition::Severity;
use model::lifecycle::NodeState;
use model::unit::{MIB, mib_to_gib_up};

use crate::state::{Held, Reserved, StoredLimits};

pub(crate) fn reservation(reserved: &Reserved) -> Reservation {
    let (subject, ask) = (&reserved.subject, &reserved.subject.ask);
    let held = reserved.held.as_ref();
    let shown = |text: &String| (!text.is_empty()).then(|| text.clone());
    Reservation {
        id: subject.id.into(),
        name: reserved.name.clone(),
        tenant: Named::new(subject.tenant_id, &reserved.tenant_name),
        pool: Named::new(subject.pool_id, &subject.pool_name),
        created_by: Named::new(subject.created_by, &reserved.created_by_name),
        state: Word(reserved.state),
        conditions: held.map(|held| conditions(held, reserved)).unwrap_or_default(),
        gpus: ask.gpus,
        gpu_model: ask.gpu_model.clone(),
        vcpu: ask.vcpu,
        memory_gib: mib_to_gib_up(ask.memory_mib),
        memory_mib: ask.memory_mib,
        hugepages_1gi: ask.hugepages_1gi,
        whole_node: ask.whole_node,
        binding: Word(ask.binding),
        selector: selector(&ask.selector),
        node: held.map(|held| Named::new(held.node_id, &held.node_name)),
        allocation: held.map(|held| held.allocation_id.into()),
        devices: held.map(devices).unwrap_or_default(),
        limits: held.and_then(|held| held.limits.as_ref()).map(limits),
        waiting_reason: shown(&reserved.waiting_reason),
        failure: shown(&reserved.failure),
        attempts: reserved.attempts,
        created_at: reserved.created_at.into(),
        updated_at: reserved.updated_at.into(),
        placed_at: reserved.placed_at.map(Into::into),
        active_at: reserved.active_at.map(Into::into),
        ended_at: reserved.ended_at.map(Into::into),
        expires_at: subject.expires_at.map(Into::into),
        expires_in_seconds: subject.expires_at.map(|end| end.since(reserved.now).as_secs()),
        age_seconds: reserved.now.since(reserved.created_at).as_secs(),
        dry_run: false,
    }
}

fn selector(labels: &std::collections::BTreeMap<String, String>) -> Selector {
    serde_json::to_value(labels)
        .and_then(serde_json::from_value)
        .expect("it was a selector when it was stored")
}

fn devices(held: &Held) -> Vec<Device> {
    let cdi_name = |uuid: &str| {
        let named = |name: &&String| name.rsplit_once('=').is_some_and(|(_, device)| device == uuid);
        held.cdi_devices.iter().find(named).cloned()
    };
    held.devices
        .iter()
        .map(|device| Device {
            uuid: device.uuid.clone(),
            index: device.index,
            model: device.model.clone(),
            cdi_name: cdi_name(&device.uuid),
        })
        .collect()
}

fn limits(limits: &StoredLimits) -> HoldLimits {
    let some = |amount: u64| (amount > 0).then_some(amount);
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let memory_mib = limits.memory_bytes / MIB;
    HoldLimits {
        vcpu: some(limits.cpu_millis / 1000),
        memory_gib: some(mib_to_gib_up(memory_mib)),
        memory_mib: some(memory_mib),
        hugepages_1gi: some(limits.hugepages_1gi),
        cpus: text(&limits.cpus),
        mems: text(&limits.mems),
    }
}

/// `degraded`: it holds what it holds, and something of that is not well. Nothing is released for it.
fn conditions(held: &Held, reserved: &Reserved) -> Vec<Condition> {
    let degraded = |device: Option<&str>, reason: &str, message: String, since: Timestamp| Condition {
        kind: "Degraded".to_owned(),
        severity: Word(Severity::Warning),
        device: device.map(str::to_owned),
        reason: reason.to_owned(),
        message,
        since: since.into(),
        since_seconds: reserved.now.since(since).as_secs(),
    };
    let mut conditions = Vec::new();
    let heard = held.last_heartbeat_at.unwrap_or(reserved.updated_at);
    match held.node_state {
        NodeState::Unreachable | NodeState::Lost => {
            let message =
                format!("node {} is not heard of; what runs there is left as it is", held.node_name);
            conditions.push(degraded(None, "node-silent", message, heard));
        }
        NodeState::Revoked | NodeState::Removed => {
            let message = format!("node {} is not trusted any more", held.node_name);
            conditions.push(degraded(None, "node-revoked", message, heard));
        }
        NodeState::Joined | NodeState::Accepting | NodeState::Ready => {}
    }
    if let Some(since) = held.quarantined_at {
        let message = format!("node {} is quarantined", held.node_name);
        conditions.push(degraded(None, "node-quarantined", message, since));
    }
    for device in held.devices.iter().filter(|device| device.health != "healthy") {
        let reason = if device.health == "absent" { "device-absent" } else { "device-unhealthy" };
        let message = if device.reason.is_empty() {
            format!("GPU {} is {}", device.uuid, device.health)
        } else {
            format!("GPU {}: {}", device.uuid, device.reason)
        };
        let since = Timestamp::from_millis(device.since_ms);
        conditions.push(degraded(Some(&device.uuid), reason, message, since));
    }
    conditions
}
