//! Handing devices of the host to guests, and taking them back.
//!
//! ```text
//! take:       record written ──▶ persistence off ──▶ override vfio-pci ──▶ unbound ──▶ probed ──▶ on vfio-pci
//! give back:  override cleared ──▶ unbound ──▶ probed ──▶ persistence as it was ──▶ record removed
//! ```
//!
//! The record says what was where before, and is durable before anything moves; it goes last. So whoever comes after a crash,
//! at whatever point, knows what to undo. Each step is right to make again, and a step that is done already is skipped.
//!
//! A guest has all of an IOMMU group or nothing of it: what is in one group can reach the memory of what else is there. Bridges
//! stay where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hw::Commands;
use kit::Clock;
use kit::fs::FsError;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::record;

pub mod fake;
mod pci;

pub use pci::{Device, Pci, PciAddress, PciAddressError, SysfsPci};

pub const VFIO: &str = "vfio-pci";
const NVIDIA_SMI: &str = "nvidia-smi";
/// A driver lets go of a device when nobody has it open any more, and waits for that as long as it takes.
const MOVES_WITHIN: Duration = Duration::from_secs(30);

/// A GPU that an instance is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub uuid: String,
    pub address: PciAddress,
    /// Whether its driver keeps it ready while nobody uses it.
    pub persistence: bool,
    /// What the host's inventory says of it while its driver has it: nobody can ask the device meanwhile.
    pub facts: String,
}

/// A device as it was before it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    address: PciAddress,
    /// None when it had none.
    driver: Option<String>,
}

/// What an instance has of the host's devices, or is about to have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    gpus: Vec<Gpu>,
    devices: Vec<Taken>,
}

#[derive(Debug, thiserror::Error)]
pub enum VfioError {
    #[error("the host's IOMMU is off: boot it with intel_iommu=on or amd_iommu=on")]
    IommuOff,
    #[error("the host has no driver {VFIO}: load it with modprobe {VFIO}")]
    NoDriver,
    #[error("{address} is no device of this host")]
    Absent { address: PciAddress },
    #[error("GPU {gpu} shares its IOMMU group with {other}, which {driver} has: both would be the guest's")]
    Shared { gpu: PciAddress, other: PciAddress, driver: String },
    #[error("{address} did not move to {VFIO}: {driver} has it")]
    NotMoved { address: PciAddress, driver: String },
    #[error("devices do not move within {} s: somebody has one of them open", MOVES_WITHIN.as_secs())]
    Stuck,
    #[error(transparent)]
    Files(#[from] FsError),
}

impl VfioError {
    /// One stable word, for statuses.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::IommuOff => "IommuOff",
            Self::NoDriver => "NoGpuPassthrough",
            Self::Absent { .. } => "GpuMissing",
            Self::Shared { .. } => "GpuGroupShared",
            Self::NotMoved { .. } | Self::Stuck => "GpuBusy",
            Self::Files(_) => "DiskTrouble",
        }
    }

    pub fn retryable(&self) -> bool {
        match self {
            Self::NotMoved { .. } | Self::Stuck | Self::Files(_) | Self::Absent { .. } => true,
            Self::IommuOff | Self::NoDriver | Self::Shared { .. } => false,
        }
    }
}

/// The devices that go with these GPUs, in order; each is to be the guest's.
///
/// # Errors
/// When the host cannot hand them over, or would hand over what is not theirs.
pub fn endpoints(pci: &dyn Pci, gpus: &[Gpu]) -> Result<Vec<Device>, VfioError> {
    let mut devices = BTreeMap::new();
    for gpu in gpus {
        if !pci.is_there(&gpu.address) {
            return Err(VfioError::Absent { address: gpu.address.clone() });
        }
        let group = pci.group(&gpu.address)?.ok_or(VfioError::IommuOff)?;
        for device in group.into_iter().filter(|device| !device.is_bridge()) {
            if gpus.iter().any(|gpu| gpu.address.is_same_slot(&device.address)) {
                devices.insert(device.address.clone(), device);
                continue;
            }
            // What no driver of the host's has is in nobody's way.
            if let Some(driver) = device.driver.filter(|driver| driver != VFIO) {
                let (gpu, other) = (gpu.address.clone(), device.address);
                return Err(VfioError::Shared { gpu, other, driver });
            }
        }
    }
    if !pci.has_driver(VFIO) {
        return Err(VfioError::NoDriver);
    }
    Ok(devices.into_values().collect())
}

/// Moves devices between the host's drivers and guests. Calls about one instance come one after the other.
pub struct Passthrough {
    pci: Arc<dyn Pci>,
    commands: Arc<dyn Commands>,
    clock: Arc<dyn Clock>,
    /// Whoever moves devices has it. A driver that hangs keeps it, and so costs one thread and not one for each try.
    turn: Arc<Mutex<()>>,
}

impl Passthrough {
    pub fn new(pci: Arc<dyn Pci>, commands: Arc<dyn Commands>, clock: Arc<dyn Clock>) -> Self {
        Self { pci, commands, clock, turn: Arc::default() }
    }

    /// The addresses that a guest with these GPUs is given.
    ///
    /// # Errors
    /// As [`endpoints`].
    pub fn addresses(&self, gpus: &[Gpu]) -> Result<Vec<PciAddress>, VfioError> {
        Ok(endpoints(&*self.pci, gpus)?.into_iter().map(|device| device.address).collect())
    }

