//! Room for what another module puts on nodes: the same books, quotas and placement as reservations', and no hold that the
//! node's daemon would make. Whoever asks owns the rows that say what the room is for, and gives the room back only when
//! nothing is on the node any more.

use std::collections::BTreeSet;

use api::pools::PoolPolicy;
use api::{Method, Ref};
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::unit::{GIB, MIB, mib_to_gib_up};
use model::{AllocationId, ErrorCode, InstanceId, NodeId, PoolId, ReservationId, TenantId};
use placer::Claim;
use serde_json::Value;
use store::{RowExt, StoreError, Tx};

use crate::books::Pick;
use crate::explain::waiting;
use crate::place::spec_key;
use crate::pools::{policy_of, pool_resource};
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::seat::Seating;
use crate::sql::inline as sql;
use crate::state::stored;
use crate::{Capacity, sql as shared};

/// What runs an instance takes memory of its own: a thirty-second of the instance's, and this. Hosts count the same.
const OVERHEAD_BYTES: u64 = 256 * MIB;
const OVERHEAD_SHARE: u64 = 32;

/// A pool as whoever puts instances into it needs it.
#[derive(Debug, Clone)]
pub struct PoolOfInstances {
    pub id: PoolId,
    pub tenant_id: TenantId,
    pub name: String,
    pub class: String,
    pub policy: PoolPolicy,
}

/// What an instance needs of one node.
#[derive(Debug, Clone)]
pub struct Room {
    pub instance_id: InstanceId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub vcpu: u32,
    /// Of the instance itself. More is booked, for what runs it.
    pub memory_mib: u64,
    pub disk_gib: u64,
    pub gpus: u32,
    pub gpu_model: Option<String>,
    /// What the node's daemon must advertise.
    pub capabilities: BTreeSet<String>,
    pub seating: Seating,
}

impl Room {
    fn claim(&self) -> Claim {
        let (memory_bytes, hugepages_1gi) = self.memory();
        Claim {
            gpus: self.gpus,
            model: self.gpu_model.clone(),
            cpu_millis: u64::from(self.vcpu) * 1000,
            memory_bytes,
            hugepages_1gi,
            disk_bytes: self.disk_gib.saturating_mul(GIB),
            capabilities: self.capabilities.clone(),
            ..Claim::default()
        }
    }

    /// With what runs it, and how many pages of 1 GiB beside that. What is in huge pages is in none of the others.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let memory = self.memory_mib.saturating_mul(MIB);
        let overhead = (memory / OVERHEAD_SHARE).saturating_add(OVERHEAD_BYTES);
        match self.seating.hugepages_1gi {
            true => (overhead, memory.div_ceil(GIB)),
            false => (memory.saturating_add(overhead), 0),
        }
    }

    /// What it counts for against quotas.
    fn holds(&self) -> Vec<(&'static str, i64)> {
        let all = [
            ("gpu", u64::from(self.gpus)),
            ("vcpu", u64::from(self.vcpu)),
            ("memoryGiB", mib_to_gib_up(self.memory_mib)),
            ("diskGiB", self.disk_gib),
        ];
        all.into_iter()
            .filter(|(_, amount)| *amount > 0)
            .map(|(name, amount)| (name, stored(amount)))
            .collect()
    }
}

/// A place that is booked in memory and nowhere else yet. Dropped, it is given up.
pub struct Place<'b> {
    pick: Pick<'b>,
    /// Its NUMA nodes are chosen where it is booked, which the picture does not know.
    seated: bool,
}

impl Place<'_> {
    pub fn node_id(&self) -> NodeId {
        self.pick.placement.booking.node
    }

    /// The transaction that booked it committed, and gave the node's books this version.
    pub fn confirm(self, version: i64) {
        if !self.seated {
            self.pick.confirm(version);
        }
    }
}

/// Somebody was faster, or the node takes no work any more: look again.
pub fn is_taken(err: &StoreError) -> bool {
    err.is_unique("bookings_pkey")
        || err.is_unique("host_bookings_whole_node")
        || err.is_unique("pinned_cpus_pkey")
        || err.is_check("host_bookings_within_node")
}

/// A quota does not take it: which one, [`Capacity::room_refusal`] tells.
pub fn is_over_quota(err: &StoreError) -> bool {
    crate::quotas::is_over_quota(err)
}

