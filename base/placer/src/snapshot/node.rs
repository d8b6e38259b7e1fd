//! One node, packed.

use model::NodeId;

use super::{Labels, ModelSym, Sym};
use crate::index::ClassId;
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
    pub host: HostView,
    pub numa: Box<[NumaView]>,
    pub devices: Box<[Device]>,
    /// Where the index has it; empty when it takes no work.
    pub classes: Box<[ClassId]>,
}

impl Node {
    /// Without its labels, which need the node's slot.
    pub fn new(view: NodeView, generation: u64, mut model: impl FnMut(Text) -> ModelSym) -> Node {
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
            host: view.host,
            numa: numa.into(),
            devices: devices.into(),
            classes: Box::default(),
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

    pub fn has_label(&self, symbol: Sym) -> bool {
        self.labels.binary_search(&symbol).is_ok()
    }

    /// Nothing of it is booked.
    pub fn is_unused(&self) -> bool {
        let host = &self.host;
        !self.held_whole
            && [host.cpu_millis, host.memory_bytes, host.hugepages_1gi]
                .iter()
                .all(|amount| amount.booked == 0)
            && self.devices.iter().all(|device| !device.booked)
    }

    pub fn gpus_free(&self) -> u32 {
        // At most DEVICES_MAX.
        self.devices.iter().filter(|device| device.is_free()).count() as u32
    }

    /// The free devices of one model, alike ones together, ascending.
    pub fn cells(&self, model: ModelSym) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self
            .devices
            .iter()
            .filter(|device| device.model == model && device.is_free())
            .map(Device::cell)
            .collect();
        cells.sort_unstable();
        cells.dedup_by(|next, kept| {
            let alike = Cell { free: 0, ..*next } == Cell { free: 0, ..*kept };
            if alike {
                kept.free += next.free;
            }
            alike
        });
        cells
    }

    /// Models of which a device is free, ascending, each once.
    pub fn models_free(&self) -> Vec<ModelSym> {
        let mut models: Vec<ModelSym> =
            self.devices.iter().filter(|device| device.is_free()).map(|device| device.model).collect();
        models.sort_unstable();
        models.dedup();
        models
    }
}
