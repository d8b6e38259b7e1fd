//! What is on the host: the holds in their files, and what new ones could be made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent::converge::Fact;
use model::AllocationId;
use model::condition::Severity;
use tokio::sync::{Mutex, MutexGuard};
use wire::inventory::{GpuProblem, GpuSection, MemorySection, NodeInventory};

use super::cdi::{self, Hold, Nodes};
use super::desired::Desired;
use crate::files::{Files, FilesError, HostDir, HostFile};
use crate::slices::Slices;

#[derive(Debug, thiserror::Error)]
#[error("read the holds of this host")]
pub struct HoldsError(#[from] FilesError);

/// The holds of this host, for everyone who must not act on a held GPU.
#[derive(Clone)]
pub struct Holds {
    files: Arc<dyn Files>,
    /// Held while holds change, and while something relies on their not changing.
    changing: Arc<Mutex<()>>,
}

impl Holds {
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self { files, changing: Arc::default() }
    }

    /// Keeps the holds as they are until it is dropped.
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    pub async fn live(&self) -> Result<LiveHolds, HoldsError> {
        hold_files(&*self.files).await
    }
}

/// The hold files there are, readable or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveHolds {
    files: BTreeMap<String, HoldFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldFile {
    pub bytes: Vec<u8>,
    /// Why not, when it cannot be read.
    pub hold: Result<Hold, String>,
}

impl LiveHolds {
    pub(super) fn insert(&mut self, name: &str, bytes: &[u8]) {
        let file = HoldFile { bytes: bytes.to_vec(), hold: cdi::parse(name, bytes) };
        self.files.insert(name.to_owned(), file);
    }

    fn insert_unread(&mut self, name: String, problem: String) {
        self.files.insert(name, HoldFile { bytes: Vec::new(), hold: Err(problem) });
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.files.remove(name);
    }

    pub fn of(&self, allocation: AllocationId) -> Option<&HoldFile> {
        self.files.get(&HostFile::Cdi(allocation).name())
    }

    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.files.values().filter_map(|file| file.hold.as_ref().ok())
    }

    /// The hold that has this atom, a part of it, or what it is a part of.
    pub fn holder_of(&self, atom: &str) -> Option<&Hold> {
        self.holds().find(|hold| hold.atoms.iter().any(|held| cdi::overlap(held, atom)))
    }

    /// A file that is a hold's by its name and says nothing that can be relied on: any GPU may be its.
    pub fn unreadable(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(name, file)| Some((name.as_str(), file.hold.as_ref().err()?.as_str())))
    }
}

pub async fn hold_files(files: &dyn Files) -> Result<LiveHolds, HoldsError> {
    let mut live = LiveHolds::default();
    for name in files.list(HostDir::Cdi).await?.into_iter().filter(|name| cdi::is_ours(name)) {
        match files.read(HostDir::Cdi, &name).await {
            Ok(Some(bytes)) => live.insert(&name, &bytes),
            // Removed since it was listed, or a name that is no text.
            Ok(None) => {}
            Err(err) => live.insert_unread(name, kit::chain(&err)),
        }
    }
    Ok(live)
}

/// A GPU as a hold sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGpu {
    pub lost: bool,
    /// Its device nodes, when they are there.
    pub nodes: Option<Vec<String>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    /// Of all huge page pools.
    pub hugetlb_bytes: u64,
    /// None when it is not known.
    pub pages_1gi: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub holds: LiveHolds,
    pub envs: BTreeMap<AllocationId, Vec<u8>>,
    /// Allocations with a slice on the host; why not, where there are none to be had.
    pub slices: Result<BTreeSet<AllocationId>, String>,
    /// Allocations whose slice is as their entry asks.
    pub in_force: BTreeSet<AllocationId>,
    pub gpus: BTreeMap<String, SeenGpu>,
    /// Why the driver does not say which GPUs there are and how they do.
    pub unsure: Option<String>,
    pub common_nodes: Vec<String>,
    /// None when it cannot be read.
    pub memory: Option<Memory>,
}

impl Observed {
    /// Where the hold's devices are; none while any of them is not there to be named.
    pub fn nodes(&self, atoms: &[String]) -> Option<Nodes> {
        let device = atoms.iter().map(|atom| {
            let nodes = self.gpus.get(atom).filter(|gpu| !gpu.lost)?.nodes.clone()?;
            Some((atom.clone(), nodes))
        });
        let device = device.collect::<Option<_>>()?;
        // What every GPU needs is nothing to a hold without one.
        let common = if atoms.is_empty() { Vec::new() } else { self.common_nodes.clone() };
        Some(Nodes { device, common })
    }

    /// Holds that no entry is about, GPU by GPU where they have any, and hold files that cannot be read.
    pub fn unlisted(&self, desired: &Desired) -> Vec<Fact> {
        let fact = |kind: &str, severity, device: &str, reason: String, message: String| Fact {
            kind: kind.into(),
            severity,
            device: device.into(),
            reason,
            message,
            age: None,
        };
        let mut facts = Vec::new();
        for hold in self.holds.holds().filter(|hold| !desired.names(hold.allocation)) {
            let id = hold.allocation.to_string();
            let what = if hold.is_host() { "CPU and memory of" } else { "it on" };
            let message =
                format!("{id} holds {what} this host and no spec lists it; it is kept until one releases it");
            let devices: Vec<&str> = match hold.is_host() {
                true => vec![""],
                false => hold.atoms.iter().map(String::as_str).collect(),
            };
            facts.extend(
                devices.into_iter().map(|device| {
                    fact("UnlistedHold", Severity::Blocking, device, id.clone(), message.clone())
                }),
            );
        }
        for (name, problem) in self.unreadable_unlisted(desired) {
            let message = format!(
                "/etc/cdi/{name} is kept and cannot be read: {problem}; nothing is bound until it is right or gone"
            );
            facts.push(fact("HoldUnreadable", Severity::Blocking, "", name.to_owned(), message));
        }
        facts
    }

