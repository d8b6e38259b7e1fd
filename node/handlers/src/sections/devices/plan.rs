//! What is to be done for one allocation. Pure.

use model::AllocationId;

use super::admission::{Admission, admit};
use super::cdi::{self, Hold, Nodes};
use super::desired::{Binding, Desired, Wanted};
use super::observe::{HoldFile, Observed};
use super::record::Reason;
use crate::slices::SliceLimits;

/// Device classes of entries: GPUs with what they need of the host, or the host's CPU and memory alone.
const GPU: &str = "gpu";
const HOST: &str = "host";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    ApplySlice(SliceLimits),
    WriteEnv(String),
    WriteCdi(Vec<u8>),
    RemoveCdi,
    RemoveEnv,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It holds once the steps are done.
    Held,
    /// It can come right by itself.
    Wait { reason: &'static str, message: String },
    /// The host has another hold under this allocation than the entry says.
    Differs(String),
    /// Not at this generation.
    Failed { reason: Reason, message: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub verdict: Verdict,
    /// Something that should have been checked and could not be.
    pub warning: Option<&'static str>,
}

impl Plan {
    fn only(verdict: Verdict) -> Self {
        Self { steps: Vec::new(), verdict, warning: None }
    }

    pub fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self::only(Verdict::Failed { reason, message: message.into() })
    }

    fn wait(reason: &'static str, message: impl Into<String>) -> Self {
        Self::only(Verdict::Wait { reason, message: message.into() })
    }
}

/// Takes the hold from the host, the file that is the hold first. Nothing to do when nothing of it is there.
pub fn release(allocation: AllocationId, observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    if observed.holds.of(allocation).is_some() {
        steps.push(Step::RemoveCdi);
    }
    if observed.envs.contains_key(&allocation) {
        steps.push(Step::RemoveEnv);
    }
    steps
}

/// Brings a hold about, or keeps it as it should be.
pub fn hold(allocation: AllocationId, wanted: &Wanted, desired: &Desired, observed: &Observed) -> Plan {
    match observed.holds.of(allocation) {
        Some(file @ HoldFile { hold: Ok(held), .. }) => keep(held, file, wanted, observed),
        // A file of this very allocation that cannot be read is made again: the entry says what it held.
        Some(HoldFile { hold: Err(_), .. }) | None => bind(allocation, wanted, desired, observed),
    }
}

fn keep(held: &Hold, file: &HoldFile, wanted: &Wanted, observed: &Observed) -> Plan {
    let sorted = |atoms: &[String]| {
        let mut atoms = atoms.to_vec();
        atoms.sort_unstable();
        atoms
    };
    if held.is_host() != (wanted.device_class == HOST) {
        return Plan::only(Verdict::Differs("the host holds it with devices of another class".into()));
    }
    if sorted(&held.atoms) != sorted(&wanted.atoms) {
        return Plan::only(Verdict::Differs("the host holds other GPUs for it".into()));
    }
    if wanted.binding != Some(held.binding) {
        return Plan::only(Verdict::Differs("the host holds it with another binding".into()));
    }
    let hold = promised(held.allocation, wanted, held.binding);
    // While a device is not to be seen its file stays as it is: what was promised has not changed.
    let nodes = observed.nodes(&hold.atoms);
    steps(&hold, wanted, observed, nodes.as_ref(), Some(&file.bytes))
}

fn bind(allocation: AllocationId, wanted: &Wanted, desired: &Desired, observed: &Observed) -> Plan {
    if let Some(problem) = unsupported(wanted) {
        return Plan::failed(Reason::UnsupportedDevice, problem);
    }
    let Some(binding) = wanted.binding else {
        return Plan::failed(Reason::UnsupportedBinding, "this daemon does not know the binding");
    };
    let hold = promised(allocation, wanted, binding);
    if cdi::has_slice(&hold, &wanted.limits)
        && let Err(why) = &observed.slices
    {
        return Plan::failed(Reason::UnsupportedLimits, format!("this host keeps no limits: {why}"));
    }
    if let Some(plan) = conflict(allocation, wanted, desired, observed) {
        return plan;
    }
    let nodes = match available(wanted, observed) {
        Ok(nodes) => nodes,
        Err(plan) => return *plan,
    };
    let bound = observed.holds.holds().filter(|other| other.allocation != allocation);
    let warning = match admit(observed.memory.as_ref(), &wanted.limits, bound) {
        Admission::Fits => None,
        Admission::Unchecked(why) => Some(why),
        Admission::Exhausted(message) => return Plan::failed(Reason::ResourcesExhausted, message),
    };
    Plan { warning, ..steps(&hold, wanted, observed, Some(&nodes), None) }
}

