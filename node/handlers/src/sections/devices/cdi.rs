//! A hold as a CDI specification file (Container Device Interface 0.6.0), and read back from one.
//!
//! Devices are named by their atom, with `/` as `_`, which a name may not hold; the atom itself rides in an annotation.
//! A hold of CPU and memory alone has a kind of its own and one device, named after the allocation: a specification
//! without devices, and a device that edits nothing, are none to the engines that read them.
//! Other tools could write into the folder, and disks rot, so reading is strict: a file that is not exactly a hold is
//! none, and its GPUs are unknown rather than free.

use std::collections::{BTreeMap, BTreeSet};

use model::AllocationId;
use serde::{Deserialize, Serialize};

use super::desired::Binding;
use crate::files::HostFile;
use crate::slices::{self, SliceLimits};

const VERSION: &str = "0.6.0";
const GPU: &str = "bcd.dev/gpu";
const HOST: &str = "bcd.dev/host";
const DEVICE_ID: &str = "bcd.dev/device-id";
const ALLOCATION: &str = "bcd.dev/allocation-id";
const BINDING: &str = "bcd.dev/binding";
const CGROUP_PARENT: &str = "bcd.dev/cgroup-parent";
/// What the hold was promised, for admission to count while no entry lists it.
const MEMORY: &str = "bcd.dev/memory-bytes";
const HUGE_PAGES: &str = "bcd.dev/hugepages-1gi";
const KUBERNETES: &str = "kubernetes";

/// Every GPU of the largest machine, each split into the most slots the driver serves.
const DEVICES_MAX: usize = 64 * 48;
const ATOM_BYTES_MAX: usize = 128;

/// A hold as a file tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub allocation: AllocationId,
    /// In the file's order, each once; none for a hold of CPU and memory alone.
    pub atoms: Vec<String>,
    pub binding: Binding,
    /// 0 for no limit.
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
}

impl Hold {
    /// It has CPU and memory of the host, and no device.
    pub fn is_host(&self) -> bool {
        self.atoms.is_empty()
    }
}

