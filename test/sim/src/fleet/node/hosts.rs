//! A machine as a host of instances: its hypervisor, what happens to that, and what it holds.

use std::path::Path;
use std::sync::Arc;

use handlers::sections::instances::fake::FakeHypervisor;
use hw::FakeHardware;
use model::InstanceId;
use wire::proto::agent::{DesiredInstance, NodeSpec};

use super::{MS, SimNode, at_once};
use crate::fleet::event::Event;
use crate::world::{CardView, DestroyedView, DomainView};

/// What it holds is below the machine's folder.
pub(super) fn hypervisor(data_dir: &Path, hardware: &Arc<FakeHardware>) -> Arc<FakeHypervisor> {
    let hypervisor = FakeHypervisor::at(data_dir.join("hypervisor.json"), hardware.clone());
    hypervisor.set_slow_guests(true);
    Arc::new(hypervisor)
}

/// Instances of which a spec says that they are to go.
pub(super) fn deleted(spec: &NodeSpec) -> Vec<InstanceId> {
    let section = spec.instances.clone().unwrap_or_default();
    wire::instance::instances(&section)
        .into_iter()
        .flatten()
        .filter(|entry| entry.desired() == DesiredInstance::Deleted)
        .filter_map(|entry| entry.instance_id.parse().ok())
        .collect()
}

impl SimNode {
    pub fn set_hypervisor_down(&self, down: bool) {
        if let Some(hypervisor) = &self.hypervisor {
            hypervisor.set_unreadable(down);
        }
    }

    /// The daemon dies in a pass after so many changes of instances.
    pub fn cut_short(&self, after: Option<u32>) {
        if let Some(hypervisor) = &self.hypervisor {
            hypervisor.cut_short(after);
        }
    }

    /// What a machine that goes down does to what runs on it.
    pub(super) fn lose_guests(&mut self) {
        if let Some(hypervisor) = &self.hypervisor {
            at_once("stop guests", hypervisor.power_off()).expect("a simulated host has its file");
            self.note_domains(0, &[]);
        }
    }

    /// A pass that was cut short: what it came to is known to nobody, and the daemon starts again.
    pub(super) fn dies_in_its_pass(&mut self) -> bool {
        let Some(hypervisor) = self.hypervisor.clone().filter(|hypervisor| hypervisor.is_cut_short()) else {
            return false;
        };
        hypervisor.cut_short(None);
        self.crash();
        let (node, life) = (self.index, self.life);
        self.core.post(self.core.between(MS, 20_000 * MS), Event::NodeStarts { node, life });
        true
    }

    /// What the hypervisor holds now, beside what it held before.
    pub(super) fn note_domains(&mut self, generation: u64, deleted: &[InstanceId]) {
        let (Some(hypervisor), Some(node_id)) = (&self.hypervisor, self.node_id()) else { return };
        let now = self.core.now();
        let there = at_once("read domains", hypervisor.domains()).expect("a simulated host has its file");
        let before = std::mem::take(&mut self.domains);
        for (instance_id, domain) in there {
            let since = before.get(&instance_id).map_or(now, |one| one.since);
            let boot = i64::try_from(domain.boot).unwrap_or(i64::MAX);
            let same_boot = before.get(&instance_id).filter(|one| one.boot == boot);
            let cards = domain.cards.into_iter();
            let cards =
                cards.map(|card| CardView { mac: card.mac, bridge: card.bridge, addresses: card.addresses });
            let view = DomainView {
                instance_id,
                running: domain.running,
                boot,
                boot_since: same_boot.map_or(now, |one| one.boot_since),
                vcpus: domain.vcpus,
                memory_bytes: i64::try_from(domain.memory_bytes).unwrap_or(i64::MAX),
                cards: cards.collect(),
                since,
            };
            self.domains.insert(instance_id, view);
        }
        for instance_id in before.into_keys().filter(|id| !self.domains.contains_key(id)) {
            let intended = deleted.contains(&instance_id);
            self.destroyed.push(DestroyedView { node_id, instance_id, at: now, generation, intended });
        }
    }
}
