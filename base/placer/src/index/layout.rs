//! How a node's devices lie. Machines of one kind lie alike, so what can be said of a set of free devices is worked out
//! once for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shape::Outcome;
use crate::snapshot::{Device, ModelSym};
use crate::topology::{Cell, choose};

/// A set of a node's devices, by their places in its list.
pub(crate) type Mask = u128;

/// Devices one node may list, which is as many as a [`Mask`] holds: twice what an inventory may list, for those that
/// are booked and not seen.
pub(crate) const DEVICES_MAX: usize = Mask::BITS as usize;
/// Beside those in use, before the others are forgotten.
const LAYOUTS_SPARE: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Never given out twice.
    pub id: u64,
    spots: Box<[Spot]>,
    /// The devices of each model, ascending by model.
    pub models: Box<[(ModelSym, Mask)]>,
}

/// One device's model, and its place as a cell of one.
type Spot = (ModelSym, Cell);

#[derive(Default)]
pub(crate) struct Layouts {
    by_spots: BTreeMap<Box<[Spot]>, Arc<Layout>>,
    last: u64,
}

impl Layouts {
    pub fn of(&mut self, devices: &[Device]) -> Arc<Layout> {
        let spots: Box<[Spot]> = devices.iter().map(|device| (device.model, device.cell())).collect();
        if let Some(layout) = self.by_spots.get(&spots) {
            return layout.clone();
        }
        let in_use = |layout: &Arc<Layout>| Arc::strong_count(layout) > 1;
        if self.by_spots.len() > LAYOUTS_SPARE
            && self.by_spots.len() > 2 * self.by_spots.values().filter(|layout| in_use(layout)).count()
        {
            self.by_spots.retain(|_, layout| in_use(layout));
        }
        let mut models: BTreeMap<ModelSym, Mask> = BTreeMap::new();
        for (at, (model, _)) in spots.iter().enumerate() {
            *models.entry(*model).or_default() |= 1 << at;
        }
        self.last += 1;
        let layout =
            Arc::new(Layout { id: self.last, spots: spots.clone(), models: models.into_iter().collect() });
        self.by_spots.insert(spots, layout.clone());
        layout
    }
}

impl Layout {
    /// The devices of `free`, alike ones together, ascending.
    pub fn cells(&self, free: Mask) -> Vec<Cell> {
        let mut cells: Vec<Cell> = places(free).map(|at| self.spots[at].1).collect();
        cells.sort_unstable();
        cells.dedup_by(|next, kept| {
            let same = alike(next, kept);
            if same {
                kept.free += next.free;
            }
            same
        });
        cells
    }

    /// For 1, 2, … up to all of `free`, which are of one model: what it means to take so many, and which.
    pub fn outcomes(&self, free: Mask, cells: &[Cell]) -> (Box<[Outcome]>, Box<[Mask]>) {
        let taking = |count: u32| {
            let choice = choose(cells, count, 0).expect("no more than is free");
            (Outcome::from(&choice), self.taken(free, cells, choice.takes))
        };
        let (outcomes, takes): (Vec<_>, Vec<_>) = (1..=free.count_ones()).map(taking).unzip();
        (outcomes.into(), takes.into())
    }

    /// So many of each cell as `takes` says, in the driver's order where they are alike.
    pub fn taken(&self, free: Mask, cells: &[Cell], takes: Vec<u16>) -> Mask {
        let mut rest = takes;
        let take = |at: &usize| {
            let spot = &self.spots[*at].1;
            let cell =
                cells.iter().position(|cell| alike(cell, spot)).expect("every free device is in a cell");
            let takes = rest[cell] > 0;
            rest[cell] -= u16::from(takes);
            takes
        };
        places(free).filter(take).fold(0, |mask, at| mask | 1 << at)
    }
}

fn alike(a: &Cell, b: &Cell) -> bool {
    (a.numa, a.island, a.memory_bytes) == (b.numa, b.island, b.memory_bytes)
}

/// The places in a set, ascending.
pub(crate) fn places(mask: Mask) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let at = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(at)
    })
}
