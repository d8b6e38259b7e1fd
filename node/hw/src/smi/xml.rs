//! `nvidia-smi -q -x`: each GPU's facts and its live sample.

use wire::inventory::{
    EccCounters, Fabric, GPUS_MAX, Gpu, GpuProcess, GpuSample, MIG_INSTANCES_MAX, MigInstance, MigMode,
    PcieLink, RowRemap,
};

use super::error::SmiError;
use super::tree::{self, Element};
use super::value;

/// A GPU with thousands of processes is listed with its first ones.
const PROCESSES_MAX: usize = 1024;

/// What one call told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmiLog {
    pub driver_version: Option<String>,
    pub cuda_version: Option<String>,
    /// In the driver's order.
    pub gpus: Vec<SmiGpu>,
    /// What went wrong although there is a document.
    pub problem: Option<SmiError>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmiGpu {
    /// Without health: that is judged once every source has been merged.
    pub gpu: Gpu,
    pub sample: GpuSample,
    /// The driver says that routes in the fabric are broken for this GPU.
    pub fabric_unhealthy: bool,
    /// The driver refuses to read some facts until the GPU has been reset.
    pub needs_reset: bool,
    /// Facts the driver failed to read, as paths in its document.
    pub errors: Vec<String>,
    /// Index on the GPU of each MIG device, in the order of `gpu.mig_instances`.
    pub mig_indices: Vec<u32>,
}

/// Parses a document, also one with other lines around it. A document that breaks off gives the GPUs before the break
/// and a problem.
pub fn parse(output: &str) -> Result<SmiLog, SmiError> {
    let start = output.find("<nvidia_smi_log").ok_or_else(|| unparsable("no XML in its output"))?;
    let end = output.rfind("</nvidia_smi_log>").map_or(output.len(), |at| at + "</nvidia_smi_log>".len());
    let document = output.get(start..end).ok_or_else(|| unparsable("no XML in its output"))?;
    let parsed = tree::parse(document);
    let Some(log) = parsed.root.child("nvidia_smi_log") else {
        return Err(unparsable(parsed.fault.as_deref().unwrap_or("no log in its XML")));
    };
    let gpus: Vec<SmiGpu> =
        log.named("gpu").take(GPUS_MAX).enumerate().map(|(at, element)| gpu(at, element)).collect();
    if let Some(lost) = gpus.iter().position(|gpu| gpu.gpu.lost) {
        let device = gpus[lost].gpu.pci_address;
        return Ok(SmiLog { problem: Some(SmiError::GpuLost { device }), ..whole(log, gpus) });
    }
    let attached = log.text_at(&["attached_gpus"]).and_then(|text| value::number::<usize>(text, ""));
    let problem = match (parsed.fault, attached) {
        (Some(fault), _) => Some(unparsable(&fault)),
        (None, Some(attached)) if attached > gpus.len() => {
            Some(unparsable(&format!("{attached} GPUs attached, {} described", gpus.len())))
        }
        (None, _) => None,
    };
    Ok(SmiLog { problem, ..whole(log, gpus) })
}

fn whole(log: &Element, gpus: Vec<SmiGpu>) -> SmiLog {
    SmiLog {
        driver_version: log.text_at(&["driver_version"]).and_then(value::text),
        cuda_version: log.text_at(&["cuda_version"]).and_then(value::text),
        gpus,
        problem: None,
    }
}

fn unparsable(why: &str) -> SmiError {
    SmiError::Unparsable { why: crate::text::clean(why).unwrap_or_default() }
}

/// Looks facts up in one GPU's element and remembers those the driver could not read.
struct Facts<'a> {
    element: &'a Element,
    errors: Vec<String>,
}

impl<'a> Facts<'a> {
    fn raw(&mut self, paths: &[&str]) -> Option<&'a str> {
        let text = self.element.text_at(paths)?;
        if value::is_error(text) {
            self.errors.extend(paths.first().map(|path| (*path).to_owned()));
        }
        Some(text)
    }

    fn text(&mut self, paths: &[&str]) -> Option<String> {
        self.raw(paths).and_then(value::text)
    }

    fn flag(&mut self, path: &str) -> Option<bool> {
        self.raw(&[path]).and_then(value::flag)
    }

    fn number<T: std::str::FromStr>(&mut self, paths: &[&str], unit: &str) -> Option<T> {
        self.raw(paths).and_then(|text| value::number(text, unit))
    }

    fn bytes(&mut self, path: &str) -> Option<u64> {
        self.raw(&[path]).and_then(value::mib)
    }

    /// The first of the places that holds a power, since drivers leave the old places in with nothing in them.
    fn power(&mut self, paths: &[&str]) -> Option<u64> {
        paths.iter().find_map(|path| self.raw(&[path]).and_then(value::milliwatts))
    }
}

