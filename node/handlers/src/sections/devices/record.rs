//! What failed at which generation, in a file of the daemon's own. A failure is terminal at its generation, also for the
//! next process: the control plane has placed the work elsewhere by then.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kit::fs::FsError;
use model::AllocationId;
use serde::{Deserialize, Serialize};

/// Why an allocation is not bound, as the control plane reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Another allocation holds one of its atoms.
    Overlap,
    DeviceMissing,
    UnsupportedBinding,
    UnsupportedDevice,
    /// It has limits, and this host keeps none.
    UnsupportedLimits,
    /// The host's memory or huge pages are promised to others.
    ResourcesExhausted,
}

impl Reason {
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Overlap => "overlap",
            Reason::DeviceMissing => "device-missing",
            Reason::UnsupportedBinding => "unsupported-binding",
            Reason::UnsupportedDevice => "unsupported-device",
            Reason::UnsupportedLimits => "unsupported-limits",
            Reason::ResourcesExhausted => "resources-exhausted",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub generation: u64,
    pub reason: Reason,
    pub message: String,
}

/// A few lines for each allocation of a spec.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub struct Failures {
    path: PathBuf,
    failures: BTreeMap<AllocationId, Failure>,
}

impl Failures {
    /// What the file says; nothing when there is none. One that cannot be read costs no more than trying again.
    pub fn at(path: PathBuf) -> Self {
        let read = kit::fs::read_if_present(&path, FILE_BYTES_MAX);
        let bytes = read.unwrap_or_else(|err| {
            tracing::warn!(err = %kit::chain(&err), "record of failed holds unreadable");
            None
        });
        let stored: BTreeMap<String, Failure> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let failures =
            stored.into_iter().filter_map(|(id, failure)| Some((id.parse().ok()?, failure))).collect();
        Self { path, failures }
    }

    pub fn at_generation(&self, allocation: AllocationId, generation: u64) -> Option<&Failure> {
        self.failures.get(&allocation).filter(|failure| failure.generation == generation)
    }

    /// Durable when it returns `Ok`.
    pub fn record(
        &mut self,
        allocation: AllocationId,
        generation: u64,
        reason: Reason,
        message: &str,
    ) -> Result<(), FsError> {
        let failure = Failure { generation, reason, message: message.to_owned() };
        if self.failures.get(&allocation) == Some(&failure) {
            return Ok(());
        }
        let before = self.failures.insert(allocation, failure);
        let stored = self.store();
        if stored.is_err() {
            match before {
                Some(before) => self.failures.insert(allocation, before),
                None => self.failures.remove(&allocation),
            };
        }
        stored
    }

    /// Forgets the allocations that no entry names any more.
    pub fn keep(&mut self, named: impl Fn(AllocationId) -> bool) -> Result<(), FsError> {
        let before = self.failures.len();
        self.failures.retain(|allocation, _| named(*allocation));
        if self.failures.len() == before { Ok(()) } else { self.store() }
    }

    fn store(&self) -> Result<(), FsError> {
        let stored: BTreeMap<String, &Failure> =
            self.failures.iter().map(|(allocation, failure)| (allocation.to_string(), failure)).collect();
        let bytes = serde_json::to_vec(&stored).expect("ids and failures serialize");
        if let Some(dir) = self.path.parent() {
            kit::fs::create_dir(dir, 0o700)?;
        }
        kit::fs::write_atomic(&self.path, &bytes, 0o600)
    }
}

#[cfg(test)]
mod tests;
