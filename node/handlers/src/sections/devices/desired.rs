//! The section's entries, checked. An entry that cannot be understood asks for nothing: what is on the host for it stays.

use std::collections::{BTreeMap, BTreeSet};

use model::AllocationId;
use wire::inventory::CpuList;
use wire::proto::agent::{self as proto, DesiredHold, DeviceAssignment, DevicesSection, Limits};

use super::cdi;
use crate::slices::SliceLimits;

/// Who uses the GPUs of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// Whatever the holder starts.
    Hold,
    /// The kubelet, through its device plugin.
    Kubernetes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Each once, in the entry's order.
    pub atoms: Vec<String>,
    pub device_class: String,
    /// None for one this build does not know.
    pub binding: Option<Binding>,
    pub limits: SliceLimits,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    pub held: BTreeMap<AllocationId, Wanted>,
    pub released: BTreeSet<AllocationId>,
    /// Entries that ask for nothing that can be done, and why.
    pub invalid: Vec<(String, String)>,
    /// Allocations among them, where that much could be read.
    pub unclear: BTreeSet<AllocationId>,
}

impl Desired {
    /// Whether any entry is about this allocation.
    pub fn names(&self, allocation: AllocationId) -> bool {
        self.held.contains_key(&allocation)
            || self.released.contains(&allocation)
            || self.unclear.contains(&allocation)
    }
}

/// Atoms of one allocation: every slot of every GPU of the largest machine.
const ATOMS_MAX: usize = 64 * 48;

pub fn parse(section: &DevicesSection) -> Desired {
    let mut desired = Desired::default();
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for entry in &section.assignments {
        if !seen.insert(entry.allocation_id.as_str()) {
            twice.insert(entry.allocation_id.as_str());
        }
    }
    for entry in &section.assignments {
        let shown = || entry.allocation_id.chars().take(64).collect::<String>();
        let Ok(allocation) = entry.allocation_id.parse::<AllocationId>() else {
            desired.invalid.push((shown(), "it is no allocation id".into()));
            continue;
        };
        let read = match twice.contains(entry.allocation_id.as_str()) {
            true => Err("two entries are about it".to_owned()),
            false => intent(entry),
        };
        match read {
            Ok(Intent::Held(wanted)) => {
                desired.held.insert(allocation, wanted);
            }
            Ok(Intent::Released) => {
                desired.released.insert(allocation);
            }
            Err(problem) => {
                desired.unclear.insert(allocation);
                if !desired.invalid.iter().any(|(entry, _)| *entry == shown()) {
                    desired.invalid.push((shown(), problem));
                }
            }
        }
    }
    desired
}

enum Intent {
    Held(Wanted),
    Released,
}

fn intent(entry: &DeviceAssignment) -> Result<Intent, String> {
    match DesiredHold::try_from(entry.desired) {
        Ok(DesiredHold::Released) => Ok(Intent::Released),
        Ok(DesiredHold::Held) => wanted(entry).map(Intent::Held),
        Ok(DesiredHold::Unspecified) | Err(_) => Err("it is neither to be held nor to be released".into()),
    }
}

fn wanted(entry: &DeviceAssignment) -> Result<Wanted, String> {
    if entry.atoms.len() > ATOMS_MAX {
        return Err(format!("it has more than {ATOMS_MAX} atoms"));
    }
    let mut atoms = Vec::with_capacity(entry.atoms.len());
    let mut seen = BTreeSet::new();
    for atom in &entry.atoms {
        if !cdi::is_atom(atom) {
            return Err("one of its atoms cannot be a name".into());
        }
        if seen.insert(atom) {
            atoms.push(atom.clone());
        }
    }
    let binding = match proto::Binding::try_from(entry.binding) {
        Ok(proto::Binding::Hold) => Some(Binding::Hold),
        Ok(proto::Binding::Kubernetes) => Some(Binding::Kubernetes),
        Ok(proto::Binding::Unspecified) | Err(_) => None,
    };
    let limits = limits(entry.limits.as_ref())?;
    Ok(Wanted { atoms, device_class: entry.device_class.clone(), binding, limits })
}

fn limits(limits: Option<&Limits>) -> Result<SliceLimits, String> {
    let Some(limits) = limits else { return Ok(SliceLimits::default()) };
    let list = |what: &str, text: &str| {
        text.parse::<CpuList>().map_err(|_| format!("its {what} are no list of numbers"))
    };
    Ok(SliceLimits {
        cpu_millis: limits.cpu_millis,
        memory_bytes: limits.memory_bytes,
        cpus: list("cpus", &limits.cpus)?,
        mems: list("mems", &limits.mems)?,
        hugepages_1gi: limits.hugepages_1gi,
    })
}

#[cfg(test)]
mod tests;
