//! Memory and its huge page pools.

use wire::inventory::{HUGE_PAGE_POOLS_MAX, HugePagePool, MemorySection};

use crate::proc;
use crate::root::Root;
use crate::text::Notes;

pub fn read(root: &Root) -> MemorySection {
    let mut notes = Notes::default();
    let meminfo = notes.take("meminfo", root.text("proc/meminfo")).unwrap_or_default();
    let mut huge_pages = node_pools(root, &mut notes);
    if huge_pages.is_empty() {
        huge_pages = pools(root, "sys/kernel/mm/hugepages", None, &mut notes);
    }
    huge_pages.sort_unstable();
    notes.bound("hugePages", &mut huge_pages, HUGE_PAGE_POOLS_MAX);
    MemorySection { total_bytes: proc::meminfo(&meminfo).total, huge_pages, unread: notes.finish() }
}

fn node_pools(root: &Root, notes: &mut Notes) -> Vec<HugePagePool> {
    let names = notes.take("hugePages", root.list("sys/devices/system/node").map(Some)).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| Some((name, name.strip_prefix("node")?.parse().ok()?)))
        .flat_map(|(name, id)| {
            pools(root, &format!("sys/devices/system/node/{name}/hugepages"), Some(id), notes)
        })
        .collect()
}

fn pools(root: &Root, folder: &str, numa_node: Option<u32>, notes: &mut Notes) -> Vec<HugePagePool> {
    let names = notes.take("hugePages", root.list(folder).map(Some)).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = notes.number(root, "hugePages", &format!("{folder}/{name}/nr_hugepages"))?;
            let pool = HugePagePool { numa_node, page_bytes: kib.checked_mul(1024)?, pages };
            (pool.pages > 0).then_some(pool)
        })
        .collect()
}
