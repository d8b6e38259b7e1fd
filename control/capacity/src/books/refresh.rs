//! Bringing the picture up to what is committed.

use std::time::Duration;

use model::{NodeId, ReservationId};
use placer::{Amount, NodeView};
use store::{Row, RowExt, StoreError};
use uuid::Uuid;

use super::node::{self, BookedRow, ReadNode};
use super::{Books, Known, Pages, STALE};
use crate::sql;

/// However the changes were followed, every version is compared this often.
const FULL_EVERY: Duration = Duration::from_secs(60);
/// Nodes of one statement: a process that starts reads a large pool in parts.
const NODES_PER_READ: usize = 1_000;

/// What there is to read.
#[derive(Debug, Default)]
struct Stale {
    /// Only what is booked.
    booked: Vec<Uuid>,
    whole: Vec<Uuid>,
}

impl Books {
    /// Brings the picture up to what is committed now, unless that was done this short a while ago.
    pub async fn refresh_within(&self, kept: Duration) -> Result<(), StoreError> {
        let refreshed_at = self.lock().refreshed_at;
        match refreshed_at {
            Some(at) if self.clock.monotonic().saturating_sub(at) < kept => Ok(()),
            Some(_) | None => self.refresh().await,
        }
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
        let watermark = changed.first().map_or(0, |row| row.get("oldest"));
        let Stale { booked, mut whole } = self.lock().stale(&changed);
        if !booked.is_empty() {
            let rows = self.store.read(&sql::BOOKS_BOOKED, &[&booked]).await?;
            let read = rows.iter().map(BookedRow::read).collect::<Result<Vec<_>, _>>()?;
            let mut pages = self.lock();
            whole.extend(read.into_iter().filter_map(|row| pages.take_booked(row).err()));
        }
        for part in whole.chunks(NODES_PER_READ) {
            let rows = self.store.read(&sql::BOOKS_NODES, &[&part]).await?;
            let read = rows.iter().map(node::read).collect::<Result<Vec<_>, _>>()?;
            let mut pages = self.lock();
            read.into_iter().for_each(|node| pages.take(node));
        }
        let mut pages = self.lock();
        pages.watermark = pages.watermark.max(watermark);
        pages.refreshed_at = Some(now);
        if full {
            pages.full_at = Some(now);
        }
        Ok(())
    }
}

impl Pages {
    /// Which of the nodes that changed, and of those that are forgotten, are to be read.
    fn stale(&self, changed: &[Row]) -> Stale {
        let mut stale = Stale::default();
        for row in changed {
            let Some(node_id) = row.opt_id::<NodeId>("node_id") else { continue };
            let (version, offer_version): (i64, i64) = (row.get("version"), row.get("offer_version"));
            match self.nodes.get(&node_id) {
                Some(known) if known.version == version => {}
                // Read below, whether or not it is listed here.
                Some(known) if known.version == STALE => {}
                Some(known) if known.offer_version == offer_version => stale.booked.push(node_id.uuid()),
                Some(_) | None => stale.whole.push(node_id.uuid()),
            }
        }
        let forgotten = self.nodes.iter().filter(|(_, known)| known.version == STALE);
        stale.booked.extend(forgotten.map(|(node_id, _)| node_id.uuid()));
        stale.booked.sort_unstable();
        stale.whole.sort_unstable();
        stale
    }

    /// Puts a node that was read in its place, unless what is here is newer.
    fn take(&mut self, node: ReadNode) {
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
            pool.kept.remove(&node.id);
        }
        pending.iter_mut().for_each(|pending| pending.applied = false);
        let ReadNode { id, pool_id, version, offer_version, kept_for, machine, .. } = node;
        if let Some(pool_id) = pool_id {
            let pool = self.pools.entry(pool_id).or_default();
            pool.policy = node.policy;
            keep(&mut pool.kept, id, kept_for);
            if !machine.is_gone() {
                put(&mut pool.snapshot, node.view);
            }
            for pending in &mut pending {
                pending.applied = pool.snapshot.book(&pending.booking).is_ok();
            }
        }
        self.nodes.insert(id, Known { pool_id, version, offer_version, machine, pending });
    }

    /// Puts what is booked on a node in its place. The node, when more than that has changed.
    fn take_booked(&mut self, read: BookedRow) -> Result<(), Uuid> {
        let whole = read.id.uuid();
        let known = self.nodes.get_mut(&read.id).ok_or(whole)?;
        if known.version > read.version {
            return Ok(());
        }
        if known.offer_version != read.offer_version {
            return Err(whole);
        }
        known.version = read.version;
        let Some(pool) = known.pool_id.and_then(|pool_id| self.pools.get_mut(&pool_id)) else {
            return Ok(());
        };
        let Some(mut view) = pool.snapshot.view(read.id) else { return Ok(()) };
        read.write(&mut view);
        put(&mut pool.snapshot, view);
        for pending in &mut known.pending {
            pending.applied = pool.snapshot.book(&pending.booking).is_ok();
        }
        Ok(())
    }
}

fn keep(
    kept: &mut std::collections::BTreeMap<NodeId, ReservationId>,
    id: NodeId,
    kept_for: Option<ReservationId>,
) {
    if let Some(kept_for) = kept_for {
        kept.insert(id, kept_for);
    }
}

fn put(snapshot: &mut placer::Snapshot, view: NodeView) {
    let id = view.id;
    if let Err(err) = snapshot.upsert(view) {
        tracing::warn!(node_id = %id, err = %err, "node cannot be placed on");
    }
}

impl BookedRow {
    /// Over what the node's picture has booked.
    fn write(&self, view: &mut NodeView) {
        for device in &mut view.devices {
            device.booked = self.atoms.iter().any(|atom| atom == device.atom.as_str());
        }
        view.held_whole = self.whole_node;
        let Self { cpu_millis, memory_bytes, hugepages_1gi, disk_bytes, .. } = *self;
        let host = &mut view.host;
        host.cpu_millis = Amount { booked: cpu_millis, ..host.cpu_millis };
        host.memory_bytes = Amount { booked: memory_bytes, ..host.memory_bytes };
        host.hugepages_1gi = Amount { booked: hugepages_1gi, ..host.hugepages_1gi };
        host.disk_bytes = Amount { booked: disk_bytes, ..host.disk_bytes };
        for numa in &mut view.numa {
            numa.memory_bytes.booked = node::promised(&self.bound, numa.id, |row| row.memory_bytes);
            numa.hugepages_1gi.booked = node::promised(&self.bound, numa.id, |row| row.hugepages_1gi);
        }
    }
}
