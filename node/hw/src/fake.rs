//! A machine that exists only in memory: an HGX H100 node with eight 80 GB GPUs, made from a seed.
//!
//! Equal seeds give equal machines, and a machine with equal history answers equally. Faults are switched on and off;
//! a GPU reset and a reboot have the effects they have on the real thing: a reset applies a pending row remap and a
//! pending MIG mode, a reboot brings a lost GPU back, changes the boot id and loses every MIG instance.

mod mig;
mod node;

use std::sync::{Mutex, MutexGuard};

use wire::inventory::{
    EccCounters, Gpu, GpuHealth, GpuSample, GpuSection, GpuVerdict, MemoryInfo, NodeInventory, Pressure,
    PressureLine, PressureReport, Unread,
};

use crate::hardware::{BoxFuture, Hardware, HardwareError, ResetError, XidBatch};
use crate::health;
use crate::smi::{SmiError, SmiGpu};
use crate::xid::{Xid, XidEvent, XidKind};

pub use mig::MigRefused;

/// Something wrong with the machine. GPUs are numbered as in the inventory, from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The GPU fell off the bus, until a reboot.
    GpuLost { gpu: usize },
    /// An error line in the kernel log. It stays there until a reboot.
    Xid { gpu: usize, code: u32 },
    /// Uncorrectable memory errors, until a reset.
    EccUncorrectable { gpu: usize, count: u64 },
    /// A row waits to be remapped, until a reset.
    RowRemapPending { gpu: usize },
    /// A row could not be remapped, for ever.
    RowRemapFailure { gpu: usize },
    /// The link came up with fewer lanes.
    PcieNarrow { gpu: usize, width: u32 },
    /// Heat holds the clocks down.
    Slow { gpu: usize },
    /// `nvidia-smi` fails as a whole.
    SmiFails(SmiError),
    /// The driver refuses to reset the GPU, as it does while something uses it.
    ResetRefused { gpu: usize },
    /// The machine refuses to restart.
    RebootRefused,
}

struct State {
    seed: u64,
    /// Reboots so far; the boot id follows from it.
    boots: u64,
    reasons: Vec<String>,
    healthy: NodeInventory,
    faults: Vec<Fault>,
    log: Vec<XidEvent>,
    sequence: u64,
    /// MIG instances made since the machine exists: each has a UUID of its own.
    instances_made: u64,
}

pub struct FakeHardware {
    state: Mutex<State>,
}

