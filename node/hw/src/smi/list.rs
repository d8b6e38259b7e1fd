//! `nvidia-smi -L`, which alone names MIG devices by UUID, and CSV queries.

use std::collections::BTreeMap;

use wire::inventory::{GPUS_MAX, MIG_INSTANCES_MAX};

use super::value;
use crate::text::clean;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    pub gpus: Vec<ListedGpu>,
    /// Lines that are no GPU and no MIG device.
    pub skipped: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedGpu {
    pub index: u32,
    pub model: String,
    pub uuid: String,
    pub mig: Vec<ListedMig>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedMig {
    /// Like `1g.10gb` or `1c.3g.20gb`.
    pub profile: String,
    /// Index on its GPU.
    pub index: u32,
    pub uuid: String,
}

/// Lines that do not parse are counted and left out, with the MIG devices below such a GPU.
pub fn parse(text: &str) -> Listed {
    let mut listed = Listed::default();
    let mut below_a_gpu = false;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(gpu) = gpu(line) {
            below_a_gpu = listed.gpus.len() < GPUS_MAX;
            if below_a_gpu {
                listed.gpus.push(gpu);
            }
        } else if let (true, Some(mig)) = (below_a_gpu, mig(line)) {
            if let Some(gpu) = listed.gpus.last_mut().filter(|gpu| gpu.mig.len() < MIG_INSTANCES_MAX) {
                gpu.mig.push(mig);
            }
        } else {
            below_a_gpu = below_a_gpu && !line.starts_with("GPU");
            listed.skipped += 1;
        }
    }
    listed
}

/// `GPU 0: NVIDIA H200 (UUID: GPU-…)`.
fn gpu(line: &str) -> Option<ListedGpu> {
    let (index, rest) = line.strip_prefix("GPU ")?.split_once(':')?;
    let (model, uuid) = with_uuid(rest)?;
    Some(ListedGpu {
        index: index.parse().ok()?,
        model: clean(model)?,
        uuid: value::gpu_uuid(uuid)?,
        mig: Vec::new(),
    })
}

/// `  MIG 1g.10gb     Device  0: (UUID: MIG-…)`.
fn mig(line: &str) -> Option<ListedMig> {
    let (head, uuid) = with_uuid(line)?;
    let mut words = head.trim_end().trim_end_matches(':').split_whitespace();
    let (mig, profile, device, index) = (words.next()?, words.next()?, words.next()?, words.next()?);
    if (mig, device, words.next()) != ("MIG", "Device", None) {
        return None;
    }
    Some(ListedMig { profile: clean(profile)?, index: index.parse().ok()?, uuid: value::uuid(uuid, "MIG-")? })
}

fn with_uuid(text: &str) -> Option<(&str, &str)> {
    let (head, rest) = text.split_once("(UUID:")?;
    Some((head, rest.trim().strip_suffix(')')?))
}

/// `--query-gpu=uuid,compute_cap --format=csv,noheader`: compute capability by UUID.
pub fn compute_capabilities(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .take(GPUS_MAX)
        .filter_map(|line| {
            let (uuid, capability) = line.split_once(',')?;
            let capability = value::text(capability)?;
            let (major, minor) = capability.split_once('.')?;
            let plain =
                |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            (plain(major) && plain(minor)).then_some((value::gpu_uuid(uuid)?, capability))
        })
        .collect()
}
