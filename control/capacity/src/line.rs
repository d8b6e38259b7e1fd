//! What waits in a pool is placed when there is room, the longest waiting first.
//!
//! A create that finds room takes it, past those that wait for more of it: a small claim passes a large one, and the pool
//! does not stand empty behind what fits nowhere. But not for ever: for the first in line that has waited [`AGED`] and fits
//! nowhere a node is kept. Nothing else is placed there, so that it empties as what is on it ends, until the one that it is
//! kept for is placed, there or elsewhere. One node of a pool at a time: a line of large claims gets one after the other.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kernel::Fault;
use kernel::events::EventKind;
use kernel::run::PLACE_CHANNEL;
use model::lifecycle::ReservationState;
use model::{NodeId, PoolId, ReservationId, TenantId};
use placer::Claim;
use serde_json::json;
use store::{Op, Row, RowExt, StoreError};
use uuid::Uuid;

use crate::books::Pick;
use crate::create::HANDED;
use crate::explain::waiting;
use crate::many::BATCH_MAX;
use crate::owner::Standing;
use crate::place::{Attempt, Placing, Stop};
use crate::state::Ask;
use crate::{Capacity, sql};

const WAITING_TOLD: Op = Op::new("reservations_wait");
const HAND_OVER: Op = Op::new("reservations_hand_over");

/// Longer than a pool in use takes to have room for most claims, and short against what people wait for a large one.
const AGED: Duration = Duration::from_secs(60);

/// A placement that is not written yet.
pub(crate) struct Picked<'b> {
    placing: Placing,
    claim: Claim,
    pick: Pick<'b>,
}

fn in_line(row: &Row) -> Result<(Placing, Claim), StoreError> {
    let ask = Ask::of_row(row)?;
    let avoid: Vec<Uuid> = row.get("avoid");
    let claim = ask.claim(avoid.into_iter().map(NodeId::from_uuid));
    let placing = Placing {
        id: row.id("reservation_id"),
        tenant_id: row.id("tenant_id"),
        pool_id: row.id("pool_id"),
        ask,
    };
    Ok((placing, claim))
}

impl Capacity {
    /// Places what waits in a pool, or has its owner do so.
    pub(crate) async fn place_waiting(&self, pool_id: PoolId) -> Result<(), Fault> {
        self.books().refresh().await?;
        if self.standing(pool_id) == Standing::Theirs && !self.hold_pool(pool_id).await? {
            let told = self.store().tx(HAND_OVER, |tx| {
                Box::pin(async move {
                    tx.notify(PLACE_CHANNEL, "");
                    Ok::<_, StoreError>(())
                })
            });
            return Ok(told.await?);
        }
        if self.books().keeps(pool_id) {
            self.store().execute(&sql::NODES_KEPT_CLEAR, &[&pool_id.uuid()]).await?;
        }
        let aged = i64::try_from(AGED.as_secs()).expect("a minute fits");
        let (mut after, mut head) = (Uuid::nil(), None);
        // What does not fit does not fit twice: the books only fill up during a pass.
        let mut refused: HashMap<String, String> = HashMap::new();
        // One who loses the pool meanwhile leaves the rest to whoever takes it.
        while self.standing(pool_id) != Standing::Theirs {
            self.books().refresh().await?;
            let line: [&(dyn store::Param + Sync); 4] = [&pool_id.uuid(), &after, &aged, &HANDED];
            let rows = self.store().read(&sql::RESERVATIONS_IN_LINE, &line).await?;
            let Some(last) = rows.last() else { break };
            after = last.get("reservation_id");
            let (mut picked, mut told) = (Vec::new(), Vec::new());
            for row in &rows {
                let (placing, claim) = in_line(row)?;
                let shape = format!("{claim:?}");
                let pick = match refused.contains_key(&shape) {
                    true => None,
                    false => self.books().pick(pool_id, placing.id, &claim),
                };
                if let Some(pick) = pick {
                    picked.push(Picked { placing, claim, pick });
                    continue;
                }
                let reason = refused.entry(shape).or_insert_with(|| self.no_fit(pool_id, &claim));
                if row.get("may_tell") && row.get::<_, &str>("waiting_reason") != reason.as_str() {
                    told.push((placing.id, reason.clone()));
                }
                if head.is_none() && row.get("aged") {
                    head = Some((placing, claim));
                }
            }
            while !picked.is_empty() {
                let rest = picked.split_off(picked.len().min(BATCH_MAX));
                told.extend(self.place_picked(pool_id, std::mem::replace(&mut picked, rest)).await?);
            }
            self.tell_waiting(&told).await?;
        }
        match head {
            Some((placing, claim)) if !self.books().keeps(pool_id) => {
                self.keep_a_node(&placing, &claim).await
            }
            Some(_) | None => Ok(()),
        }
    }

