//! The checks of `diag.nvml`: may this node's GPUs take work? Judged from collected data alone.

use serde::Serialize;
use wire::inventory::{Gpu, GpuProblem, GpuSection, GpuVerdict};

use crate::xid::{Xid, XidEvent, XidKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum CheckName {
    /// The driver's management interface answers and describes every GPU.
    #[serde(rename = "nvml.init")]
    NvmlInit,
    #[serde(rename = "ecc.uncorrectable")]
    EccUncorrectable,
    #[serde(rename = "row-remap.pending")]
    RowRemapPending,
    #[serde(rename = "row-remap.failure")]
    RowRemapFailure,
    /// The link is as wide as it can be.
    #[serde(rename = "pcie.link")]
    PcieLink,
    /// No error of a device in this boot's kernel log.
    #[serde(rename = "xid.recent")]
    XidRecent,
}

impl CheckName {
    pub const ALL: [CheckName; 6] = [
        Self::NvmlInit,
        Self::EccUncorrectable,
        Self::RowRemapPending,
        Self::RowRemapFailure,
        Self::PcieLink,
        Self::XidRecent,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NvmlInit => "nvml.init",
            Self::EccUncorrectable => "ecc.uncorrectable",
            Self::RowRemapPending => "row-remap.pending",
            Self::RowRemapFailure => "row-remap.failure",
            Self::PcieLink => "pcie.link",
            Self::XidRecent => "xid.recent",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiagCheck {
    pub name: CheckName,
    /// The GPU's UUID, or its PCI address where it has none; absent for a check of the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    pub passed: bool,
    /// Why, a lowercase fragment.
    pub detail: String,
}

/// Errors named in one check; a storm says the same again.
const XIDS_NAMED_MAX: usize = 5;

/// Every check, the node's first. `xids` are all of this boot.
pub fn nvml(section: &GpuSection, xids: &[XidEvent]) -> Vec<DiagCheck> {
    let mut checks = vec![init(section)];
    for gpu in section.gpus.iter().filter(|gpu| gpu.health.verdict != GpuVerdict::Unknown) {
        checks.extend(gpu_checks(gpu, xids));
    }
    checks.extend(elsewhere(section, xids));
    checks
}

/// Whether every check passed. None at all is no pass.
pub fn passed(checks: &[DiagCheck]) -> bool {
    !checks.is_empty() && checks.iter().all(|check| check.passed)
}

/// Why the driver's tool did not do, in words.
pub fn problem_text(problem: GpuProblem) -> &'static str {
    match problem {
        GpuProblem::NotInstalled => "nvidia-smi is not installed: this host has no NVIDIA driver",
        GpuProblem::DriverNotLoaded => "the NVIDIA driver is not loaded or does not answer",
        GpuProblem::DriverMismatch => "the NVIDIA kernel module and library are of different versions",
        GpuProblem::NoDevices => "the NVIDIA driver finds no devices",
        GpuProblem::DeviceHandle => "the NVIDIA driver cannot open a GPU",
        GpuProblem::GpuLost => "a GPU is lost: it fell off the bus",
        GpuProblem::PermissionDenied => "nvidia-smi: permission denied",
        GpuProblem::TimedOut => "nvidia-smi: no answer in time",
        GpuProblem::Unparsable => "nvidia-smi: its output is not what it should be",
        GpuProblem::Failed => "nvidia-smi failed",
    }
}

fn name_of(gpu: &Gpu) -> String {
    gpu.uuid.clone().or_else(|| gpu.pci_address.map(|at| at.to_string())).unwrap_or_else(|| "unknown".into())
}

fn init(section: &GpuSection) -> DiagCheck {
    let check =
        |passed: bool, detail: String| DiagCheck { name: CheckName::NvmlInit, gpu: None, passed, detail };
    if let Some(problem) = section.problem {
        let said = section.unread.iter().find(|unread| unread.what == "nvidia-smi");
        return check(
            false,
            said.map_or_else(|| problem_text(problem).to_owned(), |unread| unread.why.clone()),
        );
    }
    if section.gpus.is_empty() {
        return check(false, problem_text(GpuProblem::NoDevices).to_owned());
    }
    if let Some(gpu) = section.gpus.iter().find(|gpu| gpu.health.verdict == GpuVerdict::Unknown) {
        return check(false, format!("nvidia-smi does not describe GPU {}", name_of(gpu)));
    }
    let driver = section.driver_version.as_deref().unwrap_or("of unknown version");
    check(true, format!("driver {driver}, {} GPUs", section.gpus.len()))
}

fn gpu_checks(gpu: &Gpu, xids: &[XidEvent]) -> [DiagCheck; 5] {
    let check = |name: CheckName, (passed, detail): (bool, String)| DiagCheck {
        name,
        gpu: Some(name_of(gpu)),
        passed,
        detail,
    };
    // A device that does not answer proves nothing: what it would have said counts as a failure.
    let answered = |judged: (bool, String)| {
        if gpu.lost { (false, problem_text(GpuProblem::GpuLost).to_owned()) } else { judged }
    };
    [
        check(CheckName::EccUncorrectable, answered(ecc(gpu))),
        check(CheckName::RowRemapPending, answered(remap(gpu, Some(true), None))),
        check(CheckName::RowRemapFailure, answered(remap(gpu, None, Some(true)))),
        check(CheckName::PcieLink, answered(pcie(gpu))),
        check(CheckName::XidRecent, recent(&of(gpu, xids))),
    ]
}

fn ecc(gpu: &Gpu) -> (bool, String) {
    match gpu.ecc.and_then(|ecc| ecc.volatile_uncorrectable) {
        Some(0) => (true, "none since the driver loaded".into()),
        Some(count) => (false, format!("{count} uncorrectable errors since the driver loaded")),
        None => (true, "this GPU does not count them".into()),
    }
}

fn remap(gpu: &Gpu, pending: Option<bool>, failure: Option<bool>) -> (bool, String) {
    let Some(remap) = gpu.row_remap else { return (true, "this GPU does not remap rows".into()) };
    if pending.is_some() && remap.pending == pending {
        return (false, "a row waits for a GPU reset to be remapped".into());
    }
    if failure.is_some() && remap.failure == failure {
        return (false, "a row could not be remapped: the GPU needs replacing".into());
    }
    (true, "none".into())
}

fn pcie(gpu: &Gpu) -> (bool, String) {
    let link = gpu.pcie.unwrap_or_default();
    match (link.width, link.width_max) {
        (Some(width), Some(max)) if width < max => (false, format!("x{width} of x{max}")),
        (Some(width), Some(_)) => (true, format!("x{width}")),
        _ => (true, "this GPU does not report its link".into()),
    }
}

fn of<'a>(gpu: &Gpu, xids: &'a [XidEvent]) -> Vec<&'a XidEvent> {
    let Some(address) = gpu.pci_address else { return Vec::new() };
    xids.iter().filter(|event| event.xid.kind == XidKind::Gpu && event.xid.is_of(address)).collect()
}

