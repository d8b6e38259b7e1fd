//! What `bcd doctor` says of the host. Each check is a value; printing and exit codes are the caller's.

use serde::Serialize;
use wire::inventory::{Gpu, GpuProblem, GpuSample, GpuVerdict, NodeInventory};

use crate::clock::ClockSync;
use crate::diag;
use crate::report::{bytes, sample_line};
use crate::root::Root;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// Something this node cannot do.
    Warn,
    /// Something that must be mended.
    Fail,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub name: &'static str,
    pub status: Status,
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, detail: detail.into(), fix: None }
    }

    fn bad(name: &'static str, status: Status, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status, detail: detail.into(), fix: Some(fix.into()) }
    }
}

/// A huge page pool at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolNow {
    pub page_bytes: u64,
    pub pages: u64,
    pub free: u64,
}

/// What doctor needs beside the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub clock: ClockSync,
    /// The driver that hands devices to guests is there.
    pub vfio_pci: bool,
    pub pools: Vec<PoolNow>,
}

impl HostFacts {
    /// Reads them below a root. The clock is this machine's own, so below any other root it is unknown.
    pub fn read(root: &Root) -> Self {
        let clock = if root.is_host() { ClockSync::of_host() } else { ClockSync::Unknown };
        let folder = "sys/kernel/mm/hugepages";
        let pool = |name: &String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number = |file: &str| root.text(&format!("{folder}/{name}/{file}")).ok()??.parse().ok();
            let (pages, free) = (number("nr_hugepages")?, number("free_hugepages")?);
            Some(PoolNow { page_bytes: kib.checked_mul(1024)?, pages, free })
        };
        Self {
            clock,
            vfio_pci: root.exists("sys/bus/pci/drivers/vfio-pci"),
            pools: root.list(folder).unwrap_or_default().iter().filter_map(pool).collect(),
        }
    }
}

/// Every host check, in the order it is shown.
pub fn checks(inventory: &NodeInventory, samples: &[GpuSample], facts: &HostFacts) -> Vec<Check> {
    let mut checks = vec![nvml(inventory), hardware(inventory)];
    checks.extend(inventory.gpus.gpus.iter().map(|gpu| gpu_check(gpu, samples)));
    checks.extend([kvm(inventory), iommu(inventory)]);
    checks.extend(vfio(inventory, facts));
    checks.extend([cgroups(inventory), hugepages(facts), clock(facts)]);
    checks
}

fn nvml(inventory: &NodeInventory) -> Check {
    let section = &inventory.gpus;
    let Some(problem) = section.problem else {
        let driver = section.driver_version.as_deref().unwrap_or("of unknown version");
        return Check::ok("nvml", format!("driver {driver}, {} GPUs", section.gpus.len()));
    };
    let detail = diag::problem_text(problem);
    match problem {
        // A host without GPUs is a good host.
        GpuProblem::NotInstalled => {
            Check::bad("nvml", Status::Warn, detail, "install the NVIDIA driver if this host has GPUs")
        }
        GpuProblem::NoDevices => Check::bad(
            "nvml",
            Status::Warn,
            detail,
            "check that the GPUs are seated and not bound to vfio-pci",
        ),
        GpuProblem::DriverNotLoaded => {
            Check::bad("nvml", Status::Fail, detail, "load the module with `modprobe nvidia` and see `dmesg`")
        }
        GpuProblem::DriverMismatch => {
            Check::bad("nvml", Status::Fail, detail, "restart the host, or reload the NVIDIA kernel modules")
        }
        GpuProblem::DeviceHandle | GpuProblem::GpuLost => {
            Check::bad("nvml", Status::Fail, detail, "restart the host; if it comes back, replace the GPU")
        }
        GpuProblem::PermissionDenied => {
            Check::bad("nvml", Status::Fail, detail, "let this user open /dev/nvidiactl and /dev/nvidia*")
        }
        GpuProblem::TimedOut | GpuProblem::Unparsable | GpuProblem::Failed => {
            Check::bad("nvml", Status::Fail, detail, "run `nvidia-smi -q -x` and see what it says")
        }
    }
}

fn hardware(inventory: &NodeInventory) -> Check {
    let name = inventory.system.product.as_deref().unwrap_or("host");
    let unread: Vec<String> = wire::inventory::SectionName::ALL
        .into_iter()
        .flat_map(|section| inventory.unread(section).iter().map(move |note| (section, note)))
        .map(|(section, note)| format!("{section}: {} ({})", note.what, note.why))
        .collect();
    let detail = format!(
        "{name}: {} threads, {}, {} disks, {} NICs, {} GPUs",
        inventory.cpu.threads.unwrap_or(0),
        inventory.memory.total_bytes.map_or("unknown memory".into(), bytes),
        inventory.disks.disks.len(),
        inventory.nics.nics.len(),
        inventory.gpus.gpus.len(),
    );
    match unread.first() {
        None => Check::ok("hardware", detail),
        Some(first) => {
            let detail = format!("{detail}; {} facts could not be read, first {first}", unread.len());
            Check::bad("hardware", Status::Warn, detail, "run doctor as root to see everything")
        }
    }
}

