//! The MIG tables: `mig -lgip`, `-lgi` and `-lci`. Their widths change between drivers, their columns do not.

use wire::inventory::MigPlacement;

/// Rows of one table; eight GPUs with seven instances or twelve profiles each stay under a tenth.
const ROWS_MAX: usize = 4096;

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    pub gpu: u32,
    pub profile: String,
    pub profile_id: u32,
    pub id: u32,
    pub placement: MigPlacement,
}

/// A compute instance that exists. Its placement is within its GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    pub gpu: u32,
    pub gpu_instance: u32,
    pub profile: String,
    pub profile_id: u32,
    pub id: u32,
    pub placement: MigPlacement,
}

/// A GPU instance that could be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProfile {
    pub gpu: u32,
    pub profile: String,
    pub id: u32,
    pub free: u32,
    pub total: u32,
}

/// The words of each row that begins an entry: those below headers and continuation lines do not begin with a GPU.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.first().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())))
        .filter(|words| words.contains(&"MIG"))
        .take(ROWS_MAX)
}

fn placement(word: &str) -> Option<MigPlacement> {
    let (start, size) = word.split_once(':')?;
    Some(MigPlacement { start: start.parse().ok()?, size: size.parse().ok()? })
}

pub fn gpu_instances(text: &str) -> Vec<GpuInstance> {
    rows(text)
        .filter_map(|words| match words[..] {
            [gpu, "MIG", profile, profile_id, id, at] => Some(GpuInstance {
                gpu: gpu.parse().ok()?,
                profile: profile.to_owned(),
                profile_id: profile_id.parse().ok()?,
                id: id.parse().ok()?,
                placement: placement(at)?,
            }),
            _ => None,
        })
        .collect()
}

pub fn compute_instances(text: &str) -> Vec<ComputeInstance> {
    rows(text)
        .filter_map(|words| match words[..] {
            [gpu, gpu_instance, "MIG", profile, profile_id, id, at] => Some(ComputeInstance {
                gpu: gpu.parse().ok()?,
                gpu_instance: gpu_instance.parse().ok()?,
                profile: profile.to_owned(),
                profile_id: profile_id.parse().ok()?,
                id: id.parse().ok()?,
                placement: placement(at)?,
            }),
            _ => None,
        })
        .collect()
}

pub fn instance_profiles(text: &str) -> Vec<InstanceProfile> {
    rows(text)
        .filter_map(|words| match words[..] {
            [gpu, "MIG", profile, id, instances, ..] => {
                let (free, total) = instances.split_once('/')?;
                Some(InstanceProfile {
                    gpu: gpu.parse().ok()?,
                    profile: profile.to_owned(),
                    id: id.trim_end_matches('*').parse().ok()?,
                    free: free.parse().ok()?,
                    total: total.parse().ok()?,
                })
            }
            _ => None,
        })
        .collect()
}
