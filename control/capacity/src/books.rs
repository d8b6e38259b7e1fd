//! The books of every pool in memory: what nodes offer and what of it is booked, as the rows last said.
//!
//! ```text
//! node_capacity (version, changed_xid) -> refresh -> placer::Snapshot per pool -> pick -> (booked in a transaction)
//! ```
//!
//! A cache: the constraints of the database decide, and a stale picture costs a retry, never a double booking. A pick is
//! booked here at once, so that two calls of one process do not want the same devices, and stays pending until its
//! transaction is over: a node that is read meanwhile has its pending picks booked on top again.
//!
//! A refresh asks for the nodes changed by transactions that were not over at the refresh before, which is a few rows,
//! and reads only those whose version is news.

mod node;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::Clock;
use model::lifecycle::NodeState;
use model::{NodeId, PoolId};
use placer::{Booking, Claim, Hint, NoFit, NodeView, Placement, Policy, Snapshot, Verdict};
use store::{RowExt, Store, StoreError};
use uuid::Uuid;

use crate::sql;
use node::Machine;
pub(crate) use node::NumaRow;

/// However the changes were followed, every version is compared this often.
const FULL_EVERY: Duration = Duration::from_secs(60);
/// Never a stored version: the node is read again at the next refresh.
const STALE: i64 = -1;

#[derive(Default)]
struct Pool {
    snapshot: Snapshot,
    policy: Policy,
}

struct Known {
    pool_id: Option<PoolId>,
    version: i64,
    machine: Machine,
    /// Picks whose transactions are not over. As many as calls run at once on one node.
    pending: Vec<Pending>,
}

struct Pending {
    pick: u64,
    booking: Booking,
    /// Whether the picture has it beside what the rows say. It does not when a row was in its way, most likely its own.
    applied: bool,
}

#[derive(Default)]
struct Pages {
    pools: HashMap<PoolId, Pool>,
    nodes: HashMap<NodeId, Known>,
    /// Every change of a transaction below this is in here.
    watermark: i64,
    full_at: Option<Duration>,
    picks: u64,
}

pub(crate) struct Books {
    store: Store,
    clock: Arc<dyn Clock>,
    pages: Mutex<Pages>,
}

/// A placement that is booked in memory and nowhere else yet. Dropping it takes it back and has the node read again.
pub(crate) struct Pick<'b> {
    books: &'b Books,
    pub placement: Placement,
    pick: u64,
    confirmed: bool,
}

/// A node for people.
#[derive(Debug, Clone)]
pub(crate) struct Judged {
    pub node_id: NodeId,
    pub name: String,
    pub verdict: Verdict,
}

/// The answer of every node of a pool.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    pub nodes: Vec<Judged>,
    /// What would fit instead; empty when the claim fits.
    pub hints: Vec<Hint>,
    /// Some node could hold it, were it empty, well and open.
    pub ever: bool,
}

