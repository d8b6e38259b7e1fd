//! What an Xid means for new work, after NVIDIA's catalogue of Xid errors. One table.

use hw::{Xid, XidKind};
use model::condition::Severity;

use Severity::{Blocking, Info, Warning};

/// Codes that say something of the device. What ends it is in the text: every condition names its way out.
const TABLE: &[(u32, Severity, &str)] = &[
    (38, Warning, "driver firmware error; reset the GPU when it is free"),
    (46, Blocking, "the GPU stopped processing; reset it"),
    (48, Blocking, "double bit ECC error; reset the GPU"),
    (54, Warning, "auxiliary power is missing; check the cables"),
    (56, Warning, "display engine error"),
    (57, Warning, "error programming the video memory interface"),
    (58, Warning, "unstable video memory interface"),
    (61, Warning, "internal micro-controller breakpoint or warning; reset the GPU when it is free"),
    (62, Blocking, "internal micro-controller halt; reset the GPU"),
    (63, Blocking, "a row remap or page retirement is recorded and pending; reset the GPU"),
    (
        64,
        Blocking,
        "a row remap or page retirement could not be recorded; reset the GPU, replace it when it comes back",
    ),
    (66, Warning, "illegal access by the driver"),
    (73, Warning, "video encoder error"),
    (74, Blocking, "NVLink error; reset the GPUs of the link, check the link when it comes back"),
    (78, Warning, "a vGPU could not start"),
    (79, Blocking, "the GPU fell off the bus; reboot the machine"),
    (80, Warning, "corrupted data was sent to the GPU"),
    (81, Warning, "VGA subsystem error"),
    (92, Warning, "high rate of single bit ECC errors"),
    (94, Blocking, "contained memory error; reset the GPU"),
    (95, Blocking, "uncontained memory error; reset the GPU"),
    (110, Blocking, "security fault; reset the GPU"),
    (119, Blocking, "the GPU's system processor does not answer; reset the GPU"),
    (120, Blocking, "the GPU's system processor failed; reset the GPU"),
    (121, Warning, "corrected error of the chip-to-chip link; reset the GPU when it is free"),
    (122, Warning, "the power management unit could not read its flash"),
    (123, Warning, "the power management unit could not write its flash"),
    (136, Blocking, "link training failed; reset the GPU"),
    (137, Warning, "an NVLink peer was refused access; mostly a fault of the application on the peer"),
    (140, Blocking, "unrecovered ECC error; reset the GPU"),
    (143, Blocking, "the GPU could not be initialized; reset it or reboot the machine"),
    (151, Blocking, "key rotation failed; reset the GPU"),
    (155, Blocking, "NVLink error reported by software; reset the GPU"),
    (156, Warning, "a part of the GPU was retired; reset the GPU when it is free"),
    (157, Blocking, "a part of the GPU could not be retired; replace it"),
    (158, Blocking, "fatal timeout of the GPU; reset it"),
];

/// NVLink errors of the units named in the text, which also says `Fatal` or `Nonfatal`.
const NVLINK_UNITS: std::ops::RangeInclusive<u32> = 144..=150;

/// 154: the driver says which recovery the GPU now needs, `None` included.
pub const RECOVERY_CHANGED: u32 = 154;

/// How bad the error is for new work, and what to do, as a lowercase fragment.
pub fn meaning(xid: &Xid) -> (Severity, &'static str) {
    match xid.kind {
        XidKind::Switch if xid.is_fatal_switch_error() => {
            (Blocking, "fatal NVSwitch error; reset the GPUs and switches together, or reboot the machine")
        }
        XidKind::Switch => (Warning, "NVSwitch error that ended nothing"),
        XidKind::Gpu if xid.is_application() => {
            (Info, "mostly a fault of an application: it ended, the GPU goes on")
        }
        XidKind::Gpu if NVLINK_UNITS.contains(&xid.code) => {
            let fatal = xid.detail.split_whitespace().any(|word| word == "Fatal");
            match fatal {
                true => (Blocking, "fatal NVLink error; reset the GPU"),
                false => (Warning, "NVLink error that ended nothing"),
            }
        }
        XidKind::Gpu if xid.code == RECOVERY_CHANGED => recovery(&xid.detail),
        XidKind::Gpu => TABLE
            .iter()
            .find(|(code, _, _)| *code == xid.code)
            .map_or((Warning, "an error this daemon has no entry for"), |(_, severity, text)| {
                (*severity, text)
            }),
    }
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.
fn recovery(detail: &str) -> (Severity, &'static str) {
    let wanted = detail.rsplit_once(" to ").map(|(_, wanted)| wanted).unwrap_or_default();
    if wanted.contains("(None)") {
        (Info, "the driver says that the GPU needs no recovery any more")
    } else if wanted.contains("Reboot") {
        (Blocking, "the driver asks for a reboot of the machine")
    } else {
        (Blocking, "the driver asks for recovery of the GPU; reset it")
    }
}

#[cfg(test)]
mod tests;
