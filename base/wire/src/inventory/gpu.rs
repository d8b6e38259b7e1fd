//! NVIDIA GPUs and their MIG instances.

use serde::{Deserialize, Serialize};

use super::{CpuList, PciAddress, Unread};

/// The largest single systems have 16; expansion chassis double that twice.
pub const GPUS_MAX: usize = 64;
/// Seven GPU instances with up to seven compute instances between them; twice that for what comes.
pub const MIG_INSTANCES_MAX: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<String>,
    /// Newest CUDA version the driver offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    /// By PCI address, which is also the driver's index order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Why the driver's own tool gave nothing, or not everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<GpuProblem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// Why `nvidia-smi` did not describe the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuProblem {
    /// The program is not installed: no NVIDIA driver on this host.
    NotInstalled,
    /// The kernel module is not loaded or does not answer.
    DriverNotLoaded,
    /// The user-space library and the kernel module are of different versions.
    DriverMismatch,
    /// The driver answers and sees no device.
    NoDevices,
    /// A device is on the bus but the driver cannot open it.
    DeviceHandle,
    /// A device fell off the bus.
    GpuLost,
    PermissionDenied,
    TimedOut,
    /// It answered with something that is not its documented output.
    Unparsable,
    /// Another failure, or one only a newer daemon knows.
    #[serde(other)]
    Failed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gpu {
    /// `GPU-` and a UUID. Absent when the device no longer answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The driver's index. It may change at a reboot: a hold names the UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The N of `/dev/nvidiaN`. Not the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_affinity: Option<CpuList>,
    /// Frame buffer, with what the driver reserves of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Like `9.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vbios_version: Option<String>,
    /// Absent on a GPU without MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_mode: Option<MigMode>,
    /// By GPU instance, then compute instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<MigInstance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<EccCounters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_remap: Option<RowRemap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// As the driver writes it: `Default`, `Exclusive_Process`, `Prohibited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Links that are up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// What the driver says must happen before the GPU is right again, like `Reset`; absent when nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<String>,
    /// The device fell off the bus: what else is here was read before, or is absent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    pub health: GpuHealth,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigMode {
    pub current: bool,
    /// Takes effect at the next reset.
    pub pending: bool,
}

/// A MIG device: one compute instance of one GPU instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigInstance {
    /// `MIG-` and a UUID. It changes when the instance is made again; never the only key of a hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Like `1g.10gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// Where the GPU instance lies in the GPU's memory slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<MigPlacement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigPlacement {
    pub start: u32,
    pub size: u32,
}

/// Each counter is absent where the driver gives none. Volatile counts since the driver loaded, aggregate for life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EccCounters {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volatile_correctable: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volatile_uncorrectable: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_correctable: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_uncorrectable: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RowRemap {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correctable: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrectable: Option<u64>,
    /// A row waits for a reset to be remapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
    /// A row could not be remapped: the GPU is worn out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<bool>,
}

/// The current generation is a live reading: it drops when the GPU idles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PcieLink {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation_max: Option<u32>,
}

/// The NVLink fabric a GPU belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fabric {
    /// As the driver writes it: `Completed`, `In Progress`, `Not Started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `Success`, or what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clique_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_uuid: Option<String>,
}

/// Whether the GPU may take work, and each reason why not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuHealth {
    pub verdict: GpuVerdict,
    /// Sorted lowercase fragments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuVerdict {
    Healthy,
    /// It works now and needs a reset, or has less than it should.
    Degraded,
    /// It must take no work.
    Unhealthy,
    /// Nothing that can be read says either way.
    #[default]
    #[serde(other)]
    Unknown,
}
