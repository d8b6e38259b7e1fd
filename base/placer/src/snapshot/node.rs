//! One node, packed.

use std::sync::Arc;

use model::NodeId;

use super::{Labels, ModelSym, Slot, Sym};
use crate::index::{Entry, Layout, Mask, Member};
use crate::topology::{Cell, NO_ISLAND, NO_NUMA};
use crate::view::{AtomId, DeviceView, HostView, NodeView, NumaView, Standing, Text};

pub(crate) struct Device {
    pub atom: AtomId,
    pub unhealthy: Option<Text>,
    pub memory_bytes: u64,
    pub model: ModelSym,
    pub numa: u16,
    pub island: u16,
    pub index: u16,
    pub booked: bool,
}

impl Device {
    pub fn is_free(&self) -> bool {
        !self.booked && self.unhealthy.is_none()
    }

    /// Where it counts, as a cell of one.
    pub fn cell(&self) -> Cell {
        Cell { numa: self.numa, island: self.island, memory_bytes: self.memory_bytes, free: 1 }
    }
}

pub(crate) struct Node {
    pub id: NodeId,
    pub name: Text,
    pub generation: u64,
    pub standing: Standing,
    pub held_whole: bool,
    /// Ascending.
    pub labels: Box<[Sym]>,
    /// Of those labels that have one.
    pub label_bits: u128,
    pub host: HostView,
    pub numa: Box<[NumaView]>,
    pub devices: Box<[Device]>,
    /// Of the devices.
    pub layout: Arc<Layout>,
    /// Where the index has it; empty when it takes no work.
    pub members: Vec<Member>,
}

impl Node {
    /// Without its labels, which need the node's slot.
    pub fn new(
        view: NodeView,
        generation: u64,
        mut model: impl FnMut(Text) -> ModelSym,
        layout: impl FnOnce(&[Device]) -> Arc<Layout>,
    ) -> Node {
        let mut numa = view.numa;
        numa.sort_by_key(|numa| numa.id);
        let mut devices: Vec<Device> = view
            .devices
            .into_iter()
            .map(|device| Device {
                atom: device.atom,
                unhealthy: device.unhealthy,
                memory_bytes: device.memory_bytes,
                model: model(device.model),
                numa: device.numa.unwrap_or(NO_NUMA),
                island: device.island.unwrap_or(NO_ISLAND),
                index: device.index,
                booked: device.booked,
            })
            .collect();
        devices.sort_by(|a, b| (a.index, &a.atom).cmp(&(b.index, &b.atom)));
        Node {
            id: view.id,
            name: view.name,
            generation,
            standing: view.standing,
            held_whole: view.held_whole,
            labels: Box::default(),
            label_bits: 0,
            host: view.host,
            numa: numa.into(),
            layout: layout(&devices),
            devices: devices.into(),
            members: Vec::new(),
        }
    }

    pub fn view(&self, models: &[Text], labels: &Labels) -> NodeView {
        let some = |number: u16| (number != u16::MAX).then_some(number);
        NodeView {
            id: self.id,
            name: self.name.clone(),
            standing: self.standing.clone(),
            held_whole: self.held_whole,
            labels: self
                .labels
                .iter()
                .map(|symbol| labels.text(*symbol))
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
            host: self.host,
            numa: self.numa.to_vec(),
            devices: self
                .devices
                .iter()
                .map(|device| DeviceView {
                    atom: device.atom.clone(),
                    model: models[device.model as usize].clone(),
                    memory_bytes: device.memory_bytes,
                    numa: some(device.numa),
                    index: device.index,
                    island: some(device.island),
                    booked: device.booked,
                    unhealthy: device.unhealthy.clone(),
                })
                .collect(),
        }
    }

    pub fn device_at(&self, atom: &str) -> Option<usize> {
        self.devices.iter().position(|device| device.atom.as_str() == atom)
    }

    /// As [`Node::device_at`], and quicker for an atom that a placement shares with the snapshot.
    pub fn device_of(&self, atom: &AtomId) -> Option<usize> {
        let shared = self.devices.iter().position(|device| device.atom.is_same(atom));
        shared.or_else(|| self.device_at(atom.as_str()))
    }

    pub fn has_label(&self, symbol: Sym) -> bool {
        self.labels.binary_search(&symbol).is_ok()
    }

    /// Nothing of it is booked.
    pub fn is_unused(&self) -> bool {
        let host = &self.host;
        !self.held_whole
            && [host.cpu_millis, host.memory_bytes, host.hugepages_1gi, host.disk_bytes]
                .iter()
                .all(|amount| amount.booked == 0)
            && self.devices.iter().all(|device| !device.booked)
    }

    pub fn all_devices(&self) -> Mask {
        (0..self.devices.len()).fold(0, |mask, at| mask | 1 << at)
    }

    pub fn free(&self) -> Mask {
        let devices = self.devices.iter().enumerate();
        devices.fold(0, |mask, (at, device)| mask | Mask::from(device.is_free()) << at)
    }

    /// As the index knows it.
    pub fn entry(&self, slot: Slot) -> Entry {
        Entry {
            cpu_millis_free: self.host.cpu_millis.free(),
            memory_bytes_free: self.host.memory_bytes.free(),
            id: self.id,
            slot,
            hugepages_1gi_free: self.host.hugepages_1gi.free(),
            disk_bytes_free: self.host.disk_bytes.free(),
            label_bits: self.label_bits,
        }
    }
}
