//! GPUs: what `nvidia-smi` tells, completed from sysfs, or what the driver's own files tell without it.

use std::collections::BTreeMap;

use wire::inventory::{GPUS_MAX, Gpu, GpuSection, MigInstance};

use crate::commands::Commands;
use crate::health;
use crate::readers::Readers;
use crate::root::Root;
use crate::smi::{self, GpuInstance, Listed, SmiError, SmiGpu, TopologyRow};
use crate::text::{Notes, clean};

/// Everything but the main document, each absent when its call failed.
#[derive(Default)]
struct Extras {
    listed: Option<Listed>,
    capabilities: BTreeMap<String, String>,
    links: BTreeMap<String, u32>,
    topology: Vec<TopologyRow>,
    gpu_instances: Vec<GpuInstance>,
}

/// One pass over every source.
pub async fn collect(root: &Root, commands: &dyn Commands, readers: &Readers) -> GpuSection {
    let mut notes = Notes::default();
    let queried = smi::query(commands).await;
    let mut section = match queried {
        Ok(log) => {
            let extras = extras(commands, &log.gpus, &mut notes).await;
            let problem = log.problem.as_ref().map(SmiError::problem);
            if let Some(problem) = &log.problem {
                notes.add("nvidia-smi", problem);
            }
            let gpus = log.gpus.into_iter().map(|gpu| complete(root, gpu, &extras, &mut notes)).collect();
            GpuSection {
                driver_version: log.driver_version,
                cuda_version: log.cuda_version,
                gpus,
                problem,
                unread: Vec::new(),
            }
        }
        Err(error) => {
            // A host without the driver is complete: it has no GPUs to describe.
            if error != SmiError::NotInstalled || root.exists("proc/driver/nvidia") {
                notes.add("nvidia-smi", &error);
            }
            GpuSection { problem: Some(error.problem()), ..GpuSection::default() }
        }
    };
    let module = readers.read({
        let root = root.clone();
        move || from_module(&root)
    });
    match module.await {
        Ok(module) => {
            notes.extend(module.unread);
            merge(&mut section, module.gpus, root);
            section.driver_version = section.driver_version.take().or(module.driver_version);
        }
        Err(stalled) => notes.add("/proc/driver/nvidia", stalled),
    }
    section.gpus.sort_by_key(|gpu| gpu.pci_address);
    notes.bound("gpus", &mut section.gpus, GPUS_MAX);
    section.unread = notes.finish();
    section
}

/// The other calls, all at once: with a driver that hangs, a pass still ends within two of their time limits.
async fn extras(commands: &dyn Commands, gpus: &[SmiGpu], notes: &mut Notes) -> Extras {
    let mut extras = Extras::default();
    if gpus.is_empty() {
        return extras;
    }
    let mig = gpus.iter().any(|gpu| gpu.gpu.mig_mode.is_some_and(|mode| mode.current));
    let with_mig = async |args: &[&str]| if mig { Some(smi::run(commands, args).await) } else { None };
    let (capabilities, links, topology, listed, instances) = tokio::join!(
        smi::run(commands, &["--query-gpu=uuid,compute_cap", "--format=csv,noheader"]),
        smi::run(commands, &["nvlink", "-s"]),
        smi::run(commands, &["topo", "-m"]),
        with_mig(&["-L"]),
        with_mig(&["mig", "-lgi"]),
    );
    match capabilities {
        Ok(text) => extras.capabilities = smi::compute_capabilities(&text),
        Err(error) => notes.add("computeCapability", error),
    }
    match links {
        Ok(text) => extras.links = smi::nvlinks_up(&text),
        // GPUs without NVLink make the call fail.
        Err(SmiError::NotSupported | SmiError::Failed { .. }) => {}
        Err(error) => notes.add("nvlinkCount", error),
    }
    // Without it, sysfs tells the same on all but some virtual machines.
    extras.topology = topology.map(|text| smi::topology(&text)).unwrap_or_default();
    match listed {
        Some(Ok(text)) => extras.listed = Some(smi::list(&text)),
        Some(Err(error)) => notes.add("migInstances", error),
        None => {}
    }
    match instances {
        Some(Ok(text)) => extras.gpu_instances = smi::gpu_instances(&text),
        // With MIG on and no instance the driver answers that there are none, with an error code.
        Some(Err(SmiError::Failed { text, .. })) if text.contains("No GPU instances found") => {}
        Some(Err(error)) => notes.add("migPlacement", error),
        None => {}
    }
    extras
}

