//! The nodes in classes. A class is every node on which taking 1, 2, … free devices of a model means the same (as many
//! left, on as many islands and NUMA nodes), so how good that is is worked out once for all of them and kept. A ladder
//! has the classes in the order in which a claim tries them; in a class the nodes stand in order of free CPU and memory,
//! then id: the first that passes is the class's best. Hardware of one kind makes few classes, however many nodes.
//!
//! Every class, and every few dozen nodes in it, knows the most that any of its nodes has free and which labels they
//! carry, so that those out of the question are passed over unopened. A claim that nobody can take is refused by these.

mod ladder;
mod layout;
mod ranked;
mod shape;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use ladder::Ladders;
use layout::Layouts;
pub(crate) use layout::{DEVICES_MAX, Layout, Mask, places};
use ranked::Ranked;
pub(crate) use ranked::{Ask, Entry, Most};
pub(crate) use shape::Shape;

use crate::claim::{Claim, Policy};
use crate::snapshot::{Device, ModelSym, Node, Slot};

pub(crate) type ClassId = u32;

/// Empty classes are kept, since nodes come back to them, but not more than these beside those in use.
const EMPTY_SPARE: usize = 1024;
/// Sets of free devices whose meaning is kept. A machine with eight devices has 255.
const PATTERNS_MAX: usize = 16 * 1024;

pub(crate) struct Class {
    pub shape: Arc<Shape>,
    pub nodes: Ranked,
}

/// What a set of a layout's free devices means.
#[derive(Debug)]
pub(crate) struct Pattern {
    class: ClassId,
    /// Those to take for 1, 2, … of any memory.
    takes: Box<[Mask]>,
}

/// A node's place in a class; the pattern is that of its free devices of the class's model.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub class: ClassId,
    pub free: Mask,
    pattern: Option<Arc<Pattern>>,
}

impl Member {
    /// The devices to take for so many of any memory.
    pub fn taken(&self, gpus: u32) -> Option<Mask> {
        self.pattern.as_ref()?.takes.get((gpus as usize).checked_sub(1)?).copied()
    }
}

/// A hasher without a random key: what is decided must not differ from one run to the next, nor how long it takes.
type Fixed = BuildHasherDefault<DefaultHasher>;

#[derive(Default)]
pub(crate) struct Index {
    classes: Vec<Option<Class>>,
    /// Of each class, apart from it: a search looks at many and opens few.
    most: Vec<Most>,
    vacant: Vec<ClassId>,
    empty: usize,
    by_shape: BTreeMap<Arc<Shape>, ClassId>,
    ladders: Ladders,
    layouts: Layouts,
    /// By layout, free devices of one model, and whether the node holds nothing.
    patterns: HashMap<(u64, Mask, bool), Arc<Pattern>, Fixed>,
}

/// A claim is one of a whole node's, which is never spread: the smallest that will do is taken.
pub(crate) fn packed(claim: &Claim, policy: Policy) -> Policy {
    if claim.whole_node { Policy::Pack } else { policy }
}

impl Index {
    pub fn class(&self, id: ClassId) -> &Class {
        self.classes[id as usize].as_ref().expect("the tables name only classes in use")
    }

    pub fn most(&self, id: ClassId) -> &Most {
        &self.most[id as usize]
    }

    pub fn ladders(&self) -> &Ladders {
        &self.ladders
    }

    pub fn layout(&mut self, devices: &[Device]) -> Arc<Layout> {
        self.layouts.of(devices)
    }

    /// Puts a node in the classes its present state belongs to. A node that takes no work is in none.
    pub fn enter(&mut self, slot: Slot, node: &mut Node) {
        if !node.standing.takes_work() || node.held_whole {
            return;
        }
        let (free, unused) = (node.free(), node.is_unused());
        let entry = node.entry(slot);
        let host = self.class_of(Shape::without_model(free.count_ones(), unused));
        self.join(node, Member { class: host, free, pattern: None }, entry);
        let layout = node.layout.clone();
        for (model, devices) in &layout.models {
            let free = free & devices;
            if free != 0 {
                let pattern = self.pattern(&layout, *model, free, unused);
                self.join(node, Member { class: pattern.class, free, pattern: Some(pattern) }, entry);
            }
        }
    }

    /// Takes a node out, before it changes.
    pub fn leave(&mut self, node: &mut Node) {
        // The slot is no part of the order, so it need not be known to find the entry.
        let entry = node.entry(0);
        for member in node.members.drain(..) {
            let at = member.class as usize;
            let class = self.classes[at].as_mut().expect("a node names only classes in use");
            let removed = class.nodes.remove(&entry);
            debug_assert!(removed, "a node is in the classes it names");
            self.most[at] = class.nodes.most();
            self.empty += usize::from(!self.most[at].some);
        }
        if self.empty > EMPTY_SPARE && self.empty > self.by_shape.len() / 2 {
            self.forget_empty();
        }
    }

    fn join(&mut self, node: &mut Node, member: Member, entry: Entry) {
        let at = member.class as usize;
        let class = self.classes[at].as_mut().expect("just found or made");
        self.empty -= usize::from(!self.most[at].some);
        class.nodes.insert(entry);
        self.most[at] = class.nodes.most();
        node.members.push(member);
    }

    fn pattern(&mut self, layout: &Layout, model: ModelSym, free: Mask, unused: bool) -> Arc<Pattern> {
        let key = (layout.id, free, unused);
        if let Some(pattern) = self.patterns.get(&key) {
            return pattern.clone();
        }
        let cells = layout.cells(free);
        let (outcomes, takes) = layout.outcomes(free, &cells);
        let class = self.class_of(Shape::of_model(model, unused, &cells, outcomes));
        let pattern = Arc::new(Pattern { class, takes });
        if self.patterns.len() >= PATTERNS_MAX {
            self.patterns.clear();
        }
        self.patterns.insert(key, pattern.clone());
        pattern
    }

    fn class_of(&mut self, shape: Shape) -> ClassId {
        if let Some(id) = self.by_shape.get(&shape) {
            return *id;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.classes.push(None);
            self.most.push(Most::default());
            ClassId::try_from(self.classes.len() - 1).expect("fewer classes than devices")
        });
        self.ladders.add(id, &shape);
        let shape = Arc::new(shape);
        self.by_shape.insert(shape.clone(), id);
        self.classes[id as usize] = Some(Class { shape, nodes: Ranked::default() });
        self.empty += 1;
        id
    }

    fn forget_empty(&mut self) {
        let Self { classes, most, vacant, by_shape, ladders, .. } = self;
        ladders.retain(|id| most[id as usize].some);
        by_shape.retain(|_, id| {
            let at = *id as usize;
            if !most[at].some {
                classes[at] = None;
                vacant.push(*id);
            }
            most[at].some
        });
        // They name classes that are gone.
        self.patterns.clear();
        self.empty = 0;
    }
}
