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
    /// Places of its NUMA node and its island among the sums.
    numa_at: usize,
    island_at: usize,
}

/// What is left, part by part and summed, so that picking one looks at each part once.
struct Left {
    parts: Vec<Part>,
    of_numa: Vec<u32>,
    of_island: Vec<u32>,
    numa_used: Vec<bool>,
}

impl Left {
    fn new(mut parts: Vec<Part>) -> Left {
        let places = |of: fn(&Part) -> u16| {
            let mut all: Vec<u16> = parts.iter().map(of).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let (numa_nodes, islands) = (places(|part| part.numa), places(|part| part.island));
        let (mut of_numa, mut of_island) = (vec![0; numa_nodes.len()], vec![0; islands.len()]);
        for part in &mut parts {
            part.numa_at = numa_nodes.partition_point(|numa| *numa < part.numa);
            part.island_at = islands.partition_point(|island| *island < part.island);
            of_numa[part.numa_at] += part.left;
            of_island[part.island_at] += part.left;
        }
        Left { numa_used: vec![false; of_numa.len()], parts, of_numa, of_island }
    }

    fn take(&mut self, at: usize, count: u32) {
        let part = &mut self.parts[at];
        part.left -= count;
        self.of_numa[part.numa_at] -= count;
        self.of_island[part.island_at] -= count;
        self.numa_used[part.numa_at] |= count > 0;
    }
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
            _ => parts.push(Part {
                numa: cell.numa,
                island: cell.island,
                left: u32::from(cell.free),
                numa_at: 0,
                island_at: 0,
            }),
        }
    }
    let before = parts.clone();
    let mut left = Left::new(parts);
    let (mut need, mut islands, mut broken) = (wanted, 0, 0);
    while need > 0 {
        let first = pick(&left, need)?;
        islands += 1;
        let Part { island, island_at, .. } = left.parts[first];
        if island == NO_ISLAND {
            left.take(first, 1);
            need -= 1;
            continue;
        }
        need -= take_island(&mut left, island, need);
        broken += u32::from(left.of_island[island_at] > 0);
    }
    Some(settle(cells, &before, &left.parts, memory_bytes_min, islands, broken))
}

/// A part of the island to take next: the tightest that holds all that is needed, on the fewest NUMA nodes; else the
/// largest. Among equals one on a NUMA node already used, then on the tightest that could hold the rest.
fn pick(left: &Left, need: u32) -> Option<usize> {
    let key = |part: &Part| {
        let size = if part.island == NO_ISLAND { 1 } else { left.of_island[part.island_at] };
        let order =
            if size >= need { (0, u32::from(part.left < need), size) } else { (1, 0, u32::MAX - size) };
        let room = left.of_numa[part.numa_at];
        let near = if room >= need { (0, room) } else { (1, u32::MAX - room) };
        (order, !left.numa_used[part.numa_at], near, part.numa, part.island)
    };
    let parts = &left.parts;
    (0..parts.len()).filter(|at| parts[*at].left > 0).min_by_key(|at| key(&parts[*at]))
}

/// Takes up to `need` from one island, again the tightest part that holds it or else the largest; says how many.
fn take_island(left: &mut Left, island: u16, need: u32) -> u32 {
    let mut taken = 0;
    while taken < need {
        let rest = need - taken;
        let tightest =
            |part: &Part| if part.left >= rest { (0, part.left) } else { (1, u32::MAX - part.left) };
        let parts = left.parts.iter().enumerate();
        let next = parts
            .filter(|(_, part)| part.island == island && part.left > 0)
            .min_by_key(|(_, part)| (tightest(part), part.numa));
        let Some((at, part)) = next else { break };
        let take = part.left.min(rest);
        left.take(at, take);
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
