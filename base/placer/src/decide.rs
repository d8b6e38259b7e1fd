//! The search: the best class first, in it the first node that passes.

use crate::claim::{Claim, Policy};
use crate::explain::NoFit;
use crate::index::{Ask, ClassId, Mask, Member, packed, places};
use crate::placement::{Booking, DeviceScore, Limits, Placement, Score};
use crate::snapshot::{ModelSym, Node, Slot, Snapshot, Sym};
use crate::topology::{NO_NUMA, choose};
use crate::view::NumaView;
use crate::{AtomId, CpuSet};

/// A claim in the snapshot's own numbers.
pub(crate) struct Wanted<'a> {
    pub claim: &'a Claim,
    pub policy: Policy,
    labels: Vec<Sym>,
    model: Model,
    ask: Ask,
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
    class: ClassId,
}

impl Snapshot {
    /// The best node for the claim, or why there is none. Changes nothing: [`Snapshot::book`] the placement's booking.
    pub fn place(&self, claim: &Claim, policy: Policy) -> Result<Placement, NoFit> {
        self.find(claim, policy).ok_or_else(|| NoFit::of(self, claim, policy))
    }

    /// As [`Snapshot::place`], without the reasons, which take a look at every node. Takes about a microsecond however
    /// many nodes there are, also when no node fits.
    pub fn find(&self, claim: &Claim, policy: Policy) -> Option<Placement> {
        let wanted = Wanted::read(self, claim, policy)?;
        // A label that few nodes carry is searched by its own list of nodes: the classes would mostly show others.
        let best = match self.labels.narrowest(&wanted.labels) {
            Some(nodes) => self.best_of(nodes, &wanted),
            None => self.best(&wanted),
        }?;
        Some(self.placement(&wanted, best))
    }

    fn best(&self, wanted: &Wanted<'_>) -> Option<Best> {
        let mut best = None;
        match wanted.model {
            Model::NoGpus => self.search_without_gpus(wanted, &mut best),
            Model::Named(model) => self.search(wanted, model, &mut best),
            // In order of name, so of equal scores (two models on one node) the first name stays.
            Model::Any => self.models.values().for_each(|model| self.search(wanted, *model, &mut best)),
        }
        best
    }

    fn search_without_gpus(&self, wanted: &Wanted<'_>, best: &mut Option<Best>) {
        for rung in self.index.ladders().without_gpus() {
            if best.is_some_and(|best| best.score.devices < rung.devices) {
                break;
            }
            if !wanted.claim.whole_node || self.index.class(rung.class).shape.unused {
                self.try_class(wanted, rung.class, rung.devices, best);
            }
        }
    }

    fn search(&self, wanted: &Wanted<'_>, model: ModelSym, best: &mut Option<Best>) {
        let (claim, policy) = (wanted.claim, wanted.policy);
        let ladders = self.index.ladders();
        let scored = |class: ClassId| self.index.class(class).shape.score(claim, policy);
        if claim.whole_node {
            for class in ladders.unused(model) {
                if let Some(devices) = scored(*class) {
                    self.try_class(wanted, *class, devices, best);
                }
            }
            return;
        }
        let memory_bytes_min = claim.gpu_memory_bytes_min;
        let too_small = |class: ClassId| self.index.class(class).shape.memory_bytes_min < memory_bytes_min;
        for rung in ladders.of(model, claim.gpus, policy) {
            if best.is_some_and(|best| best.score.devices < rung.devices) {
                break;
            }
            if memory_bytes_min == 0 || !too_small(rung.class) {
                self.try_class(wanted, rung.class, rung.devices, best);
            }
        }
        // Some of their devices are too small and some need not be.
        for class in ladders.differing(model).iter().filter(|class| too_small(**class)) {
            if let Some(devices) = scored(*class) {
                self.try_class(wanted, *class, devices, best);
            }
        }
    }

    /// Takes the class's best node when it is better than the best so far.
    fn try_class(&self, wanted: &Wanted<'_>, class: ClassId, devices: DeviceScore, best: &mut Option<Best>) {
        let out = !self.index.most(class).may_have(&wanted.ask);
        if out || best.is_some_and(|best| best.score.devices < devices) {
            return;
        }
        let nodes = &self.index.class(class).nodes;
        let Some(entry) = nodes.first(&wanted.ask, wanted.policy, |entry| {
            !wanted.claim.avoid.contains(&entry.id) && wanted.has_labels(self.at(entry.slot))
        }) else {
            return;
        };
        let score = wanted.score(self.at(entry.slot), devices);
        if best.is_none_or(|best| score < best.score) {
            *best = Some(Best { score, slot: entry.slot, class });
        }
    }

    fn best_of(&self, slots: &[Slot], wanted: &Wanted<'_>) -> Option<Best> {
        let fits = |slot: &Slot| {
            let node = self.at(*slot);
            let (devices, class) = wanted.admits(node).then(|| self.best_class(node, wanted))??;
            Some(Best { score: wanted.score(node, devices), slot: *slot, class })
        };
        slots.iter().filter_map(fits).min_by_key(|best| best.score)
    }

