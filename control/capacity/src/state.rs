//! A reservation as it is read, what a policy is told of it, and how its state moves. Pure.
//!
//! The moves themselves are [`model::lifecycle::ReservationState::next`]; this crate is their one writer.

use api::reservations::Binding;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Fault};
use model::lifecycle::{NodeState, ReservationEvent, ReservationState};
use model::unit::{MIB, mib_to_gib_up};
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId, Timestamp, UserId};
use placer::{CAPABILITY_LIMITS, Claim};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Row, RowExt, StoreError};

use crate::many::Released;

/// What a node's daemon must advertise to take a hold for its kubelet.
const CAPABILITY_KUBERNETES: &str = "binding.kubernetes";
/// The same for a hold of CPU and memory without any device: an older daemon knows holds by their devices alone.
const CAPABILITY_HOST_ONLY: &str = "devices.host-only";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub gpus: u32,
    pub gpu_model: Option<String>,
    pub vcpu: u32,
    pub memory_mib: u64,
    pub hugepages_1gi: u64,
    pub whole_node: bool,
    pub binding: Binding,
    pub selector: std::collections::BTreeMap<String, String>,
}

impl Ask {
    pub fn of_row(row: &Row) -> Result<Self, StoreError> {
        let binding = Binding::parse(row.get("binding"))
            .ok_or_else(|| StoreError::decode("reservation", "column \"binding\""))?;
        let selector = serde_json::from_value(row.get::<_, Value>("selector"))
            .map_err(|_| StoreError::decode("reservation", "column \"selector\""))?;
        Ok(Self {
            gpus: whole(row.get::<_, i32>("gpus").into()) as u32,
            gpu_model: row.get("gpu_model"),
            vcpu: whole(row.get::<_, i32>("vcpu").into()) as u32,
            memory_mib: whole(row.get("memory_mib")),
            hugepages_1gi: whole(row.get("hugepages_1gi")),
            whole_node: row.get("whole_node"),
            binding,
            selector,
        })
    }

    /// Whether the node is to confine the hold. A whole machine is not confined within itself.
    pub fn is_limited(&self) -> bool {
        !self.whole_node && (self.vcpu > 0 || self.memory_mib > 0 || self.hugepages_1gi > 0)
    }

    pub fn claim(&self, avoid: impl IntoIterator<Item = NodeId>) -> Claim {
        let mut capabilities = std::collections::BTreeSet::new();
        if self.is_limited() {
            capabilities.insert(CAPABILITY_LIMITS.to_owned());
        }
        if self.binding == Binding::Kubernetes {
            capabilities.insert(CAPABILITY_KUBERNETES.to_owned());
        }
        // Of whole machines, only those with devices to hold them by.
        let gpus = if self.whole_node { self.gpus.max(1) } else { self.gpus };
        if gpus == 0 {
            capabilities.insert(CAPABILITY_HOST_ONLY.to_owned());
        }
        Claim {
            gpus,
            model: self.gpu_model.clone(),
            gpu_memory_bytes_min: 0,
            cpu_millis: u64::from(self.vcpu) * 1000,
            memory_bytes: self.memory_mib.saturating_mul(MIB),
            hugepages_1gi: self.hugepages_1gi,
            disk_bytes: 0,
            whole_node: self.whole_node,
            selector: self.selector.clone(),
            avoid: avoid.into_iter().collect(),
            capabilities,
        }
    }

    /// What it counts for against quotas. A whole node counts for what it turns out to be, so the amounts are given.
    pub fn quota(&self, gpus: u64, vcpu: u64, memory_gib: u64) -> Vec<(&'static str, i64)> {
        let all = [("gpu", gpus), ("memoryGiB", memory_gib), ("reservations", 1), ("vcpu", vcpu)];
        all.into_iter()
            .filter(|(_, amount)| *amount > 0)
            .map(|(resource, amount)| (resource, i64::try_from(amount).unwrap_or(i64::MAX)))
            .collect()
    }

    pub fn quota_asked(&self) -> Vec<(&'static str, i64)> {
        self.quota(self.gpus.into(), self.vcpu.into(), mib_to_gib_up(self.memory_mib))
    }
}

/// What a decision is about: a draft, or a reservation.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub id: ReservationId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub pool_name: String,
    pub pool_class: String,
    pub created_by: UserId,
    pub ask: Ask,
    pub starts_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

impl Subject {
    /// The resource with its attributes. What was not said is absent, and a condition on what is absent never lets a
    /// statement allow: who is bound to a GPU model must name one, who is bound to hours must give an end.
    pub fn resource(&self) -> Resource {
        let ask = &self.ask;
        let hours = self.expires_at.map(|end| hours_between(self.starts_at, end));
        Resource::one("compute-reservation", self.id, self.tenant_id)
            .with("resource.tenantId", self.tenant_id.to_string())
            .with("resource.createdBy", self.created_by.to_string())
            .with("resource.pool", self.pool_name.clone())
            .with("resource.poolId", self.pool_id.to_string())
            .with("resource.poolClass", self.pool_class.clone())
            .with("resource.gpus", ask.gpus)
            .with("resource.gpuModel", ask.gpu_model.clone())
            .with("resource.vcpu", ask.vcpu)
            .with("resource.memoryGiB", mib_to_gib_up(ask.memory_mib))
            .with("resource.hugepages1Gi", ask.hugepages_1gi)
            .with("resource.binding", ask.binding.name())
            .with("resource.wholeNode", ask.whole_node)
            .with("resource.hours", hours)
            .with("resource.totalHours", hours)
    }

