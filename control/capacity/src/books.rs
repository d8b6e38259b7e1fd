//! The books of every pool in memory: what nodes offer and what of it is booked, as the rows last said.
//!
//! ```text
//! node_capacity (version, changed_xid) -> refresh -> placer::Snapshot per pool -> pick -> (booked in a transaction)
//!                                            ^                                                  | confirm
//!                                            +--------------------------------------------------+
//! ```
//!
//! A cache: the constraints of the database decide, and a stale picture costs a retry, never a double booking. A pick is
//! booked here at once, so that two calls of one process do not want the same devices, and stays pending until its
//! transaction is over: a node that is read meanwhile has its pending picks booked on top again.
//!
//! A refresh asks for the nodes changed by transactions that were not over at the refresh before, which is a few rows,
//! and reads only those whose version is news: of most only what is booked, of those whose offer changed too everything.

mod keep;
mod node;
mod pick;
mod refresh;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::Clock;
use model::{NodeId, PoolId, ReservationId};
use placer::{Booking, Claim, Hint, NoFit, NodeView, Placement, Policy, Snapshot, Verdict};
use store::Store;

use node::Machine;
pub(crate) use node::{HostRow, NumaRow, numa};
pub(crate) use pick::Pick;

/// Never a stored version: the node is read again at the next refresh.
const STALE: i64 = -1;

#[derive(Default)]
struct Pool {
    snapshot: Snapshot,
    policy: Policy,
    /// Nodes that are kept for one reservation each. One at most, unless somebody wrote it by hand.
    kept: BTreeMap<NodeId, ReservationId>,
}

impl Pool {
    /// What the claim may not have beside what it avoids by itself, when there is any.
    fn without_kept(&self, id: Option<ReservationId>, claim: &Claim) -> Option<Claim> {
        let others = self.kept.iter().filter(|(_, kept_for)| Some(**kept_for) != id);
        let others: Vec<NodeId> = others.map(|(node_id, _)| *node_id).collect();
        (!others.is_empty()).then(|| {
            let mut claim = claim.clone();
            claim.avoid.extend(others);
            claim
        })
    }

    fn find(&self, id: Option<ReservationId>, claim: &Claim) -> Option<Placement> {
        match self.without_kept(id, claim) {
            Some(claim) => self.snapshot.find(&claim, self.policy),
            None => self.snapshot.find(claim, self.policy),
        }
    }
}

struct Known {
    pool_id: Option<PoolId>,
    version: i64,
    /// Of the last change that was no booking.
    offer_version: i64,
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
    refreshed_at: Option<Duration>,
    picks: u64,
}

pub(crate) struct Books {
    store: Store,
    clock: Arc<dyn Clock>,
    pages: Mutex<Pages>,
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

    /// As [`Books::pick`], without booking and for nobody yet.
    pub fn find(&self, pool_id: PoolId, claim: &Claim) -> Option<Placement> {
        self.lock().pools.get(&pool_id)?.find(None, claim)
    }

    /// Nodes of the pool that are not gone.
    pub fn nodes_of(&self, pool_id: PoolId) -> usize {
        self.lock().pools.get(&pool_id).map_or(0, |pool| pool.snapshot.len())
    }

    /// Pools of at least so many nodes.
    pub fn pools_of(&self, nodes_min: usize) -> Vec<PoolId> {
        let pages = self.lock();
        let large = pages.pools.iter().filter(|(_, pool)| pool.snapshot.len() >= nodes_min);
        let mut large: Vec<PoolId> = large.map(|(pool_id, _)| *pool_id).collect();
        large.sort_unstable();
        large
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

/// Labels of a node, its capabilities among them.
pub(crate) fn labels(stored: &serde_json::Value, capabilities: &[String]) -> BTreeMap<String, String> {
    let own = stored.as_object().into_iter().flatten();
    let own = own.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let prefix = model::label::CAPABILITY_PREFIX;
    // What the daemon advertised stands, whatever a label of that name says.
    let own = own.filter(|(key, _)| !key.starts_with(prefix));
    own.chain(capabilities.iter().map(|name| (format!("{prefix}{name}"), "1".to_owned()))).collect()
}
