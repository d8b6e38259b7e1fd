//! `topo -m` and `nvlink -s`.

use std::collections::BTreeMap;

use wire::inventory::{CpuList, GPUS_MAX};

use super::value;

/// What the matrix says of one GPU's place. Absent where the driver or a container's CPU set hides it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopologyRow {
    pub index: u32,
    pub cpu_affinity: Option<CpuList>,
    pub numa_node: Option<u32>,
}

/// The header's column names with where each begins, in cells or in bytes.
struct Columns {
    tabs: bool,
    cpu: usize,
    numa: usize,
    numa_end: usize,
}

/// The matrix: separated by tabs as the driver writes it, or by blanks as it ends up in reports.
pub fn topology(text: &str) -> Vec<TopologyRow> {
    let text = without_escapes(text);
    let mut lines = text.lines();
    let Some(columns) = lines.by_ref().find_map(columns) else { return Vec::new() };
    lines.filter_map(|line| row(line, &columns)).take(GPUS_MAX).collect()
}

fn columns(line: &str) -> Option<Columns> {
    let cpu = line.find("CPU Affinity")?;
    let numa = line.find("NUMA Affinity")?;
    if !line.contains('\t') {
        let numa_end = line.find("GPU NUMA ID").filter(|end| *end > numa).unwrap_or(usize::MAX);
        return Some(Columns { tabs: false, cpu, numa, numa_end });
    }
    let cell = |name: &str| line.split('\t').position(|cell| cell.trim() == name);
    Some(Columns { tabs: true, cpu: cell("CPU Affinity")?, numa: cell("NUMA Affinity")?, numa_end: 0 })
}

fn row(line: &str, columns: &Columns) -> Option<TopologyRow> {
    let name = line.split_whitespace().next()?;
    let index = name.strip_prefix("GPU")?.parse().ok()?;
    let (cpu, numa) = if columns.tabs {
        let cells: Vec<&str> = line.split('\t').collect();
        (cells.get(columns.cpu).copied(), cells.get(columns.numa).copied())
    } else {
        (slice(line, columns.cpu, columns.numa), slice(line, columns.numa, columns.numa_end))
    };
    let list = cpu.and_then(value::text).and_then(|text| text.parse::<CpuList>().ok());
    Some(TopologyRow {
        index,
        cpu_affinity: list.filter(|list| !list.is_empty()),
        numa_node: numa.and_then(value::text).and_then(|text| text.parse().ok()),
    })
}

/// A column by its place. A value that runs into the next column is none: half a CPU list would be a wrong one.
fn slice(line: &str, start: usize, end: usize) -> Option<&str> {
    let end = end.min(line.len());
    let cell = line.get(start..end)?;
    let overflows = end < line.len() && !cell.ends_with(' ');
    (!overflows).then_some(cell)
}

/// The driver underlines the header with terminal escapes even when it writes to a pipe.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\x1b[") {
        out.push_str(&rest[..at]);
        rest = &rest[at + 2..];
        let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |end| end + 1);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Links that are up, by GPU UUID. A GPU without links is in it with none.
pub fn nvlinks_up(text: &str) -> BTreeMap<String, u32> {
    let mut links = BTreeMap::new();
    let mut uuid: Option<String> = None;
    for line in text.lines() {
        if line.starts_with("GPU ") {
            uuid = line
                .split_once("(UUID:")
                .and_then(|(_, rest)| value::gpu_uuid(rest.trim_end().strip_suffix(')')?));
            if let Some(uuid) = uuid.clone().filter(|_| links.len() < GPUS_MAX) {
                links.insert(uuid, 0u32);
            }
        } else if let Some((head, speed)) = line.trim().split_once(": ")
            && head.starts_with("Link ")
            && speed.trim().ends_with("/s")
            && let Some(count) = uuid.as_ref().and_then(|uuid| links.get_mut(uuid))
        {
            *count = count.saturating_add(1);
        }
    }
    links
}
