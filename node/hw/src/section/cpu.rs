//! CPUs and NUMA nodes.

use std::collections::BTreeSet;

use wire::inventory::{CpuList, CpuSection, NUMA_NODES_MAX, NumaNode};

use crate::proc;
use crate::root::Root;
use crate::text::Notes;

pub fn read(root: &Root) -> CpuSection {
    let mut notes = Notes::default();
    let text = notes.take("cpuinfo", root.text("proc/cpuinfo")).unwrap_or_default();
    let info = proc::cpuinfo(&text);
    let online = cpu_list(root, "online", "sys/devices/system/cpu/online", &mut notes);
    let (sockets, cores) = online.as_ref().map_or((None, None), |online| topology(root, online));
    let threads = online.as_ref().and_then(|online| u32::try_from(online.count()).ok());
    CpuSection {
        model: info.model,
        vendor: info.vendor,
        arch: arch(root, &mut notes),
        sockets: sockets.or(info.sockets),
        cores: cores.or(info.cores),
        threads: threads.or(Some(info.threads)).filter(|threads| *threads > 0),
        numa_nodes: numa_nodes(root, &mut notes),
        online,
        flags: info.flags,
        unread: notes.finish(),
    }
}

fn cpu_list(root: &Root, what: &str, path: &str, notes: &mut Notes) -> Option<CpuList> {
    let text = notes.take(what, root.text(path))?;
    match text.parse() {
        Ok(list) => Some(list),
        Err(_) => {
            notes.add(what, "not a CPU list");
            None
        }
    }
}

/// The kernel names its instruction set since 6.1; before that, this program runs on it.
fn arch(root: &Root, notes: &mut Notes) -> Option<String> {
    let named = notes.text(root, "arch", "proc/sys/kernel/arch");
    named.or_else(|| root.is_host().then(|| std::env::consts::ARCH.to_owned()))
}

/// Sockets and cores, counted over the online CPUs. Threads of one core share their sibling list; core ids alone repeat
/// between dies. A count is absent unless every CPU tells.
fn topology(root: &Root, online: &CpuList) -> (Option<u32>, Option<u32>) {
    let (mut packages, mut cores) = (BTreeSet::new(), BTreeSet::new());
    let (mut packages_whole, mut cores_whole) = (true, true);
    for cpu in online.iter() {
        let file =
            |name: &str| root.text(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok()?;
        // Firmware that does not know answers -1.
        match file("physical_package_id").filter(|id| !id.starts_with('-')) {
            Some(id) => drop(packages.insert(id)),
            None => packages_whole = false,
        }
        match file("core_cpus_list").or_else(|| file("thread_siblings_list")) {
            Some(siblings) => drop(cores.insert(siblings)),
            None => cores_whole = false,
        }
    }
    let count = |whole: bool, len: usize| u32::try_from(len).ok().filter(|len| whole && *len > 0);
    (count(packages_whole, packages.len()), count(cores_whole, cores.len()))
}

fn numa_nodes(root: &Root, notes: &mut Notes) -> Vec<NumaNode> {
    let names = notes.take("numaNodes", root.list("sys/devices/system/node").map(Some)).unwrap_or_default();
    let mut ids: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    ids.sort_unstable();
    notes.bound("numaNodes", &mut ids, NUMA_NODES_MAX);
    ids.into_iter().filter_map(|id| numa_node(root, id, notes)).collect()
}

fn numa_node(root: &Root, id: u32, notes: &mut Notes) -> Option<NumaNode> {
    let folder = format!("sys/devices/system/node/node{id}");
    let what = format!("node{id}");
    // A node that is only memory has an empty list; a node whose list cannot be read is left out with a note.
    let cpus = match root.text(&format!("{folder}/cpulist")) {
        Ok(text) => text.unwrap_or_default().parse().ok(),
        Err(error) => {
            notes.add(what.as_str(), error);
            return None;
        }
    };
    let Some(cpus) = cpus else {
        notes.add(what.as_str(), "not a CPU list");
        return None;
    };
    let meminfo = notes.take(what, root.text(&format!("{folder}/meminfo")));
    Some(NumaNode { id, cpus, memory_bytes: meminfo.as_deref().and_then(proc::node_total_bytes) })
}
