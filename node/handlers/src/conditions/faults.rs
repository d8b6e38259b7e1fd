//! The error lines of this boot, kept in a file so that a restart of the daemon does not forget them, and cleared by the
//! next boot or by a reset that leaves the GPU healthy.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agent::converge::Fact;
use hw::{XidBatch, XidEvent, XidKind};
use kit::fs::FsError;
use model::Timestamp;
use model::condition::Severity;
use serde::{Deserialize, Serialize};
use wire::inventory::PciAddress;

use super::xid;

/// Distinct errors of one boot. A storm repeats few codes on few devices.
const FAULTS_MAX: usize = 256;
const DETAIL_CHARS_MAX: usize = 200;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Which GPU is at which address.
pub type Addresses = BTreeMap<PciAddress, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Stored {
    boot_id: String,
    /// Lines from this number of the kernel log on are new.
    next: u64,
    faults: Vec<Fault>,
}

/// One error of one device, however often it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fault {
    /// A GPU's UUID, or the address the line named.
    device: String,
    code: u32,
    switch: bool,
    /// `info`, `warning`, `blocking`.
    severity: String,
    message: String,
    count: u64,
    /// Wall clock, for the age alone.
    first_seen_ms: i64,
}

pub struct Faults {
    path: PathBuf,
    stored: Stored,
}

impl Faults {
    /// What the file says, if it is of a boot at all. It is checked against the running boot by [`Faults::take`].
    pub fn at(path: PathBuf) -> Self {
        let read = kit::fs::read_if_present(&path, FILE_BYTES_MAX).unwrap_or_else(|err| {
            tracing::warn!(err = %kit::chain(&err), "record of device errors unreadable");
            None
        });
        let stored = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { path, stored }
    }

    /// Where to go on reading the kernel log.
    pub fn next(&self) -> u64 {
        self.stored.next
    }

    /// Takes new lines in. True when something changed.
    pub fn take(&mut self, batch: &XidBatch, addresses: &Addresses, now: Timestamp) -> Result<bool, FsError> {
        let before = self.stored.clone();
        if self.stored.boot_id != batch.boot_id {
            self.stored = Stored { boot_id: batch.boot_id.clone(), ..Stored::default() };
        }
        let from = self.stored.next;
        for event in batch.events.iter().filter(|event| event.sequence >= from) {
            self.add(event, addresses, now);
        }
        self.stored.next = self.stored.next.max(batch.next);
        // An address whose GPU was not known yet may be known now.
        for fault in &mut self.stored.faults {
            let uuid = fault.device.parse().ok().and_then(|address| uuid_at(addresses, address));
            if let Some(uuid) = uuid {
                fault.device = uuid.to_owned();
            }
        }
        // The place in the log alone is not worth a write: what is read twice from there says nothing new.
        let changed = self.stored.faults != before.faults;
        if changed || self.stored.boot_id != before.boot_id {
            self.store()?;
        }
        Ok(changed)
    }

    fn add(&mut self, event: &XidEvent, addresses: &Addresses, now: Timestamp) {
        let xid = &event.xid;
        let device = match (xid.kind, xid.pci_address) {
            (XidKind::Gpu, Some(address)) => {
                uuid_at(addresses, address).map_or_else(|| address.to_string(), str::to_owned)
            }
            (XidKind::Switch, Some(address)) => format!("nvswitch@{address}"),
            (XidKind::Gpu | XidKind::Switch, None) => String::new(),
        };
        let (severity, meaning) = xid::meaning(xid);
        let switch = xid.kind == XidKind::Switch;
        let detail: String = xid.detail.chars().take(DETAIL_CHARS_MAX).collect();
        let message = if detail.is_empty() { meaning.to_owned() } else { format!("{meaning} ({detail})") };
        let known = self
            .stored
            .faults
            .iter_mut()
            .find(|fault| fault.device == device && fault.code == xid.code && fault.switch == switch);
        if let Some(fault) = known {
            fault.count = fault.count.saturating_add(1);
            // The last word counts where one code can say different things; otherwise the first one tells the cause.
            let worse = Severity::parse(&fault.severity).is_none_or(|held| severity > held);
            if worse || xid.code == xid::RECOVERY_CHANGED {
                fault.severity = severity.name().into();
                fault.message = message;
            }
        } else if self.stored.faults.len() < FAULTS_MAX {
            self.stored.faults.push(Fault {
                device,
                code: xid.code,
                switch,
                severity: severity.name().into(),
                message,
                count: 1,
                first_seen_ms: now.millis(),
            });
        }
    }

    /// Forgets what was said of a GPU that was reset and is healthy.
    pub fn clear(&mut self, gpu: &str) -> Result<(), FsError> {
        let before = self.stored.faults.len();
        self.stored.faults.retain(|fault| fault.device != gpu);
        if self.stored.faults.len() == before { Ok(()) } else { self.store() }
    }

    pub fn facts(&self, now: Timestamp) -> Vec<Fact> {
        let fact = |fault: &Fault| Fact {
            kind: if fault.switch { "SXid" } else { "Xid" }.into(),
            severity: Severity::parse(&fault.severity).unwrap_or(Severity::Warning),
            device: fault.device.clone(),
            reason: fault.code.to_string(),
            message: match fault.count {
                1 => fault.message.clone(),
                count => format!("{}; {count} times since boot", fault.message),
            },
            age: Some(now.since(Timestamp::from_micros(fault.first_seen_ms.saturating_mul(1000)))),
        };
        self.stored.faults.iter().map(fact).collect()
    }

    fn store(&self) -> Result<(), FsError> {
        let bytes = serde_json::to_vec(&self.stored).expect("texts and numbers serialize");
        if let Some(dir) = self.path.parent() {
            kit::fs::create_dir(dir, 0o700)?;
        }
        kit::fs::write_atomic(&self.path, &bytes, 0o600)
    }
}

fn uuid_at(addresses: &Addresses, address: PciAddress) -> Option<&str> {
    addresses.iter().find(|(known, _)| known.same_device(address)).map(|(_, uuid)| uuid.as_str())
}

#[cfg(test)]
mod tests;
