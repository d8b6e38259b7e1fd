//! The nodes in classes. A class is every node whose free devices of a model lie the same way (same counts on the
//! same NUMA nodes and islands), so what a claim would take there, and how good that is, is worked out once for all
//! of them and kept. In a class the nodes stand in order of free CPU and memory, then id: the first that passes is
//! the class's best. Hardware of one kind makes few classes, however many nodes.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use model::NodeId;

use crate::claim::{Claim, Policy};
use crate::placement::DeviceScore;
use crate::snapshot::{ModelSym, Node, Slot};
use crate::topology::{Cell, Choice, choose};

pub(crate) type ClassId = u32;

/// What makes nodes one class. Ordered so that a model's classes stand together, those with least free first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// None for the class a node has for claims without GPUs; then `free` counts all models and there are no cells.
    pub model: Option<ModelSym>,
    pub free: u32,
    pub unused: bool,
    pub cells: Box<[Cell]>,
}

/// A node in a class, in the order in which nodes are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub cpu_millis_free: u64,
    pub memory_bytes_free: u64,
    pub id: NodeId,
    pub slot: Slot,
}

/// What [`choose`] says for one count, without what to take.
#[derive(Debug, Clone, Copy)]
struct Outcome {
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

pub(crate) struct Class {
    pub shape: Arc<Shape>,
    memory_bytes_min: u64,
    memory_bytes_max: u64,
    /// For 1, 2, … up to all that is free, when any memory will do.
    outcomes: Box<[Outcome]>,
    nodes: BTreeSet<Entry>,
}

impl Class {
    fn new(shape: Arc<Shape>) -> Class {
        let memory = || shape.cells.iter().map(|cell| cell.memory_bytes);
        // The class for claims without GPUs has no cells to choose from.
        let countable = if shape.model.is_some() { shape.free } else { 0 };
        Class {
            memory_bytes_min: memory().min().unwrap_or(0),
            memory_bytes_max: memory().max().unwrap_or(0),
            outcomes: (1..=countable)
                .map(|count| Outcome::from(&choose(&shape.cells, count, 0).expect("no more than is free")))
                .collect(),
            nodes: BTreeSet::new(),
            shape,
        }
    }

    /// How good the class's devices are for the claim; none when they do not fit it.
    pub fn score(&self, claim: &Claim, policy: Policy) -> Option<DeviceScore> {
        if claim.whole_node && !self.shape.unused {
            return None;
        }
        if claim.gpus == 0 {
            return Some(DeviceScore { gpus_left: u64::from(self.shape.free), ..DeviceScore::default() });
        }
        let any_memory = claim.gpu_memory_bytes_min <= self.memory_bytes_min;
        let free = if any_memory { self.shape.free } else { self.free_of(claim.gpu_memory_bytes_min) };
        let left = u64::from(free.checked_sub(claim.gpus)?);
        if claim.whole_node {
            let gpu_memory_bytes = self.memory_bytes_max;
            return Some(DeviceScore { gpu_memory_bytes, gpus_left: left, ..DeviceScore::default() });
        }
        let outcome = if any_memory {
            self.outcomes[claim.gpus as usize - 1]
        } else {
            Outcome::from(&choose(&self.shape.cells, claim.gpus, claim.gpu_memory_bytes_min)?)
        };
        Some(DeviceScore {
            gpu_memory_bytes: outcome.memory_bytes,
            gpus_left: policy.directed(left),
            islands: outcome.islands,
            numa_nodes: outcome.numa_nodes,
            broken: outcome.broken,
        })
    }

    fn free_of(&self, memory_bytes_min: u64) -> u32 {
        let fits = |cell: &&Cell| cell.memory_bytes >= memory_bytes_min;
        self.shape.cells.iter().filter(fits).map(|cell| u32::from(cell.free)).sum()
    }

