//! What libvirt and the folder of instances hold, put together.

use std::collections::BTreeMap;
use std::path::Path;

use kit::fs::FsError;
use model::InstanceId;
use model::unit::KIB;

use super::virsh::Virsh;
use crate::instance::MemoryPlace;
use crate::name;
use crate::runtime::{Domain, DomainState, Trouble};

/// The trial machine's, which is nobody's instance and no stranger's either.
pub const CANARY: &str = "bc-canary";
/// One host runs hundreds; more is no answer to go by.
const DOMAINS_MAX: usize = 16_384;
/// Each costs a call when an instance is defined, and a host of ours has few.
const STRANGERS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub domain: Domain,
    /// Libvirt has it, and not only the folder.
    pub is_defined: bool,
}

/// By name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Inventory(BTreeMap<String, Found>);

impl Inventory {
    /// One instance, or the name of a stranger's domain that is where it would be.
    pub fn get(mut self, id: InstanceId) -> Result<Option<Found>, String> {
        match self.0.remove(&name::domain(id)) {
            Some(found) if found.domain.instance == Some(id) => Ok(Some(found)),
            Some(stranger) => Err(stranger.domain.name),
            None => Ok(None),
        }
    }

    /// Domains that are nobody's instance, each by its name; so many that all can be looked at.
    pub fn strangers(&self) -> Vec<String> {
        let strangers = self.0.values().filter(|found| found.domain.instance.is_none());
        strangers.take(STRANGERS_MAX).map(|found| found.domain.name.clone()).collect()
    }

    pub fn domains(self) -> Vec<Domain> {
        self.0.into_values().map(|found| found.domain).collect()
    }
}

/// What one domain's statistics say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stats {
    state: DomainState,
    vcpus: u32,
    memory_bytes: u64,
}

/// Files come last: an instance that is made meanwhile has its folder first, so that it is never missing.
pub async fn look(virsh: &Virsh, instances: &Path) -> Result<Inventory, Trouble> {
    let names = ids(&virsh.ok(&["list", "--all", "--uuid", "--name"]).await?)?;
    // Without waiting for a hypervisor process that is stuck.
    let stats = virsh.ok(&["domstats", "--state", "--vcpu", "--balloon", "--nowait"]).await?;
    let stats = statistics(&stats)?;
    let folders = folders(instances)?;
    Ok(merge(names, &stats, folders))
}

fn merge(
    names: BTreeMap<String, String>,
    stats: &BTreeMap<String, Stats>,
    folders: Vec<InstanceId>,
) -> Inventory {
    let mut found = BTreeMap::new();
    for (name, uuid) in names {
        // Gone since the names were asked for.
        let Some(stats) = stats.get(&name) else { continue };
        if name == CANARY {
            continue;
        }
        let instance = name::instance(&name).filter(|id| id.uuid().to_string() == uuid);
        let domain = Domain {
            name: name.clone(),
            instance,
            state: stats.state,
            vcpus: stats.vcpus,
            memory_bytes: stats.memory_bytes,
            place: MemoryPlace::default(),
        };
        found.insert(name, Found { domain, is_defined: true });
    }
    for id in folders {
        found.entry(name::domain(id)).or_insert_with_key(|name| {
            let state = DomainState::Incomplete;
            let domain = Domain {
                name: name.clone(),
                instance: Some(id),
                state,
                vcpus: 0,
                memory_bytes: 0,
                place: MemoryPlace::default(),
            };
            Found { domain, is_defined: false }
        });
    }
    Inventory(found)
}

/// Lines of a UUID and a name.
fn ids(text: &str) -> Result<BTreeMap<String, String>, Trouble> {
    let unreadable = Trouble::Unreadable { what: "its list of domains" };
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match line.split_once(' ') {
            Some((uuid, name)) if uuid.len() == 36 && found.len() < DOMAINS_MAX => {
                found.insert(name.trim().to_owned(), uuid.to_owned());
            }
            Some(_) | None => return Err(unreadable),
        }
    }
    Ok(found)
}

/// Blocks that begin with `Domain: 'name'`, with lines `key=value` in them.
fn statistics(text: &str) -> Result<BTreeMap<String, Stats>, Trouble> {
    let unreadable = || Trouble::Unreadable { what: "its statistics of domains" };
    let mut found: BTreeMap<String, Stats> = BTreeMap::new();
    let mut name = None;
    let mut values: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines().map(str::trim).chain(["Domain: ''"]) {
        if let Some(next) = line.strip_prefix("Domain: '").and_then(|rest| rest.strip_suffix('\'')) {
            if let Some(name) = name.replace(next.to_owned()) {
                found.insert(name, of_domain(&values).ok_or_else(unreadable)?);
            }
            values.clear();
        } else if let Some((key, value)) = line.split_once('=') {
            values.insert(key, value);
        }
    }
    Ok(found)
}

fn of_domain(values: &BTreeMap<&str, &str>) -> Option<Stats> {
    let number = |key: &str| values.get(key).and_then(|value| value.parse::<u64>().ok());
    // The reason of a domain that is off and was not turned off.
    const CRASHED: u64 = 3;
    let state = match (number("state.state")?, number("state.reason")) {
        (0 | 1 | 2 | 4, _) => DomainState::Running,
        (3 | 7, _) => DomainState::Paused,
        (5, Some(CRASHED)) | (6, _) => DomainState::Crashed,
        (5, _) => DomainState::Stopped,
        _ => return None,
    };
    let vcpus = number("vcpu.maximum").and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
    let memory_bytes = number("balloon.maximum").and_then(|kib| kib.checked_mul(KIB)).unwrap_or(0);
    Some(Stats { state, vcpus, memory_bytes })
}

/// Folders that are named like instances; others are nobody's business.
pub fn folders(instances: &Path) -> Result<Vec<InstanceId>, FsError> {
    let failed = |source| FsError { doing: "list", path: instances.to_owned(), source };
    let entries = match std::fs::read_dir(instances) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        found.extend(entry.file_name().to_str().and_then(|name| name.parse::<InstanceId>().ok()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