    fn no_fit(&self, pool_id: PoolId, claim: &Claim) -> String {
        let reason = self.books().refusal(pool_id, claim);
        reason.map_or_else(
            || "others were faster, or its place is kept for another".to_owned(),
            |why| waiting(&why),
        )
    }

    /// In one transaction, and each by itself where that is undone. Gives those that wait still, and why.
    async fn place_picked(
        &self,
        pool_id: PoolId,
        picked: Vec<Picked<'_>>,
    ) -> Result<Vec<(ReservationId, String)>, Fault> {
        let standing = self.standing(pool_id);
        let mut told = Vec::new();
        match self.place_many(&picked, &standing).await {
            Ok((placed, versions)) => {
                let placed: BTreeSet<ReservationId> = placed.into_iter().collect();
                // A pick of one that does not wait any more is taken back.
                let picks = picked.into_iter().filter(|one| placed.contains(&one.placing.id));
                self.books().confirm_all(picks.map(|one| one.pick).collect(), &versions);
            }
            // Whoever has the pool now looks at what waits by itself.
            Err(Stop::Fenced) => self.lost_pool(pool_id),
            Err(stop) => {
                tracing::debug!(places = picked.len(), err = %stop, "batch of placements was undone");
                let alone: Vec<(Placing, Claim)> =
                    picked.into_iter().map(|one| (one.placing, one.claim)).collect();
                self.books().refresh().await?;
                for (placing, claim) in &alone {
                    match self.place(placing, claim).await? {
                        Attempt::Placed | Attempt::Gone => {}
                        Attempt::OverQuota => {
                            let reason = "a whole node would pass a quota of the tenant";
                            told.push((placing.id, reason.to_owned()));
                        }
                        Attempt::NoFit => told.push((placing.id, self.no_fit(pool_id, claim))),
                    }
                }
            }
        }
        Ok(told)
    }

    async fn tell_waiting(&self, told: &[(ReservationId, String)]) -> Result<(), Fault> {
        if told.is_empty() {
            return Ok(());
        }
        let (ids, reasons): (Vec<Uuid>, Vec<&str>) =
            told.iter().map(|(id, reason)| (id.uuid(), reason.as_str())).unzip();
        let (ids, reasons) = (&ids, &reasons);
        self.store()
            .tx(WAITING_TOLD, |tx| {
                Box::pin(async move {
                    for row in tx.query(&sql::RESERVATIONS_WAIT, &[ids, reasons]).await? {
                        let (id, tenant_id): (ReservationId, TenantId) =
                            (row.id("reservation_id"), row.id("tenant_id"));
                        let data = json!({
                            "state": ReservationState::Scheduling.name(),
                            "poolId": row.id::<PoolId>("pool_id").to_string(),
                            "reason": row.get::<_, &str>("waiting_reason"),
                        });
                        self.tell(tx, EventKind::ReservationWaiting, id, tenant_id, data).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    /// Keeps a node for what has waited longest and does not fit.
    async fn keep_a_node(&self, placing: &Placing, claim: &Claim) -> Result<(), Fault> {
        let Some(node_id) = self.books().nearest(placing.pool_id, claim) else { return Ok(()) };
        let values: [&(dyn store::Param + Sync); 3] =
            [&placing.pool_id.uuid(), &node_id.uuid(), &placing.id.uuid()];
        if self.store().execute(&sql::NODE_KEEP, &values).await? > 0 {
            tracing::info!(%node_id, reservation_id = %placing.id, "node is kept for what has waited longest");
            self.books().refresh().await?;
        }
        Ok(())
    }
}

impl<'b> Picked<'b> {
    pub fn parts(&self) -> (&Placing, &Pick<'b>) {
        (&self.placing, &self.pick)
    }
}
