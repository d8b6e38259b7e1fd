//! The classes in the order in which a claim tries them: for each model, count of GPUs and policy the best first.

use super::ClassId;
use super::shape::Shape;
use crate::claim::Policy;
use crate::placement::DeviceScore;
use crate::snapshot::ModelSym;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rung {
    pub devices: DeviceScore,
    pub class: ClassId,
}

/// Ascending, so the best first.
type Ladder = Vec<Rung>;

#[derive(Default)]
pub(crate) struct Ladders {
    /// For claims without GPUs. The policies agree on what is left of GPUs nobody asked for.
    host: Ladder,
    by_model: Vec<OfModel>,
}

#[derive(Default)]
struct OfModel {
    /// For 1, 2, … GPUs of any memory.
    pack: Vec<Ladder>,
    spread: Vec<Ladder>,
    /// Classes of devices with different memory, for claims that want the larger ones.
    differing: Vec<ClassId>,
    /// Classes of nodes that hold nothing, for claims of whole nodes.
    unused: Vec<ClassId>,
}

impl Ladders {
    pub fn add(&mut self, class: ClassId, shape: &Shape) {
        let Some(model) = shape.model else {
            let devices = DeviceScore { gpus_left: u64::from(shape.free), ..DeviceScore::default() };
            return put(&mut self.host, Rung { devices, class });
        };
        let at = model as usize;
        if self.by_model.len() <= at {
            self.by_model.resize_with(at + 1, OfModel::default);
        }
        let of = &mut self.by_model[at];
        for policy in [Policy::Pack, Policy::Spread] {
            let ladders = of.ladders_mut(policy);
            for gpus in 1..=shape.free {
                let Some(devices) = shape.score_of(gpus, policy) else { continue };
                if ladders.len() < gpus as usize {
                    ladders.push(Ladder::new());
                }
                put(&mut ladders[gpus as usize - 1], Rung { devices, class });
            }
        }
        if shape.memory_differs() {
            of.differing.push(class);
        }
        if shape.unused {
            of.unused.push(class);
        }
    }

    pub fn retain(&mut self, keep: impl Fn(ClassId) -> bool) {
        self.host.retain(|rung| keep(rung.class));
        for of in &mut self.by_model {
            for ladder in of.pack.iter_mut().chain(&mut of.spread) {
                ladder.retain(|rung| keep(rung.class));
            }
            of.differing.retain(|class| keep(*class));
            of.unused.retain(|class| keep(*class));
        }
    }

    pub fn without_gpus(&self) -> &[Rung] {
        &self.host
    }

    pub fn of(&self, model: ModelSym, gpus: u32, policy: Policy) -> &[Rung] {
        let ladder = self.by_model.get(model as usize).and_then(|of| {
            let ladders = match policy {
                Policy::Pack => &of.pack,
                Policy::Spread => &of.spread,
            };
            ladders.get((gpus as usize).checked_sub(1)?)
        });
        ladder.map_or(&[], Vec::as_slice)
    }

    pub fn differing(&self, model: ModelSym) -> &[ClassId] {
        self.by_model.get(model as usize).map_or(&[], |of| &of.differing)
    }

    pub fn unused(&self, model: ModelSym) -> &[ClassId] {
        self.by_model.get(model as usize).map_or(&[], |of| &of.unused)
    }
}

impl OfModel {
    fn ladders_mut(&mut self, policy: Policy) -> &mut Vec<Ladder> {
        match policy {
            Policy::Pack => &mut self.pack,
            Policy::Spread => &mut self.spread,
        }
    }
}

fn put(ladder: &mut Ladder, rung: Rung) {
    let at = ladder.partition_point(|held| *held < rung);
    ladder.insert(at, rung);
}