impl FakeHardware {
    pub fn new(seed: u64) -> Self {
        let state = State {
            seed,
            boots: 0,
            reasons: Vec::new(),
            healthy: node::inventory(seed),
            faults: Vec::new(),
            log: Vec::new(),
            sequence: 0,
            instances_made: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves plain data behind, which is as good as before.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Switches a fault on. An Xid is written to the log each time.
    pub fn inject(&self, fault: Fault) {
        let mut state = self.state();
        if let Fault::Xid { gpu, code } = fault {
            state.write_xid(gpu, code);
        } else if !state.faults.contains(&fault) {
            state.faults.push(fault);
        }
    }

    /// Switches every fault off that `which` says. The log keeps its lines.
    pub fn clear(&self, which: impl Fn(&Fault) -> bool) {
        self.state().faults.retain(|fault| !which(fault));
    }

    /// Why the machine was restarted so far, oldest first.
    pub fn reboots(&self) -> Vec<String> {
        self.state().reasons.clone()
    }

    /// Restarts without being asked to: a power cut.
    pub fn power_cycle(&self) {
        self.state().restart();
    }

    /// Sets the MIG mode that the next reset applies.
    pub fn set_mig_pending(&self, uuid: &str, on: bool) -> Result<(), MigRefused> {
        mig::set_pending(&mut self.state().healthy.gpus.gpus, uuid, on)
    }

    /// Makes a GPU instance with one compute instance filling it, and gives its GPU instance id.
    pub fn create_mig(&self, uuid: &str, profile: &str, start: u32) -> Result<u32, MigRefused> {
        let mut state = self.state();
        state.instances_made += 1;
        let id = node::uuid(state.seed, "mig", state.instances_made);
        mig::create(&mut state.healthy.gpus.gpus, uuid, profile, start, format!("MIG-{id}"))
    }

    pub fn destroy_mig(&self, uuid: &str, gpu_instance: u32) -> Result<(), MigRefused> {
        mig::destroy(&mut self.state().healthy.gpus.gpus, uuid, gpu_instance)
    }
}

impl State {
    fn boot_id(&self) -> String {
        node::uuid(self.seed, "boot", self.boots)
    }

    fn has(&self, fault: &Fault) -> bool {
        self.faults.contains(fault)
    }

    fn smi_failure(&self) -> Option<SmiError> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::SmiFails(error) => Some(error.clone()),
            _ => None,
        })
    }

    fn write_xid(&mut self, gpu: usize, code: u32) {
        let Some(gpu) = self.healthy.gpus.gpus.get(gpu) else { return };
        let pci_address = gpu.pci_address;
        let sequence = self.sequence;
        self.sequence += 1;
        let detail = match code {
            79 => "GPU has fallen off the bus.".to_owned(),
            code => format!("injected error {code}"),
        };
        let xid = Xid {
            kind: XidKind::Gpu,
            code,
            pci_address,
            gpu_instance: None,
            pid: None,
            process: None,
            detail,
        };
        // Ten seconds of boot, then one line a second: a clock would make equal histories differ.
        self.log.push(XidEvent { sequence, since_boot_us: (10 + sequence) * 1_000_000, xid });
    }

    fn restart(&mut self) {
        self.boots += 1;
        self.log.clear();
        self.sequence = 0;
        self.faults.retain(|fault| {
            !matches!(
                fault,
                Fault::GpuLost { .. } | Fault::EccUncorrectable { .. } | Fault::RowRemapPending { .. }
            )
        });
        for gpu in &mut self.healthy.gpus.gpus {
            // Hopper keeps neither its MIG mode nor its instances over a reboot.
            gpu.mig_instances.clear();
            gpu.mig_mode = gpu.mig_mode.map(|_| Default::default());
        }
    }

    fn inventory(&self) -> NodeInventory {
        let mut inventory = self.healthy.clone();
        inventory.os.boot_id = Some(self.boot_id());
        if let Some(error) = self.smi_failure() {
            inventory.gpus = without_smi(&self.healthy.gpus, &error);
            return inventory;
        }
        for (at, gpu) in inventory.gpus.gpus.iter_mut().enumerate() {
            for fault in &self.faults {
                break_gpu(gpu, at, fault);
            }
            gpu.health = health::verdict(&SmiGpu { gpu: gpu.clone(), ..SmiGpu::default() });
        }
        if let Some(lost) = inventory.gpus.gpus.iter().find(|gpu| gpu.lost) {
            let error = SmiError::GpuLost { device: lost.pci_address };
            inventory.gpus.problem = Some(error.problem());
            inventory.gpus.unread = vec![Unread { what: "nvidia-smi".into(), why: error.to_string() }];
        }
        inventory
    }

    fn samples(&self) -> Vec<GpuSample> {
        let inventory = self.inventory();
        let sample = |(at, gpu): (usize, &Gpu)| {
            let name = GpuSample { uuid: gpu.uuid.clone(), index: gpu.index, ..GpuSample::default() };
            if gpu.lost { name } else { node::sample(self.seed, at, gpu, self.has(&Fault::Slow { gpu: at })) }
        };
        inventory.gpus.gpus.iter().enumerate().map(sample).collect()
    }

    fn reset(&mut self, uuid: &str) -> Result<(), ResetError> {
        let smi = |source: SmiError| ResetError::Smi { uuid: uuid.to_owned(), source };
        if let Some(error) = self.smi_failure() {
            return Err(smi(error));
        }
        let at = self.healthy.gpus.gpus.iter().position(|gpu| gpu.uuid.as_deref() == Some(uuid));
        let at = at.ok_or_else(|| ResetError::Unknown { uuid: uuid.chars().take(64).collect() })?;
        if self.has(&Fault::GpuLost { gpu: at }) {
            return Err(smi(SmiError::GpuLost { device: self.healthy.gpus.gpus[at].pci_address }));
        }
        if self.has(&Fault::ResetRefused { gpu: at }) {
            let why = "the GPU is in use by another client".to_owned();
            return Err(ResetError::Refused { uuid: uuid.to_owned(), why });
        }
        self.faults.retain(|fault| match fault {
            Fault::EccUncorrectable { gpu, .. } | Fault::RowRemapPending { gpu } => *gpu != at,
            _ => true,
        });
        mig::apply_pending(&mut self.healthy.gpus.gpus[at]);
        Ok(())
    }
}

