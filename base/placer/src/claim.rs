//! What is asked for.

use std::collections::{BTreeMap, BTreeSet};

use model::NodeId;

/// What a node's daemon must advertise before it is given a hold that limits CPU, memory or pages: an older one
/// would drop the limits unseen. Callers name it in [`Claim::capabilities`]; a virtual machine's claim does not need it.
pub const CAPABILITY_LIMITS: &str = "devices.limits";

/// One request for room on one node. The default asks for nothing and fits every healthy node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claim {
    /// All on one node and all of one model. With 0, model and memory are not looked at.
    pub gpus: u32,
    /// As the inventory names it, compared exactly.
    pub model: Option<String>,
    pub gpu_memory_bytes_min: u64,
    /// 1000 per CPU.
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    /// Pages of 1 GiB, beside `memory_bytes`.
    pub hugepages_1gi: u64,
    /// Of the file system that instances' disks are on.
    pub disk_bytes: u64,
    /// The whole machine, which must hold nothing: every device is booked and all that is free. The numbers above
    /// are then the least the machine must have.
    pub whole_node: bool,
    /// Labels the node must carry, with exactly these values.
    pub selector: BTreeMap<String, String>,
    /// Nodes it must not go to: where its siblings are, or where it failed.
    pub avoid: BTreeSet<NodeId>,
    /// Names like `devices.limits`; a node has one when it carries the label `bc.dev/cap.<name>=1`.
    pub capabilities: BTreeSet<String>,
}

/// Which of the nodes that fit is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The node left with the fewest free GPUs, then with the least CPU and memory: whole nodes stay free for
    /// claims that need them.
    #[default]
    Pack,
    /// The node left with the most.
    Spread,
}

impl Policy {
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Pack => "pack",
            Policy::Spread => "spread",
        }
    }

    pub fn parse(text: &str) -> Option<Policy> {
        [Policy::Pack, Policy::Spread].into_iter().find(|policy| policy.name() == text)
    }

    /// What is left, as a figure of which less is better.
    pub(crate) const fn directed(self, left: u64) -> u64 {
        match self {
            Policy::Pack => left,
            Policy::Spread => !left,
        }
    }
}