    /// Unreadable hold files that no entry is about.
    pub fn unreadable_unlisted<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let named = desired.held.keys().chain(&desired.released);
        let named: BTreeSet<String> = named.map(|allocation| HostFile::Cdi(*allocation).name()).collect();
        self.holds.unreadable().filter(move |(name, _)| !named.contains(*name))
    }
}

/// Nodes every workload with a GPU needs, where the driver makes them.
const COMMON_NODES: [&str; 4] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Looks at everything a plan asks about. What cannot be read is left out, and known to be.
pub async fn everything(
    holds: LiveHolds,
    desired: &Desired,
    files: &dyn Files,
    slices: &dyn Slices,
    hardware: &dyn hw::Hardware,
) -> Observed {
    let mut observed = Observed {
        holds,
        envs: envs(files).await,
        slices: slices.support().map(|()| BTreeSet::new()).map_err(|none| none.why),
        in_force: BTreeSet::new(),
        gpus: BTreeMap::new(),
        unsure: None,
        common_nodes: Vec::new(),
        memory: None,
    };
    if observed.slices.is_ok() {
        match slices.list().await {
            Ok(found) => observed.slices = Ok(found.into_iter().collect()),
            Err(err) => tracing::warn!(err = %kit::chain(&err), "slices not listed"),
        }
    }
    for (allocation, wanted) in desired.held.iter().filter(|(_, wanted)| !wanted.limits.is_none()) {
        if slices.in_force(*allocation, &wanted.limits).await.is_ok_and(|in_force| in_force) {
            observed.in_force.insert(*allocation);
        }
    }
    if !desired.held.is_empty() {
        let inventory: NodeInventory = hardware.inventory().await;
        observed.gpus = gpus(&inventory.gpus, files);
        observed.unsure = unsure(&inventory.gpus);
        observed.common_nodes = COMMON_NODES
            .iter()
            .filter(|path| files.has_device(path))
            .map(|path| (*path).to_owned())
            .collect();
        observed.memory = memory(hardware, &inventory.memory).await;
    }
    observed
}

async fn envs(files: &dyn Files) -> BTreeMap<AllocationId, Vec<u8>> {
    let names = files.list(HostDir::Allocations).await.unwrap_or_else(|err| {
        tracing::warn!(err = %kit::chain(&err), "allocation env files not listed");
        Vec::new()
    });
    let mut envs = BTreeMap::new();
    for name in names {
        let Some(allocation) = name.strip_suffix(".env").and_then(|id| id.parse().ok()) else { continue };
        // One that cannot be read is there, and is not what it should be.
        let bytes = files.read(HostDir::Allocations, &name).await.ok().flatten();
        envs.insert(allocation, bytes.unwrap_or_default());
    }
    envs
}

fn gpus(section: &GpuSection, files: &dyn Files) -> BTreeMap<String, SeenGpu> {
    let seen = |gpu: &wire::inventory::Gpu| {
        let path = gpu.minor.map(|minor| format!("/dev/nvidia{minor}"));
        let nodes = path.filter(|path| files.has_device(path)).map(|path| vec![path]);
        Some((gpu.uuid.clone()?, SeenGpu { lost: gpu.lost, nodes }))
    };
    section.gpus.iter().filter_map(seen).collect()
}

/// Whether the list of GPUs is what the driver says, or what is left of an answer that did not come. A slow answer is no
/// missing device.
fn unsure(section: &GpuSection) -> Option<String> {
    let problem = section.problem?;
    match problem {
        GpuProblem::NotInstalled | GpuProblem::NoDevices | GpuProblem::GpuLost | GpuProblem::DeviceHandle => {
            None
        }
        GpuProblem::DriverNotLoaded
        | GpuProblem::DriverMismatch
        | GpuProblem::PermissionDenied
        | GpuProblem::TimedOut
        | GpuProblem::Unparsable
        | GpuProblem::Failed => Some(hw::diag::problem_text(problem).to_owned()),
    }
}

async fn memory(hardware: &dyn hw::Hardware, section: &MemorySection) -> Option<Memory> {
    let info = match hardware.memory_info().await {
        Ok(info) => info,
        Err(err) => {
            tracing::warn!(err = %kit::chain(&err), "host memory unreadable");
            return None;
        }
    };
    let pools: Vec<_> = section.huge_pages.iter().filter(|pool| pool.page_bytes == 1 << 30).collect();
    let known = !pools.is_empty() || section.unread.is_empty();
    Some(Memory {
        total_bytes: info.total_bytes,
        hugetlb_bytes: info.hugetlb_bytes.unwrap_or(0),
        pages_1gi: known.then(|| pools.iter().map(|pool| pool.pages).sum()),
    })
}
