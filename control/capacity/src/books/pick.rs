//! Placements that are booked in memory and nowhere else yet.

use std::collections::HashMap;

use model::{NodeId, PoolId, ReservationId};
use placer::{Booking, Claim, Placement};

use super::{Books, Known, Pages, Pending, STALE};

/// A placement that is booked in memory and nowhere else yet. Dropping it takes it back and has the node read again.
pub(crate) struct Pick<'b> {
    books: &'b Books,
    pub placement: Placement,
    pick: u64,
    confirmed: bool,
}

impl Books {
    /// The best place for the claim of this reservation, booked here.
    pub fn pick(&self, pool_id: PoolId, id: ReservationId, claim: &Claim) -> Option<Pick<'_>> {
        let mut pages = self.lock();
        let pages = &mut *pages;
        let pool = pages.pools.get_mut(&pool_id)?;
        let placement = pool.find(Some(id), claim)?;
        let known = pages.nodes.get_mut(&placement.booking.node)?;
        pool.snapshot.book(&placement.booking).ok()?;
        pages.picks += 1;
        let pick = pages.picks;
        known.pending.push(Pending { pick, booking: placement.booking.clone(), applied: true });
        Some(Pick { books: self, placement, pick, confirmed: false })
    }

    /// The transaction that booked these committed, and gave their nodes these versions: one more than before for each
    /// node, however many of them are on it.
    pub fn confirm_all(&self, picks: Vec<Pick<'_>>, versions: &HashMap<NodeId, i64>) {
        let mut by_node: HashMap<NodeId, Vec<Pick<'_>>> = HashMap::new();
        for pick in picks {
            by_node.entry(pick.placement.booking.node).or_default().push(pick);
        }
        let mut pages = self.lock();
        for (node_id, mut picks) in by_node {
            let mut applied = Vec::new();
            for pick in &mut picks {
                pick.confirmed = true;
                let settled = pages.settle(node_id, pick.pick);
                applied.push(settled.is_some_and(|(_, applied)| applied));
            }
            let Some(known) = pages.nodes.get_mut(&node_id) else { continue };
            let version = versions.get(&node_id).copied();
            if version.is_some_and(|version| known.version >= version) {
                // The node was read since and its rows have them.
                for (pick, _) in picks.iter().zip(&applied).filter(|(_, applied)| **applied) {
                    pages.unbook(&pick.placement.booking);
                }
            } else if version == Some(known.version + 1) && applied.iter().all(|applied| *applied) {
                known.version += 1;
            } else {
                // Another transaction's change lies between: only reading tells.
                known.version = STALE;
            }
        }
    }
}

impl Pick<'_> {
    /// The transaction that booked it alone committed, and gave the node this version.
    pub fn confirm(self, version: i64) {
        let (books, node_id) = (self.books, self.placement.booking.node);
        books.confirm_all(vec![self], &HashMap::from([(node_id, version)]));
    }
}

impl Drop for Pick<'_> {
    fn drop(&mut self) {
        if self.confirmed {
            return;
        }
        let booking = &self.placement.booking;
        let mut pages = self.books.lock();
        let Some((known, applied)) = pages.settle(booking.node, self.pick) else { return };
        known.version = STALE;
        if applied {
            pages.unbook(booking);
        }
    }
}

impl Pages {
    /// Takes a pick off its node's list; whether the picture still has it beside the rows.
    fn settle(&mut self, node_id: NodeId, pick: u64) -> Option<(&mut Known, bool)> {
        let known = self.nodes.get_mut(&node_id)?;
        let at = known.pending.iter().position(|pending| pending.pick == pick)?;
        let applied = known.pending.swap_remove(at).applied;
        Some((known, applied))
    }

    fn unbook(&mut self, booking: &Booking) {
        let pool_id = self.nodes.get(&booking.node).and_then(|known| known.pool_id);
        if let Some(pool) = pool_id.and_then(|pool_id| self.pools.get_mut(&pool_id)) {
            // Where it cannot be taken back the node is read again before the next decision on it.
            if let Err(err) = pool.snapshot.release(booking) {
                tracing::debug!(err = %err, "pick could not be taken back");
            }
        }
    }
}