fn recent(events: &[&XidEvent]) -> (bool, String) {
    let (application, device): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.xid.is_application());
    if device.is_empty() && application.is_empty() {
        return (true, "none since boot".into());
    }
    if device.is_empty() {
        return (
            true,
            format!("{} errors of applications since boot: {}", application.len(), named(&application)),
        );
    }
    (false, named(&device))
}

fn named(events: &[&XidEvent]) -> String {
    let one = |event: &&XidEvent| {
        let XidEvent { since_boot_us, xid: Xid { code, detail, .. }, .. } = event;
        format!("Xid {code} at {} s after boot ({})", since_boot_us / 1_000_000, detail)
    };
    let mut text = events.iter().take(XIDS_NAMED_MAX).map(one).collect::<Vec<_>>().join("; ");
    if events.len() > XIDS_NAMED_MAX {
        text.push_str(&format!("; {} more", events.len() - XIDS_NAMED_MAX));
    }
    text
}

/// Errors of devices that are in no inventory: a GPU that vanished, or a switch.
fn elsewhere(section: &GpuSection, xids: &[XidEvent]) -> Option<DiagCheck> {
    let known = |event: &XidEvent| {
        section.gpus.iter().any(|gpu| gpu.pci_address.is_some_and(|address| event.xid.is_of(address)))
    };
    let matters = |event: &XidEvent| match event.xid.kind {
        XidKind::Gpu => !event.xid.is_application() && !known(event),
        XidKind::Switch => event.xid.is_fatal_switch_error(),
    };
    let events: Vec<&XidEvent> = xids.iter().filter(|event| matters(event)).collect();
    let first = events.first()?;
    let at = first.xid.pci_address.map_or("an unreadable address".into(), |at| at.to_string());
    let place = match first.xid.kind {
        XidKind::Gpu => format!("a GPU at {at} that is not there"),
        XidKind::Switch => format!("the switch at {at}"),
    };
    Some(DiagCheck {
        name: CheckName::XidRecent,
        gpu: None,
        passed: false,
        detail: format!("{place}: {}", named(&events)),
    })
}

#[cfg(test)]
mod tests;
