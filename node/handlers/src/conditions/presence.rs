//! Whether the GPUs that were here are here and fit for work. A GPU can fall off the bus without a line in the log, so every collection is
//! compared with the GPUs this machine is known to have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use agent::converge::Fact;
use kit::fs::FsError;
use model::condition::Severity;
use serde::{Deserialize, Serialize};
use wire::inventory::{GpuProblem, GpuSection};

use super::faults::Addresses;

/// The file's name, which the way out of a condition tells.
pub const FILE: &str = "gpus.json";
/// One slow answer is no missing device.
const MISSES_MIN: u32 = 2;
const FILE_BYTES_MAX: u64 = 1 << 16;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    /// PCI address by UUID.
    gpus: BTreeMap<String, String>,
}

/// The GPUs this machine is known to have, in a file. New ones are added when they are first seen; none is forgotten by
/// itself.
pub struct Presence {
    path: PathBuf,
    known: Stored,
    misses: BTreeMap<String, u32>,
    /// Collections in a row that the driver did not answer.
    silent: u32,
    problem: Option<GpuProblem>,
    lost: BTreeSet<String>,
    /// Why a GPU that is there must take no work.
    unfit: BTreeMap<String, String>,
}

impl Presence {
    pub fn at(path: PathBuf) -> Self {
        let read = kit::fs::read_if_present(&path, FILE_BYTES_MAX).unwrap_or_else(|err| {
            tracing::warn!(err = %kit::chain(&err), "record of known GPUs unreadable");
            None
        });
        let known = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self {
            path,
            known,
            misses: BTreeMap::new(),
            silent: 0,
            problem: None,
            lost: BTreeSet::new(),
            unfit: BTreeMap::new(),
        }
    }

    /// Takes in what one collection found.
    pub fn take(&mut self, section: &GpuSection) -> Result<(), FsError> {
        let seen: BTreeMap<&str, &wire::inventory::Gpu> =
            section.gpus.iter().filter_map(|gpu| Some((gpu.uuid.as_deref()?, gpu))).collect();
        self.problem = section.problem;
        self.silent = if section.problem.is_some() { self.silent.saturating_add(1) } else { 0 };
        self.lost = seen.iter().filter(|(_, gpu)| gpu.lost).map(|(uuid, _)| (*uuid).to_owned()).collect();
        let unfit = seen.iter().filter(|(_, gpu)| !gpu.lost && !hw::may_take_work(gpu.health.verdict));
        self.unfit = unfit.map(|(uuid, gpu)| ((*uuid).to_owned(), gpu.health.reasons.join("; "))).collect();
        for uuid in self.known.gpus.keys() {
            if seen.contains_key(uuid.as_str()) {
                self.misses.remove(uuid);
            } else {
                let misses = self.misses.entry(uuid.clone()).or_default();
                *misses = misses.saturating_add(1);
            }
        }
        let mut known = self.known.clone();
        for (uuid, gpu) in seen {
            let address = gpu.pci_address.map(|address| address.to_string()).unwrap_or_default();
            if !address.is_empty() || !known.gpus.contains_key(uuid) {
                known.gpus.insert(uuid.to_owned(), address);
            }
        }
        if known != self.known {
            self.known = known;
            let bytes = serde_json::to_vec(&self.known).expect("texts serialize");
            if let Some(dir) = self.path.parent() {
                kit::fs::create_dir(dir, 0o700)?;
            }
            kit::fs::write_atomic(&self.path, &bytes, 0o600)?;
        }
        Ok(())
    }

    /// Where each known GPU is or last was.
    pub fn addresses(&self) -> Addresses {
        let parsed = |(uuid, address): (&String, &String)| Some((address.parse().ok()?, uuid.clone()));
        self.known.gpus.iter().filter_map(parsed).collect()
    }

    pub fn facts(&self) -> Vec<Fact> {
        let fact = |kind: &str, device: &str, reason: &str, message: String| Fact {
            kind: kind.into(),
            severity: Severity::Blocking,
            device: device.into(),
            reason: reason.into(),
            message,
            age: None,
        };
        let mut facts = Vec::new();
        if let Some(problem) =
            self.problem.filter(|_| self.silent >= MISSES_MIN && !self.known.gpus.is_empty())
        {
            let text = hw::diag::problem_text(problem);
            facts.push(fact(
                "GpuDriver",
                "",
                problem_word(problem),
                format!("{text}; clears when it answers again"),
            ));
        }
        for uuid in &self.lost {
            let message = "the GPU fell off the bus; reboot the machine".to_owned();
            facts.push(fact("GpuMissing", uuid, "Lost", message));
        }
        for (uuid, why) in &self.unfit {
            let message = format!("{why}; clears when the driver calls the GPU healthy");
            facts.push(fact("GpuUnhealthy", uuid, "Unhealthy", message));
        }
        let missed = self.misses.iter().filter(|(_, misses)| **misses >= MISSES_MIN);
        // While the driver says nothing of any GPU, that is the fault.
        let told = self.problem.is_none() || self.problem == Some(GpuProblem::GpuLost);
        for (uuid, _) in missed.filter(|_| told) {
            let message = format!(
                "the GPU was here and is not found any more; reboot the machine, or, when it was taken out for good, \
                 remove {} and restart bcd",
                self.path.display()
            );
            facts.push(fact("GpuMissing", uuid, "NotFound", message));
        }
        facts
    }
}

fn problem_word(problem: GpuProblem) -> &'static str {
    match problem {
        GpuProblem::NotInstalled => "NotInstalled",
        GpuProblem::DriverNotLoaded => "DriverNotLoaded",
        GpuProblem::DriverMismatch => "DriverMismatch",
        GpuProblem::NoDevices => "NoDevices",
        GpuProblem::DeviceHandle => "DeviceHandle",
        GpuProblem::GpuLost => "GpuLost",
        GpuProblem::PermissionDenied => "PermissionDenied",
        GpuProblem::TimedOut => "TimedOut",
        GpuProblem::Unparsable => "Unparsable",
        GpuProblem::Failed => "Failed",
    }
}

#[cfg(test)]
mod tests;
