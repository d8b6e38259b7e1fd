//! The search: the best class first, in it the first node that passes.

use model::label::CAPABILITY_PREFIX;

use crate::claim::{Claim, Policy};
use crate::explain::NoFit;
use crate::index::{Class, packed};
use crate::placement::{Booking, DeviceScore, Limits, Placement, Score};
use crate::snapshot::{Device, ModelSym, Node, Slot, Snapshot, Sym};
use crate::topology::{Cell, NO_NUMA, choose};
use crate::view::NumaView;
use crate::{AtomId, CpuSet};

/// A label that fewer than one in this many nodes carry is searched by its own list of nodes: walking the classes
/// would mostly meet nodes without it.
const NARROW_SHARE: usize = 8;

/// A claim in the snapshot's own numbers.
pub(crate) struct Wanted<'a> {
    pub claim: &'a Claim,
    pub policy: Policy,
    labels: Vec<Sym>,
    model: Model,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    /// No GPUs are wanted.
    NoGpus,
    Any,
    Named(ModelSym),
}

#[derive(Clone, Copy)]
struct Best {
    score: Score,
    slot: Slot,
    model: Option<ModelSym>,
}

impl Snapshot {
    /// The best node for the claim, or why there is none. Changes nothing: [`Snapshot::book`] the placement's booking.
    pub fn place(&self, claim: &Claim, policy: Policy) -> Result<Placement, NoFit> {
        self.find(claim, policy).ok_or_else(|| NoFit::of(self, claim, policy))
    }

    /// As [`Snapshot::place`], without the reasons, which take a look at every node.
    pub fn find(&self, claim: &Claim, policy: Policy) -> Option<Placement> {
        let wanted = Wanted::read(self, claim, policy)?;
        let narrowest =
            wanted.labels.iter().map(|label| self.labels.nodes(*label)).min_by_key(|nodes| nodes.len());
        let best = match narrowest {
            Some(nodes) if nodes.len() < self.len() / NARROW_SHARE => self.best_of(nodes, &wanted),
            Some(_) | None => self.best(&wanted),
        }?;
        Some(self.placement(&wanted, best))
    }

    fn best(&self, wanted: &Wanted<'_>) -> Option<Best> {
        let claim = wanted.claim;
        let mut best: Option<Best> = None;
        let mut search = |model: Option<ModelSym>| {
            for class in self.index.classes(model, claim.gpus, wanted.policy) {
                let Some(devices) = class.score(claim, wanted.policy) else { continue };
                if best.is_some_and(|best| best.score.devices < devices) {
                    continue;
                }
                let admits = |slot: Slot| wanted.admits(self.at(slot));
                let Some(entry) = class.first(claim, wanted.policy, |entry| admits(entry.slot)) else {
                    continue;
                };
                let score = wanted.score(self.at(entry.slot), devices);
                // Models come in order of name, so of equal scores (two models on one node) the first name stays.
                if best.is_none_or(|best| score < best.score) {
                    best = Some(Best { score, slot: entry.slot, model });
                }
            }
        };
        match wanted.model {
            Model::NoGpus => search(None),
            Model::Named(model) => search(Some(model)),
            Model::Any => self.models.values().for_each(|model| search(Some(*model))),
        }
        best
    }

    fn best_of(&self, slots: &[Slot], wanted: &Wanted<'_>) -> Option<Best> {
        let fits = |slot: &Slot| {
            let node = self.at(*slot);
            let host = &node.host;
            let room = host.cpu_millis.free() >= wanted.claim.cpu_millis
                && host.memory_bytes.free() >= wanted.claim.memory_bytes;
            let (devices, model) = (room && wanted.admits(node)).then(|| self.best_class(node, wanted))??;
            Some(Best { score: wanted.score(node, devices), slot: *slot, model })
        };
        slots.iter().filter_map(fits).min_by_key(|best| best.score)
    }