/// Why nothing on any host could be held for it.
fn unsupported(wanted: &Wanted) -> Option<String> {
    let whole_gpus = wanted.atoms.iter().all(|atom| hw::smi::gpu_uuid(atom).as_deref() == Some(atom));
    match wanted.device_class.as_str() {
        GPU if whole_gpus && !wanted.atoms.is_empty() => None,
        GPU => Some("this daemon holds whole GPUs only".into()),
        HOST if wanted.atoms.is_empty() && !wanted.limits.is_none() => None,
        HOST => Some("a hold of CPU and memory has limits and no devices".into()),
        other => Some(format!("this daemon holds no devices of class {other:?}")),
    }
}

/// Who else has one of the atoms.
fn conflict(
    allocation: AllocationId,
    wanted: &Wanted,
    desired: &Desired,
    observed: &Observed,
) -> Option<Plan> {
    for atom in &wanted.atoms {
        let others = observed.holds.holds().filter(|hold| hold.allocation != allocation);
        let Some(other) =
            others.into_iter().find(|hold| hold.atoms.iter().any(|held| cdi::overlap(held, atom)))
        else {
            continue;
        };
        let holder = other.allocation;
        return Some(match desired.released.contains(&holder) {
            true => Plan::wait("Releasing", format!("{atom} is not released yet by {holder}")),
            false => Plan::failed(Reason::Overlap, format!("{atom} is held by {holder}")),
        });
    }
    let own = crate::files::HostFile::Cdi(allocation).name();
    let (name, _) = observed.holds.unreadable().find(|(name, _)| *name != own)?;
    Some(Plan::wait("HoldUnreadable", format!("/etc/cdi/{name} may hold anything and cannot be read")))
}

/// Where the devices are, or why the hold cannot be made of them.
fn available(wanted: &Wanted, observed: &Observed) -> Result<Nodes, Box<Plan>> {
    // A driver that does not answer now is no device to hand out, whatever else is known of it.
    if let Some(why) = observed.unsure.as_ref().filter(|_| !wanted.atoms.is_empty()) {
        return Err(Box::new(Plan::wait("InventoryUnreadable", why.clone())));
    }
    let missing = |atom: &String| match observed.gpus.get(atom) {
        Some(gpu) if gpu.lost => Some(format!("{atom} fell off the bus")),
        Some(_) => None,
        None => Some(format!("{atom} is not on this host")),
    };
    if let Some(message) = wanted.atoms.iter().find_map(missing) {
        return Err(Box::new(Plan::failed(Reason::DeviceMissing, message)));
    }
    observed
        .nodes(&wanted.atoms)
        .ok_or_else(|| Box::new(Plan::wait("DeviceNodeMissing", "the driver has not made its device nodes")))
}

fn promised(allocation: AllocationId, wanted: &Wanted, binding: Binding) -> Hold {
    Hold {
        allocation,
        atoms: wanted.atoms.clone(),
        binding,
        memory_bytes: wanted.limits.memory_bytes,
        hugepages_1gi: wanted.limits.hugepages_1gi,
    }
}

/// The slice before the file that names it, and the hold's own file last.
fn steps(
    hold: &Hold,
    wanted: &Wanted,
    observed: &Observed,
    nodes: Option<&Nodes>,
    file: Option<&Vec<u8>>,
) -> Plan {
    let mut steps = Vec::new();
    if cdi::has_slice(hold, &wanted.limits) && !observed.in_force.contains(&hold.allocation) {
        steps.push(Step::ApplySlice(wanted.limits.clone()));
    }
    let env = cdi::environment(hold, &wanted.limits).join("\n") + "\n";
    if observed.envs.get(&hold.allocation).map(Vec::as_slice) != Some(env.as_bytes()) {
        steps.push(Step::WriteEnv(env));
    }
    let bytes = nodes.map(|nodes| cdi::render(hold, &wanted.limits, nodes));
    if let Some(bytes) = bytes.filter(|bytes| file != Some(bytes)) {
        steps.push(Step::WriteCdi(bytes));
    }
    Plan { steps, verdict: Verdict::Held, warning: None }
}

#[cfg(test)]
mod tests;