impl Capacity {
    /// The pool that something of the tenant is to come from, when the caller may use it: its own, or one of a tenant above
    /// that it may see. `action` is decided on `kind` in the tenant where there is none, so that who may not do it learns nothing.
    pub async fn pool_of_instances(
        &self,
        call: &Call,
        action: &str,
        kind: &str,
        tenant_id: TenantId,
        pool: &Ref<PoolId>,
    ) -> Result<PoolOfInstances, Fault> {
        let (id, name) = match pool {
            Ref::Id(id) => (Some(id.uuid()), None),
            Ref::Name(name) => (None, Some(name.as_str())),
        };
        let rows = self.store().read(&shared::POOLS_ON_WAY_UP, &[&tenant_id.uuid(), &id, &name]).await?;
        if let Some(row) = rows.first() {
            let found = PoolOfInstances {
                id: row.id("pool_id"),
                tenant_id: row.id("tenant_id"),
                name: row.get("name"),
                class: row.get("class"),
                policy: policy_of(&row.get::<_, Value>("policy")),
            };
            if found.tenant_id == tenant_id {
                return Ok(found);
            }
            let seen = pool_resource(found.id, found.tenant_id);
            if call.decide(api::pools::Get::ACTION, &seen).await?.allowed {
                return Ok(found);
            }
        }
        call.require_in(action, &kernel::ports::iam::Resource::any(kind, tenant_id)).await?;
        Err(ApiError::not_found("pool", pool).into())
    }

