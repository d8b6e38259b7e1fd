//! Which of its host's CPUs, and which NUMA nodes' memory, an instance has. The choice is pure.
//!
//! It is made where the place is booked, with the node's books open: nobody else chooses there meanwhile. An instance that
//! cannot have what its flavor asks for runs all the same, and says why. Huge pages are no part of the choice: without them
//! there is no place.

use std::collections::BTreeSet;

use model::unit::{GIB, MIB};
use model::{AllocationId, NodeId};
use placer::{CpuSet, NumaView};
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::{StoreError, Tx};

use crate::Capacity;
use crate::books::{HostRow, NumaRow, numa};
use crate::inline::Room;
use crate::pools::{Reserve, policy_of};
use crate::sql::inline as sql;

/// How an instance is to have its host's CPUs and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seating {
    /// All of one NUMA node.
    pub numa_affine: bool,
    /// Each of its CPUs is one of the host's, which no other pinned instance has.
    pub pinned: bool,
    /// Its memory is in pages of 1 GiB.
    pub hugepages_1gi: bool,
}

impl Seating {
    pub fn is_any(self) -> bool {
        self.numa_affine || self.pinned || self.hugepages_1gi
    }
}

/// What a seat is chosen for.
#[derive(Debug, Clone)]
struct Sitter {
    vcpus: usize,
    /// Outside of huge pages.
    memory_bytes: u64,
    hugepages_1gi: u64,
    /// NUMA nodes of its devices.
    near: BTreeSet<u16>,
    seating: Seating,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seat {
    /// Empty for any.
    cpus: CpuSet,
    /// They are its own.
    pinned: bool,
    /// Empty for any.
    mems: Vec<u16>,
    /// Why it is not all that was asked for; empty when it is.
    degraded: String,
}

fn choose(numa: &[NumaView], sitter: &Sitter) -> Seat {
    let Sitter { vcpus, seating, .. } = *sitter;
    if seating.numa_affine {
        let fits = |node: &&NumaView| {
            node.cpus.len() >= vcpus
                && node.memory_bytes.free() >= sitter.memory_bytes
                && node.hugepages_1gi.free() >= sitter.hugepages_1gi
        };
        // Near its devices, and the fullest that takes it.
        let order = |node: &&NumaView| (!sitter.near.contains(&node.id), node.memory_bytes.free(), node.id);
        if let Some(node) = numa.iter().filter(fits).min_by_key(order) {
            let cpus = match seating.pinned {
                true => CpuSet::from_cpus(node.cpus.iter().take(vcpus)),
                false => node.cpus.clone(),
            };
            return Seat { cpus, pinned: seating.pinned, mems: vec![node.id], degraded: String::new() };
        }
        let memory = sitter.memory_bytes.saturating_add(sitter.hugepages_1gi.saturating_mul(GIB));
        let degraded =
            format!("no NUMA node of the host has {vcpus} CPUs and {} MiB for it", memory.div_ceil(MIB));
        let pinned = Seating { numa_affine: false, ..seating };
        let rest = choose(numa, &Sitter { seating: pinned, ..sitter.clone() });
        let both = [degraded, rest.degraded].into_iter().filter(|why| !why.is_empty());
        return Seat { degraded: both.collect::<Vec<_>>().join("; "), ..rest };
    }
    if !seating.pinned {
        return Seat::default();
    }
    // Together where that is possible.
    let together = numa.iter().filter(|node| node.cpus.len() >= vcpus);
    let together = together.min_by_key(|node| (!sitter.near.contains(&node.id), node.cpus.len(), node.id));
    let open = match together {
        Some(node) => node.cpus.clone(),
        None => CpuSet::union(numa.iter().map(|node| &node.cpus)),
    };
    if open.len() < vcpus {
        let degraded = format!("{} CPUs of the host are not pinned, {vcpus} wanted", open.len());
        return Seat { degraded, ..Seat::default() };
    }
    let cpus = CpuSet::from_cpus(open.iter().take(vcpus));
    Seat { cpus, pinned: true, mems: Vec::new(), degraded: String::new() }
}

impl Capacity {
    /// Chooses anew for an allocation whose booking is written and whose node's books are open.
    pub(crate) async fn seat(
        &self,
        tx: &mut Tx<'_>,
        room: &Room,
        node_id: NodeId,
        allocation_id: AllocationId,
    ) -> Result<(), StoreError> {
        tx.execute(&sql::SEAT_LEAVE, &[&allocation_id.uuid()]).await?;
        let seats = tx.query_one(&sql::SEATS, &[&node_id.uuid(), &allocation_id.uuid()]).await?;
        let topology: Vec<NumaRow> = list(Some(seats.get("topology")), "topology")?;
        let bound: Vec<HostRow> = list(seats.get("bound"), "bound")?;
        let policy = seats.get::<_, Option<Value>>("policy").map(|policy| policy_of(&policy));
        let small = |numbers: Vec<i32>| numbers.into_iter().filter_map(|number| u16::try_from(number).ok());
        let pinned = CpuSet::from_cpus(small(seats.get("pinned")));
        let numa = numa(&topology, &bound, &Reserve::of(&policy.unwrap_or_default()), &pinned);
        let (memory_bytes, hugepages_1gi) = room.memory();
        let sitter = Sitter {
            vcpus: usize::try_from(room.vcpu).unwrap_or(usize::MAX),
            memory_bytes,
            hugepages_1gi,
            near: small(seats.get("near")).collect(),
            seating: room.seating,
        };
        let seat = choose(&numa, &sitter);
        let pins: Vec<i32> = seat.cpus.iter().filter(|_| seat.pinned).map(i32::from).collect();
        let mems: Vec<i32> = seat.mems.iter().copied().map(i32::from).collect();
        let (cpus, nodes) = (seat.cpus.to_string(), CpuSet::from_cpus(seat.mems.iter().copied()).to_string());
        let values: [&(dyn store::Param + Sync); 7] =
            [&allocation_id.uuid(), &node_id.uuid(), &pins, &mems, &cpus, &nodes, &seat.degraded];
        tx.execute(&sql::SEAT_TAKE, &values).await?;
        Ok(())
    }
}

fn list<T: DeserializeOwned>(value: Option<Value>, column: &'static str) -> Result<Vec<T>, StoreError> {
    let undecodable = || StoreError::decode("instance_seats", format!("column {column:?}"));
    value.map_or(Ok(Vec::new()), |value| serde_json::from_value(value).map_err(|_| undecodable()))
}

#[cfg(test)]
mod tests;