fn complete(root: &Root, smi: SmiGpu, extras: &Extras, notes: &mut Notes) -> Gpu {
    let name =
        smi.gpu.uuid.clone().or_else(|| smi.gpu.pci_address.map(|at| at.to_string())).unwrap_or_default();
    for error in &smi.errors {
        notes.add(format!("{name}: {error}"), "the driver could not read it");
    }
    let health = health::verdict(&smi);
    let SmiGpu { mut gpu, mig_indices, .. } = smi;
    gpu.health = health;
    if let Some(uuid) = &gpu.uuid {
        gpu.compute_capability = extras.capabilities.get(uuid).cloned();
        gpu.nvlink_count = extras.links.get(uuid).copied();
    }
    for (instance, index) in gpu.mig_instances.iter_mut().zip(mig_indices) {
        name_instance(instance, index, gpu.uuid.as_deref(), gpu.index, extras);
    }
    gpu.mig_instances.sort_by_key(|instance| (instance.gpu_instance, instance.compute_instance));
    let row = extras.topology.iter().find(|row| Some(row.index) == gpu.index);
    place(root, &mut gpu, row);
    gpu
}

/// A MIG device's UUID and profile come from the list, its GPU instance's placement from the table.
fn name_instance(
    instance: &mut MigInstance,
    index: u32,
    uuid: Option<&str>,
    gpu_index: Option<u32>,
    extras: &Extras,
) {
    let gpu =
        extras.listed.iter().flat_map(|listed| &listed.gpus).find(|gpu| Some(gpu.uuid.as_str()) == uuid);
    let device = gpu.and_then(|gpu| gpu.mig.iter().find(|mig| mig.index == index));
    if let Some(device) = device {
        instance.uuid = Some(device.uuid.clone());
        instance.profile = Some(device.profile.clone());
    }
    let placed = extras
        .gpu_instances
        .iter()
        .find(|placed| Some(placed.gpu) == gpu_index && placed.id == instance.gpu_instance);
    if let Some(placed) = placed {
        instance.placement = Some(placed.placement);
        instance.profile = instance.profile.take().or_else(|| clean(&placed.profile));
    }
}

/// Where the GPU is, by its PCI device. The driver's matrix stands in where firmware did not tell the kernel.
fn place(root: &Root, gpu: &mut Gpu, row: Option<&TopologyRow>) {
    let file = |name: &str| -> Option<String> {
        root.text(&format!("sys/bus/pci/devices/{}/{name}", gpu.pci_address?)).ok()?
    };
    let node = file("numa_node").and_then(|node| node.parse().ok());
    let affinity = file("local_cpulist").and_then(|list| list.parse().ok());
    gpu.numa_node = node.or_else(|| row?.numa_node);
    gpu.cpu_affinity = affinity.or_else(|| row?.cpu_affinity.clone());
}

/// What the kernel module's own files tell. Reading them waits for the driver.
fn from_module(root: &Root) -> GpuSection {
    let mut notes = Notes::default();
    let gpus = from_proc(root, &mut notes);
    let driver_version = driver_version(root, &mut notes);
    GpuSection { driver_version, gpus, unread: notes.finish(), ..GpuSection::default() }
}

/// GPUs the kernel module lists, `/proc/driver/nvidia/gpus/ADDRESS/information`.
fn from_proc(root: &Root, notes: &mut Notes) -> Vec<Gpu> {
    let folder = "proc/driver/nvidia/gpus";
    let names = notes.take("gpus", root.list(folder).map(Some)).unwrap_or_default();
    names
        .iter()
        .take(GPUS_MAX)
        .filter_map(|name| {
            let text = notes.take(name.as_str(), root.text(&format!("{folder}/{name}/information")))?;
            let field = |key: &str| {
                text.lines().find_map(|line| {
                    let (found, value) = line.split_once(':')?;
                    (found.trim() == key).then(|| clean(value))?
                })
            };
            Some(Gpu {
                // Question marks until the GPU has been opened once.
                uuid: field("GPU UUID").and_then(|uuid| smi::gpu_uuid(&uuid)),
                minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
                model: field("Model"),
                vbios_version: field("Video BIOS").filter(|version| !version.contains('?')),
                pci_address: field("Bus Location").as_deref().unwrap_or(name).parse().ok(),
                ..Gpu::default()
            })
        })
        .collect()
}

/// Adds the GPUs that `nvidia-smi` did not describe, and what it left out of the others.
fn merge(section: &mut GpuSection, listed: Vec<Gpu>, root: &Root) {
    for mut gpu in listed {
        let known = section.gpus.iter_mut().find(|known| match (&known.uuid, &gpu.uuid) {
            (Some(known), Some(uuid)) => known == uuid,
            _ => known.pci_address.is_some() && known.pci_address == gpu.pci_address,
        });
        match known {
            Some(known) => {
                known.uuid = known.uuid.take().or(gpu.uuid);
                known.minor = known.minor.or(gpu.minor);
                known.model = known.model.take().or(gpu.model);
            }
            None => {
                place(root, &mut gpu, None);
                section.gpus.push(gpu);
            }
        }
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  …`, with words that differ by kind of module.
fn driver_version(root: &Root, notes: &mut Notes) -> Option<String> {
    let text = notes.take("driverVersion", root.text("proc/driver/nvidia/version"))?;
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let numbered = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    line.split_whitespace().find(numbered).map(str::to_owned)
}
