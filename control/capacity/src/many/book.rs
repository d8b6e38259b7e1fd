//! Booking many placements in one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kernel::events::{self, EventKind, News};
use kernel::module::wake_all;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Fault};
use model::lifecycle::ReservationState;
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId};
use placer::{Booking, Placement};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use crate::Capacity;
use crate::line::Picked;
use crate::owner::{Standing, fenced};
use crate::place::{Placing, Stop, limits_of, quota_placed, spec_key};
use crate::quotas::refusal;
use crate::sql::many as sql;
use crate::state::{Ask, stored};

const PLACE_MANY: Op = Op::new("reservations_place");

/// A placement of a reservation that the transaction has.
pub(crate) struct Booked<'a> {
    pub id: ReservationId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub ask: &'a Ask,
    pub placement: &'a Placement,
    pub allocation_id: AllocationId,
}

/// What one reservation is to count for.
pub(crate) struct Counted {
    pub tenant_id: TenantId,
    pub holds: Vec<(&'static str, i64)>,
}

/// Many rows as one array for each column.
#[derive(Default)]
struct Columns {
    allocation_ids: Vec<Uuid>,
    reservation_ids: Vec<Uuid>,
    node_ids: Vec<Uuid>,
    atoms: Vec<String>,
    limits: Vec<Option<Value>>,
    cpu_millis: Vec<i64>,
    memory_bytes: Vec<i64>,
    hugepages_1gi: Vec<i64>,
    mems: Vec<String>,
    whole_node: Vec<bool>,
    /// A row for each device.
    of: Vec<Uuid>,
    on: Vec<Uuid>,
    atom: Vec<String>,
    whole: Vec<bool>,
}

pub(crate) fn joined<T: ToString>(parts: impl IntoIterator<Item = T>) -> String {
    let parts: Vec<String> = parts.into_iter().map(|part| part.to_string()).collect();
    parts.join(&sql::SEPARATOR.to_string())
}

impl Columns {
    fn of(booked: &[Booked<'_>]) -> Self {
        let mut columns = Self::default();
        for one in booked {
            let booking = &one.placement.booking;
            // No reservation books disk.
            let Booking { node, atoms, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node, .. } =
                booking;
            let limits = limits_of(one.ask, one.placement);
            let limits = limits
                .map(|limits| serde_json::to_value(limits).expect("limits hold nothing that JSON cannot"));
            columns.allocation_ids.push(one.allocation_id.uuid());
            columns.reservation_ids.push(one.id.uuid());
            columns.node_ids.push(node.uuid());
            columns.atoms.push(joined(atoms));
            columns.limits.push(limits);
            columns.cpu_millis.push(stored(*cpu_millis));
            columns.memory_bytes.push(stored(*memory_bytes));
            columns.hugepages_1gi.push(stored(*hugepages_1gi));
            columns.mems.push(joined(mems));
            columns.whole_node.push(*whole_node);
            for atom in atoms {
                columns.of.push(one.allocation_id.uuid());
                columns.on.push(node.uuid());
                columns.atom.push(atom.to_string());
                columns.whole.push(*whole_node);
            }
        }
        columns
    }
}

fn placed(one: &Booked<'_>) -> News {
    let atoms: Vec<&str> = one.placement.booking.atoms.iter().map(|atom| atom.as_str()).collect();
    let data = json!({
        "state": ReservationState::Placed.name(), "poolId": one.pool_id.to_string(),
        "nodeId": one.placement.booking.node.to_string(), "allocationId": one.allocation_id.to_string(), "atoms": atoms,
    });
    News { kind: EventKind::ReservationPlaced, id: one.id.to_string(), tenant_id: Some(one.tenant_id), data }
}

impl Capacity {
    /// Books placements of reservations that the transaction has locked or made, and says so. Gives the versions that the
    /// nodes' books have when this commits. The nodes' books are opened last, as everywhere.
    pub(crate) async fn book_all(
        &self,
        tx: &mut Tx<'_>,
        booked: &[Booked<'_>],
    ) -> Result<HashMap<NodeId, i64>, Stop> {
        if booked.is_empty() {
            return Ok(HashMap::new());
        }
        let news: Vec<News> = booked.iter().map(placed).collect();
        events::append_all(tx, self.rng(), &news).await?;
        let nodes: BTreeMap<NodeId, PoolId> =
            booked.iter().map(|one| (one.placement.booking.node, one.pool_id)).collect();
        let node_ids: Vec<Uuid> = nodes.keys().map(|node_id| node_id.uuid()).collect();
        let pool_ids: Vec<Uuid> = nodes.values().map(|pool_id| pool_id.uuid()).collect();
        let opened = tx.query(&sql::NODES_OPEN, &[&node_ids, &pool_ids]).await?;
        if opened.len() != nodes.len() {
            return Err(Stop::Taken);
        }
        let columns = Columns::of(booked);
        let values: [&(dyn store::Param + Sync); 14] = [
            &columns.allocation_ids,
            &columns.reservation_ids,
            &columns.node_ids,
            &columns.atoms,
            &columns.limits,
            &columns.cpu_millis,
            &columns.memory_bytes,
            &columns.hugepages_1gi,
            &columns.mems,
            &columns.whole_node,
            &columns.of,
            &columns.on,
            &columns.atom,
            &columns.whole,
        ];
        let written = tx.query_one(&sql::ALLOCATIONS_BOOK, &values).await?;
        if written.get::<_, i64>("booked") != columns.atom.len() as i64 {
            return Err(Stop::Taken);
        }
        let keys: Vec<String> = nodes.keys().map(|node_id| spec_key(*node_id)).collect();
        wake_all(tx, SPEC_QUEUE, &keys).await?;
        Ok(opened.iter().map(|row| (row.id("node_id"), row.get("version"))).collect())
    }

    /// What reservations count for from now on.
    pub(crate) async fn hold_quotas(
        &self,
        tx: &mut Tx<'_>,
        counted: &[(ReservationId, &Counted)],
    ) -> Result<(), Stop> {
        let (mut ids, mut tenants, mut resources, mut amounts) = (vec![], vec![], vec![], vec![]);
        for (id, Counted { tenant_id, holds }) in counted {
            for (resource, amount) in holds {
                ids.push(id.uuid());
                tenants.push(tenant_id.uuid());
                resources.push(*resource);
                amounts.push(*amount);
            }
        }
        if !ids.is_empty() {
            tx.execute(&sql::QUOTA_HOLDS_PUT_ALL, &[&ids, &tenants, &resources, &amounts]).await?;
        }
        Ok(())
    }

    /// Which of these no quota takes any more, taken in turn: a place in the list, and what its caller is told. The quotas
    /// stay as they are until the transaction is over.
    pub(crate) async fn over_quota(
        &self,
        tx: &mut Tx<'_>,
        counted: &[&Counted],
    ) -> Result<BTreeMap<usize, ApiError>, Fault> {
        let tenants: BTreeSet<Uuid> = counted.iter().map(|one| one.tenant_id.uuid()).collect();
        let tenants: Vec<Uuid> = tenants.into_iter().collect();
        let mut quotas =
            tx.query(&sql::QUOTAS_OVER, &[&tenants]).await?.iter().map(Quota::of).collect::<Vec<_>>();
        if quotas.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (of, resources): (Vec<Uuid>, Vec<&str>) =
            quotas.iter().map(|quota| (quota.tenant_id.uuid(), quota.resource.as_str())).unzip();
        let used = tx.query(&sql::QUOTAS_USED, &[&of, &resources]).await?;
        let used: Vec<i64> = used.iter().map(|row| row.get("used")).collect();
        quotas.iter_mut().zip(used).for_each(|(quota, used)| quota.used = used);
        let mut over = BTreeMap::new();
        for (place, one) in counted.iter().enumerate() {
            match quotas.iter().find_map(|quota| quota.refuses(one)) {
                Some(refused) => drop(over.insert(place, refused)),
                None => quotas.iter_mut().for_each(|quota| quota.used += quota.wanted(one)),
            }
        }
        Ok(over)
    }

    /// Places reservations that wait, as many as are still to be placed; the others' picks are taken back. None of them when
    /// anything was in the way: the caller tries each by itself.
    pub(crate) async fn place_many(
        &self,
        picked: &[Picked<'_>],
        standing: &Standing,
    ) -> Result<(Vec<ReservationId>, HashMap<NodeId, i64>), Stop> {
        let allocation_ids: Vec<AllocationId> = picked.iter().map(|_| self.id()).collect();
        let ids: Vec<Uuid> = picked.iter().map(|one| one.parts().0.id.uuid()).collect();
        let (ids, allocation_ids) = (&ids, &allocation_ids);
        self.store()
            .tx(PLACE_MANY, |tx| {
                Box::pin(async move {
                    if !fenced(tx, standing).await? {
                        return Err(Stop::Fenced);
                    }
                    let waiting = tx.query(&sql::RESERVATIONS_PLACED, &[ids]).await?;
                    let waiting: BTreeSet<ReservationId> =
                        waiting.iter().map(|row| row.id("reservation_id")).collect();
                    let mut booked = Vec::with_capacity(waiting.len());
                    let mut counted = Vec::new();
                    for (picked, allocation_id) in picked.iter().zip(allocation_ids) {
                        let (one, pick) = picked.parts();
                        if !waiting.contains(&one.id) {
                            continue;
                        }
                        let Placing { id, tenant_id, pool_id, ref ask } = *one;
                        let (placement, allocation_id) = (&pick.placement, *allocation_id);
                        if ask.whole_node {
                            counted.push((id, Counted { tenant_id, holds: quota_placed(ask, placement) }));
                        }
                        booked.push(Booked { id, tenant_id, pool_id, ask, placement, allocation_id });
                    }
                    let counted: Vec<(ReservationId, &Counted)> =
                        counted.iter().map(|(id, counted)| (*id, counted)).collect();
                    self.hold_quotas(tx, &counted).await?;
                    let versions = self.book_all(tx, &booked).await?;
                    Ok((waiting.into_iter().collect(), versions))
                })
            })
            .await
    }
}

/// A quota that binds some of the tenants.
struct Quota {
    tenant_id: TenantId,
    tenant_name: String,
    resource: String,
    amount: i64,
    used: i64,
    binds: Vec<Uuid>,
}

impl Quota {
    fn of(row: &Row) -> Self {
        Self {
            tenant_id: row.id("tenant_id"),
            tenant_name: row.get("tenant_name"),
            resource: row.get("resource"),
            amount: row.get("amount"),
            used: 0,
            binds: row.get("leaves"),
        }
    }

    fn wanted(&self, counted: &Counted) -> i64 {
        if !self.binds.contains(&counted.tenant_id.uuid()) {
            return 0;
        }
        counted
            .holds
            .iter()
            .filter(|(resource, _)| *resource == self.resource)
            .map(|(_, amount)| amount)
            .sum()
    }

    fn refuses(&self, counted: &Counted) -> Option<ApiError> {
        let wanted = self.wanted(counted);
        if wanted == 0 || self.used.saturating_add(wanted) <= self.amount {
            return None;
        }
        let above = (self.tenant_id != counted.tenant_id).then_some(self.tenant_name.as_str());
        Some(refusal(self.tenant_id, above, &self.resource, wanted, self.used, self.amount))
    }
}