fn gpu_check(gpu: &Gpu, samples: &[GpuSample]) -> Check {
    let name = gpu.uuid.clone().or_else(|| gpu.pci_address.map(|at| at.to_string())).unwrap_or_default();
    let model = gpu.model.as_deref().unwrap_or("GPU");
    let sample = samples.iter().find(|sample| sample.uuid.is_some() && sample.uuid == gpu.uuid);
    let mut detail = format!("{name} {model}");
    if let Some(line) = sample.map(sample_line).filter(|line| !line.is_empty()) {
        detail.push_str(&format!(": {line}"));
    }
    let waiting = gpu.mig_mode.is_some_and(|mode| mode.current != mode.pending);
    for reason in gpu.health.reasons.iter().map(String::as_str) {
        detail.push_str(&format!("; {reason}"));
    }
    match gpu.health.verdict {
        GpuVerdict::Unhealthy => Check::bad(
            "gpu",
            Status::Fail,
            detail,
            "take it out of service; restart the host or replace the GPU",
        ),
        GpuVerdict::Degraded => Check::bad("gpu", Status::Warn, detail, "reset the GPU when nothing uses it"),
        GpuVerdict::Healthy if waiting => {
            let detail = format!("{detail}; a MIG mode change waits for a GPU reset");
            Check::bad("gpu", Status::Warn, detail, "reset the GPU when nothing uses it")
        }
        GpuVerdict::Healthy => Check::ok("gpu", detail),
        GpuVerdict::Unknown => {
            let detail = format!("{detail}; its health is not known");
            Check::bad("gpu", Status::Warn, detail, "see the nvml check")
        }
    }
}

fn kvm(inventory: &NodeInventory) -> Check {
    match inventory.os.kvm {
        Some(true) => Check::ok("kvm", "/dev/kvm present"),
        _ => Check::bad(
            "kvm",
            Status::Warn,
            "no /dev/kvm: this host runs no virtual machines",
            "turn on VT-x or AMD-V in the firmware and load kvm_intel or kvm_amd",
        ),
    }
}

fn iommu(inventory: &NodeInventory) -> Check {
    match inventory.os.iommu_units {
        Some(units) if units > 0 => Check::ok("iommu", format!("{units} IOMMU units")),
        _ => Check::bad(
            "iommu",
            Status::Warn,
            "no active IOMMU: no device can be passed through",
            "turn on VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or amd_iommu=on",
        ),
    }
}

fn vfio(inventory: &NodeInventory, facts: &HostFacts) -> Option<Check> {
    inventory.os.iommu_units.filter(|units| *units > 0)?;
    if facts.vfio_pci {
        return Some(Check::ok("vfio", "vfio-pci loaded"));
    }
    let detail = "vfio-pci is not loaded: no GPU can be handed to a guest";
    Some(Check::bad("vfio", Status::Warn, detail, "modprobe vfio-pci, and name it in /etc/modules-load.d"))
}

fn cgroups(inventory: &NodeInventory) -> Check {
    let fix = "boot with systemd.unified_cgroup_hierarchy=1";
    let Some(cgroup) = inventory.os.cgroup.as_ref().filter(|cgroup| cgroup.version == 2) else {
        let detail = "no cgroup v2: booked limits cannot be enforced";
        return Check::bad("cgroups", Status::Fail, detail, fix);
    };
    let has = |name: &&str| cgroup.controllers.iter().any(|controller| controller == name);
    let missing: Vec<&str> = ["cpuset", "cpu", "memory"].into_iter().filter(|name| !has(name)).collect();
    if !missing.is_empty() {
        let detail = format!("no {} controller: booked limits cannot be enforced", missing.join(", "));
        return Check::bad(
            "cgroups",
            Status::Fail,
            detail,
            "use a kernel with these controllers on cgroup v2",
        );
    }
    if !has(&"hugetlb") {
        let detail = "no hugetlb controller: limits on huge pages have no effect";
        return Check::bad("cgroups", Status::Warn, detail, "use a kernel with CONFIG_CGROUP_HUGETLB");
    }
    Check::ok("cgroups", format!("cgroup v2 with {}", cgroup.controllers.join(", ")))
}

fn hugepages(facts: &HostFacts) -> Check {
    let pools: Vec<String> = facts
        .pools
        .iter()
        .filter(|pool| pool.pages > 0)
        .map(|pool| format!("{} of {} pages of {} free", pool.free, pool.pages, bytes(pool.page_bytes)))
        .collect();
    if pools.is_empty() {
        return Check::ok("hugepages", "no pool: flavors backed by huge pages are refused here");
    }
    Check::ok("hugepages", pools.join(", "))
}

fn clock(facts: &HostFacts) -> Check {
    let fix = "run chrony or systemd-timesyncd";
    match facts.clock {
        ClockSync::Synchronized => Check::ok("clock", "synchronized"),
        ClockSync::Unsynchronized => Check::bad(
            "clock",
            Status::Warn,
            "the clock follows no time source: certificates may be refused",
            fix,
        ),
        ClockSync::Unknown => {
            Check::bad("clock", Status::Warn, "the kernel does not say if it is synchronized", fix)
        }
    }
}

#[cfg(test)]
mod tests;
