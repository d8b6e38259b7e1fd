//! The books of every pool in memory: what nodes offer and what of it is booked, as the rows last said.
//!
//! ```text
//! node_capacity (version, changed_xid) -> refresh -> placer::Snapshot per pool -> pick -> (booked in a transaction)
//! ```
//!
//! A cache: the constraints of the database decide, and a stale picture costs a retry, never a double booking. A pick is
//! booked here at once, so that two calls of one process do not want the same devices; it is confirmed by the version its
//! transaction gave the node, or taken back by reading the node again.
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
use placer::{Claim, Hint, NoFit, NodeView, Placement, Policy, Snapshot, Verdict};
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
    /// Rises when the node is read: a pick made before is not in the picture any more.
    epoch: u64,
    machine: Machine,
}

#[derive(Default)]
struct Pages {
    pools: HashMap<PoolId, Pool>,
    nodes: HashMap<NodeId, Known>,
    /// Every change of a transaction below this is in here.
    watermark: i64,
    full_at: Option<Duration>,
    epoch: u64,
}

pub(crate) struct Books {
    store: Store,
    clock: Arc<dyn Clock>,
    pages: Mutex<Pages>,
}

/// A placement that is booked in memory and nowhere else yet. Dropping it has the node read again.
pub(crate) struct Pick<'b> {
    books: &'b Books,
    pub placement: Placement,
    epoch: u64,
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
        let pool = pages.pools.get_mut(&pool_id)?;
        let placement = pool.snapshot.find(claim, pool.policy)?;
        pool.snapshot.book(&placement.booking).ok()?;
        let epoch = pages.nodes.get(&placement.booking.node)?.epoch;
        Some(Pick { books: self, placement, epoch, confirmed: false })
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
        let before = self.nodes.get(&node.id);
        if before.is_some_and(|known| known.version > node.version) {
            return;
        }
        if let Some(pool_id) = before.and_then(|known| known.pool_id)
            && let Some(pool) = self.pools.get_mut(&pool_id)
        {
            pool.snapshot.remove(node.id);
        }
        self.epoch += 1;
        let known =
            Known { pool_id: node.pool_id, version: node.version, epoch: self.epoch, machine: node.machine };
        self.nodes.insert(node.id, known);
        let Some(pool_id) = node.pool_id else { return };
        let pool = self.pools.entry(pool_id).or_default();
        pool.policy = node.policy;
        if matches!(node.view.standing.state, NodeState::Revoked | NodeState::Removed) {
            return;
        }
        if let Err(err) = pool.snapshot.upsert(node.view) {
            tracing::warn!(node_id = %node.id, err = %err, "node cannot be placed on");
        }
    }
}

impl Pick<'_> {
    /// The transaction that booked it committed, and gave the node this version.
    pub fn confirm(mut self, version: i64) {
        self.confirmed = true;
        let mut pages = self.books.lock();
        let Some(known) = pages.nodes.get_mut(&self.placement.booking.node) else { return };
        // Another transaction's change lies between, or the node was read since: only reading tells.
        if known.epoch == self.epoch && known.version + 1 == version {
            known.version = version;
        } else if known.version < version {
            known.version = STALE;
        }
    }
}

impl Drop for Pick<'_> {
    fn drop(&mut self) {
        if self.confirmed {
            return;
        }
        let node_id = self.placement.booking.node;
        let mut pages = self.books.lock();
        let Some(known) = pages.nodes.get_mut(&node_id) else { return };
        known.version = STALE;
        let (same, pool_id) = (known.epoch == self.epoch, known.pool_id);
        if let Some(pool) = pool_id.filter(|_| same).and_then(|pool_id| pages.pools.get_mut(&pool_id)) {
            // It is read again before the next decision either way.
            let _ = pool.snapshot.release(&self.placement.booking);
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
