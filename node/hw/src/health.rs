//! Whether a GPU may take work, from what the driver says of it.

use wire::inventory::{GpuHealth, GpuVerdict};

use crate::smi::SmiGpu;

/// Only a healthy GPU takes new work, or one that nothing is known of, as on a host without `nvidia-smi`.
pub fn may_take_work(verdict: GpuVerdict) -> bool {
    match verdict {
        GpuVerdict::Healthy | GpuVerdict::Unknown => true,
        GpuVerdict::Degraded | GpuVerdict::Unhealthy => false,
    }
}

/// Judges one GPU. The worst finding decides; every finding is a reason.
pub fn verdict(smi: &SmiGpu) -> GpuHealth {
    let gpu = &smi.gpu;
    let mut broken = Vec::new();
    let mut waiting = Vec::new();
    if gpu.lost {
        broken.push("the GPU is lost: it fell off the bus".to_owned());
    }
    if let Some(count) = gpu.ecc.and_then(|ecc| ecc.volatile_uncorrectable).filter(|count| *count > 0) {
        broken.push(format!("{count} uncorrectable ECC errors since the driver loaded"));
    }
    if gpu.row_remap.and_then(|remap| remap.failure) == Some(true) {
        broken.push("a row could not be remapped".to_owned());
    }
    if gpu.row_remap.and_then(|remap| remap.pending) == Some(true) {
        waiting.push("a row waits for a GPU reset to be remapped".to_owned());
    }
    if let Some(action) = &gpu.recovery_action {
        waiting.push(format!("the driver asks for recovery: {action}"));
    }
    if smi.needs_reset {
        waiting.push("the driver reads nothing more until the GPU is reset".to_owned());
    }
    if smi.fabric_unhealthy {
        waiting.push("the NVLink fabric has no healthy route to the GPU".to_owned());
    }
    let verdict = if !broken.is_empty() {
        GpuVerdict::Unhealthy
    } else if !waiting.is_empty() {
        GpuVerdict::Degraded
    } else {
        GpuVerdict::Healthy
    };
    let mut reasons = [broken, waiting].concat();
    reasons.sort_unstable();
    GpuHealth { verdict, reasons }
}