    /// The best of a node's classes for the claim, and its model; none when the node takes no work or does not fit.
    pub(crate) fn best_class(
        &self,
        node: &Node,
        wanted: &Wanted<'_>,
    ) -> Option<(DeviceScore, Option<ModelSym>)> {
        let scored = |class: &Class| {
            let model = class.shape.model;
            let asked = match wanted.model {
                Model::NoGpus => model.is_none(),
                Model::Any => model.is_some(),
                Model::Named(named) => model == Some(named),
            };
            asked.then(|| class.score(wanted.claim, wanted.policy))?.map(|score| (score, model))
        };
        let name = |model: Option<ModelSym>| model.map(|model| &self.model_names[model as usize]);
        node.classes
            .iter()
            .filter_map(|id| scored(self.index.class(*id)))
            .min_by(|a, b| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(&name(b.1))))
    }

    fn placement(&self, wanted: &Wanted<'_>, best: Best) -> Placement {
        let claim = wanted.claim;
        let node = self.at(best.slot);
        let devices = match best.model {
            _ if claim.whole_node => (0..node.devices.len()).collect(),
            Some(model) => taken(node, model, claim),
            None => Vec::new(),
        };
        let mut numa_nodes: Vec<u16> = devices.iter().map(|at| node.devices[*at].numa).collect();
        numa_nodes.sort_unstable();
        numa_nodes.dedup();
        let limits = if claim.whole_node { Limits::default() } else { limits(node, &numa_nodes, claim) };
        numa_nodes.retain(|numa| *numa != NO_NUMA);
        let least = |wanted: u64, all: u64| if claim.whole_node { all } else { wanted };
        let host = &node.host;
        let booking = Booking {
            node: node.id,
            atoms: devices.iter().map(|at| -> AtomId { node.devices[*at].atom.clone() }).collect(),
            cpu_millis: least(claim.cpu_millis, host.cpu_millis.free()),
            memory_bytes: least(claim.memory_bytes, host.memory_bytes.free()),
            hugepages_1gi: least(claim.hugepages_1gi, host.hugepages_1gi.free()),
            mems: limits.mems.clone(),
            whole_node: claim.whole_node,
        };
        Placement { generation: node.generation, booking, numa_nodes, limits, score: best.score }
    }
}

impl<'a> Wanted<'a> {
    /// None when a label or the model is on no node at all.
    pub fn read(snapshot: &Snapshot, claim: &'a Claim, policy: Policy) -> Option<Wanted<'a>> {
        let mut labels = Vec::with_capacity(claim.selector.len() + claim.capabilities.len());
        for (key, value) in &claim.selector {
            labels.push(snapshot.labels.find(key, value)?);
        }
        for name in &claim.capabilities {
            labels.push(snapshot.labels.find(&format!("{CAPABILITY_PREFIX}{name}"), "1")?);
        }
        let model = match (&claim.model, claim.gpus) {
            (_, 0) => Model::NoGpus,
            (None, _) => Model::Any,
            (Some(name), _) => Model::Named(*snapshot.models.get(name.as_str())?),
        };
        Some(Wanted { claim, policy: packed(claim, policy), labels, model })
    }

    /// What the index does not know about a node.
    fn admits(&self, node: &Node) -> bool {
        node.host.hugepages_1gi.free() >= self.claim.hugepages_1gi
            && self.labels.iter().all(|label| node.has_label(*label))
            && !self.claim.avoid.contains(&node.id)
    }

    /// Of a node that fits.
    pub fn score(&self, node: &Node, devices: DeviceScore) -> Score {
        let claim = self.claim;
        Score {
            devices,
            cpu_millis_left: self.policy.directed(node.host.cpu_millis.free() - claim.cpu_millis),
            memory_bytes_left: self.policy.directed(node.host.memory_bytes.free() - claim.memory_bytes),
            node: node.id,
        }
    }
}

/// The devices to take, in the driver's order where they are alike.
fn taken(node: &Node, model: ModelSym, claim: &Claim) -> Vec<usize> {
    let cells = node.cells(model);
    let choice = choose(&cells, claim.gpus, claim.gpu_memory_bytes_min).expect("the class of the node fits");
    let mut rest = choice.takes;
    let take = |(_, device): &(usize, &Device)| {
        let alike = |cell: &Cell| Cell { free: 1, ..*cell } == device.cell();
        let cell = cells.iter().position(alike).expect("every free device is in a cell");
        let takes = rest[cell] > 0;
        rest[cell] -= u16::from(takes);
        takes
    };
    let free =
        node.devices.iter().enumerate().filter(|(_, device)| device.model == model && device.is_free());
    free.filter(take).map(|(at, _)| at).collect()
}

/// Keeps the hold on its devices' NUMA nodes as far as they can carry it. One device of unknown place, or a NUMA node
/// the inventory does not list, and there is nothing to keep it to.
fn limits(node: &Node, numa_nodes: &[u16], claim: &Claim) -> Limits {
    let listed: Option<Vec<&NumaView>> =
        numa_nodes.iter().map(|id| node.numa.iter().find(|view| view.id == *id)).collect();
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else { return Limits::default() };
    let cpus = CpuSet::union(listed.iter().map(|view| &view.cpus));
    let cpus_wanted = claim.cpu_millis.div_ceil(1000);
    let cpus_fit = cpus_wanted > 0 && cpus.len() as u64 >= cpus_wanted;
    let share = |amount: u64, at: usize| Booking::share(amount, listed.len(), at);
    let holds = |(at, view): (usize, &&NumaView)| {
        view.memory_bytes.free() >= share(claim.memory_bytes, at)
            && view.hugepages_1gi.free() >= share(claim.hugepages_1gi, at)
    };
    let binds = claim.memory_bytes > 0 || claim.hugepages_1gi > 0;
    let mems_fit = binds && listed.iter().enumerate().all(holds);
    Limits {
        cpus: if cpus_fit { cpus } else { CpuSet::default() },
        mems: if mems_fit { numa_nodes.to_vec() } else { Vec::new() },
    }
}