fn break_gpu(gpu: &mut Gpu, at: usize, fault: &Fault) {
    match fault {
        Fault::GpuLost { gpu: lost } if *lost == at => {
            *gpu = Gpu {
                uuid: gpu.uuid.take(),
                index: gpu.index,
                minor: gpu.minor,
                model: gpu.model.take(),
                pci_address: gpu.pci_address,
                lost: true,
                ..Gpu::default()
            };
        }
        Fault::EccUncorrectable { gpu: at_fault, count } if *at_fault == at && !gpu.lost => {
            gpu.ecc = Some(EccCounters {
                volatile_uncorrectable: Some(*count),
                aggregate_uncorrectable: Some(*count),
                ..gpu.ecc.unwrap_or_default()
            });
        }
        Fault::RowRemapPending { gpu: at_fault } if *at_fault == at => {
            gpu.row_remap =
                gpu.row_remap.map(|remap| wire::inventory::RowRemap { pending: Some(true), ..remap });
        }
        Fault::RowRemapFailure { gpu: at_fault } if *at_fault == at => {
            gpu.row_remap =
                gpu.row_remap.map(|remap| wire::inventory::RowRemap { failure: Some(true), ..remap });
        }
        Fault::PcieNarrow { gpu: at_fault, width } if *at_fault == at => {
            gpu.pcie = gpu.pcie.map(|link| wire::inventory::PcieLink { width: Some(*width), ..link });
        }
        _ => {}
    }
}

/// What the kernel module's own files still tell, unless there is no module.
fn without_smi(healthy: &GpuSection, error: &SmiError) -> GpuSection {
    let module = !matches!(error, SmiError::NotInstalled | SmiError::DriverNotLoaded);
    let listed = |gpu: &Gpu| Gpu {
        uuid: gpu.uuid.clone(),
        minor: gpu.minor,
        model: gpu.model.clone(),
        pci_address: gpu.pci_address,
        numa_node: gpu.numa_node,
        cpu_affinity: gpu.cpu_affinity.clone(),
        health: GpuHealth { verdict: GpuVerdict::Unknown, reasons: Vec::new() },
        ..Gpu::default()
    };
    GpuSection {
        driver_version: healthy.driver_version.clone().filter(|_| module),
        gpus: if module { healthy.gpus.iter().map(listed).collect() } else { Vec::new() },
        problem: Some(error.problem()),
        unread: vec![Unread { what: "nvidia-smi".into(), why: error.to_string() }],
        ..GpuSection::default()
    }
}

impl Hardware for FakeHardware {
    fn inventory(&self) -> BoxFuture<'_, NodeInventory> {
        Box::pin(async move { self.state().inventory() })
    }

    fn gpu_samples(&self) -> BoxFuture<'_, Result<Vec<GpuSample>, SmiError>> {
        Box::pin(async move {
            let state = self.state();
            state.smi_failure().map_or_else(|| Ok(state.samples()), Err)
        })
    }

    fn boot_id(&self) -> BoxFuture<'_, Result<String, HardwareError>> {
        Box::pin(async move { Ok(self.state().boot_id()) })
    }

    fn pressure(&self) -> BoxFuture<'_, PressureReport> {
        let quiet = Pressure { some: Some(PressureLine::default()), full: Some(PressureLine::default()) };
        Box::pin(async move {
            PressureReport {
                cpu: Some(quiet),
                memory: Some(quiet),
                io: Some(quiet),
                steal_centi_percent: Some(0),
            }
        })
    }

    fn memory_info(&self) -> BoxFuture<'_, Result<MemoryInfo, HardwareError>> {
        Box::pin(async move { Ok(node::memory()) })
    }

    fn xids(&self, from: u64) -> BoxFuture<'_, Result<XidBatch, HardwareError>> {
        Box::pin(async move {
            let state = self.state();
            let from = if from > state.sequence { 0 } else { from };
            let events = state.log.iter().filter(|event| event.sequence >= from).cloned().collect();
            Ok(XidBatch { boot_id: state.boot_id(), events, next: state.sequence, lost: false })
        })
    }

    fn reset_gpu<'a>(&'a self, uuid: &'a str) -> BoxFuture<'a, Result<(), ResetError>> {
        Box::pin(async move { self.state().reset(uuid) })
    }

    fn reboot<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<(), HardwareError>> {
        Box::pin(async move {
            let mut state = self.state();
            if state.has(&Fault::RebootRefused) {
                return Err(HardwareError::Reboot { why: "refused".into() });
            }
            state.reasons.push(reason.to_owned());
            state.restart();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
