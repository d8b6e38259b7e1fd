//! Booking one placement, and trying again when somebody was faster.

use std::time::Duration;

use kernel::Fault;
use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kit::mutant;
use model::lifecycle::{ReservationEvent, ReservationState};
use model::unit::GIB;
use model::{AllocationId, NodeId, PoolId, ReservationId, TenantId};
use placer::{Claim, CpuSet, Placement};
use serde_json::{Value, json};
use store::{IsRetryable, Op, StoreError, Tx};

use crate::owner::fenced;
use crate::quotas::is_over_quota;
use crate::state::{Ask, StoredLimits, step, stored};
use crate::{Capacity, sql};

const RESERVATION_PLACE: Op = Op::new("reservation_place");

/// Placements tried in a row when others are faster. Each try reads what the others did.
pub(crate) const TRIES_MAX: u32 = 12;
/// The first pause after a lost race is up to this long, later ones up to as many times more.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a booking transaction was undone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    /// Another booking was there first, or the node takes no work any more: look again.
    #[error("the place was taken")]
    Taken,
    /// Another process has the pool by now.
    #[error("the pool changed hands")]
    Fenced,
    /// A quota does not take it: which one, is asked afterwards.
    #[error("a quota is used up")]
    OverQuota,
    /// The reservation is not in the state any more in which it was found.
    #[error("the reservation moved on")]
    Gone,
    /// A call at the same time under the same idempotency key was first, and made this.
    #[error("an earlier call made {0}")]
    Earlier(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<StoreError> for Stop {
    fn from(err: StoreError) -> Self {
        let taken = err.is_unique("bookings_pkey")
            || err.is_unique("host_bookings_whole_node")
            || err.is_check("host_bookings_within_node");
        if taken {
            Stop::Taken
        } else if is_over_quota(&err) {
            Stop::OverQuota
        } else if err.is_foreign_key("quota_holds_reservation_id_fkey") {
            // A draft that took so long that the sweep took it for one of a crash.
            Stop::Gone
        } else {
            Stop::Fault(err.into())
        }
    }
}

impl IsRetryable for Stop {
    fn is_retryable(&self) -> bool {
        match self {
            Stop::Taken | Stop::Fenced | Stop::OverQuota | Stop::Gone | Stop::Earlier(_) => false,
            Stop::Fault(fault) => fault.is_retryable(),
        }
    }
}

/// A reservation that is to be placed.
#[derive(Debug, Clone)]
pub(crate) struct Placing {
    pub id: ReservationId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub ask: Ask,
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    Placed,
    /// Nothing fits now.
    NoFit,
    /// It does not wait any more.
    Gone,
    OverQuota,
}

/// What a placement counts for against quotas. A whole node counts for what it turned out to be.
pub(crate) fn quota_placed(ask: &Ask, placement: &Placement) -> Vec<(&'static str, i64)> {
    if !ask.whole_node {
        return ask.quota_asked();
    }
    let booking = &placement.booking;
    let vcpu = booking.cpu_millis.div_ceil(1000);
    ask.quota(booking.atoms.len() as u64, vcpu, booking.memory_bytes.div_ceil(GIB))
}

/// What the node is to confine it to; none when nothing of the host was asked for.
pub(crate) fn limits_of(ask: &Ask, placement: &Placement) -> Option<StoredLimits> {
    let booking = &placement.booking;
    ask.is_limited().then(|| StoredLimits {
        cpu_millis: booking.cpu_millis,
        memory_bytes: booking.memory_bytes,
        hugepages_1gi: booking.hugepages_1gi,
        cpus: placement.limits.cpus.to_string(),
        mems: CpuSet::from_cpus(placement.limits.mems.iter().copied()).to_string(),
    })
}

pub(crate) fn spec_key(node_id: NodeId) -> String {
    node_id.uuid().hyphenated().to_string()
}

impl Capacity {
    /// Books a placement for a reservation that the caller has locked in the state `from`: scheduling, or a draft that is
    /// admitted with it. Gives the version that the node's books have when this commits.
    ///
    /// The node's books are opened last, since every other booking on the node waits while they are.
    pub(crate) async fn book(
        &self,
        tx: &mut Tx<'_>,
        placing: &Placing,
        from: ReservationState,
        placement: &Placement,
    ) -> Result<i64, Stop> {
        let booking = &placement.booking;
        let (node_id, id) = (booking.node, placing.id);
        let admitted = match from {
            ReservationState::Draft => step(from, ReservationEvent::Admitted)?,
            ReservationState::Scheduling
            | ReservationState::Placed
            | ReservationState::Active
            | ReservationState::Releasing
            | ReservationState::Released
            | ReservationState::Failed
            | ReservationState::Expired => from,
        };
        let state = step(admitted, ReservationEvent::Placed)?;
        if tx.execute(&sql::RESERVATION_PLACED, &[&id.uuid(), &from.name()]).await? == 0 {
            return Err(Stop::Gone);
        }
        let allocation_id: AllocationId = self.id();
        let atoms: Vec<&str> = booking.atoms.iter().map(|atom| atom.as_str()).collect();
        let data = json!({
            "state": state.name(), "poolId": placing.pool_id.to_string(), "nodeId": node_id.to_string(),
            "allocationId": allocation_id.to_string(), "atoms": atoms,
        });
        self.tell(tx, EventKind::ReservationPlaced, id, placing.tenant_id, data).await?;
        let limits = limits_of(&placing.ask, placement);
        let limits: Option<Value> =
            limits.map(|limits| serde_json::to_value(limits).expect("limits hold nothing that JSON cannot"));
        let mems: Vec<i32> = booking.mems.iter().map(|mem| i32::from(*mem)).collect();
        let written = tx
            .query_opt(
                &sql::ALLOCATION_BOOK,
                &[
                    &allocation_id.uuid(),
                    &id.uuid(),
                    &node_id.uuid(),
                    &atoms,
                    &limits,
                    &stored(booking.cpu_millis),
                    &stored(booking.memory_bytes),
                    &stored(booking.hugepages_1gi),
                    &mems,
                    &booking.whole_node,
                    &placing.pool_id.uuid(),
                ],
            )
            .await?
            .ok_or(Stop::Taken)?;
        if written.get::<_, i64>("booked") != atoms.len() as i64 {
            return Err(Stop::Taken);
        }
        if mutant::on("capacity.booking-forgotten") {
            const FORGET: store::Sql =
                store::sql("bookings_forget", "DELETE FROM bookings WHERE allocation_id = $1");
            tx.execute(&FORGET, &[&allocation_id.uuid()]).await?;
        }
        wake(tx, SPEC_QUEUE, &spec_key(node_id)).await?;
        Ok(written.get("version"))
    }

    /// What the reservation counts for from now on.
    pub(crate) async fn hold_quota(
        &self,
        tx: &mut Tx<'_>,
        placing: &Placing,
        holds: &[(&'static str, i64)],
    ) -> Result<(), Stop> {
        let (resources, amounts): (Vec<&str>, Vec<i64>) = holds.iter().copied().unzip();
        let values: [&(dyn store::Param + Sync); 4] =
            [&placing.id.uuid(), &placing.tenant_id.uuid(), &resources, &amounts];
        tx.execute(&sql::QUOTA_HOLDS_PUT, &values).await?;
        Ok(())
    }

    /// Places a reservation that waits, if it can be now.
    pub(crate) async fn place(&self, placing: &Placing, claim: &Claim) -> Result<Attempt, Fault> {
        for tried in 1..=TRIES_MAX {
            let standing = self.standing(placing.pool_id);
            let Some(pick) = self.books().pick(placing.pool_id, placing.id, claim) else {
                return Ok(Attempt::NoFit);
            };
            let (placement, standing) = (&pick.placement, &standing);
            let done = self
                .store()
                .tx(RESERVATION_PLACE, |tx| {
                    Box::pin(async move {
                        if !fenced(tx, standing).await? {
                            return Err(Stop::Fenced);
                        }
                        // The reservation before quotas and books, as everybody.
                        tx.query_opt(&sql::RESERVATION_LOCK, &[&placing.id.uuid()]).await?;
                        if placing.ask.whole_node {
                            self.hold_quota(tx, placing, &quota_placed(&placing.ask, placement)).await?;
                        }
                        self.book(tx, placing, ReservationState::Scheduling, placement).await
                    })
                })
                .await;
            match done {
                Ok(version) => {
                    pick.confirm(version);
                    return Ok(Attempt::Placed);
                }
                // Only an admission has a key to be late with.
                Err(Stop::Gone | Stop::Earlier(_)) => return Ok(Attempt::Gone),
                Err(Stop::OverQuota) => return Ok(Attempt::OverQuota),
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Fenced) => {
                    self.lost_pool(placing.pool_id);
                    return Ok(Attempt::NoFit);
                }
                Err(Stop::Taken) => drop(pick),
            }
            self.look_again(tried).await?;
        }
        Ok(Attempt::NoFit)
    }

    /// After a lost race: a pause that grows, so that the racers part, and a fresh picture.
    pub(crate) async fn look_again(&self, tried: u32) -> Result<(), StoreError> {
        let most = u64::try_from(PAUSE.as_micros()).expect("a pause is short") * u64::from(tried);
        self.clock().sleep(Duration::from_micros(self.rng().below(most))).await;
        self.books().refresh().await
    }
}