    /// The best of a node's classes for the claim; none when the node takes no work or its devices do not fit.
    pub(crate) fn best_class(&self, node: &Node, wanted: &Wanted<'_>) -> Option<(DeviceScore, ClassId)> {
        let model = |class: ClassId| self.index.class(class).shape.model;
        let scored = |member: &Member| {
            let asked = match wanted.model {
                Model::NoGpus => model(member.class).is_none(),
                Model::Any => model(member.class).is_some(),
                Model::Named(named) => model(member.class) == Some(named),
            };
            let shape = &self.index.class(member.class).shape;
            asked.then(|| shape.score(wanted.claim, wanted.policy))?.map(|score| (score, member.class))
        };
        let name = |class: ClassId| model(class).map(|model| &self.model_names[model as usize]);
        let better = |a: &(DeviceScore, ClassId), b: &(DeviceScore, ClassId)| {
            a.0.cmp(&b.0).then_with(|| name(a.1).cmp(&name(b.1)))
        };
        node.members.iter().filter_map(scored).min_by(better)
    }

    fn placement(&self, wanted: &Wanted<'_>, best: Best) -> Placement {
        let claim = wanted.claim;
        let node = self.at(best.slot);
        let devices = self.taken(node, best.class, claim);
        let mut numa_nodes: Vec<u16> = Vec::new();
        let mut atoms: Vec<AtomId> = Vec::with_capacity(devices.count_ones() as usize);
        for device in places(devices).map(|at| &node.devices[at]) {
            atoms.push(device.atom.clone());
            if let Err(at) = numa_nodes.binary_search(&device.numa) {
                numa_nodes.insert(at, device.numa);
            }
        }
        let limits = if claim.whole_node { Limits::default() } else { limits(node, &numa_nodes, claim) };
        numa_nodes.retain(|numa| *numa != NO_NUMA);
        let least = |wanted: u64, all: u64| if claim.whole_node { all } else { wanted };
        let host = &node.host;
        let booking = Booking {
            node: node.id,
            atoms,
            cpu_millis: least(claim.cpu_millis, host.cpu_millis.free()),
            memory_bytes: least(claim.memory_bytes, host.memory_bytes.free()),
            hugepages_1gi: least(claim.hugepages_1gi, host.hugepages_1gi.free()),
            // Of a node held whole nobody else books any.
            disk_bytes: claim.disk_bytes,
            mems: limits.mems.clone(),
            whole_node: claim.whole_node,
        };
        Placement { generation: node.generation, booking, numa_nodes, limits, score: best.score }
    }

    /// The devices to take of a node that fits, in the driver's order where they are alike.
    fn taken(&self, node: &Node, class: ClassId, claim: &Claim) -> Mask {
        if claim.whole_node {
            return node.all_devices();
        }
        if claim.gpus == 0 {
            return 0;
        }
        let member = node.members.iter().find(|member| member.class == class).expect("it was found in it");
        let any_memory = claim.gpu_memory_bytes_min <= self.index.class(class).shape.memory_bytes_min;
        if let Some(taken) = member.taken(claim.gpus).filter(|_| any_memory) {
            return taken;
        }
        let cells = node.layout.cells(member.free);
        let choice =
            choose(&cells, claim.gpus, claim.gpu_memory_bytes_min).expect("the class of the node fits");
        node.layout.taken(member.free, &cells, choice.takes)
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
            labels.push(snapshot.labels.find_capability(name)?);
        }
        let model = match (&claim.model, claim.gpus) {
            (_, 0) => Model::NoGpus,
            (None, _) => Model::Any,
            (Some(name), _) => Model::Named(*snapshot.models.get(name.as_str())?),
        };
        let ask = Ask {
            cpu_millis: claim.cpu_millis,
            memory_bytes: claim.memory_bytes,
            hugepages_1gi: claim.hugepages_1gi,
            disk_bytes: claim.disk_bytes,
            label_bits: labels.iter().fold(0, |bits, label| bits | snapshot.labels.bit(*label)),
        };
        Some(Wanted { claim, policy: packed(claim, policy), labels, model, ask })
    }

    /// All that a node needs beside its devices.
    fn admits(&self, node: &Node) -> bool {
        let host = &node.host;
        host.cpu_millis.free() >= self.claim.cpu_millis
            && host.memory_bytes.free() >= self.claim.memory_bytes
            && host.hugepages_1gi.free() >= self.claim.hugepages_1gi
            && host.disk_bytes.free() >= self.claim.disk_bytes
            && !self.claim.avoid.contains(&node.id)
            && self.has_labels(node)
    }

    fn has_labels(&self, node: &Node) -> bool {
        self.labels.iter().all(|label| node.has_label(*label))
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
