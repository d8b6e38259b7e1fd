//! The NVIDIA driver's error lines in the kernel log: Xid for a GPU, SXid for an NVLink switch.
//!
//! Drivers of all generations write `NVRM: Xid (PCI:0000:c1:00): 79, …`; the oldest leave out `PCI:`, some add the MIG
//! instance (`GPU-I:05`). Switches write `nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, …`.

use serde::Serialize;
use wire::inventory::PciAddress;

use crate::text::clean;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum XidKind {
    /// Xid: a GPU.
    Gpu,
    /// SXid: an NVSwitch.
    Switch,
}

/// One error line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Xid {
    pub kind: XidKind,
    pub code: u32,
    /// Absent when the line names something that is no PCI address: the error still counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// The MIG GPU instance, where the line names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The rest of the line, bounded.
    pub detail: String,
}

/// An error with its place in the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct XidEvent {
    /// The log record's number in this boot.
    pub sequence: u64,
    /// Microseconds since boot.
    pub since_boot_us: u64,
    pub xid: Xid,
}

/// Codes that NVIDIA's catalogue blames on the application first: it ends, the GPU goes on.
/// 13 graphics exception, 31 memory page fault, 43 GPU stopped processing, 45 preemptive cleanup, 68 video
/// decoder exception, 69 graphics class error, 109 context switch timeout.
const APPLICATION_CODES: &[u32] = &[13, 31, 43, 45, 68, 69, 109];

impl Xid {
    /// Whether the line is of the device at this address, whatever the function.
    pub fn is_of(&self, address: PciAddress) -> bool {
        self.pci_address.is_some_and(|named| named.same_device(address))
    }

    /// Whether the line more likely tells of a faulty program than of a faulty device.
    pub fn is_application(&self) -> bool {
        self.kind == XidKind::Gpu && APPLICATION_CODES.contains(&self.code)
    }

    /// Whether a switch says that the error ended what it was doing. GPUs do not say.
    pub fn is_fatal_switch_error(&self) -> bool {
        self.kind == XidKind::Switch && self.detail.starts_with("Fatal")
    }
}

/// A kernel log message that is an error line. It must begin as one: text further in may come from a program's name.
pub fn parse(message: &str) -> Option<Xid> {
    if let Some(rest) = message.strip_prefix("NVRM: Xid (") {
        return line(XidKind::Gpu, rest);
    }
    let rest = message.strip_prefix("nvidia-nvswitch")?;
    let (number, rest) = rest.split_once(": SXid (")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| line(XidKind::Switch, rest))?
}

/// An error line with a log's own prefix before it, as `dmesg` or a journal shows it.
pub fn find(text: &str) -> Option<Xid> {
    let at = text.find("NVRM: Xid (").or_else(|| text.find("nvidia-nvswitch"))?;
    parse(&text[at..])
}

fn line(kind: XidKind, rest: &str) -> Option<Xid> {
    let (device, rest) = rest.split_once("): ")?;
    let device = device.strip_prefix("PCI:").unwrap_or(device);
    let (address, instance) = match device.split_once(" GPU-I:") {
        Some((address, instance)) => (address, instance.parse().ok()),
        None => (device, None),
    };
    let (code, rest) = match rest.split_once(',') {
        Some((code, rest)) => (code, rest.trim_start()),
        None => (rest.trim_end(), ""),
    };
    let code = code.bytes().all(|byte| byte.is_ascii_digit()).then(|| code.parse().ok())??;
    let (pid, process, detail) = origin(rest);
    Some(Xid {
        kind,
        code,
        pci_address: address.parse().ok(),
        gpu_instance: instance,
        pid,
        process,
        detail: clean(detail).unwrap_or_default(),
    })
}

/// `pid=1942, name=llama-bench, …`; both may be unknown, the name may be missing.
fn origin(rest: &str) -> (Option<u32>, Option<String>, &str) {
    let Some(after) = rest.strip_prefix("pid=") else { return (None, None, rest) };
    let (pid, after) = after.split_once(',').unwrap_or((after, ""));
    let after = after.trim_start();
    let pid = pid.trim().parse().ok();
    let Some(named) = after.strip_prefix("name=") else { return (pid, None, after) };
    let (name, after) = named.split_once(',').unwrap_or((named, ""));
    let name = clean(name).filter(|name| name != "<unknown>");
    (pid, name, after.trim_start())
}

#[cfg(test)]
mod tests;
