//! Which devices to take of those that are free and alike.
//!
//! Devices on one NVLink island talk to each other fastest, so the fewest islands come first, then the fewest NUMA
//! nodes; among equals the tightest fit, so that larger islands stay whole for larger claims. A device without NVLink
//! is an island of its own.

/// The island of a device that has no NVLink.
pub const NO_ISLAND: u16 = u16::MAX;
/// The NUMA node of a device whose node is unknown.
pub const NO_NUMA: u16 = u16::MAX;

/// Free devices of one model that are alike: same NUMA node, island and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub numa: u16,
    pub island: u16,
    pub memory_bytes: u64,
    pub free: u16,
}

/// What to take and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// How many of each cell, in the cells' order.
    pub takes: Vec<u16>,
    /// The largest memory among the devices taken.
    pub memory_bytes: u64,
    /// Islands they lie on; each device without NVLink counts as one.
    pub islands: u32,
    pub numa_nodes: u32,
    /// Islands of which some is taken and some is left free.
    pub broken: u32,
}

/// One island's free devices on one NUMA node.
#[derive(Clone, Copy)]
struct Part {
    numa: u16,
    island: u16,
    left: u32,
}

/// Takes `wanted` (at least 1) devices with at least `memory_bytes_min` each; none when there are not that many.
/// Cells are in ascending order. The islands taken are as few as can be: the largest whole ones first, and the last
/// the tightest that holds the rest.
pub fn choose(cells: &[Cell], wanted: u32, memory_bytes_min: u64) -> Option<Choice> {
    let fits = |cell: &&Cell| cell.memory_bytes >= memory_bytes_min;
    let free: u32 = cells.iter().filter(fits).map(|cell| u32::from(cell.free)).sum();
    if wanted == 0 || free < wanted {
        return None;
    }
    let mut parts: Vec<Part> = Vec::with_capacity(cells.len());
    for cell in cells.iter().filter(fits) {
        match parts.last_mut() {
            Some(part) if (part.numa, part.island) == (cell.numa, cell.island) => {
                part.left += u32::from(cell.free)
            }
            _ => parts.push(Part { numa: cell.numa, island: cell.island, left: u32::from(cell.free) }),
        }
    }
    let before = parts.clone();
    let (mut need, mut islands, mut broken) = (wanted, 0, 0);
    while need > 0 {
        let first = pick(&parts, &before, need)?;
        islands += 1;
        if parts[first].island == NO_ISLAND {
            parts[first].left -= 1;
            need -= 1;
            continue;
        }
        let island = parts[first].island;
        need -= take_island(&mut parts, island, need);
        broken += u32::from(parts.iter().any(|part| part.island == island && part.left > 0));
    }
    Some(settle(cells, &before, &parts, memory_bytes_min, islands, broken))
}

/// A part of the island to take next: the tightest that holds all that is needed, on the fewest NUMA nodes; else the
/// largest. Among equals one on a NUMA node already used, then on the tightest that could hold the rest.
fn pick(parts: &[Part], before: &[Part], need: u32) -> Option<usize> {
    let size = |part: &Part| match part.island {
        NO_ISLAND => 1,
        island => parts.iter().filter(|other| other.island == island).map(|other| other.left).sum(),
    };
    let used = |numa: u16| parts.iter().zip(before).any(|(now, was)| was.numa == numa && now.left < was.left);
    let room = |numa: u16| parts.iter().filter(|part| part.numa == numa).map(|part| part.left).sum::<u32>();
    let key = |part: &Part| {
        let size = size(part);
        let order =
            if size >= need { (0, u32::from(part.left < need), size) } else { (1, 0, u32::MAX - size) };
        let room = room(part.numa);
        let near = if room >= need { (0, room) } else { (1, u32::MAX - room) };
        (order, !used(part.numa), near, part.numa, part.island)
    };
    (0..parts.len()).filter(|at| parts[*at].left > 0).min_by_key(|at| key(&parts[*at]))
}

/// Takes up to `need` from one island, again the tightest part that holds it or else the largest; says how many.
fn take_island(parts: &mut [Part], island: u16, need: u32) -> u32 {
    let mut taken = 0;
    while taken < need {
        let rest = need - taken;
        let tightest =
            |part: &Part| if part.left >= rest { (0, part.left) } else { (1, u32::MAX - part.left) };
        let next = parts
            .iter_mut()
            .filter(|part| part.island == island && part.left > 0)
            .min_by_key(|part| (tightest(part), part.numa));
        let Some(part) = next else { break };
        let take = part.left.min(rest);
        part.left -= take;
        taken += take;
    }
    taken
}

/// Turns what was taken of the parts into takes of cells, smallest memory first (the cells' order).
fn settle(
    cells: &[Cell],
    before: &[Part],
    after: &[Part],
    memory_bytes_min: u64,
    islands: u32,
    broken: u32,
) -> Choice {
    let mut choice = Choice { takes: vec![0; cells.len()], memory_bytes: 0, islands, numa_nodes: 0, broken };
    let mut last_numa = None;
    for (was, now) in before.iter().zip(after) {
        let mut rest = was.left - now.left;
        if rest > 0 && last_numa != Some(was.numa) {
            // Parts are in order of NUMA node, so each is counted once.
            last_numa = Some(was.numa);
            choice.numa_nodes += 1;
        }
        for (at, cell) in cells.iter().enumerate() {
            let here = (cell.numa, cell.island) == (was.numa, was.island);
            if here && cell.memory_bytes >= memory_bytes_min && rest > 0 {
                let take = rest.min(u32::from(cell.free));
                choice.takes[at] = u16::try_from(take).expect("no more than the cell's own count");
                choice.memory_bytes = choice.memory_bytes.max(cell.memory_bytes);
                rest -= take;
            }
        }
    }
    choice
}

#[cfg(test)]
mod tests;
