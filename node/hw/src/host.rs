//! This machine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use wire::inventory::{GpuSample, MemoryInfo, NodeInventory, PressureReport, Unread};

use crate::commands::{CommandError, Commands};
use crate::hardware::{BoxFuture, Hardware, HardwareError, ResetError, XidBatch};
use crate::kmsg::Follower;
use crate::proc::{self, CpuTimes};
use crate::readers::{Readers, Stalled};
use crate::root::{ReadError, Root};
use crate::smi::{self, SmiError};
use crate::{section, text};

/// The machine below a root, with programs from a port. Clones share the place in the kernel log.
#[derive(Clone)]
pub struct HostHardware {
    root: Root,
    commands: Arc<dyn Commands>,
    follower: Arc<Mutex<Follower>>,
    cpu_times: Arc<Mutex<Option<CpuTimes>>>,
    readers: Readers,
    /// Where instances' disks are.
    instances: Option<PathBuf>,
}

impl HostHardware {
    pub fn new(root: Root, commands: Arc<dyn Commands>) -> Self {
        Self {
            root,
            commands,
            follower: Arc::default(),
            cpu_times: Arc::default(),
            readers: Readers::default(),
            instances: None,
        }
    }

    /// Of a machine that runs instances, whose disks are below this folder.
    pub fn with_instances_in(self, dir: PathBuf) -> Self {
        Self { instances: Some(dir), ..self }
    }

    fn read_files(&self) -> NodeInventory {
        let root = &self.root;
        let mut disks = section::disks(root);
        if let Some(dir) = &self.instances {
            match section::file_system_bytes(dir) {
                Ok(bytes) => disks.instances_bytes = Some(bytes),
                Err(err) => {
                    let (what, why) = ("instancesBytes".to_owned(), err.kind().to_string());
                    disks.unread.push(Unread { what, why });
                }
            }
        }
        NodeInventory {
            system: section::system(root),
            cpu: section::cpu(root),
            memory: section::memory(root),
            disks,
            nics: section::nics(root),
            os: section::os(root),
            ..NodeInventory::default()
        }
    }

    fn read_boot_id(&self) -> Result<String, HardwareError> {
        required("the boot id", section::boot_id(&self.root))
    }

    fn read_pressure(&self) -> PressureReport {
        let pressure = |resource: &str| {
            let text = self.root.text(&format!("proc/pressure/{resource}")).ok()??;
            Some(proc::pressure(&text)).filter(|pressure| pressure.some.is_some() || pressure.full.is_some())
        };
        PressureReport {
            cpu: pressure("cpu"),
            memory: pressure("memory"),
            io: pressure("io"),
            steal_centi_percent: self.read_steal(),
        }
    }

    fn read_steal(&self) -> Option<u32> {
        let now = proc::cpu_times(&self.root.text("proc/stat").ok()??)?;
        let before = self.cpu_times.lock().ok()?.replace(now)?;
        now.steal_centi_percent_since(&before)
    }

    fn read_memory(&self) -> Result<MemoryInfo, HardwareError> {
        let text = required("memory", self.root.text("proc/meminfo"))?;
        let missing =
            || HardwareError::Read { what: "memory", why: "no total or no available memory in it".into() };
        proc::meminfo(&text).live().ok_or_else(missing)
    }

    fn read_xids(&self, from: u64) -> Result<XidBatch, HardwareError> {
        let boot_id = self.read_boot_id()?;
        let mut follower = self.follower.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        follower.poll(&self.root, boot_id, from)
    }
}

fn required<T>(what: &'static str, read: Result<Option<T>, ReadError>) -> Result<T, HardwareError> {
    match read {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(HardwareError::Read { what, why: "not there".into() }),
        Err(error) => Err(HardwareError::Read { what, why: error.to_string() }),
    }
}

