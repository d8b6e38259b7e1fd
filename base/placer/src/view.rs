//! What the caller tells a snapshot about a node, and what a snapshot tells back.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use model::NodeId;
use model::lifecycle::NodeState;

use crate::CpuSet;

/// Text that answers share with the snapshot instead of copying it.
pub type Text = Arc<str>;

/// What is booked one by one: a device, by the id its inventory gives it (a GPU's UUID).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AtomId(Text);

impl AtomId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text in the same place. Equal ids need not be.
    pub(crate) fn is_same(&self, other: &AtomId) -> bool {
        std::sync::Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<&str> for AtomId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for AtomId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AtomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much there is of something and how much of it is booked. `total` is what may be booked: after the host's
/// reserve and any overcommit. It may fall under `booked` when a node shrinks; then nothing is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    pub total: u64,
    pub booked: u64,
}

impl Amount {
    /// Of what nobody counts: there is always enough.
    pub const UNBOUNDED: Self = Self::unbooked(u64::MAX);

    pub const fn unbooked(total: u64) -> Self {
        Self { total, booked: 0 }
    }

    pub const fn free(self) -> u64 {
        self.total.saturating_sub(self.booked)
    }
}

/// Who took a node out of placement, why, and when as they would read it: there is no clock here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cordon {
    pub by: String,
    pub why: String,
    pub when: String,
}

/// Whether a node may take new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: NodeState,
    pub cordoned: Option<Arc<Cordon>>,
    pub draining: bool,
    /// Why, when it is.
    pub quarantined: Option<Text>,
}

impl Standing {
    pub const READY: Standing =
        Standing { state: NodeState::Ready, cordoned: None, draining: false, quarantined: None };

    pub fn takes_work(&self) -> bool {
        self.state == NodeState::Ready
            && self.cordoned.is_none()
            && !self.draining
            && self.quarantined.is_none()
    }
}

/// The whole host's bookable amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostView {
    pub cpu_millis: Amount,
    pub memory_bytes: Amount,
    pub hugepages_1gi: Amount,
    /// For instances' disks. [`Amount::UNBOUNDED`] of a node that does not tell what it has.
    pub disk_bytes: Amount,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaView {
    /// The kernel's number. Unique within the node.
    pub id: u16,
    /// The CPUs a hold may float on, as [`crate::floating`] leaves them. Not exclusive: holds on one NUMA node share them.
    pub cpus: CpuSet,
    /// Booked here is what holds bound to this node promise; unbound holds count only host-wide.
    pub memory_bytes: Amount,
    pub hugepages_1gi: Amount,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// Unique within the node.
    pub atom: AtomId,
    pub model: Text,
    pub memory_bytes: u64,
    /// Unknown when none; 65535 is taken as unknown too.
    pub numa: Option<u16>,
    /// The driver's order, by which devices that are alike are taken.
    pub index: u16,
    /// Devices with the same number reach each other over NVLink; none, or 65535, is a device without it.
    pub island: Option<u16>,
    pub booked: bool,
    /// Why it takes no new work, when it does not. A device can be booked and fall ill.
    pub unhealthy: Option<Text>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub id: NodeId,
    pub name: Text,
    pub standing: Standing,
    /// A whole-node claim has it.
    pub held_whole: bool,
    /// The system's among them: capabilities are `bc.dev/cap.<name>=1`.
    pub labels: BTreeMap<String, String>,
    pub host: HostView,
    /// Kept in order of id.
    pub numa: Vec<NumaView>,
    /// Kept in order of index, then atom.
    pub devices: Vec<DeviceView>,
}
