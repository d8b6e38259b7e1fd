//! The port everything else sees the machine through.

use std::future::Future;
use std::pin::Pin;

use wire::inventory::{GpuSample, MemoryInfo, NodeInventory, PressureReport};

use crate::smi::SmiError;
use crate::xid::XidEvent;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A machine. Every call is one pass: it looks now, and remembers nothing the next call would trust.
pub trait Hardware: Send + Sync {
    /// Collects every section. It never fails: what could not be read is absent and named in the section.
    fn inventory(&self) -> BoxFuture<'_, NodeInventory>;

    /// Live readings of every GPU.
    fn gpu_samples(&self) -> BoxFuture<'_, Result<Vec<GpuSample>, SmiError>>;

    /// The kernel's random id of this boot.
    fn boot_id(&self) -> BoxFuture<'_, Result<String, HardwareError>>;

    /// Pressure stall averages, and the CPU time stolen since the previous call.
    fn pressure(&self) -> BoxFuture<'_, PressureReport>;

    fn memory_info(&self) -> BoxFuture<'_, Result<MemoryInfo, HardwareError>>;

    /// Xid and SXid errors of this boot whose sequence is `from` or later. Pass the batch's `next` to go on; a cursor of
    /// an earlier boot starts over, which the changed boot id tells.
    fn xids(&self, from: u64) -> BoxFuture<'_, Result<XidBatch, HardwareError>>;

    /// Resets one GPU. Whether anything uses it is the caller's check; the driver refuses a GPU in use.
    fn reset_gpu<'a>(&'a self, uuid: &'a str) -> BoxFuture<'a, Result<(), ResetError>>;

    /// Asks the machine to restart. `Ok` means it will, not that it has.
    fn reboot<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<(), HardwareError>>;
}

/// What the kernel log held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct XidBatch {
    pub boot_id: String,
    /// By rising sequence.
    pub events: Vec<XidEvent>,
    /// The cursor for the next call.
    pub next: u64,
    /// Records were overwritten before they were read: an Xid may be missing.
    pub lost: bool,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum HardwareError {
    #[error("read {what}: {why}")]
    Read { what: &'static str, why: String },
    #[error("reboot: {why}")]
    Reboot { why: String },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    #[error("reset GPU {uuid:?}: unknown GPU")]
    Unknown { uuid: String },
    #[error("reset GPU {uuid}: {why}")]
    Refused { uuid: String, why: String },
    #[error("reset GPU {uuid}")]
    Smi {
        uuid: String,
        #[source]
        source: SmiError,
    },
}
