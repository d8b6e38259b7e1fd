//! What a node offers, from its inventory: rows in `node_capacity` and `atoms`. The core is pure.
//!
//! Facts come after every report, so what is news is written and nothing else. A device that is gone from the inventory
//! becomes absent and stays this node's while it is booked: an inventory that misses something releases nothing, and nobody
//! else can take what it misses. One that nobody has booked is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use kernel::Fault;
use kernel::events::{self, EventKind};
use kernel::module::wake;
use kernel::ports::node::NodeFacts;
use model::unit::GIB;
use model::{AllocationId, NodeId, PoolId, ReservationId};
use serde_json::{Value, json};
use store::{Row, RowExt, Tx};
use wire::inventory::{Gpu, GpuVerdict, NodeInventory};

use crate::books::NumaRow;
use crate::pools::{Reserve, policy_of};
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::state::stored;
use crate::{Capacity, sql};

/// `GPU-` and a UUID are 40; other vendors' ids are no longer than this.
const ATOM_BYTES_MAX: usize = 100;
/// Devices of one node, those that are gone and booked among them. An inventory lists no more.
const ATOMS_MAX: usize = wire::inventory::GPUS_MAX;
/// More is a mistake, and less than what a column holds however often it is booked.
const DISK_BYTES_MAX: u64 = 1 << 56;

/// The node's row, without its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Offer {
    cpu_millis: u64,
    memory_bytes: u64,
    hugepages_1gi: u64,
    machine_cpu_millis: u64,
    machine_memory_bytes: u64,
    /// None of a machine that never told: disks are booked there, and nobody counts whether they fit.
    disk_bytes: Option<u64>,
    machine_disk_bytes: Option<u64>,
    topology: Vec<NumaRow>,
    capabilities: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Atom {
    index: i32,
    model: String,
    memory_bytes: i64,
    numa: Option<i32>,
    island: Option<i32>,
    health: String,
    reason: String,
}

/// `told_disk` is what the machine told before of its disk, which stands where it does not tell now: one that could not be
/// read has not grown without end.
fn offer(
    inventory: &NodeInventory,
    reserve: &Reserve,
    capabilities: Vec<String>,
    told_disk: Option<u64>,
) -> Offer {
    let machine_disk_bytes =
        inventory.disks.instances_bytes.map(|bytes| bytes.min(DISK_BYTES_MAX)).or(told_disk);
    let cpus = inventory.cpu.online.as_ref().map(|online| online.count() as u64);
    let cpus = cpus.or(inventory.cpu.threads.map(u64::from)).unwrap_or(0);
    let pools = &inventory.memory.huge_pages;
    // Pages in a pool are no use to anybody else, whatever their size.
    let pooled: u64 =
        pools.iter().map(|pool| pool.page_bytes.saturating_mul(pool.pages)).fold(0, u64::saturating_add);
    let gigantic = |pool: &&wire::inventory::HugePagePool| pool.page_bytes == GIB;
    let machine_cpu_millis = cpus.saturating_mul(1000);
    let machine_memory_bytes = inventory.memory.total_bytes.unwrap_or(0).saturating_sub(pooled);
    Offer {
        cpu_millis: machine_cpu_millis.saturating_sub(reserve.cpu_millis).saturating_mul(reserve.cpu_times),
        memory_bytes: machine_memory_bytes.saturating_sub(reserve.memory_bytes),
        hugepages_1gi: pools.iter().filter(gigantic).map(|pool| pool.pages).fold(0, u64::saturating_add),
        machine_cpu_millis,
        machine_memory_bytes,
        disk_bytes: machine_disk_bytes.map(|bytes| reserve.disk_of(bytes)),
        machine_disk_bytes,
        topology: topology(inventory),
        capabilities,
    }
}

fn topology(inventory: &NodeInventory) -> Vec<NumaRow> {
    let nodes = inventory.cpu.numa_nodes.iter();
    nodes
        .filter_map(|numa| {
            let id = u16::try_from(numa.id).ok()?;
            let here = || inventory.memory.huge_pages.iter().filter(|pool| pool.numa_node == Some(numa.id));
            let pooled =
                here().map(|pool| pool.page_bytes.saturating_mul(pool.pages)).fold(0, u64::saturating_add);
            let pages = here().filter(|pool| pool.page_bytes == GIB).map(|pool| pool.pages);
            Some(NumaRow {
                id,
                cpus: numa.cpus.to_string(),
                memory_bytes: numa.memory_bytes.unwrap_or(0).saturating_sub(pooled),
                hugepages_1gi: pages.fold(0, u64::saturating_add),
            })
        })
        .collect()
}

