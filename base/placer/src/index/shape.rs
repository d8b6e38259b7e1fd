//! What makes nodes one class, and how good the class is for a claim.

use crate::claim::{Claim, Policy};
use crate::placement::DeviceScore;
use crate::snapshot::ModelSym;
use crate::topology::{Cell, Choice, choose};

/// Nodes with the same shape are equally good for every claim, as far as devices go. Which devices they are does not
/// matter, only what taking 1, 2, … of them means: hardware of one kind makes few shapes, however it is booked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// None for the class a node has for claims without GPUs; then `free` counts all models and there is no outcome.
    pub model: Option<ModelSym>,
    pub free: u32,
    /// Nothing of the node is booked.
    pub unused: bool,
    pub memory_bytes_min: u64,
    pub memory_bytes_max: u64,
    /// For 1, 2, … up to all that is free, when any memory will do.
    outcomes: Box<[Outcome]>,
    /// Only where the devices' memory differs: a claim may want the larger ones.
    cells: Box<[Cell]>,
}

/// What [`choose`] says for one count, without what to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome {
    memory_bytes: u64,
    islands: u32,
    numa_nodes: u32,
    broken: u32,
}

impl From<&Choice> for Outcome {
    fn from(choice: &Choice) -> Self {
        let Choice { memory_bytes, islands, numa_nodes, broken, .. } = *choice;
        Outcome { memory_bytes, islands, numa_nodes, broken }
    }
}

impl Shape {
    pub fn without_model(free: u32, unused: bool) -> Shape {
        Shape {
            model: None,
            free,
            unused,
            memory_bytes_min: 0,
            memory_bytes_max: 0,
            outcomes: Box::default(),
            cells: Box::default(),
        }
    }

    /// `outcomes` are those of the cells.
    pub fn of_model(model: ModelSym, unused: bool, cells: &[Cell], outcomes: Box<[Outcome]>) -> Shape {
        let memory = || cells.iter().map(|cell| cell.memory_bytes);
        let memory_bytes_min = memory().min().unwrap_or(0);
        let memory_bytes_max = memory().max().unwrap_or(0);
        Shape {
            model: Some(model),
            free: cells.iter().map(|cell| u32::from(cell.free)).sum(),
            unused,
            memory_bytes_min,
            memory_bytes_max,
            outcomes,
            cells: if memory_bytes_min < memory_bytes_max { cells.into() } else { Box::default() },
        }
    }

    pub fn memory_differs(&self) -> bool {
        self.memory_bytes_min < self.memory_bytes_max
    }

    /// How good the devices are for the claim; none when they do not fit it.
    pub fn score(&self, claim: &Claim, policy: Policy) -> Option<DeviceScore> {
        if claim.whole_node && !self.unused {
            return None;
        }
        if claim.gpus == 0 {
            return Some(DeviceScore { gpus_left: u64::from(self.free), ..DeviceScore::default() });
        }
        let any_memory = claim.gpu_memory_bytes_min <= self.memory_bytes_min;
        let free = if any_memory { self.free } else { self.free_of(claim.gpu_memory_bytes_min) };
        let left = free.checked_sub(claim.gpus)?;
        if claim.whole_node {
            let gpu_memory_bytes = self.memory_bytes_max;
            let gpus_left = u64::from(left);
            return Some(DeviceScore { gpu_memory_bytes, gpus_left, ..DeviceScore::default() });
        }
        if any_memory {
            return self.score_of(claim.gpus, policy);
        }
        let choice = choose(&self.cells, claim.gpus, claim.gpu_memory_bytes_min)?;
        Some(Outcome::from(&choice).score(left, policy))
    }

    /// As [`Shape::score`], for so many GPUs of any memory.
    pub fn score_of(&self, gpus: u32, policy: Policy) -> Option<DeviceScore> {
        let outcome = self.outcomes.get(usize::try_from(gpus.checked_sub(1)?).ok()?)?;
        Some(outcome.score(self.free - gpus, policy))
    }

    fn free_of(&self, memory_bytes_min: u64) -> u32 {
        let fits = |cell: &&Cell| cell.memory_bytes >= memory_bytes_min;
        self.cells.iter().filter(fits).map(|cell| u32::from(cell.free)).sum()
    }
}

impl Outcome {
    fn score(self, left: u32, policy: Policy) -> DeviceScore {
        DeviceScore {
            gpu_memory_bytes: self.memory_bytes,
            gpus_left: policy.directed(u64::from(left)),
            islands: self.islands,
            numa_nodes: self.numa_nodes,
            broken: self.broken,
        }
    }
}
