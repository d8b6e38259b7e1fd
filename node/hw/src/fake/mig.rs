//! MIG on the fake GPUs, with the profiles and placements of an H100 80GB.

use wire::inventory::{Gpu, MigInstance, MigMode, MigPlacement};

/// Why a MIG change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigRefused {
    #[error("unknown GPU")]
    UnknownGpu,
    #[error("the GPU is not in MIG mode")]
    ModeOff,
    #[error("unknown profile {0:?}")]
    UnknownProfile(String),
    #[error("profile {profile} cannot begin at slice {start}")]
    BadStart { profile: String, start: u32 },
    #[error("the slices are taken")]
    Taken,
    #[error("no GPU instance {0}")]
    UnknownInstance(u32),
}

struct Profile {
    name: &'static str,
    compute_slices: u32,
    memory_slices: u32,
    memory_mib: u64,
    starts: &'static [u32],
}

const COMPUTE_SLICES: u32 = 7;

const PROFILES: &[Profile] = &[
    Profile {
        name: "1g.10gb",
        compute_slices: 1,
        memory_slices: 1,
        memory_mib: 9_984,
        starts: &[0, 1, 2, 3, 4, 5, 6],
    },
    Profile {
        name: "1g.20gb",
        compute_slices: 1,
        memory_slices: 2,
        memory_mib: 20_096,
        starts: &[0, 2, 4, 6],
    },
    Profile { name: "2g.20gb", compute_slices: 2, memory_slices: 2, memory_mib: 20_096, starts: &[0, 2, 4] },
    Profile { name: "3g.40gb", compute_slices: 3, memory_slices: 4, memory_mib: 40_448, starts: &[0, 4] },
    Profile { name: "4g.40gb", compute_slices: 4, memory_slices: 4, memory_mib: 40_448, starts: &[0] },
    Profile { name: "7g.80gb", compute_slices: 7, memory_slices: 8, memory_mib: 81_152, starts: &[0] },
];

fn find<'a>(gpus: &'a mut [Gpu], uuid: &str) -> Result<&'a mut Gpu, MigRefused> {
    gpus.iter_mut().find(|gpu| gpu.uuid.as_deref() == Some(uuid)).ok_or(MigRefused::UnknownGpu)
}

fn profile(name: &str) -> Result<&'static Profile, MigRefused> {
    let shown = || MigRefused::UnknownProfile(name.chars().take(32).collect());
    PROFILES.iter().find(|profile| profile.name == name).ok_or_else(shown)
}

pub fn set_pending(gpus: &mut [Gpu], uuid: &str, on: bool) -> Result<(), MigRefused> {
    let gpu = find(gpus, uuid)?;
    gpu.mig_mode = gpu.mig_mode.map(|mode| MigMode { pending: on, ..mode });
    Ok(())
}

/// What a reset does: the pending mode is the mode, and no instance survives.
pub fn apply_pending(gpu: &mut Gpu) {
    gpu.mig_mode = gpu.mig_mode.map(|mode| MigMode { current: mode.pending, pending: mode.pending });
    gpu.mig_instances.clear();
}

pub fn create(
    gpus: &mut [Gpu],
    uuid: &str,
    name: &str,
    start: u32,
    instance_uuid: String,
) -> Result<u32, MigRefused> {
    let gpu = find(gpus, uuid)?;
    if !gpu.mig_mode.is_some_and(|mode| mode.current) {
        return Err(MigRefused::ModeOff);
    }
    let wanted = profile(name)?;
    if !wanted.starts.contains(&start) {
        return Err(MigRefused::BadStart { profile: name.to_owned(), start });
    }
    let end = start + wanted.memory_slices;
    let placed = gpu.mig_instances.iter().filter_map(|instance| instance.placement);
    let overlaps = placed.clone().any(|placed| start < placed.start + placed.size && placed.start < end);
    let used: u32 = gpu
        .mig_instances
        .iter()
        .filter_map(|instance| profile(instance.profile.as_deref()?).ok())
        .map(|profile| profile.compute_slices)
        .sum();
    if overlaps || used + wanted.compute_slices > COMPUTE_SLICES {
        return Err(MigRefused::Taken);
    }
    // The driver gives ids that tell nothing of the order; the lowest free one from 1 does as well.
    let taken = |id: u32| gpu.mig_instances.iter().any(|instance| instance.gpu_instance == id);
    let id = (1..).find(|id| !taken(*id)).unwrap_or(1);
    gpu.mig_instances.push(MigInstance {
        uuid: Some(instance_uuid),
        profile: Some(name.to_owned()),
        gpu_instance: id,
        compute_instance: 0,
        placement: Some(MigPlacement { start, size: wanted.memory_slices }),
        memory_bytes: Some(wanted.memory_mib << 20),
    });
    gpu.mig_instances.sort_by_key(|instance| instance.gpu_instance);
    Ok(id)
}

pub fn destroy(gpus: &mut [Gpu], uuid: &str, gpu_instance: u32) -> Result<(), MigRefused> {
    let gpu = find(gpus, uuid)?;
    let before = gpu.mig_instances.len();
    gpu.mig_instances.retain(|instance| instance.gpu_instance != gpu_instance);
    if gpu.mig_instances.len() < before { Ok(()) } else { Err(MigRefused::UnknownInstance(gpu_instance)) }
}
