//! What a node is made of, by section.

use model::NodeId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::words::words;
use crate::{Named, Ref, Time, Word};

words! {
    InventorySectionName, "inventory section" {
        System = "system",
        Cpu = "cpu",
        Memory = "memory",
        Disks = "disks",
        Nics = "nics",
        Gpus = "gpus",
        Os = "os",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetInventory {
    pub node: Ref<NodeId>,
    /// All when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<Word<InventorySectionName>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInventory {
    pub node: Named<NodeId>,
    pub sections: Vec<InventorySection>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventorySection {
    /// `system`, `cpu`, `memory`, `disks`, `nics`, `gpus`, `os`; a newer daemon may report more.
    pub section: String,
    /// SHA-256 of the section's canonical bytes, in lowercase hex.
    pub hash: String,
    pub reported_at: Time,
    pub age_seconds: u64,
    /// As the daemon reported it.
    pub content: Map<String, Value>,
}
