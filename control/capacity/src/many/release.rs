//! Many releases in one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kernel::audit;
use kernel::events::{self, EventKind, News};
use kernel::module::wake_all;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::{ReservationEvent, ReservationState};
use model::{AllocationId, NodeId, ReservationId, TenantId};
use serde_json::json;
use store::{Op, RowExt, Tx};
use uuid::Uuid;

use super::{AskedRelease, Releasing};
use crate::Capacity;
use crate::change::Why;
use crate::place::spec_key;
use crate::sql::many as sql;
use crate::state::{Reserved, state_of, step};

const RELEASE_MANY: Op = Op::new("reservations_release");

impl Capacity {
    /// Answers every one of them.
    pub(super) async fn release_all(&self, asked: Vec<AskedRelease>) {
        let asked: Vec<AskedRelease> = asked.into_iter().filter(|one| !one.is_abandoned()).collect();
        let whats: Vec<&Releasing> = asked.iter().map(|one| &one.what).collect();
        match self.release_batch(&whats).await {
            Ok(mut read) => {
                for one in asked {
                    // Two may have asked for the end of one.
                    let reserved = read.get(&one.what.id).cloned();
                    let not_found = || ApiError::not_found("reservation", one.what.id).into();
                    let answer = reserved.ok_or_else(not_found);
                    one.answer(answer);
                }
                read.clear();
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
    pub(crate) async fn release_alone(&self, what: &Releasing) -> Result<Reserved, Fault> {
        self.release_one(&what.call, what.id).await?;
        self.reserved_or_not_found(what.id).await
    }

    async fn release_batch(&self, whats: &[&Releasing]) -> Result<HashMap<ReservationId, Reserved>, Fault> {
        let ids: BTreeSet<Uuid> = whats.iter().map(|what| what.id.uuid()).collect();
        let ids: Vec<Uuid> = ids.into_iter().collect();
        let calls: Vec<&Call> = whats.iter().map(|what| &*what.call).collect();
        let (wanted, calls) = (&ids, &calls);
        let entries = self
            .store()
            .tx(RELEASE_MANY, |tx| {
                Box::pin(async move {
                    self.release_many_in(tx, wanted).await?;
                    Ok::<_, Fault>(audit::enter_all(tx, calls.iter().copied()).await?)
                })
            })
            .await?;
        entries.committed();
        Ok(self.reserved_all(&ids).await?)
    }

    /// What [`Capacity::release_in`] does for one that was asked for.
    async fn release_many_in(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<(), Fault> {
        let mut ending: BTreeMap<ReservationId, TenantId> = BTreeMap::new();
        for row in tx.query(&sql::RESERVATIONS_LOCK, &[&ids]).await? {
            let state = state_of(row.get("state"))?;
            if state.terminal() || matches!(state, ReservationState::Draft | ReservationState::Releasing) {
                continue;
            }
            step(state, ReservationEvent::ReleaseAsked)?;
            ending.insert(row.id("reservation_id"), row.id("tenant_id"));
        }
        if ending.is_empty() {
            return Ok(());
        }
        let end = Why::Asked.end();
        let ids: Vec<Uuid> = ending.keys().map(|id| id.uuid()).collect();
        tx.execute(&sql::RESERVATIONS_RELEASING, &[&ids, &end.name()]).await?;
        let mut news = Vec::with_capacity(ids.len());
        let mut nodes = BTreeSet::new();
        let mut placed = BTreeSet::new();
        for row in tx.query(&sql::ALLOCATIONS_RELEASING, &[&ids]).await? {
            let (id, node_id): (ReservationId, NodeId) = (row.id("reservation_id"), row.id("node_id"));
            let data = json!({
                "state": ReservationState::Releasing.name(), "nodeId": node_id.to_string(),
                "allocationId": row.id::<AllocationId>("allocation_id").to_string(), "reason": Why::Asked.text(),
            });
            let tenant_id = ending.get(&id).copied();
            news.push(News { kind: EventKind::ReservationReleasing, id: id.to_string(), tenant_id, data });
            nodes.insert(node_id);
            placed.insert(id);
        }
        news.sort_by(|a, b| a.id.cmp(&b.id));
        let over: Vec<Over> = ending
            .iter()
            .filter(|(id, _)| !placed.contains(id))
            .map(|(id, tenant_id)| Over { id: *id, tenant_id: *tenant_id, end, reason: Why::Asked.text() })
            .collect();
        self.end_all(tx, &over, news).await?;
        let keys: Vec<String> = nodes.into_iter().map(spec_key).collect();
        Ok(wake_all(tx, SPEC_QUEUE, &keys).await?)
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