/// The GPUs that can be booked: those that have an id and a model to be booked by.
fn atoms(facts: &NodeFacts) -> BTreeMap<String, Atom> {
    let listed = facts.inventory.gpus.gpus.iter().enumerate();
    listed
        .filter_map(|(at, gpu)| {
            let uuid = gpu.uuid.as_ref()?;
            let plain = is_plain(uuid);
            let why = unhealthy(gpu, facts.unhealthy.get(uuid));
            let small = |value: u32| i32::from(u16::try_from(value).unwrap_or(u16::MAX));
            let atom = Atom {
                index: small(gpu.index.unwrap_or(u32::try_from(at).unwrap_or(u32::MAX))),
                model: gpu.model.clone()?,
                memory_bytes: stored(gpu.memory_bytes.unwrap_or(0)),
                numa: gpu.numa_node.map(small),
                island: island(gpu).map(small),
                health: if why.is_some() { "unhealthy" } else { "healthy" }.to_owned(),
                reason: why.unwrap_or_default(),
            };
            plain.then(|| (uuid.clone(), atom))
        })
        .collect()
}

/// What a daemon takes for a device's name, and what is safe in lists and lines.
fn is_plain(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    id.len() <= ATOM_BYTES_MAX
        && id.bytes().all(plain)
        && id.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}

fn unhealthy(gpu: &Gpu, condition: Option<&String>) -> Option<String> {
    if let Some(why) = condition {
        return Some(why.clone());
    }
    if gpu.lost {
        return Some("it fell off the bus".to_owned());
    }
    if gpu.mig_mode.is_some_and(|mig| mig.current) {
        return Some("it is split into instances".to_owned());
    }
    match gpu.health.verdict {
        GpuVerdict::Unhealthy if gpu.health.reasons.is_empty() => Some("unhealthy".to_owned()),
        GpuVerdict::Unhealthy => Some(gpu.health.reasons.join(", ")),
        GpuVerdict::Healthy | GpuVerdict::Degraded | GpuVerdict::Unknown => None,
    }
}

/// The GPUs of one fabric clique reach each other; without a fabric, those with links up are taken for one island.
fn island(gpu: &Gpu) -> Option<u32> {
    let clique = gpu.fabric.as_ref().and_then(|fabric| fabric.clique_id);
    clique.or_else(|| gpu.nvlink_count.filter(|links| *links > 0).map(|_| 0))
}

fn offer_of(row: &Row) -> Offer {
    let amount = |column| crate::state::whole(row.get(column));
    Offer {
        cpu_millis: amount("cpu_millis"),
        memory_bytes: amount("memory_bytes"),
        hugepages_1gi: amount("hugepages_1gi"),
        machine_cpu_millis: amount("machine_cpu_millis"),
        machine_memory_bytes: amount("machine_memory_bytes"),
        disk_bytes: row.get::<_, Option<i64>>("disk_bytes").map(crate::state::whole),
        machine_disk_bytes: row.get::<_, Option<i64>>("machine_disk_bytes").map(crate::state::whole),
        // One that does not decode is written anew.
        topology: serde_json::from_value(row.get::<_, Value>("topology")).unwrap_or_default(),
        capabilities: row.get("capabilities"),
    }
}

/// An atom as it is stored, and who has it booked.
struct StoredAtom {
    atom: Atom,
    booked_by: Option<AllocationId>,
}

fn stored_atom(row: &Row) -> (String, StoredAtom) {
    let atom = Atom {
        index: row.get("device_index"),
        model: row.get("model"),
        memory_bytes: row.get("memory_bytes"),
        numa: row.get("numa"),
        island: row.get("island"),
        health: row.get("health"),
        reason: row.get("health_reason"),
    };
    (row.get("atom"), StoredAtom { atom, booked_by: row.opt_id("allocation_id") })
}

/// What changes in the stored atoms of a node.
struct News {
    /// Differ from what is stored, or are gone and booked.
    put: BTreeMap<String, Atom>,
    /// Gone, and nobody has them.
    dropped: Vec<String>,
}

fn news(stored: &BTreeMap<String, StoredAtom>, now: &BTreeMap<String, Atom>) -> News {
    let changed = now.iter().filter(|(id, atom)| stored.get(*id).is_none_or(|before| before.atom != **atom));
    let gone = || stored.iter().filter(|(id, _)| !now.contains_key(*id));
    let fresh = gone().filter(|(_, before)| before.booked_by.is_some() && before.atom.health != "absent");
    let absent = |before: &StoredAtom| Atom {
        health: "absent".to_owned(),
        reason: "it is gone from the node's inventory".to_owned(),
        ..before.atom.clone()
    };
    let changed = changed.map(|(id, atom)| (id.clone(), atom.clone()));
    let dropped = gone().filter(|(_, before)| before.booked_by.is_none());
    News {
        put: changed.chain(fresh.map(|(id, before)| (id.clone(), absent(before)))).collect(),
        dropped: dropped.map(|(id, _)| id.clone()).collect(),
    }
}