    /// Has them wait for a guest. `record` is the instance's own.
    ///
    /// # Errors
    /// When they cannot be had. What was begun is undone by [`Passthrough::give_back`], or completed by another call.
    pub async fn take(&self, record: &Path, gpus: &[Gpu]) -> Result<(), VfioError> {
        let devices = endpoints(&*self.pci, gpus)?;
        let mut taken: Record = record::read(record)?.unwrap_or_default();
        let known: BTreeSet<PciAddress> = taken.devices.iter().map(|one| one.address.clone()).collect();
        for device in devices.iter().filter(|device| !known.contains(&device.address)) {
            let driver = device.driver.clone().filter(|driver| driver != VFIO);
            taken.devices.push(Taken { address: device.address.clone(), driver });
        }
        for gpu in gpus {
            // What was recorded first is as it was before anything moved.
            if !taken.gpus.iter().any(|one| one.uuid == gpu.uuid) {
                taken.gpus.push(gpu.clone());
            }
        }
        record::write(record, &taken)?;
        for gpu in gpus.iter().filter(|gpu| gpu.persistence) {
            let on_its_driver =
                devices.iter().any(|one| one.address == gpu.address && one.driver.as_deref() != Some(VFIO));
            if on_its_driver {
                self.persist(&gpu.uuid, false).await;
            }
        }
        let addresses: Vec<PciAddress> = devices.into_iter().map(|device| device.address).collect();
        self.move_within(move |pci| addresses.iter().try_for_each(|address| to_vfio(pci, address))).await
    }

    /// Gives back what the record says, to whom it was. Without a record there is nothing to give.
    ///
    /// # Errors
    /// When something does not move. Another call goes on.
    pub async fn give_back(&self, record: &Path) -> Result<(), VfioError> {
        let Some(taken) = record::read::<Record>(record)? else { return Ok(()) };
        let devices = taken.devices;
        self.move_within(move |pci| devices.iter().rev().try_for_each(|device| to_host(pci, device))).await?;
        for gpu in taken.gpus.iter().filter(|gpu| gpu.persistence) {
            self.persist(&gpu.uuid, true).await;
        }
        Ok(kit::fs::remove_if_present(record)?)
    }

    async fn move_within(
        &self,
        moves: impl FnOnce(&dyn Pci) -> Result<(), VfioError> + Send + 'static,
    ) -> Result<(), VfioError> {
        let pci = self.pci.clone();
        let moving = async {
            let turn = self.turn.clone().lock_owned().await;
            let moving = tokio::task::spawn_blocking(move || {
                let moved = moves(&*pci);
                drop(turn);
                moved
            });
            moving.await.unwrap_or(Err(VfioError::Stuck))
        };
        // A move that is left goes on: nothing takes a write to the kernel back. The record knows of it.
        tokio::select! {
            moved = moving => moved,
            () = self.clock.sleep(MOVES_WITHIN) => Err(VfioError::Stuck),
        }
    }

    /// A driver that does not hear it keeps the device open, which shows when it is to let go.
    async fn persist(&self, uuid: &str, on: bool) {
        let done = self.commands.run(NVIDIA_SMI, &["-i", uuid, "-pm", if on { "1" } else { "0" }]).await;
        if !done.is_ok_and(|done| done.success()) {
            tracing::warn!(gpu = uuid, on, "persistence mode of a GPU was not changed");
        }
    }
}

fn to_vfio(pci: &dyn Pci, address: &PciAddress) -> Result<(), VfioError> {
    let driver = pci.driver(address)?;
    if driver.as_deref() == Some(VFIO) {
        return Ok(());
    }
    pci.set_override(address, Some(VFIO))?;
    if driver.is_some() {
        pci.unbind(address)?;
    }
    pci.probe(address)?;
    match pci.driver(address)? {
        Some(driver) if driver == VFIO => Ok(()),
        driver => {
            let driver = driver.unwrap_or_else(|| "nobody".to_owned());
            Err(VfioError::NotMoved { address: address.clone(), driver })
        }
    }
}

fn to_host(pci: &dyn Pci, device: &Taken) -> Result<(), VfioError> {
    let address = &device.address;
    if !pci.is_there(address) {
        return Ok(());
    }
    pci.set_override(address, None)?;
    if pci.driver(address)?.as_deref() == Some(VFIO) {
        pci.unbind(address)?;
    }
    if device.driver.is_some() && pci.driver(address)?.is_none() {
        pci.probe(address)?;
    }
    let now = pci.driver(address)?;
    if now != device.driver {
        // Its driver was unloaded meanwhile, or another one was: that is the host's affair.
        tracing::warn!(device = %address, driver = ?now, before = ?device.driver, "device has another driver than before");
    }
    Ok(())
}

/// The facts of the GPUs that a record names; nothing where there is none.
///
/// # Errors
/// When it cannot be read.
pub fn facts(record: &Path) -> Result<Vec<String>, FsError> {
    let taken: Record = record::read(record)?.unwrap_or_default();
    Ok(taken.gpus.into_iter().map(|gpu| gpu.facts).collect())
}

#[cfg(test)]
mod tests;
