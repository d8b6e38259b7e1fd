//! `/proc/meminfo`, and the NUMA nodes' files of the same kind.

use wire::inventory::MemoryInfo;

/// In bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemInfo {
    pub total: Option<u64>,
    pub available: Option<u64>,
    pub free: Option<u64>,
    pub hugetlb: Option<u64>,
    pub swap_total: Option<u64>,
    pub swap_free: Option<u64>,
    /// Pages of the default huge page size.
    pub huge_pages_total: Option<u64>,
    pub huge_pages_free: Option<u64>,
    pub huge_page_bytes: Option<u64>,
}

impl MemInfo {
    /// Absent without the two numbers everything else is judged by.
    pub fn live(&self) -> Option<MemoryInfo> {
        Some(MemoryInfo {
            total_bytes: self.total?,
            available_bytes: self.available?.min(self.total?),
            free_bytes: self.free,
            hugetlb_bytes: self.hugetlb,
            swap_total_bytes: self.swap_total,
            swap_free_bytes: self.swap_free,
        })
    }
}

fn value(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => number.checked_mul(1024),
        None => Some(number),
        Some(_) => None,
    }
}

pub fn parse(text: &str) -> MemInfo {
    let mut info = MemInfo::default();
    for line in text.lines() {
        let Some((key, rest)) = line.split_once(':') else { continue };
        let slot = match key.trim() {
            "MemTotal" => &mut info.total,
            "MemAvailable" => &mut info.available,
            "MemFree" => &mut info.free,
            "Hugetlb" => &mut info.hugetlb,
            "SwapTotal" => &mut info.swap_total,
            "SwapFree" => &mut info.swap_free,
            "HugePages_Total" => &mut info.huge_pages_total,
            "HugePages_Free" => &mut info.huge_pages_free,
            "Hugepagesize" => &mut info.huge_page_bytes,
            _ => continue,
        };
        *slot = value(rest);
    }
    // Kernels before 4.17 do not sum the pools; without other sizes the default pool is the sum.
    if info.hugetlb.is_none() {
        info.hugetlb =
            info.huge_pages_total.zip(info.huge_page_bytes).and_then(|(n, size)| n.checked_mul(size));
    }
    info
}

/// `MemTotal` of `/sys/devices/system/node/nodeN/meminfo`, whose lines begin with `Node N`.
pub fn node_total_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, rest) = line.split_once(':')?;
        (key.split_whitespace().next_back() == Some("MemTotal")).then(|| value(rest))?
    })
}
