//! Readings that move by themselves. They are reported and shown, and never hashed.

use serde::{Deserialize, Serialize};

/// One GPU at one moment. What could not be read is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuSample {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Time with at least one kernel running, in percent; absent with MIG on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_utilization_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_temperature_c: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_draw_mw: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<u32>,
    /// Why the clocks are held down, in the driver's short names, sorted: `sw_power_cap`, `hw_thermal_slowdown`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_reasons: Vec<String>,
    /// By process id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<GpuProcess>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuProcess {
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `C` compute, `G` graphics, `C+G` both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The GPU instance it runs in, with MIG on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
}

/// The host's memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryInfo {
    pub total_bytes: u64,
    /// What new work could take without swapping.
    pub available_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Held by huge page pools of every size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugetlb_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_free_bytes: Option<u64>,
}

/// Pressure stall information of the host, and the CPU time its hypervisor took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PressureReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Pressure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Pressure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<Pressure>,
    /// Stolen CPU time in hundredths of a percent since the previous reading; absent on the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_centi_percent: Option<u32>,
}

/// One resource, as `/proc/pressure` gives it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pressure {
    /// At least one task waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub some: Option<PressureLine>,
    /// Every task waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<PressureLine>,
}

/// Averages in hundredths of a percent over 10, 60 and 300 seconds, and the total in microseconds since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PressureLine {
    pub avg10_centi_percent: u32,
    pub avg60_centi_percent: u32,
    pub avg300_centi_percent: u32,
    pub total_us: u64,
}