/// What a hold's file says besides the hold: where the devices are on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// By atom.
    pub device: BTreeMap<String, Vec<String>>,
    pub common: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecFile {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    devices: Vec<DeviceEntry>,
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    container_edits: Edits,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceEntry {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode>,
}

impl Edits {
    fn is_empty(&self) -> bool {
        self.env.is_empty() && self.device_nodes.is_empty()
    }
}

#[derive(Serialize, Deserialize)]
struct DeviceNode {
    path: String,
}

/// A device's name inside its specification.
fn device_name(atom: &str) -> String {
    atom.replace('/', "_")
}

/// The names a workload asks for: `bcd.dev/gpu=GPU-…` for each atom, or `bcd.dev/host=alloc_…`.
pub fn devices(allocation: AllocationId, atoms: &[String]) -> Vec<String> {
    if atoms.is_empty() {
        return vec![format!("{HOST}={allocation}")];
    }
    atoms.iter().map(|atom| format!("{GPU}={}", device_name(atom))).collect()
}

/// What every workload of the hold is told, as `KEY=value`.
pub fn environment(hold: &Hold, limits: &SliceLimits) -> Vec<String> {
    let mut env = Vec::new();
    match hold.binding {
        Binding::Hold if hold.is_host() => {}
        Binding::Hold => env.push(format!("NVIDIA_VISIBLE_DEVICES={}", hold.atoms.join(","))),
        // A pod gets a part of the hold, and hears of it from the device plugin.
        Binding::Kubernetes => {}
    }
    env.push(format!("BCD_ALLOCATION_ID={}", hold.allocation));
    if has_slice(hold, limits) {
        env.push(format!("BCD_CGROUP_PARENT={}", slices::name(hold.allocation)));
    }
    env
}

/// A Kubernetes hold lives in the kubelet's own cgroups.
pub fn has_slice(hold: &Hold, limits: &SliceLimits) -> bool {
    match hold.binding {
        Binding::Hold => !limits.is_none(),
        Binding::Kubernetes => false,
    }
}

/// The file's bytes: equal holds on equal hosts give equal bytes.
pub fn render(hold: &Hold, limits: &SliceLimits, nodes: &Nodes) -> Vec<u8> {
    let node = |path: &String| DeviceNode { path: path.clone() };
    let mut annotations = BTreeMap::from([(ALLOCATION.to_owned(), hold.allocation.to_string())]);
    let mut note = |key: &str, value: String| annotations.insert(key.to_owned(), value);
    if hold.binding == Binding::Kubernetes {
        note(BINDING, KUBERNETES.to_owned());
    }
    if has_slice(hold, limits) {
        note(CGROUP_PARENT, slices::name(hold.allocation));
    }
    if hold.memory_bytes > 0 {
        note(MEMORY, hold.memory_bytes.to_string());
    }
    if hold.hugepages_1gi > 0 {
        note(HUGE_PAGES, hold.hugepages_1gi.to_string());
    }
    let device = |name: String, id: String, container_edits: Edits| DeviceEntry {
        name,
        annotations: BTreeMap::from([(DEVICE_ID.to_owned(), id)]),
        container_edits,
    };
    let (kind, devices, container_edits) = if hold.is_host() {
        let id = hold.allocation.to_string();
        let told = Edits { env: environment(hold, limits), device_nodes: Vec::new() };
        (HOST, vec![device(id.clone(), id, told)], Edits::default())
    } else {
        let gpu = |atom: &String| {
            let device_nodes = nodes.device.get(atom).into_iter().flatten().map(node).collect();
            device(device_name(atom), atom.clone(), Edits { env: Vec::new(), device_nodes })
        };
        let device_nodes = nodes.common.iter().map(node).collect();
        let told = Edits { env: environment(hold, limits), device_nodes };
        (GPU, hold.atoms.iter().map(gpu).collect(), told)
    };
    let (cdi_version, kind) = (VERSION.into(), kind.into());
    let file = SpecFile { cdi_version, kind, annotations, devices, container_edits };
    let mut bytes = serde_json::to_vec_pretty(&file).expect("names and lists of text serialize");
    bytes.push(b'\n');
    bytes
}

/// Whether a name in the folder is one of ours: what it holds is then a hold, readable or not.
pub fn is_ours(name: &str) -> bool {
    name.starts_with("bcd-") && name.ends_with(".json")
}

/// Reads a hold back from the file of this name. The problem is a fragment for people.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Hold, String> {
    let file: SpecFile =
        serde_json::from_slice(bytes).map_err(|err| format!("it is no CDI specification: {err}"))?;
    let note = |key: &str| file.annotations.get(key).map(String::as_str);
    let allocation: AllocationId =
        note(ALLOCATION).and_then(|id| id.parse().ok()).ok_or("it names no allocation")?;
    if HostFile::Cdi(allocation).name() != name {
        return Err("it names another allocation than its file".into());
    }
    let binding = match note(BINDING) {
        None => Binding::Hold,
        Some(KUBERNETES) => Binding::Kubernetes,
        Some(_) => return Err("its binding is unknown".into()),
    };
    let number = |key: &str| match note(key) {
        None => Ok(0),
        Some(text) => text.parse::<u64>().map_err(|_| format!("its {key} is no number")),
    };
    let atoms = match file.kind.as_str() {
        GPU => atoms(&file.devices)?,
        HOST => no_atoms(allocation, &file.devices)?,
        _ => return Err(format!("it is of another kind than {GPU} and {HOST}")),
    };
    Ok(Hold { allocation, atoms, binding, memory_bytes: number(MEMORY)?, hugepages_1gi: number(HUGE_PAGES)? })
}

fn atoms(devices: &[DeviceEntry]) -> Result<Vec<String>, String> {
    if devices.is_empty() || devices.len() > DEVICES_MAX {
        return Err(format!("it has {} devices", devices.len()));
    }
    let mut seen = BTreeSet::new();
    for device in devices {
        let atom = device.annotations.get(DEVICE_ID).ok_or("a device names no atom")?;
        if !is_atom(atom) || device.name != device_name(atom) {
            return Err("a device's name and its atom do not go together".into());
        }
        if !seen.insert(atom.as_str()) {
            return Err("it lists a device twice".into());
        }
    }
    Ok(devices.iter().filter_map(|device| device.annotations.get(DEVICE_ID).cloned()).collect())
}

/// The one device of a hold without atoms says whose it is, and nothing else.
fn no_atoms(allocation: AllocationId, devices: &[DeviceEntry]) -> Result<Vec<String>, String> {
    let id = allocation.to_string();
    match devices {
        [device] if device.name == id && device.annotations.get(DEVICE_ID) == Some(&id) => Ok(Vec::new()),
        _ => Err("its device is not the one of its allocation".into()),
    }
}

/// Parts of letters, digits and `-_.:`, joined by `/`: safe in names, lists and lines.
pub fn is_atom(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    text.len() <= ATOM_BYTES_MAX
        && text.split('/').all(|part| !part.is_empty() && part.bytes().all(plain))
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Whether two atoms share silicon: they are one, or one is a part of the other.
pub fn overlap(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