/// Leaves out devices that are new where there is no room for them beside what is booked and gone.
fn bound(stored: &BTreeMap<String, StoredAtom>, now: &mut BTreeMap<String, Atom>) {
    let gone = stored.iter().filter(|(id, before)| before.booked_by.is_some() && !now.contains_key(*id));
    let known = now.keys().filter(|id| stored.contains_key(*id)).count();
    let mut room = ATOMS_MAX.saturating_sub(gone.count() + known);
    now.retain(|id, _| {
        let kept = stored.contains_key(id) || room > 0;
        if !stored.contains_key(id) {
            room = room.saturating_sub(1);
        }
        kept
    });
}

impl Capacity {
    pub(crate) async fn take_facts(&self, tx: &mut Tx<'_>, facts: &NodeFacts) -> Result<(), Fault> {
        let node_id = facts.node_id;
        // Most are what they were, and whoever locks the row keeps others from booking here until all is committed.
        if self.is_known(tx, facts).await? {
            return Ok(());
        }
        let row = tx.query_opt(&sql::CAPACITY_LOCK, &[&node_id.uuid()]).await?;
        let before: Option<(Option<PoolId>, Offer)> = row.map(|row| (row.opt_id("pool_id"), offer_of(&row)));
        let pool_id = facts.pool.map(|(pool_id, _)| pool_id);
        let mut changed = match pool_id {
            Some(pool_id) => self.take_offer(tx, facts, pool_id, before.as_ref()).await?,
            None if before.is_none() => return Ok(()),
            None => tx.execute(&sql::CAPACITY_LEAVE, &[&node_id.uuid()]).await? > 0,
        };
        let news = self.take_atoms(tx, facts).await?;
        if news && !changed {
            tx.execute(&sql::CAPACITY_TOUCH, &[&node_id.uuid()]).await?;
            changed = true;
        }
        if let Some(pool_id) = pool_id.filter(|_| changed) {
            wake(tx, PLACE_QUEUE, &pool_key(pool_id)).await?;
        }
        Ok(())
    }

    /// Whether the rows say all of it already, and nothing beside it that they should not.
    async fn is_known(&self, tx: &mut Tx<'_>, facts: &NodeFacts) -> Result<bool, Fault> {
        let Some(row) = tx.query_opt(&sql::CAPACITY_KNOWN, &[&facts.node_id.uuid()]).await? else {
            return Ok(false);
        };
        let pool_id = facts.pool.map(|(pool_id, _)| pool_id);
        if row.opt_id("pool_id") != pool_id || row.get("claims") {
            return Ok(false);
        }
        let advertised: BTreeSet<String> = row.get::<_, Vec<String>>("advertised").into_iter().collect();
        let reserve = Reserve::of(&policy_of(&row.get::<_, Value>("policy")));
        let mut stored = offer_of(&row);
        stored.capabilities.sort_unstable();
        let told_disk = stored.machine_disk_bytes;
        if stored != offer(&facts.inventory, &reserve, advertised.into_iter().collect(), told_disk) {
            return Ok(false);
        }
        let rows = tx.query(&sql::ATOMS_OF_NODE, &[&facts.node_id.uuid()]).await?;
        let stored: BTreeMap<String, Atom> =
            rows.iter().map(stored_atom).map(|(id, stored)| (id, stored.atom)).collect();
        Ok(stored == atoms(facts))
    }

    async fn take_offer(
        &self,
        tx: &mut Tx<'_>,
        facts: &NodeFacts,
        pool_id: PoolId,
        before: Option<&(Option<PoolId>, Offer)>,
    ) -> Result<bool, Fault> {
        let Some(row) = tx.query_opt(&sql::POOL_POLICY, &[&pool_id.uuid()]).await? else { return Ok(false) };
        let reserve = Reserve::of(&policy_of(&row.get::<_, Value>("policy")));
        let capabilities = tx.query(&sql::NODE_CAPABILITIES, &[&facts.node_id.uuid()]).await?;
        let capabilities = capabilities.iter().map(|row| row.get("name")).collect();
        let told_disk = before.and_then(|(_, was)| was.machine_disk_bytes);
        let offer = offer(&facts.inventory, &reserve, capabilities, told_disk);
        if before.is_some_and(|(pool, was)| *pool == Some(pool_id) && *was == offer) {
            return Ok(false);
        }
        let topology =
            serde_json::to_value(&offer.topology).expect("a topology holds nothing that JSON cannot");
        tx.execute(
            &sql::CAPACITY_PUT,
            &[
                &facts.node_id.uuid(),
                &pool_id.uuid(),
                &stored(offer.cpu_millis),
                &stored(offer.memory_bytes),
                &stored(offer.hugepages_1gi),
                &stored(offer.machine_cpu_millis),
                &stored(offer.machine_memory_bytes),
                &topology,
                &offer.capabilities,
                &offer.disk_bytes.map(stored),
                &offer.machine_disk_bytes.map(stored),
            ],
        )
        .await?;
        Ok(true)
    }

