//! Many releases in one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kernel::audit;
use kernel::events::{self, EventKind, News};
use kernel::module::wake_all;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{Call, Fault};
use model::lifecycle::{ReservationEvent, ReservationState};
use model::{AllocationId, NodeId, ReservationId, TenantId, Timestamp};
use serde_json::json;
use store::{Op, RowExt, Tx};
use uuid::Uuid;

use super::{AskedRelease, Releasing};
use crate::Capacity;
use crate::change::Why;
use crate::place::spec_key;
use crate::sql::many as sql;
use crate::state::{state_of, step};

const RELEASE_MANY: Op = Op::new("reservations_release");

/// What came of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The node is asked to let go of this, and nothing else of the reservation has changed.
    Asked { from: ReservationState, allocation_id: AllocationId, updated_at: Timestamp },
    /// It waited and has ended, or was ending or over already: to be read.
    Otherwise,
}

impl Capacity {
    /// Answers every one of them.
    pub(super) async fn release_all(&self, asked: Vec<AskedRelease>) {
        let asked: Vec<AskedRelease> = asked.into_iter().filter(|one| !one.is_abandoned()).collect();
        let whats: Vec<&Releasing> = asked.iter().map(|one| &one.what).collect();
        match self.release_batch(&whats).await {
            Ok(released) => {
                for one in asked {
                    let what = released.get(&one.what.id).copied().unwrap_or(Released::Otherwise);
                    one.answer(Ok(what));
                }
            }
            Err(err) => {
                tracing::debug!(
                    releases = asked.len(),
                    err = kit::chain(&err),
                    "batch of releases was undone"
                );
                for one in asked {
                    let answer = self.release_alone(&one.what).await;
                    one.answer(answer);
                }
            }
        }
    }

    /// As a process does that does each call by itself.
    pub(crate) async fn release_alone(&self, what: &Releasing) -> Result<Released, Fault> {
        self.release_one(&what.call, what.id).await?;
        Ok(Released::Otherwise)
    }

    async fn release_batch(&self, whats: &[&Releasing]) -> Result<HashMap<ReservationId, Released>, Fault> {
        let ids: BTreeSet<Uuid> = whats.iter().map(|what| what.id.uuid()).collect();
        let ids: Vec<Uuid> = ids.into_iter().collect();
        let calls: Vec<&Call> = whats.iter().map(|what| &*what.call).collect();
        let (ids, calls) = (&ids, &calls);
        let (released, entries) = self
            .store()
            .tx(RELEASE_MANY, |tx| {
                Box::pin(async move {
                    let released = self.release_many_in(tx, ids).await?;
                    Ok::<_, Fault>((released, audit::enter_all(tx, calls.iter().copied()).await?))
                })
            })
            .await?;
        entries.committed();
        Ok(released)
    }

    /// What [`Capacity::release_in`] does for one that was asked for.
    async fn release_many_in(
        &self,
        tx: &mut Tx<'_>,
        ids: &[Uuid],
    ) -> Result<HashMap<ReservationId, Released>, Fault> {
        let mut ending: BTreeMap<ReservationId, (TenantId, ReservationState)> = BTreeMap::new();
        for row in tx.query(&sql::RESERVATIONS_LOCK, &[&ids]).await? {
            let state = state_of(row.get("state"))?;
            if state.terminal() || matches!(state, ReservationState::Draft | ReservationState::Releasing) {
                continue;
            }
            step(state, ReservationEvent::ReleaseAsked)?;
            ending.insert(row.id("reservation_id"), (row.id("tenant_id"), state));
        }
        let mut released = HashMap::new();
        if ending.is_empty() {
            return Ok(released);
        }
        let end = Why::Asked.end();
        let ids: Vec<Uuid> = ending.keys().map(|id| id.uuid()).collect();
        let moved = tx.query(&sql::RESERVATIONS_RELEASING, &[&ids, &end.name()]).await?;
        let moved: HashMap<ReservationId, Timestamp> =
            moved.iter().map(|row| (row.id("reservation_id"), row.ts("updated_at"))).collect();
        let mut news = Vec::with_capacity(ids.len());
        let mut nodes = BTreeSet::new();
        for row in tx.query(&sql::ALLOCATIONS_RELEASING, &[&ids]).await? {
            let (id, node_id): (ReservationId, NodeId) = (row.id("reservation_id"), row.id("node_id"));
            let data = json!({
                "state": ReservationState::Releasing.name(), "nodeId": node_id.to_string(),
                "allocationId": row.id::<AllocationId>("allocation_id").to_string(), "reason": Why::Asked.text(),
            });
            let before = ending.get(&id).copied();
            let tenant_id = before.map(|(tenant_id, _)| tenant_id);
            news.push(News { kind: EventKind::ReservationReleasing, id: id.to_string(), tenant_id, data });
            nodes.insert(node_id);
            if let (Some(updated_at), Some((_, from))) = (moved.get(&id), before) {
                let (allocation_id, updated_at) = (row.id("allocation_id"), *updated_at);
                released.insert(id, Released::Asked { from, allocation_id, updated_at });
            }
        }
        news.sort_by(|a, b| a.id.cmp(&b.id));
        let over: Vec<Over> = ending
            .iter()
            .filter(|(id, _)| !released.contains_key(id))
            .map(|(id, (tenant_id, _))| Over {
                id: *id,
                tenant_id: *tenant_id,
                end,
                reason: Why::Asked.text(),
            })
            .collect();
        self.end_all(tx, &over, news).await?;
        let keys: Vec<String> = nodes.into_iter().map(spec_key).collect();
        wake_all(tx, SPEC_QUEUE, &keys).await?;
        Ok(released)
    }

    /// Ends reservations that hold nothing any more, locked by the transaction: what [`Capacity::end_in`] does for one, and
    /// none of them failed. Tells it after `news`.
    pub(super) async fn end_all(
        &self,
        tx: &mut Tx<'_>,
        over: &[Over],
        mut news: Vec<News>,
    ) -> Result<(), Fault> {
        if !over.is_empty() {
            let ids: Vec<Uuid> = over.iter().map(|one| one.id.uuid()).collect();
            let ends: Vec<&str> = over.iter().map(|one| one.end.name()).collect();
            let ended = tx.execute(&sql::RESERVATIONS_END, &[&ids, &ends]).await?;
            if ended != over.len() as u64 {
                let what = "a reservation that had ended";
                return Err(store::StoreError::decode("reservations_end", what).into());
            }
            tx.execute(&sql::QUOTA_HOLDS_DELETE_ALL, &[&ids]).await?;
        }
        news.extend(over.iter().map(Over::told));
        Ok(events::append_all(tx, self.rng(), &news).await?)
    }
}

/// A reservation whose end is released or expired.
pub(super) struct Over {
    pub id: ReservationId,
    pub tenant_id: TenantId,
    pub end: ReservationState,
    pub reason: &'static str,
}

impl Over {
    fn told(&self) -> News {
        let kind = match self.end == ReservationState::Expired {
            true => EventKind::ReservationExpired,
            false => EventKind::ReservationReleased,
        };
        let data = json!({ "state": self.end.name(), "reason": self.reason });
        News { kind, id: self.id.to_string(), tenant_id: Some(self.tenant_id), data }
    }
}