impl Books {
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, pages: Mutex::default() }
    }

    /// Brings the picture up to what is committed now.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let now = self.clock.monotonic();
        let (since, full) = {
            let pages = self.lock();
            let full = pages.full_at.is_none_or(|at| now.saturating_sub(at) >= FULL_EVERY);
            (if full { 0 } else { pages.watermark }, full)
        };
        let changed = self.store.read(&sql::BOOKS_CHANGED, &[&since]).await?;
        let watermark = changed.first().map_or(0, |row| row.get("xmin"));
        let stale: Vec<Uuid> = {
            let pages = self.lock();
            let listed = changed.iter().filter_map(|row| {
                let node_id: NodeId = row.opt_id("node_id")?;
                let version: i64 = row.get("version");
                let known = pages.nodes.get(&node_id).map(|known| known.version);
                (known != Some(version)).then_some(node_id)
            });
            let forgotten =
                pages.nodes.iter().filter(|(_, known)| known.version == STALE).map(|(node_id, _)| *node_id);
            let mut ids: Vec<Uuid> = listed.chain(forgotten).map(NodeId::uuid).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let rows =
            if stale.is_empty() { Vec::new() } else { self.store.read(&sql::BOOKS_NODES, &[&stale]).await? };
        let mut read = Vec::with_capacity(rows.len());
        for row in &rows {
            read.push(node::read(row)?);
        }
        let mut pages = self.lock();
        for node in read {
            pages.take(node);
        }
        pages.watermark = pages.watermark.max(watermark);
        if full {
            pages.full_at = Some(now);
        }
        Ok(())
    }

    /// The best place for the claim, booked here.
    pub fn pick(&self, pool_id: PoolId, claim: &Claim) -> Option<Pick<'_>> {
        let mut pages = self.lock();
        let pages = &mut *pages;
        let pool = pages.pools.get_mut(&pool_id)?;
        let placement = pool.snapshot.find(claim, pool.policy)?;
        let known = pages.nodes.get_mut(&placement.booking.node)?;
        pool.snapshot.book(&placement.booking).ok()?;
        pages.picks += 1;
        let pick = pages.picks;
        known.pending.push(Pending { pick, booking: placement.booking.clone(), applied: true });
        Some(Pick { books: self, placement, pick, confirmed: false })
    }

    /// As [`Books::pick`], without booking.
    pub fn find(&self, pool_id: PoolId, claim: &Claim) -> Option<Placement> {
        let pages = self.lock();
        let pool = pages.pools.get(&pool_id)?;
        pool.snapshot.find(claim, pool.policy)
    }

    pub fn node(&self, pool_id: PoolId, node_id: NodeId) -> Option<NodeView> {
        self.lock().pools.get(&pool_id)?.snapshot.view(node_id)
    }

    /// Whether any node of the pool could hold the claim, were it empty, well and open.
    pub fn could_ever(&self, pool_id: PoolId, claim: &Claim) -> bool {
        let pages = self.lock();
        let mut members = pages.nodes.values().filter(|known| known.pool_id == Some(pool_id));
        members.any(|known| known.machine.could_hold(claim))
    }

    /// Why no node takes the claim; none when one does.
    pub fn refusal(&self, pool_id: PoolId, claim: &Claim) -> Option<NoFit> {
        let pages = self.lock();
        match pages.pools.get(&pool_id) {
            Some(pool) => pool.snapshot.place(claim, pool.policy).err(),
            None => Some(NoFit { groups: Vec::new(), nodes: Vec::new(), hints: Vec::new() }),
        }
    }

    /// What the claim meets on every node. For people: it looks at each.
    pub fn judge(&self, pool_id: PoolId, claim: &Claim) -> Judgement {
        let ever = self.could_ever(pool_id, claim);
        let pages = self.lock();
        let Some(pool) = pages.pools.get(&pool_id) else { return Judgement::default() };
        let name =
            |node_id| pages.nodes.get(&node_id).map_or_else(String::new, |known| known.machine.name.clone());
        let nodes = pool.snapshot.explain(claim, pool.policy);
        let hints = pool.snapshot.place(claim, pool.policy).err().map(|refused| refused.hints);
        Judgement {
            nodes: nodes
                .into_iter()
                .map(|(node_id, verdict)| Judged { node_id, name: name(node_id), verdict })
                .collect(),
            hints: hints.unwrap_or_default(),
            ever,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.pages.lock().expect("no holder of this lock panics")
    }
}

impl Pages {
    /// Puts a node that was read in its place, unless what is here is newer.
    fn take(&mut self, node: node::ReadNode) {
        let before = self.nodes.get_mut(&node.id);
        if before.as_ref().is_some_and(|known| known.version > node.version) {
            return;
        }
        let (left, mut pending) = match before {
            Some(known) => (known.pool_id, std::mem::take(&mut known.pending)),
            None => (None, Vec::new()),
        };
        if let Some(pool) = left.and_then(|pool_id| self.pools.get_mut(&pool_id)) {
            pool.snapshot.remove(node.id);
        }
        pending.iter_mut().for_each(|pending| pending.applied = false);
        let (id, pool_id) = (node.id, node.pool_id);
        if let Some(pool_id) = pool_id {
            let pool = self.pools.entry(pool_id).or_default();
            pool.policy = node.policy;
            let gone = matches!(node.view.standing.state, NodeState::Revoked | NodeState::Removed);
            match if gone { Ok(0) } else { pool.snapshot.upsert(node.view) } {
                Ok(_) => {}
                Err(err) => tracing::warn!(node_id = %id, err = %err, "node cannot be placed on"),
            }
            for pending in &mut pending {
                pending.applied = pool.snapshot.book(&pending.booking).is_ok();
            }
        }
        let known = Known { pool_id, version: node.version, machine: node.machine, pending };
        self.nodes.insert(id, known);
    }

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

impl Pick<'_> {
    /// The transaction that booked it committed, and gave the node this version.
    pub fn confirm(mut self, version: i64) {
        self.confirmed = true;
        let booking = &self.placement.booking;
        let mut pages = self.books.lock();
        let Some((known, applied)) = pages.settle(booking.node, self.pick) else { return };
        if known.version >= version {
            // The node was read since and its rows have it.
            if applied {
                pages.unbook(booking);
            }
        } else if applied && known.version + 1 == version {
            known.version = version;
        } else {
            // Another transaction's change lies between: only reading tells.
            known.version = STALE;
        }
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

/// Labels of a node, its capabilities among them.
pub(crate) fn labels(stored: &serde_json::Value, capabilities: &[String]) -> BTreeMap<String, String> {
    let own = stored.as_object().into_iter().flatten();
    let own = own.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let prefix = model::label::CAPABILITY_PREFIX;
    // What the daemon advertised stands, whatever a label of that name says.
    let own = own.filter(|(key, _)| !key.starts_with(prefix));
    own.chain(capabilities.iter().map(|name| (format!("{prefix}{name}"), "1".to_owned()))).collect()
}