    /// The best place for it now, kept from other calls of this process until it is confirmed or dropped.
    pub async fn room_find(&self, room: &Room, avoid: &BTreeSet<NodeId>) -> Result<Option<Place<'_>>, Fault> {
        self.books().refresh().await?;
        let claim = Claim { avoid: avoid.clone(), ..room.claim() };
        // Where a node is kept for a reservation, that reservation is not this.
        let nobody = ReservationId::from_uuid(room.instance_id.uuid());
        let seated = room.seating.is_any();
        let pick = self.books().pick(room.pool_id, nobody, &claim);
        Ok(pick.map(|pick| Place { pick, seated }))
    }

    /// Why there is no place now; CAPACITY_UNAVAILABLE when there never could be one.
    pub fn room_reason(&self, room: &Room, pool_name: &str) -> Result<String, ApiError> {
        let claim = room.claim();
        let Some(refused) = self.books().refusal(room.pool_id, &claim) else {
            return Ok("a place was taken just now".to_owned());
        };
        let reason = waiting(&refused);
        if self.books().could_ever(room.pool_id, &claim) {
            return Ok(reason);
        }
        let message = format!(
            "no host of pool {pool_name:?} can hold it: {reason}; see better-compute nodes list --pool {pool_name}, or take \
             another flavor (better-compute flavors list --pool {pool_name})"
        );
        Err(ApiError::new(ErrorCode::CapacityUnavailable, message).detail("pool", pool_name))
    }

    /// The same for one that avoids nodes, which may take it some other time.
    pub fn room_reason_avoiding(&self, room: &Room, pool_name: &str, avoid: &BTreeSet<NodeId>) -> String {
        let claim = Claim { avoid: avoid.clone(), ..room.claim() };
        match self.books().refusal(room.pool_id, &claim) {
            Some(refused) if !avoid.is_empty() => waiting(&refused),
            // That none could ever hold it was not so when it was admitted, and may not stay so.
            Some(_) | None => self.room_reason(room, pool_name).unwrap_or_else(|never| never.message),
        }
    }

    /// Books the place under the allocation, and has the node told. Gives the version for [`Place::confirm`]; none when the
    /// place is gone, and then the transaction is to be undone. The node's books are opened: whatever else the
    /// transaction locks, it locks before.
    pub async fn room_book(
        &self,
        tx: &mut Tx<'_>,
        room: &Room,
        place: &Place<'_>,
        allocation_id: AllocationId,
    ) -> Result<Option<i64>, StoreError> {
        let booking = &place.pick.placement.booking;
        let atoms: Vec<&str> = booking.atoms.iter().map(|atom| atom.as_str()).collect();
        let mems: Vec<i32> = booking.mems.iter().map(|mem| i32::from(*mem)).collect();
        let written = tx
            .query_opt(
                &sql::INSTANCE_BOOK,
                &[
                    &allocation_id.uuid(),
                    &room.instance_id.uuid(),
                    &booking.node.uuid(),
                    &atoms,
                    &stored(booking.cpu_millis),
                    &stored(booking.memory_bytes),
                    &stored(booking.hugepages_1gi),
                    &mems,
                    &room.pool_id.uuid(),
                    &stored(booking.disk_bytes),
                ],
            )
            .await?;
        let Some(row) = written.filter(|row| row.get::<_, i64>("booked") == atoms.len() as i64) else {
            return Ok(None);
        };
        if room.seating.is_any() {
            self.seat(tx, room, booking.node, allocation_id).await?;
        }
        wake(tx, SPEC_QUEUE, &spec_key(booking.node)).await?;
        Ok(Some(row.get("version")))
    }

    /// What it counts for from now on. An error that [`is_over_quota`] when a quota does not take it.
    pub async fn room_hold(&self, tx: &mut Tx<'_>, room: &Room) -> Result<(), StoreError> {
        let (resources, amounts): (Vec<&str>, Vec<i64>) = room.holds().into_iter().unzip();
        let values: [&(dyn store::Param + Sync); 4] =
            [&room.instance_id.uuid(), &room.tenant_id.uuid(), &resources, &amounts];
        tx.execute(&sql::INSTANCE_HOLDS_PUT, &values).await?;
        Ok(())
    }

    /// What it books and counts for becomes this, where it is. False when it has no place. An error that [`is_over_quota`] or
    /// [`is_taken`] when a quota or its host does not take it; either way the transaction is to be undone. Its devices stay.
    pub async fn room_resize(&self, tx: &mut Tx<'_>, room: &Room) -> Result<bool, StoreError> {
        tx.execute(&sql::INSTANCE_HOLDS_DELETE, &[&room.instance_id.uuid()]).await?;
        self.room_hold(tx, room).await?;
        let claim = room.claim();
        let (cpu, memory, disk) =
            (stored(claim.cpu_millis), stored(claim.memory_bytes), stored(claim.disk_bytes));
        let pages = stored(claim.hugepages_1gi);
        let values: [&(dyn store::Param + Sync); 5] =
            [&room.instance_id.uuid(), &cpu, &memory, &disk, &pages];
        let Some(row) = tx.query_opt(&sql::INSTANCE_REBOOK, &values).await? else { return Ok(false) };
        self.seat(tx, room, row.id("node_id"), row.id("allocation_id")).await?;
        // It may have become less.
        wake(tx, PLACE_QUEUE, &pool_key(room.pool_id)).await?;
        Ok(true)
    }

    /// What the host of an instance would have to advertise for it, and does not.
    pub async fn room_lacks(&self, tx: &mut Tx<'_>, room: &Room) -> Result<Option<String>, StoreError> {
        let row = tx.query_opt(&sql::INSTANCE_HOST_CAPABILITIES, &[&room.instance_id.uuid()]).await?;
        let has: Vec<String> = row.map(|row| row.get("capabilities")).unwrap_or_default();
        Ok(room.capabilities.iter().find(|name| !has.contains(name)).cloned())
    }

    /// Which resource the host of an instance has too little of for this size. None when it has enough by now.
    pub async fn room_short_of(&self, room: &Room) -> Result<Option<&'static str>, StoreError> {
        let Some(left) = self.store().read_opt(&sql::INSTANCE_HOST_LEFT, &[&room.instance_id.uuid()]).await?
        else {
            return Ok(None);
        };
        let claim = room.claim();
        // None of a disk that nobody counts.
        let is_short = |wanted: u64, column: &str| {
            left.get::<_, Option<i64>>(column).is_some_and(|left| stored(wanted) > left)
        };
        Ok(if is_short(claim.cpu_millis, "cpu_millis") {
            Some("vcpu")
        } else if is_short(claim.memory_bytes, "memory_bytes") {
            Some("memoryGiB")
        } else if is_short(claim.disk_bytes, "disk_bytes") {
            Some("diskGiB")
        } else if is_short(claim.hugepages_1gi, "hugepages_1gi") {
            Some("hugepages1Gi")
        } else {
            None
        })
    }

    /// Which quota does not take it, with its numbers. None when all do by now.
    pub async fn room_refusal(&self, room: &Room) -> Result<Option<ApiError>, StoreError> {
        self.quota_refusal(room.tenant_id, &room.holds()).await
    }

    /// Gives back all that the instance holds, and what it booked where it is. Places that it left before are freed by themselves.
    pub async fn room_free(
        &self,
        tx: &mut Tx<'_>,
        instance_id: InstanceId,
        pool_id: PoolId,
    ) -> Result<(), StoreError> {
        tx.execute(&sql::INSTANCE_HOLDS_DELETE, &[&instance_id.uuid()]).await?;
        for row in tx.query(&sql::INSTANCE_FREE, &[&instance_id.uuid()]).await? {
            wake(tx, SPEC_QUEUE, &spec_key(row.id("node_id"))).await?;
            wake(tx, PLACE_QUEUE, &pool_key(pool_id)).await?;
        }
        Ok(())
    }

    /// Gives back what one place booked. Its instance holds on to its quotas.
    pub async fn room_free_place(
        &self,
        tx: &mut Tx<'_>,
        allocation_id: AllocationId,
        pool_id: PoolId,
    ) -> Result<(), StoreError> {
        for row in tx.query(&sql::INSTANCE_FREE_PLACE, &[&allocation_id.uuid()]).await? {
            wake(tx, SPEC_QUEUE, &spec_key(row.id("node_id"))).await?;
            wake(tx, PLACE_QUEUE, &pool_key(pool_id)).await?;
        }
        Ok(())
    }
}
