//! Many reports of nodes in a few statements.
//!
//! Taken here is what nodes say nearly always: that they bound what was placed, and that they let go of what was to be
//! released, or that they bound what is to be released by now. Whatever is odd (another node's allocation, other devices, a
//! refusal, a second report about an allocation that the first one moved) is left for [`NodeObserver::report`](kernel::ports::node::NodeObserver::report), which knows all of it.

use std::collections::{BTreeMap, BTreeSet};

use kernel::Fault;
use kernel::events::{EventKind, News};
use kernel::module::wake;
use kernel::ports::node::Reported;
use kit::mutant;
use model::lifecycle::{AllocationState, ReservationEvent, ReservationState};
use model::{AllocationId, NodeId, PoolId};
use serde_json::json;
use store::{RowExt, Tx};
use uuid::Uuid;
use wire::proto::agent::AllocationBound;
use wire::proto::agent::node_report::Report;

use super::book::joined;
use super::release::Over;
use crate::Capacity;
use crate::observe::{Spoken, free_its_node, names_what_was_booked, sorted};
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::sql::many as sql;
use crate::state::step;

enum Said<'a> {
    Bound(&'a AllocationBound),
    Released,
}

fn said<'a>(one: &Reported<'a>) -> Option<(AllocationId, Said<'a>)> {
    match &one.report.report {
        Some(Report::AllocationBound(bound)) => Some((bound.allocation_id.parse().ok()?, Said::Bound(bound))),
        Some(Report::AllocationReleased(released)) => {
            Some((released.allocation_id.parse().ok()?, Said::Released))
        }
        Some(Report::AllocationFailed(_) | Report::ConditionChanged(_) | Report::InstancesObserved(_))
        | None => None,
    }
}

/// What a report does to what it speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Moves,
    /// It is as it was, and the next report about it may be a plain one too.
    Nothing,
    Odd,
}

/// What the reports come to.
#[derive(Default)]
struct Moves {
    bound: Vec<(Uuid, Uuid, String)>,
    freed: Vec<Uuid>,
    freed_in: BTreeSet<PoolId>,
    over: Vec<Over>,
    news: Vec<News>,
}

