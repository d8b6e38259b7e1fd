//! Memory and its huge page pools.

use wire::inventory::{HUGE_PAGE_POOLS_MAX, HugePagePool, MemorySection};

use crate::proc;
use crate::root::Root;
use crate::text::Notes;

/// Pages that a pool has, used or not, and those that are free.
const IN_POOL: &str = "nr_hugepages";
const FREE: &str = "free_hugepages";

pub fn read(root: &Root) -> MemorySection {
    let mut notes = Notes::default();
    let meminfo = notes.take("meminfo", root.text("proc/meminfo")).unwrap_or_default();
    let mut huge_pages = all_pools(root, IN_POOL, &mut notes);
    huge_pages.sort_unstable();
    notes.bound("hugePages", &mut huge_pages, HUGE_PAGE_POOLS_MAX);
    MemorySection { total_bytes: proc::meminfo(&meminfo).total, huge_pages, unread: notes.finish() }
}

/// Huge pages that nobody has now: `pages` counts those alone.
pub fn free_pages(root: &Root) -> Vec<HugePagePool> {
    all_pools(root, FREE, &mut Notes::default())
}

fn all_pools(root: &Root, file: &str, notes: &mut Notes) -> Vec<HugePagePool> {
    let of_nodes = node_pools(root, file, notes);
    if of_nodes.is_empty() { pools(root, "sys/kernel/mm/hugepages", None, file, notes) } else { of_nodes }
}

fn node_pools(root: &Root, file: &str, notes: &mut Notes) -> Vec<HugePagePool> {
    let names = notes.take("hugePages", root.list("sys/devices/system/node").map(Some)).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| Some((name, name.strip_prefix("node")?.parse().ok()?)))
        .flat_map(|(name, id)| {
            pools(root, &format!("sys/devices/system/node/{name}/hugepages"), Some(id), file, notes)
        })
        .collect()
}

fn pools(
    root: &Root,
    folder: &str,
    numa_node: Option<u32>,
    file: &str,
    notes: &mut Notes,
) -> Vec<HugePagePool> {
    let names = notes.take("hugePages", root.list(folder).map(Some)).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = notes.number(root, "hugePages", &format!("{folder}/{name}/{file}"))?;
            let pool = HugePagePool { numa_node, page_bytes: kib.checked_mul(1024)?, pages };
            (pool.pages > 0).then_some(pool)
        })
        .collect()
}
