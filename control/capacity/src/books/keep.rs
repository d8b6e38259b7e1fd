//! Which node is kept for a claim that fits nowhere.

use model::{NodeId, PoolId};
use placer::{Claim, NodeView};

use super::Books;

/// What a claim misses on a node; less is better. The id last, so that no two are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    gpus: u32,
    cpu_millis: u64,
    memory_bytes: u64,
    hugepages_1gi: u64,
    disk_bytes: u64,
    node: NodeId,
}

impl Missing {
    /// None when the node takes no work, or what is ill on it leaves too little.
    fn of(view: &NodeView, claim: &Claim) -> Option<Missing> {
        if !view.standing.takes_work() || view.held_whole && !claim.whole_node {
            return None;
        }
        let named = |model: &str| claim.model.as_ref().is_none_or(|wanted| wanted == model);
        let well = || view.devices.iter().filter(|one| one.unhealthy.is_none() && named(&one.model));
        let free = |booked: bool| {
            u32::try_from(well().filter(|one| one.booked == booked).count()).unwrap_or(u32::MAX)
        };
        if claim.gpus > well().count() as u32 {
            return None;
        }
        let gpus = if claim.whole_node { free(true) } else { claim.gpus.saturating_sub(free(false)) };
        let host = &view.host;
        Some(Missing {
            gpus,
            cpu_millis: claim.cpu_millis.saturating_sub(host.cpu_millis.free()),
            memory_bytes: claim.memory_bytes.saturating_sub(host.memory_bytes.free()),
            hugepages_1gi: claim.hugepages_1gi.saturating_sub(host.hugepages_1gi.free()),
            disk_bytes: claim.disk_bytes.saturating_sub(host.disk_bytes.free()),
            node: view.id,
        })
    }
}

impl Books {
    /// Whether a node of the pool is kept for anything.
    pub fn keeps(&self, pool_id: PoolId) -> bool {
        self.lock().pools.get(&pool_id).is_some_and(|pool| !pool.kept.is_empty())
    }

    /// The node on which the least is to end before the claim fits. It looks at each, so it is for the one claim that has
    /// waited longest.
    pub fn nearest(&self, pool_id: PoolId, claim: &Claim) -> Option<NodeId> {
        let pages = self.lock();
        let pool = pages.pools.get(&pool_id)?;
        let able = pages.nodes.iter().filter(|(node_id, known)| {
            known.pool_id == Some(pool_id)
                && !claim.avoid.contains(*node_id)
                && known.machine.could_hold(claim)
        });
        let missing = able.filter_map(|(node_id, _)| Missing::of(&pool.snapshot.view(*node_id)?, claim));
        missing.min().map(|missing| missing.node)
    }
}
