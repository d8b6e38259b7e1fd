//! Everything of a machine but its GPUs.

use serde::{Deserialize, Serialize};

use super::{CpuList, PciAddress};

/// The kernel's ceiling (CONFIG_NODES_SHIFT of 10).
pub const NUMA_NODES_MAX: usize = 1024;
/// Four page sizes on each of the NUMA nodes of the largest machines.
pub const HUGE_PAGE_POOLS_MAX: usize = 4096;
/// A storage server with four 106-bay enclosures on two paths has fewer.
pub const DISKS_MAX: usize = 1024;
/// Eight adapters with 256 virtual functions each.
pub const NICS_MAX: usize = 2048;

/// A fact that is there but could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Unread {
    /// The field or the file, like `serial` or `sda: size`.
    pub what: String,
    /// A lowercase fragment, like `permission denied`.
    pub why: String,
}

/// The chassis and its firmware. Serial and UUID are hints: firmware repeats, zeroes and changes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SystemSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Lowercase, with hyphens. Placeholders known to be shared between machines are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Whether the running system was started by UEFI firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uefi: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<Tpm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Firmware {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// As the firmware writes it, mostly `MM/DD/YYYY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tpm {
    /// `1.2` or `2.0`; absent where the kernel does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// The machine's name for its instruction set, as `uname -m` gives it: `x86_64`, `aarch64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Online hardware threads: what the scheduler sees as CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// By rising id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<NumaNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online: Option<CpuList>,
    /// Those of the CPU's flags that decide what can run here, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumaNode {
    pub id: u32,
    /// Empty for a node that is only memory.
    pub cpus: CpuList,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// By NUMA node, then page size. Pools of no pages are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<HugePagePool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HugePagePool {
    /// Absent on a kernel that does not split its pools by node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    pub page_bytes: u64,
    /// Pages in the pool, used or not.
    pub pages: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskSection {
    /// By name. Partitions, loop devices, RAM disks and device-mapper volumes are no disks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// The file system that instances' disks are on, whoever else uses it, in whole GiB. Absent where none run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// The kernel's name, like `nvme0n1`. It may change at a reboot: identify by WWN or serial.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// World Wide Name, EUI-64 or NGUID, with its prefix as the kernel writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Nvme,
    Sata,
    Sas,
    Usb,
    Virtio,
    Mmc,
    /// A bus a newer daemon knows, or none of these.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NicSection {
    /// By name. Interfaces without a device behind them (loopback, bridges, bonds, veth) are no NICs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nic {
    pub name: String,
    /// The permanent-looking address the interface has now: lowercase, with colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Absent while the link is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Absent on a device that is not an SR-IOV physical function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sriov: Option<Sriov>,
    /// Names of the RDMA devices on the same function, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rdma_devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sriov {
    /// Virtual functions the device can have.
    pub vfs_max: u32,
    /// Virtual functions it has now.
    pub vfs: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OsSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// The kernel's random id of this boot, a UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupInfo>,
    /// Whether `/dev/kvm` is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<bool>,
    /// IOMMU units the kernel has active; 0 means device passthrough is not possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu_units: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

/// From `os-release(5)`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Distribution {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretty_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CgroupInfo {
    /// 2 where the unified hierarchy is mounted at its usual place, else 1.
    pub version: u32,
    /// The controllers of the root, sorted.
    pub controllers: Vec<String>,
}