    /// The best node of the class that has the CPU and memory and passes `admits`.
    pub fn first(&self, claim: &Claim, policy: Policy, admits: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let from = |cpu_millis_free, memory_bytes_free| Entry {
            cpu_millis_free,
            memory_bytes_free,
            id: NodeId::from_uuid(Default::default()),
            slot: 0,
        };
        let fits = |entry: &&Entry| entry.memory_bytes_free >= claim.memory_bytes && admits(entry);
        let able = || self.nodes.range(from(claim.cpu_millis, 0)..);
        match packed(claim, policy) {
            Policy::Pack => able().find(fits),
            Policy::Spread => {
                let last = able().rev().find(fits)?;
                // Going backwards, ids fall too: among nodes with as much left the lowest id is wanted.
                self.nodes.range(from(last.cpu_millis_free, last.memory_bytes_free)..).find(fits)
            }
        }
    }
}

/// A whole machine is never spread: the smallest that will do is taken.
pub(crate) fn packed(claim: &Claim, policy: Policy) -> Policy {
    if claim.whole_node { Policy::Pack } else { policy }
}

#[derive(Default)]
pub(crate) struct Index {
    by_shape: BTreeMap<Arc<Shape>, ClassId>,
    classes: Vec<Option<Class>>,
    vacant: Vec<ClassId>,
}

impl Index {
    /// The classes of a model (none: for claims without GPUs) with at least `free` free devices; those the policy
    /// likes best come first, so that the search can pass over most of the others unopened.
    pub fn classes(
        &self,
        model: Option<ModelSym>,
        free: u32,
        policy: Policy,
    ) -> impl Iterator<Item = &Class> {
        let bound = |model, free| Shape { model, free, unused: false, cells: Box::default() };
        let (from, to) = (bound(model, free), bound(Some(model.map_or(0, |model| model + 1)), 0));
        let mut range = self.by_shape.range::<Shape, _>((Bound::Included(&from), Bound::Excluded(&to)));
        std::iter::from_fn(move || match policy {
            Policy::Pack => range.next(),
            Policy::Spread => range.next_back(),
        })
        .map(|(_, id)| self.class(*id))
    }

    pub fn class(&self, id: ClassId) -> &Class {
        self.classes[id as usize].as_ref().expect("the tables name only classes in use")
    }

    /// Puts a node in the classes its present state belongs to. A node that takes no work is in none.
    pub fn enter(&mut self, slot: Slot, node: &mut Node) {
        if !node.standing.takes_work() || node.held_whole {
            return;
        }
        let unused = node.is_unused();
        let host = Shape { model: None, free: node.gpus_free(), unused, cells: Box::default() };
        let models = node.models_free().into_iter().map(|model| {
            let cells: Box<[Cell]> = node.cells(model).into();
            let free = cells.iter().map(|cell| u32::from(cell.free)).sum();
            Shape { model: Some(model), free, unused, cells }
        });
        let classes = std::iter::once(host).chain(models).map(|shape| self.join(shape, entry(slot, node)));
        node.classes = classes.collect();
    }

    /// Takes a node out, before it changes.
    pub fn leave(&mut self, node: &mut Node) {
        for id in std::mem::take(&mut node.classes) {
            let place = &mut self.classes[id as usize];
            let class = place.as_mut().expect("a node names only classes in use");
            // The slot is the last field and the id before it is unique, so it need not be known to find the entry.
            let key = entry(0, node);
            let found = class.nodes.range(key..).next().copied();
            if let Some(found) = found.filter(|found| found.id == node.id) {
                class.nodes.remove(&found);
            }
            if class.nodes.is_empty() {
                self.by_shape.remove(&*class.shape);
                *place = None;
                self.vacant.push(id);
            }
        }
    }

    fn join(&mut self, shape: Shape, entry: Entry) -> ClassId {
        let id = match self.by_shape.get(&shape) {
            Some(id) => *id,
            None => {
                let shape = Arc::new(shape);
                let class = Some(Class::new(shape.clone()));
                let id = match self.vacant.pop() {
                    Some(id) => {
                        self.classes[id as usize] = class;
                        id
                    }
                    None => {
                        self.classes.push(class);
                        ClassId::try_from(self.classes.len() - 1).expect("fewer classes than devices")
                    }
                };
                self.by_shape.insert(shape, id);
                id
            }
        };
        self.classes[id as usize].as_mut().expect("just found or made").nodes.insert(entry);
        id
    }
}

fn entry(slot: Slot, node: &Node) -> Entry {
    Entry {
        cpu_millis_free: node.host.cpu_millis.free(),
        memory_bytes_free: node.host.memory_bytes.free(),
        id: node.id,
        slot,
    }
}
