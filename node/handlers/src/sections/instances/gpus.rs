//! GPUs of this host that instances have: which they are, and what the host says of them meanwhile.

use std::path::PathBuf;
use std::sync::Arc;

use hw::{BoxFuture, Hardware, HardwareError, ResetError, XidBatch};
use runtimes::vfio;
use wire::inventory::{Gpu, GpuProblem, GpuSample, GpuSection, MemoryInfo, NodeInventory, PressureReport};
use wire::proto::agent::{DesiredInstance, InstanceSpec};

use super::port::Trouble;

/// Processes that are told of, by name.
const TOLD_MAX: usize = 3;

fn trouble(reason: &'static str, retryable: bool, message: String) -> Trouble {
    Trouble { reason, message, retryable }
}

/// The GPUs of an entry, where they are now.
///
/// # Errors
/// When one is not there, or is in use by somebody else and the instance is to run.
pub async fn find(hardware: &dyn Hardware, entry: &InstanceSpec) -> Result<Vec<vfio::Gpu>, Trouble> {
    let inventory = hardware.inventory().await;
    let to_run = entry.desired() == DesiredInstance::Running;
    let samples = match to_run {
        // One that does not answer tells nothing of the others, and lets go of no device in use either.
        true => hardware.gpu_samples().await.unwrap_or_default(),
        false => Vec::new(),
    };
    let mut found = Vec::with_capacity(entry.gpu_device_ids.len());
    for uuid in &entry.gpu_device_ids {
        let is_it = |gpu: &&Gpu| gpu.uuid.as_ref() == Some(uuid);
        let gpu = inventory.gpus.gpus.iter().find(is_it);
        let missing = || trouble("GpuMissing", true, format!("GPU {} is not on this host", shown(uuid)));
        let gpu = gpu.ok_or_else(missing)?;
        let address = gpu.pci_address.map(|address| address.to_string());
        let address = address.and_then(|address| address.parse().ok()).ok_or_else(missing)?;
        if gpu.mig_mode.is_some_and(|mode| mode.current) {
            let message = format!("GPU {} is split into instances", shown(uuid));
            return Err(trouble("GpuInUse", true, message));
        }
        if let Some(users) = samples.iter().find(|sample| sample.uuid.as_ref() == Some(uuid)).and_then(users)
        {
            return Err(trouble("GpuInUse", true, format!("GPU {} is used by {users}", shown(uuid))));
        }
        found.push(vfio::Gpu {
            uuid: uuid.clone(),
            address,
            persistence: gpu.persistence.unwrap_or(false),
            facts: serde_json::to_string(gpu).expect("an inventory holds nothing that JSON cannot"),
        });
    }
    Ok(found)
}

fn users(sample: &GpuSample) -> Option<String> {
    let named = sample.processes.iter().take(TOLD_MAX).map(|process| {
        let name = process.name.as_deref().map(shown).unwrap_or_default();
        format!("process {} {name}", process.pid).trim_end().to_owned()
    });
    let told = named.collect::<Vec<_>>().join(", ");
    let more = sample.processes.len().saturating_sub(TOLD_MAX);
    match (told.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(told),
        (false, more) => Some(format!("{told} and {more} more")),
    }
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(128).collect()
}

/// A machine some of whose GPUs are guests': their driver cannot tell of them, so what it told before stands.
pub struct WithHanded {
    machine: Arc<dyn Hardware>,
    /// The folder of the runtime's instances.
    instances: PathBuf,
}

impl WithHanded {
    pub fn new(machine: Arc<dyn Hardware>, instances: PathBuf) -> Self {
        Self { machine, instances }
    }

    fn add_handed(&self, section: &mut GpuSection) {
        let handed = match runtimes::libvirt::handed(&self.instances) {
            Ok(handed) => handed,
            Err(err) => {
                tracing::warn!(err = %kit::chain(&err), "GPUs of instances are not known");
                return;
            }
        };
        let parsed = handed.iter().filter_map(|facts| serde_json::from_str::<Gpu>(facts).ok());
        let before = section.gpus.len();
        for gpu in parsed {
            let is_there = section.gpus.iter().any(|seen| seen.uuid == gpu.uuid);
            if gpu.uuid.is_some() && !is_there {
                section.gpus.push(gpu);
            }
        }
        if section.gpus.len() == before {
            return;
        }
        section.gpus.sort_by_key(|gpu| gpu.pci_address);
        // A driver whose devices are all guests' sees none, which is as it should be.
        if before == 0 && section.problem == Some(GpuProblem::NoDevices) {
            section.problem = None;
            section.unread.clear();
        }
    }
}

impl Hardware for WithHanded {
    fn inventory(&self) -> BoxFuture<'_, NodeInventory> {
        Box::pin(async move {
            let mut inventory = self.machine.inventory().await;
            self.add_handed(&mut inventory.gpus);
            inventory
        })
    }

    fn gpu_samples(&self) -> BoxFuture<'_, Result<Vec<GpuSample>, hw::smi::SmiError>> {
        self.machine.gpu_samples()
    }

    fn boot_id(&self) -> BoxFuture<'_, Result<String, HardwareError>> {
        self.machine.boot_id()
    }

    fn pressure(&self) -> BoxFuture<'_, PressureReport> {
        self.machine.pressure()
    }

    fn memory_info(&self) -> BoxFuture<'_, Result<MemoryInfo, HardwareError>> {
        self.machine.memory_info()
    }

    fn xids(&self, from: u64) -> BoxFuture<'_, Result<XidBatch, HardwareError>> {
        self.machine.xids(from)
    }

    fn reset_gpu<'a>(&'a self, uuid: &'a str) -> BoxFuture<'a, Result<(), ResetError>> {
        self.machine.reset_gpu(uuid)
    }

    fn reboot<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<(), HardwareError>> {
        self.machine.reboot(reason)
    }
}

#[cfg(test)]
mod tests;