/// An empty inventory that does not pass for a whole one.
fn nothing_read(stalled: Stalled) -> NodeInventory {
    let unread = || vec![Unread { what: "section".into(), why: stalled.to_string() }];
    let mut inventory = NodeInventory::default();
    inventory.system.unread = unread();
    inventory.cpu.unread = unread();
    inventory.memory.unread = unread();
    inventory.disks.unread = unread();
    inventory.nics.unread = unread();
    inventory.os.unread = unread();
    inventory
}

impl Hardware for HostHardware {
    fn inventory(&self) -> BoxFuture<'_, NodeInventory> {
        Box::pin(async move {
            let this = self.clone();
            let files = self.readers.read(move || this.read_files());
            let gpus = section::gpus(&self.root, &*self.commands, &self.readers);
            let (files, gpus) = tokio::join!(files, gpus);
            NodeInventory { gpus, ..files.unwrap_or_else(nothing_read) }
        })
    }

    fn gpu_samples(&self) -> BoxFuture<'_, Result<Vec<GpuSample>, SmiError>> {
        Box::pin(async move {
            let log = smi::query(&*self.commands).await?;
            match log.problem {
                Some(problem) if log.gpus.is_empty() => Err(problem),
                _ => Ok(log.gpus.into_iter().map(|gpu| gpu.sample).collect()),
            }
        })
    }

    fn boot_id(&self) -> BoxFuture<'_, Result<String, HardwareError>> {
        Box::pin(async move { self.read_boot_id() })
    }

    fn pressure(&self) -> BoxFuture<'_, PressureReport> {
        Box::pin(async move { self.read_pressure() })
    }

    fn memory_info(&self) -> BoxFuture<'_, Result<MemoryInfo, HardwareError>> {
        Box::pin(async move { self.read_memory() })
    }

    fn xids(&self, from: u64) -> BoxFuture<'_, Result<XidBatch, HardwareError>> {
        Box::pin(async move {
            let this = self.clone();
            let batch = self.readers.read(move || this.read_xids(from)).await;
            batch.unwrap_or_else(|stalled| {
                Err(HardwareError::Read { what: "the kernel log", why: stalled.to_string() })
            })
        })
    }

    fn reset_gpu<'a>(&'a self, uuid: &'a str) -> BoxFuture<'a, Result<(), ResetError>> {
        Box::pin(async move {
            let shown = || text::clean(uuid).unwrap_or_default();
            // Also keeps anything that is not a UUID out of the program's arguments.
            let uuid = smi::gpu_uuid(uuid).ok_or_else(|| ResetError::Unknown { uuid: shown() })?;
            let listed = smi::run(&*self.commands, &["-L"])
                .await
                .map_err(|source| ResetError::Smi { uuid: uuid.clone(), source })?;
            if !smi::list(&listed).gpus.iter().any(|gpu| gpu.uuid == uuid) {
                return Err(ResetError::Unknown { uuid });
            }
            match smi::run(&*self.commands, &["--gpu-reset", "-i", &uuid]).await {
                Ok(_) => Ok(()),
                Err(SmiError::Failed { text, .. }) => Err(ResetError::Refused { uuid, why: text }),
                Err(source) => Err(ResetError::Smi { uuid, source }),
            }
        })
    }

    fn reboot<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<(), HardwareError>> {
        Box::pin(async move {
            let failed = |why: String| HardwareError::Reboot { why };
            let message = format!("--message={}", text::clean(reason).unwrap_or_default());
            let ran = self.commands.run("systemctl", &["reboot", &message]).await;
            let output = match ran {
                Ok(output) => output,
                Err(CommandError::NotFound { .. }) => {
                    self.commands.run("reboot", &[]).await.map_err(|error| failed(error.to_string()))?
                }
                Err(error) => return Err(failed(error.to_string())),
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.success() {
                Ok(())
            } else {
                Err(failed(text::clean(&said).unwrap_or_else(|| "refused".into())))
            }
        })
    }
}