fn gpu(at: usize, element: &Element) -> SmiGpu {
    let mut facts = Facts { element, errors: Vec::new() };
    let (mig_instances, mig_indices) = mig_devices(element);
    let gpu = Gpu {
        uuid: facts.raw(&["uuid"]).and_then(value::gpu_uuid),
        index: u32::try_from(at).ok(),
        minor: facts.number(&["minor_number"], ""),
        model: facts.text(&["product_name"]),
        serial: facts.text(&["serial"]),
        pci_address: facts
            .text(&["pci/pci_bus_id"])
            .or_else(|| element.id.clone())
            .and_then(|address| address.trim().parse().ok()),
        memory_bytes: facts.bytes("fb_memory_usage/total"),
        architecture: facts.text(&["product_architecture"]),
        vbios_version: facts.text(&["vbios_version"]),
        mig_mode: mig_mode(&mut facts),
        mig_instances,
        ecc_enabled: facts.flag("ecc_mode/current_ecc"),
        ecc: ecc(&mut facts),
        row_remap: row_remap(&mut facts),
        power_limit_mw: power_limit(&mut facts),
        persistence: facts.flag("persistence_mode"),
        compute_mode: facts.text(&["compute_mode"]),
        pcie: pcie(&mut facts),
        fabric: fabric(&mut facts),
        recovery_action: facts.text(&["gpu_recovery_action"]),
        lost: element.any_text(&value::is_lost),
        ..Gpu::default()
    };
    let sample = sample(&mut facts, &gpu);
    let fabric_unhealthy = ["route_unhealthy", "access_timeout_recovery"]
        .iter()
        .any(|name| facts.flag(&format!("fabric/health/{name}")) == Some(true));
    let needs_reset = element.any_text(&value::needs_reset);
    facts.errors.sort_unstable();
    facts.errors.dedup();
    SmiGpu { gpu, sample, fabric_unhealthy, needs_reset, errors: facts.errors, mig_indices }
}

fn mig_mode(facts: &mut Facts<'_>) -> Option<MigMode> {
    let current = facts.flag("mig_mode/current_mig")?;
    Some(MigMode { current, pending: facts.flag("mig_mode/pending_mig").unwrap_or(current) })
}

fn mig_devices(element: &Element) -> (Vec<MigInstance>, Vec<u32>) {
    let Some(devices) = element.child("mig_devices") else { return (Vec::new(), Vec::new()) };
    devices
        .named("mig_device")
        .take(MIG_INSTANCES_MAX)
        .filter_map(|device| {
            let number = |name: &str| device.text_at(&[name]).and_then(|text| value::number::<u32>(text, ""));
            let instance = MigInstance {
                uuid: device.text_at(&["uuid"]).and_then(|text| value::uuid(text, "MIG-")),
                gpu_instance: number("gpu_instance_id")?,
                compute_instance: number("compute_instance_id")?,
                memory_bytes: device.text_at(&["fb_memory_usage/total"]).and_then(value::mib),
                ..MigInstance::default()
            };
            Some((instance, number("index")?))
        })
        .unzip()
}

/// Counters are split differently by generation: SRAM and DRAM, SRAM by cause, or by bits with a total.
fn ecc(facts: &mut Facts<'_>) -> Option<EccCounters> {
    let mut count = |period: &str, kinds: &[&str], total: &str| -> Option<u64> {
        let counters: Vec<u64> = kinds
            .iter()
            .filter_map(|kind| facts.number::<u64>(&[&format!("ecc_errors/{period}/{kind}")], ""))
            .collect();
        if counters.is_empty() {
            return facts.number(&[&format!("ecc_errors/{period}/{total}/total")], "");
        }
        counters.into_iter().try_fold(0u64, |sum, counter| sum.checked_add(counter))
    };
    const CORRECTABLE: &[&str] = &["sram_correctable", "dram_correctable"];
    const UNCORRECTABLE: &[&str] = &[
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "dram_uncorrectable",
    ];
    let counters = EccCounters {
        volatile_correctable: count("volatile", CORRECTABLE, "single_bit"),
        volatile_uncorrectable: count("volatile", UNCORRECTABLE, "double_bit"),
        aggregate_correctable: count("aggregate", CORRECTABLE, "single_bit"),
        aggregate_uncorrectable: count("aggregate", UNCORRECTABLE, "double_bit"),
    };
    (counters != EccCounters::default()).then_some(counters)
}

