//! Why `nvidia-smi` gave no answer, from what it printed.

use wire::inventory::{GpuProblem, PciAddress};

use crate::commands::CommandError;
use crate::text::clean;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SmiError {
    #[error("nvidia-smi is not installed: this host has no NVIDIA driver")]
    NotInstalled,
    #[error("the NVIDIA driver is not loaded or does not answer")]
    DriverNotLoaded,
    #[error("the NVIDIA kernel module and library are of different versions")]
    DriverMismatch,
    #[error("the NVIDIA driver finds no devices")]
    NoDevices,
    #[error("the NVIDIA driver cannot open the GPU{}", at(.device))]
    DeviceHandle { device: Option<PciAddress> },
    #[error("the GPU{} is lost: it fell off the bus", at(.device))]
    GpuLost { device: Option<PciAddress> },
    #[error("nvidia-smi: permission denied")]
    PermissionDenied,
    #[error("nvidia-smi: not supported by this GPU")]
    NotSupported,
    #[error("nvidia-smi: no answer in time")]
    TimedOut,
    #[error("nvidia-smi: {why}")]
    Unparsable { why: String },
    #[error("nvidia-smi ended with code {}: {text}", code.map_or("none".into(), |code| code.to_string()))]
    Failed { code: Option<i32>, text: String },
}

fn at(device: &Option<PciAddress>) -> String {
    device.map_or(String::new(), |device| format!(" at {device}"))
}

impl SmiError {
    pub(crate) fn failed(code: Option<i32>, text: &str) -> Self {
        Self::Failed { code, text: clean(text).unwrap_or_else(|| "no message".into()) }
    }

    /// The same in the inventory's closed set.
    pub fn problem(&self) -> GpuProblem {
        match self {
            Self::NotInstalled => GpuProblem::NotInstalled,
            Self::DriverNotLoaded => GpuProblem::DriverNotLoaded,
            Self::DriverMismatch => GpuProblem::DriverMismatch,
            Self::NoDevices => GpuProblem::NoDevices,
            Self::DeviceHandle { .. } => GpuProblem::DeviceHandle,
            Self::GpuLost { .. } => GpuProblem::GpuLost,
            Self::PermissionDenied => GpuProblem::PermissionDenied,
            Self::TimedOut => GpuProblem::TimedOut,
            Self::Unparsable { .. } => GpuProblem::Unparsable,
            Self::NotSupported | Self::Failed { .. } => GpuProblem::Failed,
        }
    }
}

/// The program could not be run to its end.
pub fn command_failed(error: &CommandError) -> SmiError {
    match error {
        CommandError::NotFound { .. } => SmiError::NotInstalled,
        CommandError::PermissionDenied { .. } => SmiError::PermissionDenied,
        CommandError::TimedOut { .. } => SmiError::TimedOut,
        CommandError::TooMuchOutput { max, .. } => {
            SmiError::Unparsable { why: format!("more than {max} bytes of output") }
        }
        CommandError::Io { source, .. } => SmiError::failed(None, &source.kind().to_string()),
    }
}

/// The reason in what it printed, if it printed one. The more specific comes first: a GPU that cannot be opened is often
/// followed by `No devices were found`.
pub fn classify(text: &str) -> Option<SmiError> {
    let lower = text.to_ascii_lowercase();
    let says = |phrase: &str| lower.contains(phrase);
    let handle = lower.find("unable to determine the device handle for gpu");
    if says("gpu is lost") {
        return Some(SmiError::GpuLost { device: handle.and_then(|at| device_in(&text[at..])) });
    }
    if let Some(at) = handle {
        return Some(SmiError::DeviceHandle { device: device_in(&text[at..]) });
    }
    if says("driver/library version mismatch") {
        return Some(SmiError::DriverMismatch);
    }
    if says("couldn't communicate with the nvidia driver") || says("driver not loaded") {
        return Some(SmiError::DriverNotLoaded);
    }
    if says("no devices were found") {
        return Some(SmiError::NoDevices);
    }
    if says("insufficient permissions") || says("access blocked by the operating system") {
        return Some(SmiError::PermissionDenied);
    }
    if says("not supported") {
        return Some(SmiError::NotSupported);
    }
    // Any other reason the library gives for not starting is the driver's: `Unknown Error`, `Not Found`.
    says("failed to initialize nvml").then_some(SmiError::DriverNotLoaded)
}

/// `… for GPU0000:CB:00.0: Unknown Error` or, with the index, `… for GPU1: 0000:34:00.0: Unknown Error`.
fn device_in(text: &str) -> Option<PciAddress> {
    let line = text.lines().next()?;
    line.split_whitespace()
        .map(|word| word.trim_end_matches([':', ',', '.']).trim_start_matches("GPU"))
        .find_map(|word| word.contains('.').then(|| word.parse().ok())?)
}
