//! Which start each running instance was started for, in a file of the daemon's own: a start that was made is not made
//! again by the next process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kit::fs::FsError;
use model::InstanceId;

/// A short line for each instance of a host.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub struct Boots {
    path: PathBuf,
    boots: BTreeMap<InstanceId, u64>,
}

impl Boots {
    /// What the file says; nothing when there is none. Of one that cannot be read, what runs is taken for started as wanted.
    pub fn at(path: PathBuf) -> Self {
        let bytes = kit::fs::read_if_present(&path, FILE_BYTES_MAX).unwrap_or_else(|err| {
            tracing::warn!(err = %kit::chain(&err), "record of instances' starts unreadable");
            None
        });
        let stored: BTreeMap<String, u64> =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let boots = stored.into_iter().filter_map(|(id, boot)| Some((id.parse().ok()?, boot))).collect();
        Self { path, boots }
    }

    pub fn of(&self, id: InstanceId) -> Option<u64> {
        self.boots.get(&id).copied()
    }

    /// Durable when it returns `Ok`.
    pub fn started(&mut self, id: InstanceId, boot: u64) -> Result<(), FsError> {
        if self.boots.insert(id, boot) == Some(boot) { Ok(()) } else { self.store() }
    }

    /// Forgets the instances that are not there any more.
    pub fn keep(&mut self, there: impl Fn(InstanceId) -> bool) -> Result<(), FsError> {
        let before = self.boots.len();
        self.boots.retain(|id, _| there(*id));
        if self.boots.len() == before { Ok(()) } else { self.store() }
    }

    fn store(&self) -> Result<(), FsError> {
        let stored: BTreeMap<String, u64> =
            self.boots.iter().map(|(id, boot)| (id.to_string(), *boot)).collect();
        let bytes = serde_json::to_vec(&stored).expect("ids and numbers serialize");
        if let Some(dir) = self.path.parent() {
            kit::fs::create_dir(dir, 0o700)?;
        }
        kit::fs::write_atomic(&self.path, &bytes, 0o600)
    }
}