fn row_remap(facts: &mut Facts<'_>) -> Option<RowRemap> {
    let remap = RowRemap {
        correctable: facts.number(&["remapped_rows/remapped_row_corr"], ""),
        uncorrectable: facts.number(&["remapped_rows/remapped_row_unc"], ""),
        pending: facts.flag("remapped_rows/remapped_row_pending"),
        failure: facts.flag("remapped_rows/remapped_row_failure"),
    };
    (remap != RowRemap::default()).then_some(remap)
}

/// The limit now in force. Modules that share a limit between CPU and GPU have another, which is not the GPU's.
fn power_limit(facts: &mut Facts<'_>) -> Option<u64> {
    facts.power(&[
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/power_limit",
        "power_readings/power_limit",
        "power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
    ])
}

fn pcie(facts: &mut Facts<'_>) -> Option<PcieLink> {
    let link = "pci/pci_gpu_link_info";
    let pcie = PcieLink {
        width: facts.number(&[&format!("{link}/link_widths/current_link_width")], "x"),
        width_max: facts.number(&[&format!("{link}/link_widths/max_link_width")], "x"),
        generation_max: facts.number(&[&format!("{link}/pcie_gen/max_link_gen")], ""),
    };
    (pcie != PcieLink::default()).then_some(pcie)
}

fn fabric(facts: &mut Facts<'_>) -> Option<Fabric> {
    let fabric = Fabric {
        state: facts.text(&["fabric/state"]),
        status: facts.text(&["fabric/status"]),
        clique_id: facts.number(&["fabric/cliqueId"], ""),
        cluster_uuid: facts.text(&["fabric/clusterUuid"]),
    };
    (fabric != Fabric::default()).then_some(fabric)
}

fn sample(facts: &mut Facts<'_>, gpu: &Gpu) -> GpuSample {
    GpuSample {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        utilization_percent: facts.number(&["utilization/gpu_util"], "%"),
        memory_utilization_percent: facts.number(&["utilization/memory_util"], "%"),
        temperature_c: facts.number(&["temperature/gpu_temp"], "C"),
        memory_temperature_c: facts.number(&["temperature/memory_temp"], "C"),
        power_draw_mw: facts.power(&[
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/power_draw",
            "power_readings/power_draw",
        ]),
        power_limit_mw: gpu.power_limit_mw,
        memory_used_bytes: facts.bytes("fb_memory_usage/used"),
        memory_total_bytes: gpu.memory_bytes,
        sm_clock_mhz: facts.number(&["clocks/sm_clock"], "MHz"),
        memory_clock_mhz: facts.number(&["clocks/mem_clock"], "MHz"),
        pcie_generation: facts.number(&["pci/pci_gpu_link_info/pcie_gen/current_link_gen"], ""),
        throttle_reasons: throttle_reasons(facts.element),
        processes: processes(facts.element),
    }
}

/// Newer drivers call them event reasons. An idle GPU is not held down.
fn throttle_reasons(element: &Element) -> Vec<String> {
    let places: [(&str, &str); 2] = [
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ];
    let mut reasons: Vec<String> = places
        .iter()
        .filter_map(|(name, prefix)| Some((element.child(name)?, *prefix)))
        .flat_map(|(reasons, prefix)| {
            reasons
                .children
                .iter()
                .filter(|reason| reason.text.trim() == "Active")
                .filter_map(move |reason| reason.name.strip_prefix(prefix))
        })
        .filter(|reason| *reason != "gpu_idle")
        .filter_map(crate::text::clean)
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

fn processes(element: &Element) -> Vec<GpuProcess> {
    let Some(processes) = element.child("processes") else { return Vec::new() };
    let mut processes: Vec<GpuProcess> = processes
        .named("process_info")
        .filter_map(|process| {
            let text = |name: &str| process.text_at(&[name]);
            Some(GpuProcess {
                pid: value::number(text("pid")?, "")?,
                name: text("process_name").and_then(value::text),
                kind: text("type").and_then(value::text),
                memory_bytes: text("used_memory").and_then(value::mib),
                gpu_instance: text("gpu_instance_id").and_then(|id| value::number(id, "")),
            })
        })
        .collect();
    processes.sort_by_key(|process| process.pid);
    processes.truncate(PROCESSES_MAX);
    processes
}