    async fn take_atoms(&self, tx: &mut Tx<'_>, facts: &NodeFacts) -> Result<bool, Fault> {
        let node_id = facts.node_id;
        let rows = tx.query(&sql::ATOMS_OF_NODE, &[&node_id.uuid()]).await?;
        let stored: BTreeMap<String, StoredAtom> = rows.iter().map(stored_atom).collect();
        let mut now = atoms(facts);
        let here = |id: &&String| stored.get(*id).is_some_and(|before| before.atom.health != "absent");
        let fresh: Vec<&str> = now.keys().filter(|id| !here(id)).map(String::as_str).collect();
        let mut claimed: BTreeMap<String, NodeId> = BTreeMap::new();
        if !fresh.is_empty() {
            let elsewhere = tx.query(&sql::ATOMS_ELSEWHERE, &[&node_id.uuid(), &fresh]).await?;
            claimed = elsewhere.iter().map(|row| (row.get("atom"), row.id("node_id"))).collect();
            now.retain(|id, _| !claimed.contains_key(id));
        }
        self.tell_claimed(tx, facts, &claimed).await?;
        bound(&stored, &mut now);
        let News { put, dropped } = news(&stored, &now);
        for (id, atom) in &put {
            let Atom { index, model, memory_bytes, numa, island, health, reason } = atom;
            let values: [&(dyn store::Param + Sync); 9] =
                [&node_id.uuid(), id, index, model, memory_bytes, numa, island, health, reason];
            tx.execute(&sql::ATOM_PUT, &values).await?;
        }
        if !dropped.is_empty() {
            tx.execute(&sql::ATOMS_DROP, &[&node_id.uuid(), &dropped]).await?;
        }
        self.tell_degraded(tx, node_id, &stored, &put).await?;
        Ok(!put.is_empty() || !dropped.is_empty())
    }

    /// Tells of devices that the node lists and that are another node's, each once for as long as it is listed.
    async fn tell_claimed(
        &self,
        tx: &mut Tx<'_>,
        facts: &NodeFacts,
        claimed: &BTreeMap<String, NodeId>,
    ) -> Result<(), Fault> {
        let node_id = facts.node_id;
        let atoms: Vec<&str> = claimed.keys().map(String::as_str).collect();
        tx.execute(&sql::ATOM_CLAIMS_DROP, &[&node_id.uuid(), &atoms]).await?;
        if claimed.is_empty() {
            return Ok(());
        }
        let owners: Vec<uuid::Uuid> = claimed.values().map(|owner| owner.uuid()).collect();
        let fresh = tx.query(&sql::ATOM_CLAIMS_PUT, &[&node_id.uuid(), &atoms, &owners]).await?;
        for row in &fresh {
            let (atom, owner): (&str, NodeId) = (row.get("atom"), row.id("owner_id"));
            tracing::warn!(%node_id, atom, other = %owner, "GPU is listed by two nodes");
            let data = json!({ "atom": atom, "ownerNodeId": owner.to_string() });
            let tenant_id = facts.pool.map(|(_, tenant_id)| tenant_id);
            let kind = EventKind::SecurityDeviceClaimed;
            events::append(tx, self.rng(), kind, node_id, tenant_id, data).await?;
        }
        Ok(())
    }

    /// Tells the holders of devices that fell ill, or are well again.
    async fn tell_degraded(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        stored: &BTreeMap<String, StoredAtom>,
        news: &BTreeMap<String, Atom>,
    ) -> Result<(), Fault> {
        for (id, atom) in news {
            let Some(before) = stored.get(id).filter(|before| before.atom.health != atom.health) else {
                continue;
            };
            let Some(allocation_id) = before.booked_by else { continue };
            let subject = tx.query_opt(&sql::ALLOCATION_SUBJECT, &[&allocation_id.uuid()]).await?;
            let Some(row) = subject else { continue };
            let reservation_id: ReservationId = row.id("reservation_id");
            let data = json!({
                "state": row.get::<_, &str>("state"), "nodeId": node_id.to_string(),
                "allocationId": allocation_id.to_string(), "atoms": [id],
                "degraded": atom.health != "healthy", "reason": atom.reason,
            });
            let (kind, tenant_id) = (EventKind::ReservationDegraded, row.id("tenant_id"));
            self.tell(tx, kind, reservation_id, tenant_id, data).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
