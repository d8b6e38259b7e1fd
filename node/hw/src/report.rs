//! `bcd hardware`: what the machine is, as text for people and as a value for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use wire::inventory::{Gpu, GpuSample, GpuVerdict, NodeInventory, SectionName, Unread};

use crate::diag;
use crate::smi::SmiError;

/// The inventory with its hashes and the samples of the same moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HardwareReport {
    pub inventory: NodeInventory,
    /// Hexadecimal SHA-256 by section.
    pub hashes: BTreeMap<&'static str, String>,
    pub gpu_samples: Vec<GpuSample>,
    /// Why there are no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_error: Option<String>,
}

impl HardwareReport {
    pub fn new(inventory: NodeInventory, samples: Result<Vec<GpuSample>, SmiError>) -> Self {
        let hashes =
            inventory.hashes().into_iter().map(|(name, hash)| (name.as_str(), hash.to_string())).collect();
        let (gpu_samples, gpu_error) = match samples {
            Ok(samples) => (samples, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self { inventory, hashes, gpu_samples, gpu_error }
    }

    /// One screen of text: a line a thing, the section's name before its first.
    pub fn text(&self) -> String {
        let mut page = Page::default();
        let inventory = &self.inventory;
        page.section(SectionName::System, system(inventory), &inventory.system.unread);
        page.section(SectionName::Cpu, cpu(inventory), &inventory.cpu.unread);
        page.section(SectionName::Memory, memory(inventory), &inventory.memory.unread);
        page.section(SectionName::Disks, disks(inventory), &inventory.disks.unread);
        page.section(SectionName::Nics, nics(inventory), &inventory.nics.unread);
        page.section(SectionName::Gpus, self.gpus(), &inventory.gpus.unread);
        page.section(SectionName::Os, os(inventory), &inventory.os.unread);
        page.text
    }

    fn gpus(&self) -> Vec<String> {
        let section = &self.inventory.gpus;
        let mut lines = Vec::new();
        match section.problem {
            Some(problem) => lines.push(diag::problem_text(problem).to_owned()),
            None => lines.push(words([
                section.driver_version.as_ref().map(|version| format!("driver {version}")),
                section.cuda_version.as_ref().map(|version| format!("CUDA {version}")),
                Some(format!("{} GPUs", section.gpus.len())),
            ])),
        }
        for gpu in &section.gpus {
            let sample =
                self.gpu_samples.iter().find(|sample| sample.uuid.is_some() && sample.uuid == gpu.uuid);
            lines.extend(gpu_lines(gpu, sample));
        }
        lines
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn section(&mut self, name: SectionName, lines: Vec<String>, unread: &[Unread]) {
        let notes = unread.iter().map(|note| format!("could not read {}: {}", note.what, note.why));
        let mut label = name.as_str();
        let mut lines = lines.into_iter().filter(|line| !line.is_empty()).chain(notes).peekable();
        if lines.peek().is_none() {
            self.line(label, "nothing known");
        }
        for line in lines {
            self.line(label, &line);
            label = "";
        }
    }

    fn line(&mut self, label: &str, line: &str) {
        writeln!(self.text, "{label:<8} {line}").expect("writing to a text does not fail");
    }
}

fn words(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `2.0 TiB`: one digit after the point, in units of 1,024.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (63 - bytes.leading_zeros()) / 10;
    let unit = 1u128 << (10 * power);
    let tenths = (u128::from(bytes) * 10 + unit / 2) / unit;
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[power as usize - 1])
}

/// `87% busy, 61 C, 540/700 W, 71.2/79.6 GiB`, without what was not read.
pub fn sample_line(sample: &GpuSample) -> String {
    let watts = |milliwatts: u64| (milliwatts + 500) / 1000;
    let gib = |bytes: u64| {
        let tenths = (u128::from(bytes) * 10 + (1 << 29)) >> 30;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let power = sample.power_draw_mw.map(|draw| match sample.power_limit_mw {
        Some(limit) => format!("{}/{} W", watts(draw), watts(limit)),
        None => format!("{} W", watts(draw)),
    });
    let memory = sample.memory_used_bytes.zip(sample.memory_total_bytes);
    let throttled = (!sample.throttle_reasons.is_empty())
        .then(|| format!("held down by {}", sample.throttle_reasons.join("+")));
    words([
        sample.utilization_percent.map(|percent| format!("{percent}% busy")),
        sample.temperature_c.map(|degrees| format!("{degrees} C")),
        power,
        memory.map(|(used, total)| format!("{}/{} GiB", gib(used), gib(total))),
        throttled,
    ])
}

fn system(inventory: &NodeInventory) -> Vec<String> {
    let system = &inventory.system;
    let firmware = system.firmware.clone().unwrap_or_default();
    let name =
        [system.vendor.clone(), system.product.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let on = |what: &str, on: bool| format!("{what} {}", if on { "on" } else { "off" });
    vec![
        words([
            (!name.is_empty()).then_some(name),
            system.serial.as_ref().map(|serial| format!("serial {serial}")),
            system.product_uuid.as_ref().map(|uuid| format!("UUID {uuid}")),
        ]),
        words([
            firmware.vendor.map(|vendor| format!("firmware {vendor}")),
            firmware.version,
            firmware.date,
            system.uefi.map(|uefi| if uefi { "UEFI".into() } else { "BIOS".into() }),
            system.secure_boot.map(|secure| on("Secure Boot", secure)),
            system.tpm.as_ref().map(|tpm| format!("TPM {}", tpm.version.as_deref().unwrap_or("present"))),
        ]),
    ]
}

fn cpu(inventory: &NodeInventory) -> Vec<String> {
    let cpu = &inventory.cpu;
    let count = |count: Option<u32>, what: &str| count.map(|count| format!("{count} {what}"));
    let mut lines = vec![
        words([
            cpu.model.clone(),
            cpu.arch.clone(),
            count(cpu.sockets, "sockets"),
            count(cpu.cores, "cores"),
            count(cpu.threads, "threads"),
        ]),
        cpu.flags.join(" "),
    ];
    lines.extend(cpu.numa_nodes.iter().map(|node| {
        let cpus = if node.cpus.is_empty() { "no CPUs".into() } else { format!("CPUs {}", node.cpus) };
        words([Some(format!("node {}", node.id)), Some(cpus), node.memory_bytes.map(bytes)])
    }));
    lines
}

fn memory(inventory: &NodeInventory) -> Vec<String> {
    let memory = &inventory.memory;
    let pool = |pool: &wire::inventory::HugePagePool| {
        let node = pool.numa_node.map_or(String::new(), |node| format!("node {node}: "));
        format!("{node}{} huge pages of {}", pool.pages, bytes(pool.page_bytes))
    };
    memory.total_bytes.map(bytes).into_iter().chain(memory.huge_pages.iter().map(pool)).collect()
}

fn disks(inventory: &NodeInventory) -> Vec<String> {
    let disk = |disk: &wire::inventory::Disk| {
        let transport = disk.transport.map(|transport| format!("{transport:?}").to_lowercase());
        words([
            Some(disk.name.clone()),
            disk.size_bytes.map(bytes),
            transport,
            disk.rotational.filter(|rotational| *rotational).map(|_| "rotational".into()),
            disk.model.clone(),
            disk.serial.as_ref().map(|serial| format!("serial {serial}")),
        ])
    };
    let instances = inventory.disks.instances_bytes.map(|size| format!("instances on {}", bytes(size)));
    inventory.disks.disks.iter().map(disk).chain(instances).collect()
}

fn nics(inventory: &NodeInventory) -> Vec<String> {
    let nic = |nic: &wire::inventory::Nic| {
        let rdma = (!nic.rdma_devices.is_empty()).then(|| format!("RDMA {}", nic.rdma_devices.join(" ")));
        words([
            Some(nic.name.clone()),
            nic.mac.clone(),
            Some(nic.speed_mbps.map_or("no link".into(), |speed| format!("{speed} Mb/s"))),
            nic.driver.clone(),
            nic.pci_address.map(|at| at.to_string()),
            nic.numa_node.map(|node| format!("node {node}")),
            nic.sriov.map(|sriov| format!("{} of {} VFs", sriov.vfs, sriov.vfs_max)),
            rdma,
        ])
    };
    inventory.nics.nics.iter().map(nic).collect()
}

fn gpu_lines(gpu: &Gpu, sample: Option<&GpuSample>) -> Vec<String> {
    let verdict = match gpu.health.verdict {
        GpuVerdict::Healthy => None,
        GpuVerdict::Degraded => Some("DEGRADED"),
        GpuVerdict::Unhealthy => Some("UNHEALTHY"),
        GpuVerdict::Unknown => Some("health unknown"),
    };
    let reasons = gpu.health.reasons.join("; ");
    let health = verdict
        .map(|verdict| if reasons.is_empty() { verdict.into() } else { format!("{verdict}: {reasons}") });
    let index = gpu.index.map_or("?".into(), |index| index.to_string());
    let mut lines = vec![
        words([
            Some(format!("{index} {}", gpu.uuid.as_deref().unwrap_or("no UUID"))),
            gpu.model.clone(),
            gpu.memory_bytes.map(bytes),
            gpu.pci_address.map(|at| at.to_string()),
            gpu.numa_node.map(|node| format!("node {node}")),
            gpu.compute_capability.as_ref().map(|capability| format!("compute {capability}")),
            gpu.nvlink_count.map(|count| format!("{count} NVLinks")),
            gpu.mig_mode.filter(|mode| mode.current).map(|_| "MIG".into()),
            health,
        ]),
        sample
            .map(|sample| format!("  {}", sample_line(sample)))
            .filter(|line| line.len() > 2)
            .unwrap_or_default(),
    ];
    lines.extend(gpu.mig_instances.iter().map(|instance| {
        let placement = instance.placement.map(|at| format!("slices {}+{}", at.start, at.size));
        words([
            Some(format!("  {}", instance.uuid.as_deref().unwrap_or("MIG"))),
            instance.profile.clone(),
            Some(format!("GI {} CI {}", instance.gpu_instance, instance.compute_instance)),
            placement,
            instance.memory_bytes.map(bytes),
        ])
    }));
    lines
}

fn os(inventory: &NodeInventory) -> Vec<String> {
    let os = &inventory.os;
    let distribution =
        os.distribution.as_ref().and_then(|it| it.pretty_name.clone().or_else(|| it.id.clone()));
    let cgroup =
        os.cgroup.as_ref().map(|it| format!("cgroup v{} ({})", it.version, it.controllers.join(" ")));
    vec![
        words([
            os.hostname.clone(),
            distribution,
            os.kernel.as_ref().map(|kernel| format!("kernel {kernel}")),
            os.boot_id.as_ref().map(|id| format!("boot {id}")),
        ]),
        words([
            cgroup,
            os.kvm.map(|kvm| if kvm { "KVM".into() } else { "no KVM".into() }),
            os.iommu_units.map(|units| format!("{units} IOMMU units")),
        ]),
    ]
}

#[cfg(test)]
mod tests;
