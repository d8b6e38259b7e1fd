//! One pool's nodes in memory, changed in place.

mod booking;
mod labels;
mod node;

use std::collections::BTreeMap;

use model::NodeId;

pub use booking::BookError;
pub(crate) use labels::{Labels, Sym};
pub(crate) use node::{Device, Node};

use crate::index::{DEVICES_MAX, Index};
use crate::view::{NodeView, Standing, Text};

/// NUMA nodes one node may list: the kernel's own bound (`MAX_NUMNODES`).
const NUMA_NODES_MAX: usize = 1024;

/// A node's place in the snapshot's table; reused after a removal.
pub(crate) type Slot = u32;
/// A GPU model's place in the snapshot's table.
pub(crate) type ModelSym = u32;

/// Why a node's description cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNode {
    #[error("node {node} lists {count} devices, at most 128 are taken")]
    TooManyDevices { node: NodeId, count: usize },
    #[error("node {node} lists {count} NUMA nodes, at most 1024 are taken")]
    TooManyNumaNodes { node: NodeId, count: usize },
    #[error("node {node} lists device {atom:?} twice")]
    AtomTwice { node: NodeId, atom: String },
    #[error("node {node} lists NUMA node {numa} twice")]
    NumaTwice { node: NodeId, numa: u16 },
}

/// The nodes of one pool. Cheap to change, and to decide on; under 2 KiB for a node with 10 GPUs.
#[derive(Default)]
pub struct Snapshot {
    pub(crate) nodes: Vec<Option<Box<Node>>>,
    vacant: Vec<Slot>,
    by_id: BTreeMap<NodeId, Slot>,
    /// Never forgotten: pools name few models.
    pub(crate) models: BTreeMap<Text, ModelSym>,
    pub(crate) model_names: Vec<Text>,
    pub(crate) labels: Labels,
    pub(crate) index: Index,
    /// The last generation given out. It only rises, so a node that left and came back is not taken for the same.
    generation: u64,
}

impl Snapshot {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Adds a node, or replaces all that is known of it, its bookings included. Gives its generation.
    pub fn upsert(&mut self, mut view: NodeView) -> Result<u64, InvalidNode> {
        check(&view)?;
        self.remove(view.id);
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            Slot::try_from(self.nodes.len() - 1).expect("a pool has fewer than four billion nodes")
        });
        self.generation += 1;
        let (id, labels) = (view.id, std::mem::take(&mut view.labels));
        let model = |name| {
            *self.models.entry(name).or_insert_with_key(|name| {
                self.model_names.push(name.clone());
                ModelSym::try_from(self.model_names.len() - 1).expect("fewer models than devices")
            })
        };
        let mut node = Node::new(view, self.generation, model, |devices| self.index.layout(devices));
        let attached = labels.iter().map(|(key, value)| self.labels.attach(key, value, slot));
        let mut symbols: Vec<(Sym, bool)> = attached.collect();
        symbols.sort_unstable();
        node.labels = symbols.iter().map(|(symbol, _)| *symbol).collect();
        node.label_bits = node.labels.iter().fold(0, |bits, symbol| bits | self.labels.bit(*symbol));
        self.index.enter(slot, &mut node);
        self.nodes[slot as usize] = Some(Box::new(node));
        self.by_id.insert(id, slot);
        symbols.into_iter().filter(|(_, widened)| *widened).for_each(|(symbol, _)| self.give_bit(symbol));
        Ok(self.generation)
    }

    /// Marks the nodes of a label with its bit, which is new.
    fn give_bit(&mut self, symbol: Sym) {
        let bit = self.labels.bit(symbol);
        for slot in self.labels.nodes(symbol) {
            let node = self.nodes[*slot as usize].as_deref_mut().expect("the tables name only slots in use");
            self.index.leave(node);
            node.label_bits |= bit;
            self.index.enter(*slot, node);
        }
    }

    /// Forgets a node; says whether it was there.
    pub fn remove(&mut self, id: NodeId) -> bool {
        let Some(slot) = self.by_id.remove(&id) else { return false };
        let mut node = self.nodes[slot as usize].take().expect("what the id table names is there");
        self.index.leave(&mut node);
        for symbol in &node.labels {
            self.labels.detach(*symbol, slot);
        }
        self.vacant.push(slot);
        true
    }

    /// Changes whether the node takes work. Gives its new generation, none when the node is unknown.
    pub fn set_standing(&mut self, id: NodeId, standing: Standing) -> Option<u64> {
        let slot = *self.by_id.get(&id)?;
        Some(self.edit(slot, |node| node.standing = standing))
    }

    /// Marks a device ill, with why, or well. Gives the node's new generation, none when the node or the device is
    /// unknown. A booking is not touched by it.
    pub fn set_health(&mut self, id: NodeId, atom: &str, unhealthy: Option<Text>) -> Option<u64> {
        let slot = *self.by_id.get(&id)?;
        let at = self.at(slot).device_at(atom)?;
        Some(self.edit(slot, |node| node.devices[at].unhealthy = unhealthy))
    }

    /// Rises with every change of the node. A decision holds while it is the same.
    pub fn generation(&self, id: NodeId) -> Option<u64> {
        self.node(id).map(|node| node.generation)
    }

    /// Everything known of a node. Copies; for looking, not for deciding.
    pub fn view(&self, id: NodeId) -> Option<NodeView> {
        let node = self.node(id)?;
        Some(node.view(&self.model_names, &self.labels))
    }

    /// In order of id.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_id.keys().copied()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Node> {
        self.by_id.values().map(|slot| self.at(*slot))
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.by_id.get(&id).map(|slot| self.at(*slot))
    }

    pub(crate) fn at(&self, slot: Slot) -> &Node {
        self.nodes[slot as usize].as_deref().expect("the tables name only slots in use")
    }

    /// Every change of a node goes through here: out of the index, changed, back in under its new class.
    fn edit(&mut self, slot: Slot, change: impl FnOnce(&mut Node)) -> u64 {
        let node = self.nodes[slot as usize].as_deref_mut().expect("the tables name only slots in use");
        self.index.leave(node);
        change(node);
        self.generation += 1;
        node.generation = self.generation;
        self.index.enter(slot, node);
        self.generation
    }
}

fn check(view: &NodeView) -> Result<(), InvalidNode> {
    let node = view.id;
    if view.devices.len() > DEVICES_MAX {
        return Err(InvalidNode::TooManyDevices { node, count: view.devices.len() });
    }
    if view.numa.len() > NUMA_NODES_MAX {
        return Err(InvalidNode::TooManyNumaNodes { node, count: view.numa.len() });
    }
    let mut atoms: Vec<&str> = view.devices.iter().map(|device| device.atom.as_str()).collect();
    atoms.sort_unstable();
    if let Some(pair) = atoms.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(InvalidNode::AtomTwice { node, atom: pair[0].chars().take(80).collect() });
    }
    let mut numa: Vec<u16> = view.numa.iter().map(|numa| numa.id).collect();
    numa.sort_unstable();
    match numa.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(InvalidNode::NumaTwice { node, numa: pair[0] }),
        None => Ok(()),
    }
}
