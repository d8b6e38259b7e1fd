//! The question before a reservation, asked of every node.

use model::{NodeId, PoolId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Binding, MEMORY_GIB_MAX, MEMORY_MIB_MAX};
use crate::listing::is_false;
use crate::words::words;
use crate::{Id, Int, InvalidRequest, Named, Ref, Selector, Text, Word};

/// The claim of a `reservations.create`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainReservation {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub pool: Ref<PoolId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Int<0, 1024>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_model: Option<Text<1, 128>>,
    /// CPUs, as the machine counts its hardware threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<Int<0, 4096>>,
    /// Memory.
    #[serde(rename = "memoryGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<Int<0, MEMORY_GIB_MAX>>,
    /// Memory to the MiB, in place of `memoryGiB`.
    #[serde(rename = "memoryMiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Int<0, MEMORY_MIB_MAX>>,
    #[serde(rename = "hugepages1Gi")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages_1gi: Option<Int<0, 65_536>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole_node: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<Word<Binding>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
}

words! {
    FitVerdict, "verdict" {
        Fits = "fits",
        /// Would fit when something on it ends.
        Busy = "busy",
        /// Would never fit.
        Never = "never",
        /// Takes no new work now.
        Closed = "closed",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    pub node: Named<NodeId>,
    pub verdict: Word<FitVerdict>,
    /// For people, with numbers: `1 GPU quarantined (Xid 79), 7 left`.
    pub reasons: Vec<String>,
}

/// Nodes that share a reason.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerdictGroup {
    pub nodes: u32,
    pub verdict: Word<FitVerdict>,
    /// `have 8 GPUs in all, 16 wanted on one node`.
    pub reason: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub pool: Named<PoolId>,
    /// It would be placed now.
    pub fits: bool,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Named<NodeId>>,
    /// One line: `no node in pool "gpu" can hold 16 GPUs together`.
    pub summary: String,
    /// The reasons, the most common first.
    pub groups: Vec<VerdictGroup>,
    /// Every node of the pool, at most 1,000.
    pub nodes: Vec<NodeVerdict>,
    /// What would fit instead, as command line flags: `--gpus 8`.
    pub hints: Vec<String>,
}

impl ExplainReservation {
    /// The memory asked for, in MiB, in whichever unit it was given.
    pub fn memory_mib(&self) -> u64 {
        memory_mib(self.memory_gib, self.memory_mib)
    }
}

pub fn memory_mib(gib: Option<Int<0, MEMORY_GIB_MAX>>, mib: Option<Int<0, MEMORY_MIB_MAX>>) -> u64 {
    mib.map_or(gib.map_or(0, Int::get) * 1024, Int::get)
}

pub fn check(request: &ExplainReservation) -> Result<(), InvalidRequest> {
    check_memory(request.memory_gib.is_some(), request.memory_mib.is_some())?;
    check_claim(
        request.gpus.map_or(0, Int::get),
        request.gpu_model.is_some(),
        [request.vcpu.map_or(0, Int::get), request.memory_mib(), request.hugepages_1gi.map_or(0, Int::get)],
        request.whole_node,
    )
}

pub fn check_memory(gib: bool, mib: bool) -> Result<(), InvalidRequest> {
    if gib && mib {
        return Err(InvalidRequest::new("/memoryMiB", "give memoryGiB or memoryMiB, not both"));
    }
    Ok(())
}

pub fn check_claim(
    gpus: u64,
    model: bool,
    amounts: [u64; 3],
    whole_node: bool,
) -> Result<(), InvalidRequest> {
    if gpus == 0 && model {
        return Err(InvalidRequest::new("/gpuModel", "a model without GPUs: give gpus too"));
    }
    if gpus == 0 && amounts == [0; 3] && !whole_node {
        return Err(InvalidRequest::new(
            "",
            "the claim asks for nothing: give gpus, vcpu, memoryGiB, memoryMiB or wholeNode",
        ));
    }
    Ok(())
}