impl Capacity {
    pub(crate) async fn take_reports(
        &self,
        tx: &mut Tx<'_>,
        reports: &[Reported<'_>],
    ) -> Result<Vec<usize>, Fault> {
        let ids: BTreeSet<Uuid> = reports.iter().filter_map(said).map(|(id, _)| id.uuid()).collect();
        let ids: Vec<Uuid> = ids.into_iter().collect();
        let mut spoken: BTreeMap<AllocationId, (NodeId, Spoken)> = BTreeMap::new();
        if !ids.is_empty() {
            for row in tx.query(&sql::ALLOCATIONS_SPOKEN, &[&ids]).await? {
                let one = Spoken::of_row(row.id("allocation_id"), row.id("reservation_id"), &row)?;
                spoken.insert(row.id("allocation_id"), (row.id("node_id"), one));
            }
        }
        let (mut moves, mut left) = (Moves::default(), Vec::new());
        for (place, one) in reports.iter().enumerate() {
            // A refusal is left, and so is whatever comes after it about the same allocation.
            if let Some(Report::AllocationFailed(failed)) = &one.report.report
                && let Ok(id) = failed.allocation_id.parse::<AllocationId>()
            {
                spoken.remove(&id);
            }
            let taken = match said(one) {
                // Nobody here asks about conditions and instances.
                None => matches!(
                    one.report.report,
                    Some(Report::ConditionChanged(_) | Report::InstancesObserved(_)) | None
                ),
                Some((id, said)) => {
                    let taken = match spoken.get(&id) {
                        Some((node_id, spoken)) if *node_id == one.node_id => {
                            moves.take(*node_id, spoken, &said)?
                        }
                        Some(_) | None => Taken::Odd,
                    };
                    // What is left is handled after all others, and so is whatever comes after it.
                    if taken != Taken::Nothing {
                        spoken.remove(&id);
                    }
                    taken != Taken::Odd
                }
            };
            if !taken {
                left.push(place);
            }
        }
        self.move_all(tx, moves).await?;
        Ok(left)
    }

    async fn move_all(&self, tx: &mut Tx<'_>, moves: Moves) -> Result<(), Fault> {
        let Moves { bound, freed, freed_in, over, news } = moves;
        if !bound.is_empty() {
            let (mut ids, mut reservations, mut names) = (vec![], vec![], vec![]);
            for (id, reservation, cdi_devices) in bound {
                ids.push(id);
                reservations.push(reservation);
                names.push(cdi_devices);
            }
            tx.execute(&sql::ALLOCATIONS_BOUND, &[&ids, &reservations, &names]).await?;
        }
        self.end_all(tx, &over, news).await?;
        if !freed.is_empty() {
            self.wake_waiting(tx, freed_in).await?;
            // Last: whoever books on these nodes waits from here on until the commit. Their specs go on naming what they
            // have released until there is something else to say to them.
            tx.query_one(&sql::ALLOCATIONS_END, &[&freed]).await?;
            free_its_node(tx, &freed).await?;
        }
        Ok(())
    }

    /// Wakes those of the pools in which something waits. One whose create is not committed yet looks for itself soon after.
    pub(crate) async fn wake_waiting(
        &self,
        tx: &mut Tx<'_>,
        pools: impl IntoIterator<Item = PoolId>,
    ) -> Result<(), Fault> {
        let pools: Vec<Uuid> = pools.into_iter().map(|pool_id| pool_id.uuid()).collect();
        for row in tx.query(&sql::POOLS_WAITING_OF, &[&pools]).await? {
            wake(tx, PLACE_QUEUE, &pool_key(row.id("pool_id"))).await?;
        }
        Ok(())
    }
}

/// Whether a node says that it bound what was booked there, and nothing else.
fn is_plain(spoken: &Spoken, bound: &AllocationBound) -> bool {
    sorted(&bound.atoms) == sorted(&spoken.atoms) && names_what_was_booked(spoken, &bound.cdi_devices)
}

impl Moves {
    fn take(&mut self, node_id: NodeId, spoken: &Spoken, said: &Said<'_>) -> Result<Taken, Fault> {
        match (said, spoken.state) {
            (Said::Bound(bound), _) if !is_plain(spoken, bound) => Ok(Taken::Odd),
            (Said::Bound(bound), AllocationState::Placed) => {
                self.bind(node_id, spoken, bound)?;
                Ok(Taken::Moves)
            }
            // Said again, or before the node heard that it is to let go.
            (Said::Bound(_), AllocationState::Bound | AllocationState::Releasing)
                if !mutant::on("capacity.late-bound-counts") =>
            {
                Ok(Taken::Nothing)
            }
            (Said::Released, AllocationState::Releasing) => {
                let (end, reason) = spoken.conclusion()?;
                let Spoken { reservation_id: id, tenant_id, .. } = *spoken;
                self.free(spoken);
                self.over.push(Over { id, tenant_id, end, reason });
                Ok(Taken::Moves)
            }
            // Its reservation is elsewhere by now.
            (Said::Released, AllocationState::Failed) if spoken.live => {
                self.free(spoken);
                Ok(Taken::Moves)
            }
            // A daemon that started anew says it again of what its spec names yet.
            (Said::Released, AllocationState::Released | AllocationState::Failed) => Ok(Taken::Nothing),
            (
                Said::Bound(_) | Said::Released,
                AllocationState::Placed
                | AllocationState::Bound
                | AllocationState::Releasing
                | AllocationState::Released
                | AllocationState::Failed,
            ) => Ok(Taken::Odd),
        }
    }

    fn bind(&mut self, node_id: NodeId, spoken: &Spoken, bound: &AllocationBound) -> Result<(), Fault> {
        let state = step(spoken.reservation_state, ReservationEvent::Bound)?;
        debug_assert_eq!(state, ReservationState::Active);
        let data = json!({
            "state": state.name(), "poolId": spoken.pool_id.to_string(), "nodeId": node_id.to_string(),
            "allocationId": spoken.id.to_string(), "cdiDevices": bound.cdi_devices,
        });
        let (kind, id) = (EventKind::ReservationActive, spoken.reservation_id.to_string());
        self.news.push(News { kind, id, tenant_id: Some(spoken.tenant_id), data });
        let (id, reservation) = (spoken.id.uuid(), spoken.reservation_id.uuid());
        self.bound.push((id, reservation, joined(&bound.cdi_devices)));
        Ok(())
    }

    fn free(&mut self, spoken: &Spoken) {
        self.freed.push(spoken.id.uuid());
        self.freed_in.insert(spoken.pool_id);
    }
}
