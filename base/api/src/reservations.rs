//! Reservations: GPUs, CPUs and memory of one node, booked for a while.

use model::lifecycle::ReservationState;
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{
    Condition, Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Name, Named, Ref, Selector, Text,
    Time, Wait, Word,
};

mod explain;
pub use explain::{ExplainReservation, Explanation, FitVerdict, NodeVerdict, VerdictGroup};

/// 64 TiB, as `memoryGiB` and as `memoryMiB`.
pub const MEMORY_GIB_MAX: u64 = 65_536;
pub const MEMORY_MIB_MAX: u64 = MEMORY_GIB_MAX * 1024;

words! {
    /// Who uses the GPUs.
    Binding, "binding" {
        /// Any process on the node, by the CDI devices.
        Hold = "hold",
        /// The kubelet, by its device plugin.
        Kubernetes = "kubernetes",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// What is booked: a GPU's UUID.
    pub uuid: String,
    pub index: u32,
    pub model: String,
    /// `nvidia.com/gpu=…`: what a container runtime takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdi_name: Option<String>,
}

/// What the hold is confined to on its node.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HoldLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u64>,
    /// `memoryMiB` rounded up.
    #[serde(rename = "memoryGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<u64>,
    #[serde(rename = "memoryMiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(rename = "hugepages1Gi")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages_1gi: Option<u64>,
    /// A cpulist like `0-3,8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// NUMA nodes, as a cpulist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    pub id: Id<ReservationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub tenant: Named<TenantId>,
    pub pool: Named<PoolId>,
    pub created_by: Named<UserId>,
    pub state: Word<ReservationState>,
    /// `degraded` while its node is silent, for one.
    pub conditions: Vec<Condition>,
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    pub vcpu: u32,
    /// `memoryMiB` rounded up: what counts against quotas, and what a policy is told.
    #[serde(rename = "memoryGiB")]
    pub memory_gib: u64,
    /// What was asked for, exactly.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "hugepages1Gi")]
    pub hugepages_1gi: u64,
    pub whole_node: bool,
    pub binding: Word<Binding>,
    pub selector: Selector,
    /// Where it is booked now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Named<NodeId>>,
    /// The placed attempt, by which the node knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Id<AllocationId>>,
    pub devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<HoldLimits>,
    /// Why it is not placed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Placements that were tried.
    pub attempts: u32,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// Absent when it lasts until it is released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
    pub age_seconds: u64,
    /// Nothing was booked; this is what would have been.
    pub dry_run: bool,
}

/// Ten years.
pub const RESERVATION_HOURS_MAX: u64 = 10 * 366 * 24;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateReservation {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub pool: Ref<PoolId>,
    /// Shown in lists; need not be unique.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// On one node, all of one model. 0 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Int<0, 1024>>,
    /// As `nodes.get` shows it, exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<Text<1, 128>>,
    /// CPUs, as the machine counts its hardware threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<Int<0, 4096>>,
    /// Memory.
    #[serde(rename = "memoryGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<Int<0, MEMORY_GIB_MAX>>,
    /// Memory to the MiB, in place of `memoryGiB`. Booked as it is; quotas and policies count it as GiB, rounded up.
    #[serde(rename = "memoryMiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Int<0, MEMORY_MIB_MAX>>,
    /// Pages of 1 GiB, beside `memoryGiB`.
    #[serde(rename = "hugepages1Gi")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages_1gi: Option<Int<0, 65_536>>,
    /// The whole machine, which must be empty; the amounts are then the least it must have.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole_node: bool,
    /// `hold` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<Word<Binding>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// How long it lasts; until released when neither this nor `expiresAt` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<Int<1, RESERVATION_HOURS_MAX>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Books nothing and answers whether and where it would be placed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// Until it is active, or has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetReservation {
    pub id: Id<ReservationId>,
    /// Until it is active or has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListReservations {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Ref<PoolId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<ReservationState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Also those that were released, failed or expired.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtendReservation {
    pub id: Id<ReservationId>,
    /// From its present end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hours: Option<Int<1, RESERVATION_HOURS_MAX>>,
    /// The new end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseReservation {
    pub id: Id<ReservationId>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// Until the node has confirmed that nothing is held any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

impl CreateReservation {
    /// The memory asked for, in MiB, in whichever unit it was given.
    pub fn memory_mib(&self) -> u64 {
        explain::memory_mib(self.memory_gib, self.memory_mib)
    }
}

fn check_create(request: &CreateReservation) -> Result<(), InvalidRequest> {
    if request.hours.is_some() && request.expires_at.is_some() {
        return Err(InvalidRequest::new("/expiresAt", "give hours or expiresAt, not both"));
    }
    explain::check_memory(request.memory_gib.is_some(), request.memory_mib.is_some())?;
    explain::check_claim(
        request.gpus.map_or(0, Int::get),
        request.gpu_model.is_some(),
        [request.vcpu.map_or(0, Int::get), request.memory_mib(), request.hugepages_1gi.map_or(0, Int::get)],
        request.whole_node,
    )
}

fn check_extend(request: &ExtendReservation) -> Result<(), InvalidRequest> {
    match (request.hours.is_some(), request.expires_at.is_some()) {
        (true, true) => Err(InvalidRequest::new("/expiresAt", "give hours or expiresAt, not both")),
        (false, false) => Err(InvalidRequest::new("", "give hours or expiresAt")),
        (true, false) | (false, true) => Ok(()),
    }
}

method!(Create, "reservations"."create", Key, "compute-reservation", CreateReservation => Reservation, [NotFound, Conflict, QuotaExceeded, CapacityUnavailable, Unsupported], "Books GPUs, CPUs and memory of one node.", check = check_create);
method!(Get, "reservations"."get", Read, "compute-reservation", GetReservation => Reservation, [NotFound], "Shows a reservation.");
method!(List, "reservations"."list", Read, "compute-reservation", ListReservations => crate::List<Reservation>, [NotFound], "Lists reservations.");
method!(Extend, "reservations"."extend", Natural, "compute-reservation", ExtendReservation => Reservation, [NotFound, InvalidState], "Moves the end of a reservation.", check = check_extend);
method!(Release, "reservations"."release", Natural, "compute-reservation", ReleaseReservation => Reservation, [NotFound, InvalidState], "Gives a reservation back.");
method!(Explain, "reservations"."explain", Read, "compute-reservation", ExplainReservation => Explanation, [NotFound], "Tells which nodes could hold a claim now, and why the others could not.", check = explain::check);