    /// The same with the end it would have.
    pub fn resource_extended(&self, to: Timestamp) -> Resource {
        let more = self.expires_at.map(|end| hours_between(end, to));
        let moved = Subject { expires_at: Some(to), ..self.clone() };
        moved.resource().with("resource.extensionHours", more)
    }
}

/// Begun hours count whole: a bound in hours is never passed by a part of one.
pub(crate) fn hours_between(from: Timestamp, to: Timestamp) -> u64 {
    to.since(from).as_micros().div_ceil(3_600_000_000) as u64
}

/// A device of a live allocation.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldDevice {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    pub health: String,
    #[serde(default)]
    pub reason: String,
    pub since_ms: i64,
}

/// What an allocation's node is told to confine it to, as `allocations.limits` keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct StoredLimits {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
    /// A cpulist; empty for no restriction.
    pub cpus: String,
    /// NUMA nodes, as a cpulist.
    pub mems: String,
}

/// Where a reservation is.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub allocation_id: AllocationId,
    pub node_id: NodeId,
    pub node_name: String,
    pub node_state: NodeState,
    pub quarantined_at: Option<Timestamp>,
    pub last_heartbeat_at: Option<Timestamp>,
    pub limits: Option<StoredLimits>,
    pub cdi_devices: Vec<String>,
    pub devices: Vec<HeldDevice>,
}

/// A reservation with its names.
#[derive(Debug, Clone)]
pub(crate) struct Reserved {
    pub subject: Subject,
    pub name: Option<String>,
    pub tenant_name: String,
    pub created_by_name: String,
    pub state: ReservationState,
    pub attempts: u32,
    pub waiting_reason: String,
    pub failure: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub placed_at: Option<Timestamp>,
    pub active_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub held: Option<Held>,
    pub now: Timestamp,
}

impl Reserved {
    pub fn of_row(row: &Row) -> Result<Self, StoreError> {
        let subject = Subject {
            id: row.id("reservation_id"),
            tenant_id: row.id("tenant_id"),
            pool_id: row.id("pool_id"),
            pool_name: row.get("pool_name"),
            pool_class: row.get("pool_class"),
            created_by: row.id("created_by"),
            ask: Ask::of_row(row)?,
            starts_at: row.ts("starts_at"),
            expires_at: row.opt_ts("expires_at"),
        };
        Ok(Self {
            subject,
            name: row.get("name"),
            tenant_name: row.get("tenant_name"),
            created_by_name: row.get("created_by_name"),
            state: state_of(row.get("state"))?,
            attempts: whole(row.get::<_, i32>("attempts").into()) as u32,
            waiting_reason: row.get("waiting_reason"),
            failure: row.get("failure"),
            created_at: row.ts("created_at"),
            updated_at: row.ts("updated_at"),
            placed_at: row.opt_ts("placed_at"),
            active_at: row.opt_ts("active_at"),
            ended_at: row.opt_ts("ended_at"),
            held: held_of(row)?,
            now: row.ts("now"),
        })
    }

    /// As it is when its node was asked to let go of what it holds, and nothing else has changed since it was read.
    pub fn as_released(&self, released: Released) -> Option<Self> {
        let Released::Asked { from, allocation_id, updated_at } = released else { return None };
        let held = self.held.as_ref().map(|held| held.allocation_id);
        (self.state == from && held == Some(allocation_id)).then(|| Self {
            state: ReservationState::Releasing,
            updated_at,
            ..self.clone()
        })
    }

    /// It has left the state in which another process was to place it, or that process has told why it waits.
    pub fn was_looked_at(&self) -> bool {
        self.state != ReservationState::Scheduling || self.waiting_reason != crate::create::HANDED
    }

    /// Nothing is left to wait for: the node confirmed it, or it ended.
    pub fn is_up_or_over(&self) -> bool {
        self.state == ReservationState::Active || self.state.terminal()
    }
}

fn held_of(row: &Row) -> Result<Option<Held>, StoreError> {
    let Some(allocation_id) = row.opt_id("allocation_id") else { return Ok(None) };
    let undecodable = |column| StoreError::decode("reservation", format!("column {column:?}"));
    let limits: Option<Value> = row.get("limits");
    let devices: Option<Value> = row.get("devices");
    let limits = limits.map(serde_json::from_value).transpose().map_err(|_| undecodable("limits"))?;
    let devices = devices.map(serde_json::from_value).transpose().map_err(|_| undecodable("devices"))?;
    Ok(Some(Held {
        allocation_id,
        node_id: row.id("node_id"),
        node_name: row.get("node_name"),
        node_state: NodeState::parse(row.get("node_state")).ok_or_else(|| undecodable("node_state"))?,
        quarantined_at: row.opt_ts("quarantined_at"),
        last_heartbeat_at: row.opt_ts("last_heartbeat_at"),
        limits,
        cdi_devices: row.get("cdi_devices"),
        devices: devices.unwrap_or_default(),
    }))
}

pub(crate) fn state_of(text: &str) -> Result<ReservationState, StoreError> {
    ReservationState::parse(text).ok_or_else(|| StoreError::decode("reservation", "column \"state\""))
}

/// The next state, or INVALID_STATE with what stands in the way.
pub(crate) fn step(state: ReservationState, event: ReservationEvent) -> Result<ReservationState, Fault> {
    state.next(event).map_err(|refused| {
        ApiError::invalid_state(format!("the reservation is {}", state.name()))
            .detail("state", state.name())
            .detail("refused", refused.to_string())
            .into()
    })
}

/// A column that a check keeps from going below zero.
pub(crate) fn whole(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A number on its way into a bigint column.
pub(crate) fn stored(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
