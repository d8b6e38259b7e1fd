//! Taking and giving back. Either all of a booking is applied or nothing is.

use model::NodeId;

use super::{Node, Snapshot};
use crate::placement::Booking;
use crate::view::Amount;

/// Why a booking, or its release, cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    #[error("node {node} is not in the snapshot")]
    UnknownNode { node: NodeId },
    #[error("node {node} has no device {atom:?}")]
    UnknownAtom { node: NodeId, atom: String },
    #[error("device {atom:?} of node {node} is booked already")]
    AtomTaken { node: NodeId, atom: String },
    #[error("device {atom:?} of node {node} is not booked")]
    AtomNotBooked { node: NodeId, atom: String },
    #[error("device {atom:?} is named twice")]
    AtomTwice { atom: String },
    #[error("node {node} has no NUMA node {numa}, or it is named twice or out of order")]
    Numa { node: NodeId, numa: u16 },
    #[error("node {node} has {free} {what} free, {wanted} wanted")]
    Short { node: NodeId, what: &'static str, free: u64, wanted: u64 },
    #[error("node {node} has {booked} {what} booked, {returned} returned")]
    NotBooked { node: NodeId, what: &'static str, booked: u64, returned: u64 },
    #[error("node {node} is held whole")]
    HeldWhole { node: NodeId },
    #[error("node {node} is in use, so it cannot be booked whole")]
    InUse { node: NodeId },
    #[error("node {node} is not held whole")]
    NotHeldWhole { node: NodeId },
}

impl Snapshot {
    /// Books. It checks that nothing is taken twice, and not whether the node should take work: a row that is
    /// committed is booked, whatever became of the node since. A device that fell ill is booked for the same reason.
    /// Gives the node's new generation.
    pub fn book(&mut self, booking: &Booking) -> Result<u64, BookError> {
        self.apply(booking, Move::Book)
    }

    /// Gives back exactly what [`Snapshot::book`] took for the same booking. Gives the node's new generation.
    pub fn release(&mut self, booking: &Booking) -> Result<u64, BookError> {
        self.apply(booking, Move::Release)
    }

    fn apply(&mut self, booking: &Booking, step: Move) -> Result<u64, BookError> {
        let node = booking.node;
        let slot = *self.by_id.get(&node).ok_or(BookError::UnknownNode { node })?;
        let found = self.at(slot);
        let devices = devices(found, booking, step)?;
        let numa = numa(found, booking)?;
        check_amounts(found, booking, &numa, step)?;
        check_whole(found, booking, step)?;
        Ok(self.edit(slot, |node| {
            for at in devices {
                node.devices[at].booked = step == Move::Book;
            }
            step.shift(&mut node.host.cpu_millis, booking.cpu_millis);
            step.shift(&mut node.host.memory_bytes, booking.memory_bytes);
            step.shift(&mut node.host.hugepages_1gi, booking.hugepages_1gi);
            step.shift(&mut node.host.disk_bytes, booking.disk_bytes);
            for (nth, at) in numa.iter().enumerate() {
                let share = |amount| Booking::share(amount, numa.len(), nth);
                step.shift(&mut node.numa[*at].memory_bytes, share(booking.memory_bytes));
                step.shift(&mut node.numa[*at].hugepages_1gi, share(booking.hugepages_1gi));
            }
            if booking.whole_node {
                node.held_whole = step == Move::Book;
            }
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    Book,
    Release,
}

impl Move {
    fn check(self, node: NodeId, what: &'static str, amount: Amount, by: u64) -> Result<(), BookError> {
        match self {
            Move::Book if amount.free() < by => {
                Err(BookError::Short { node, what, free: amount.free(), wanted: by })
            }
            Move::Release if amount.booked < by => {
                Err(BookError::NotBooked { node, what, booked: amount.booked, returned: by })
            }
            Move::Book | Move::Release => Ok(()),
        }
    }

    fn shift(self, amount: &mut Amount, by: u64) {
        match self {
            Move::Book => amount.booked += by,
            Move::Release => amount.booked -= by,
        }
    }
}

fn devices(node: &Node, booking: &Booking, step: Move) -> Result<Vec<usize>, BookError> {
    let mut devices = Vec::with_capacity(booking.atoms.len());
    for atom in &booking.atoms {
        let text = || atom.to_string();
        let at =
            node.device_of(atom).ok_or_else(|| BookError::UnknownAtom { node: node.id, atom: text() })?;
        if devices.contains(&at) {
            return Err(BookError::AtomTwice { atom: text() });
        }
        match (step, node.devices[at].booked) {
            (Move::Book, true) => return Err(BookError::AtomTaken { node: node.id, atom: text() }),
            (Move::Release, false) => return Err(BookError::AtomNotBooked { node: node.id, atom: text() }),
            (Move::Book, false) | (Move::Release, true) => devices.push(at),
        }
    }
    Ok(devices)
}

fn numa(node: &Node, booking: &Booking) -> Result<Vec<usize>, BookError> {
    let mut places: Vec<usize> = Vec::with_capacity(booking.mems.len());
    for numa in &booking.mems {
        let place = node.numa.iter().position(|view| view.id == *numa);
        match place {
            Some(at) if places.last().is_none_or(|last| *last < at) => places.push(at),
            _ => return Err(BookError::Numa { node: node.id, numa: *numa }),
        }
    }
    Ok(places)
}

fn check_amounts(node: &Node, booking: &Booking, numa: &[usize], step: Move) -> Result<(), BookError> {
    step.check(node.id, "millis of CPU", node.host.cpu_millis, booking.cpu_millis)?;
    step.check(node.id, "bytes of memory", node.host.memory_bytes, booking.memory_bytes)?;
    step.check(node.id, "pages of 1 GiB", node.host.hugepages_1gi, booking.hugepages_1gi)?;
    step.check(node.id, "bytes of disk", node.host.disk_bytes, booking.disk_bytes)?;
    for (nth, at) in numa.iter().enumerate() {
        let view = &node.numa[*at];
        let share = |amount| Booking::share(amount, numa.len(), nth);
        step.check(
            node.id,
            "bytes of memory on a NUMA node",
            view.memory_bytes,
            share(booking.memory_bytes),
        )?;
        step.check(
            node.id,
            "pages of 1 GiB on a NUMA node",
            view.hugepages_1gi,
            share(booking.hugepages_1gi),
        )?;
    }
    Ok(())
}

fn check_whole(node: &Node, booking: &Booking, step: Move) -> Result<(), BookError> {
    let id = node.id;
    match (step, booking.whole_node) {
        (Move::Book, _) if node.held_whole => Err(BookError::HeldWhole { node: id }),
        (Move::Book, true) if !node.is_unused() => Err(BookError::InUse { node: id }),
        (Move::Release, true) if !node.held_whole => Err(BookError::NotHeldWhole { node: id }),
        (Move::Book | Move::Release, _) => Ok(()),
    }
}
