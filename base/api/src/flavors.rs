//! Flavors: sizes of virtual machines that a pool offers.

use model::{FlavorId, PoolId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Name, Named, Ref, Text, Time, Word};

words! {
    /// Of huge pages.
    PageSize, "page size" {
        OneGi = "1Gi",
    }
}

/// How instances have their host's CPUs and memory. A host that cannot give them that runs them all the same, but for huge
/// pages, and they have the condition `PlacementDegraded`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FlavorPlacement {
    /// CPUs and memory are those of one NUMA node.
    #[serde(default, skip_serializing_if = "is_false")]
    pub numa_affine: bool,
    /// Each vCPU has a CPU that no other pinned instance has.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pinned: bool,
    /// Memory is in pages of this size, which the host has set aside; of whole GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Word<PageSize>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flavor {
    pub id: Id<FlavorId>,
    pub name: String,
    pub pool: Named<PoolId>,
    pub vcpu: u32,
    /// `memoryMiB` rounded up: what counts against quotas, and what a policy is told.
    #[serde(rename = "memoryGiB")]
    pub memory_gib: u64,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "diskGiB")]
    pub disk_gib: u64,
    pub gpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<FlavorPlacement>,
    pub created_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateFlavor {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Of class `vps-host`.
    pub pool: Ref<PoolId>,
    /// Unique in its pool.
    pub name: Name,
    pub vcpu: Int<1, 288>,
    #[serde(rename = "memoryGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<Int<1, 65_536>>,
    /// Memory to the MiB, in place of `memoryGiB`. Booked as it is; quotas and policies count it as GiB, rounded up.
    #[serde(rename = "memoryMiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Int<64, 67_108_864>>,
    /// Of the first disk.
    #[serde(rename = "diskGiB")]
    pub disk_gib: Int<1, 65_536>,
    /// All of one model, and the instance's alone: on hosts that can hand over GPUs. 0 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Int<0, 16>>,
    /// As `nodes.get` shows it, exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<Text<1, 128>>,
    /// Wherever there is room when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<FlavorPlacement>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

impl CreateFlavor {
    /// In whichever unit it was given.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib.map(Int::get).or(self.memory_gib.map(|memory| memory.get() * 1024)).unwrap_or(0)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetFlavor {
    pub id: Id<FlavorId>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListFlavors {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub pool: Ref<PoolId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

fn check_create(request: &CreateFlavor) -> Result<(), InvalidRequest> {
    if request.memory_gib.is_some() == request.memory_mib.is_some() {
        return Err(InvalidRequest::new("/memoryGiB", "give memoryGiB or memoryMiB, and not both"));
    }
    if request.gpu_model.is_some() && request.gpus.map_or(0, Int::get) == 0 {
        return Err(InvalidRequest::new("/gpuModel", "a model of GPUs, and no GPUs: give gpus"));
    }
    let hugepages = request.placement.as_ref().and_then(|placement| placement.hugepages);
    if hugepages.is_some() && !request.memory_mib().is_multiple_of(1024) {
        let message = "memory in pages of 1 GiB is whole GiB: give memoryGiB";
        return Err(InvalidRequest::new("/memoryMiB", message));
    }
    Ok(())
}

method!(Create, "flavors"."create", Key, "compute-flavor", CreateFlavor => Flavor, [NotFound, Conflict], "Offers a size of virtual machines in a pool.", check = check_create);
method!(Get, "flavors"."get", Read, "compute-flavor", GetFlavor => Flavor, [NotFound], "Shows a flavor.");
method!(List, "flavors"."list", Read, "compute-flavor", ListFlavors => crate::List<Flavor>, [NotFound], "Lists the flavors of a pool.");
