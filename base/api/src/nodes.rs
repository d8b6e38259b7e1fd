//! Nodes: machines that joined. Pools lend them out; cordon, drain and revoke take them back.

use model::lifecycle::NodeState;
use model::{NodeId, PoolId, Role, SiteId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::{
    Amount, Condition, Cursor, GpuTotals, Id, InvalidRequest, LabelChanges, Labels, Limit, Name, Named, Ref,
    Selector, Text, Time, Wait, Word,
};

mod inventory;
pub mod ssh_certs;
pub use inventory::{GetInventory, InventorySection, InventorySectionName, NodeInventory};

/// Why a node takes no new work.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCordon {
    pub by: String,
    pub reason: String,
    pub since: Time,
    pub since_seconds: u64,
    /// What ends it, when the system set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_when: Option<String>,
}

/// Its connection to a gateway.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSession {
    pub connected: bool,
    /// The gateway's id.
    pub gateway: String,
    /// Goes up with every session.
    pub epoch: u64,
    pub connected_at: Time,
    pub boot_id: String,
}

/// How a part of the node's spec stands.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SectionStatus {
    pub section: String,
    /// CONVERGED, PROGRESSING, FAILED or UNSUPPORTED.
    pub state: String,
    pub message: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub id: Id<NodeId>,
    pub name: String,
    pub hostname: String,
    pub role: Word<Role>,
    pub state: Word<NodeState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<NodeCordon>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Time>,
    /// It contradicts what is stored; nothing is sent to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine_reason: Option<String>,
    /// Ready, and neither cordoned, draining nor quarantined.
    pub schedulable: bool,
    pub site: Named<SiteId>,
    /// Absent until it is adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Named<PoolId>>,
    pub labels: Labels,
    pub gpus: GpuTotals,
    /// What can be booked, less the host's reserve.
    pub vcpu: Amount,
    #[serde(rename = "memoryGiB")]
    pub memory_gib: Amount,
    #[serde(rename = "hugepages1Gi")]
    pub hugepages_1gi: Amount,
    /// For instances' disks. Absent when it has not told how large their file system is.
    #[serde(rename = "diskGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gib: Option<Amount>,
    pub conditions: Vec<Condition>,
    /// The newest intent.
    pub generation: u64,
    /// The intent it holds and enforces.
    pub applied_generation: u64,
    /// The intent every part of which has converged or failed for good.
    pub observed_generation: u64,
    pub sections: Vec<SectionStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<NodeSession>,
    /// Since its last heartbeat; absent when it never had a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen_seconds: Option<u64>,
    /// A person gave it up, and it was not heard of since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_dead_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoke_reason: Option<String>,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted_at: Option<Time>,
    pub age_seconds: u64,
}

/// The answer of a verb that takes a node away.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeChange {
    pub node: Node,
    /// What is on it: `reservation/rsv_…`.
    pub holds: Vec<String>,
    /// Nothing was changed; this is what would have been.
    pub dry_run: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListNodes {
    /// Whose pool a name means. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Ref<PoolId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Ref<SiteId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<NodeState>>,
    /// Only those that do, or do not, take new work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedulable: Option<bool>,
    /// Only those that have a condition of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<Text<1, 64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Also those that were revoked or removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetNode {
    pub node: Ref<NodeId>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdoptNode {
    pub node: Ref<NodeId>,
    pub pool: Ref<PoolId>,
    /// Whose pool a name means. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Until its diagnosis decided whether it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateNode {
    pub node: Ref<NodeId>,
    /// The new name, unique in the deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelChanges>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CordonNode {
    pub node: Ref<NodeId>,
    /// Shown to whoever finds the node closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<0, 200>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UncordonNode {
    pub node: Ref<NodeId>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainNode {
    pub node: Ref<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<0, 200>>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeNode {
    pub node: Ref<NodeId>,
    /// The node's name, to show that this one is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<0, 200>>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoveNode {
    pub node: Ref<NodeId>,
    /// The node's name, to show that this one is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<Name>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbandonNode {
    /// One that is unreachable, lost or revoked.
    pub node: Ref<NodeId>,
    /// The node's name, to show that this one is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<Name>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

fn check_update(request: &UpdateNode) -> Result<(), InvalidRequest> {
    if request.name.is_none() && request.labels.as_ref().is_none_or(|labels| labels.0.is_empty()) {
        return Err(InvalidRequest::new("", "nothing to change: give name or labels"));
    }
    Ok(())
}

method!(List, "nodes"."list", Read, "compute-node", ListNodes => crate::List<Node>, [NotFound], "Lists nodes with what is free on them.");
method!(Get, "nodes"."get", Read, "compute-node", GetNode => Node, [NotFound], "Shows a node.");
method!(Inventory, "nodes"."inventory", Read, "compute-node", GetInventory => NodeInventory, [NotFound], "Shows what a node is made of.");
method!(Adopt, "nodes"."adopt", Natural, "compute-node", AdoptNode => Node, [NotFound, InvalidState, Conflict], "Takes a joined node into a pool; a diagnosis decides when it is ready.");
method!(Update, "nodes"."update", Natural, "compute-node", UpdateNode => Node, [NotFound, Conflict, InvalidState], "Renames a node or changes its labels.", check = check_update);
method!(Cordon, "nodes"."cordon", Natural, "compute-node", CordonNode => Node, [NotFound, InvalidState], "Closes a node to new work; what is there stays.");
method!(Uncordon, "nodes"."uncordon", Natural, "compute-node", UncordonNode => Node, [NotFound, InvalidState], "Opens a node again, and ends its drain.");
method!(Drain, "nodes"."drain", Natural, "compute-node", DrainNode => NodeChange, [NotFound, InvalidState], "Closes a node and asks what is on it to leave.");
method!(Revoke, "nodes"."revoke", Natural, "compute-node", RevokeNode => NodeChange, [NotFound, ConfirmationRequired, InvalidState], "Ends a node's certificates and its session.");
method!(Abandon, "nodes"."abandon", Natural, "compute-node", AbandonNode => NodeChange, [NotFound, ConfirmationRequired, InvalidState], "Declares a node dead that is unreachable, lost or revoked, and gives up what it holds: its reservations are placed again elsewhere, or end where they were ending, and its instances are lost. Changes records alone, and nothing on the machine, where all of it may run on.");
method!(Remove, "nodes"."remove", Natural, "compute-node", RemoveNode => NodeChange, [NotFound, ConfirmationRequired, InvalidState, Conflict], "Removes a revoked node that holds nothing.");
