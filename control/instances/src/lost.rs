//! Instances whose hosts are lost, and how they leave a host.
//!
//! ```text
//! host lost ──▶ lost ──▶ running, stopped      (the host is back, and says so of the revision that it was asked anew by)
//!                │
//!                └─ host declared dead ──▶ scheduling ──▶ another host, from its image
//! ```
//!
//! What leaves a host before that host said that nothing of it is there leaves its place behind: the host's spec names it as to
//! be deleted, and it is booked there and has its address, until the host has said so. So a host that was declared dead and comes
//! back deletes what it has, and nobody else has that address meanwhile. A host that is told nothing any more, since it
//! was revoked, keeps nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use kernel::Fault;
use kernel::events::EventKind;
use kernel::module::{wake, wake_all};
use kernel::ports::node::SPEC_QUEUE;
use model::lifecycle::{InstanceEvent, InstanceState};
use model::{AllocationId, InstanceId, NodeId, PoolId};
use serde_json::json;
use store::{Op, RowExt, StoreError, Tx};
use wire::proto::agent::InstanceObservedState as Seen;

use crate::Instances;
use crate::change::{Locked, node_key};
use crate::fence::{Fence, Host};
use crate::reconcile::{QUEUE, instance_key};
use crate::sql::lost as sql;
use crate::state::{Stored, step, whole};

const INSTANCE_LOST: Op = Op::new("instance_lost");
const INSTANCE_RECREATE: Op = Op::new("instance_recreate");
const INSTANCE_END: Op = Op::new("instance_end_lost");

/// How often one that is lost is looked at.
pub(crate) const LOST_AGAIN: Duration = Duration::from_secs(60);
/// A host that was heard of so lately is not silent.
const SPEAKS: Duration = Duration::from_secs(30);
const GIVEN_UP: &str = "its host was given up";

/// Why an instance is made anew elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why<'a> {
    HostLost,
    /// By whom.
    Asked(&'a str),
    /// The host had no room to start it; for so long it is avoided.
    Exhausted {
        avoid: Duration,
    },
}

impl Why<'_> {
    const fn name(self) -> &'static str {
        match self {
            Why::HostLost => "host-lost",
            Why::Asked(_) => "force-released",
            Why::Exhausted { .. } => "resources-exhausted",
        }
    }

    const fn waiting(self) -> &'static str {
        match self {
            Why::HostLost => "the host it was on is lost",
            Why::Asked(_) => "it was taken off the host it was on",
            Why::Exhausted { .. } => "the host it was on had no room to start it",
        }
    }
}

/// What became of a word on something that an instance left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// It left nothing there.
    Nothing,
    Heard,
    /// Nobody asked for that revision.
    Unasked,
}

impl Instances {
    /// How the node is may be news to what is on it; and what was left on one that is gone for good is over.
    pub(crate) async fn node_changed(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let rows = tx.query(&sql::NODE_NEWS, &[&node_id.uuid()]).await?;
        let keys: Vec<String> = rows.iter().map(|row| instance_key(row.id("instance_id"))).collect();
        if !keys.is_empty() {
            wake_all(tx, QUEUE, &keys).await?;
        }
        self.left_ends(tx, node_id).await
    }

    /// A person gave the node up. Its row is locked.
    pub(crate) async fn node_given_up(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let Some(host) = Host::seen(tx, node_id).await? else { return Ok(()) };
        for row in tx.query(&sql::NODE_PLACED, &[&node_id.uuid()]).await? {
            let id: InstanceId = row.id("instance_id");
            let Some(held) = self.locked(tx, id).await?.filter(|held| held.node_id == Some(node_id)) else {
                continue;
            };
            match held.state {
                InstanceState::Lost => {}
                InstanceState::Deleting => {
                    self.end_on(tx, &held, &host, GIVEN_UP).await?;
                    continue;
                }
                InstanceState::Pending
                | InstanceState::Scheduling
                | InstanceState::Provisioning
                | InstanceState::Starting
                | InstanceState::Running
                | InstanceState::Stopping
                | InstanceState::Stopped
                | InstanceState::Deleted
                | InstanceState::Error => self.lost_in(tx, &held).await?,
            }
            wake(tx, QUEUE, &instance_key(id)).await?;
        }
        self.left_ends(tx, node_id).await
    }

    /// What the state of its host comes to for an instance, and when to look again. None when it comes to nothing.
    pub(crate) async fn look_at_host(&self, stored: &Stored) -> Result<Option<Duration>, Fault> {
        let Some(placed) = &stored.placed else { return Ok(None) };
        let host = Host {
            id: placed.node_id,
            name: placed.node_name.clone(),
            state: placed.node_state,
            declared_dead: placed.declared_dead,
        };
        match stored.state {
            InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Running
            | InstanceState::Stopping
            | InstanceState::Stopped
            | InstanceState::Error
                if host.is_lost() =>
            {
                // It is on its way back, and said how the instance is.
                let heard = placed.last_heartbeat_at.is_some_and(|at| stored.now.since(at) < SPEAKS);
                if heard && !host.declared_dead {
                    return Ok(Some(LOST_AGAIN));
                }
                self.becomes_lost(stored, host.id).await?;
                Ok(Some(Duration::ZERO))
            }
            InstanceState::Lost => {
                let dead = host.fence() == Fence::DeclaredDead || kit::mutant::on("instances.lost-is-fenced");
                if dead && stored.recreates && !placed.before_restore {
                    self.leaves_lost(stored, host.id).await?;
                }
                Ok(Some(LOST_AGAIN))
            }
            InstanceState::Deleting if host.fence() == Fence::DeclaredDead => {
                self.ends_with_its_host(stored, host.id).await?;
                Ok(Some(LOST_AGAIN))
            }
            InstanceState::Pending
            | InstanceState::Scheduling
            | InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Running
            | InstanceState::Stopping
            | InstanceState::Stopped
            | InstanceState::Deleting
            | InstanceState::Deleted
            | InstanceState::Error => Ok(None),
        }
    }

    async fn becomes_lost(&self, stored: &Stored, node_id: NodeId) -> Result<(), Fault> {
        let id = stored.subject.id;
        self.store()
            .tx(INSTANCE_LOST, |tx| {
                Box::pin(async move {
                    let Some((host, held)) = self.on_host(tx, node_id, id).await? else { return Ok(()) };
                    if host.is_lost() && held.state.next(InstanceEvent::HostLost) == Ok(InstanceState::Lost) {
                        self.lost_in(tx, &held).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    async fn leaves_lost(&self, stored: &Stored, node_id: NodeId) -> Result<(), Fault> {
        let id = stored.subject.id;
        self.store()
            .tx(INSTANCE_RECREATE, |tx| {
                Box::pin(async move {
                    // The host may be back since, and cannot come back before this is over.
                    let Some((host, held)) = self.on_host(tx, node_id, id).await? else { return Ok(()) };
                    let dead =
                        host.fence() == Fence::DeclaredDead || kit::mutant::on("instances.lost-is-fenced");
                    if dead && held.state == InstanceState::Lost {
                        self.recreate_in(tx, &held, &host, Why::HostLost).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    async fn ends_with_its_host(&self, stored: &Stored, node_id: NodeId) -> Result<(), Fault> {
        let id = stored.subject.id;
        self.store()
            .tx(INSTANCE_END, |tx| {
                Box::pin(async move {
                    let Some((host, held)) = self.on_host(tx, node_id, id).await? else { return Ok(()) };
                    if host.fence() == Fence::DeclaredDead && held.state == InstanceState::Deleting {
                        self.end_on(tx, &held, &host, GIVEN_UP).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    /// Its host and the instance, both locked, in this order; none when it is not on that host any more.
    pub(crate) async fn on_host(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        id: InstanceId,
    ) -> Result<Option<(Host, Locked)>, StoreError> {
        let Some(host) = Host::shared(tx, node_id).await? else { return Ok(None) };
        let held = self.locked(tx, id).await?.filter(|held| held.node_id == Some(node_id));
        Ok(held.map(|held| (host, held)))
    }

    async fn lost_in(&self, tx: &mut Tx<'_>, held: &Locked) -> Result<(), Fault> {
        let state = step(held.state, InstanceEvent::HostLost)?;
        tx.execute(&sql::INSTANCE_LOST, &[&held.id.uuid()]).await?;
        let data = held.data(state, held.desired);
        self.tell(tx, EventKind::InstanceLost, held.id, held.tenant_id, data).await?;
        if let Some(node_id) = held.node_id {
            wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        }
        Ok(())
    }

    /// Takes it off its host, to be placed anew. What the host may have of it is the host's to delete.
    pub(crate) async fn recreate_in(
        &self,
        tx: &mut Tx<'_>,
        held: &Locked,
        host: &Host,
        why: Why<'_>,
    ) -> Result<(), Fault> {
        // Its host may be lost, and nobody has said so of it yet.
        let state = match matches!(held.state, InstanceState::Lost | InstanceState::Provisioning) {
            true => held.state,
            false => step(held.state, InstanceEvent::HostLost)?,
        };
        let state = step(state, InstanceEvent::Recreated)?;
        if !self.leave_place(tx, held, host).await? {
            for row in tx.query(&crate::sql::INSTANCE_PLACE, &[&held.id.uuid()]).await? {
                self.free_place(tx, row.id("allocation_id"), held.pool_id).await?;
            }
        }
        let (exhausted, avoid) = match why {
            Why::Exhausted { avoid } => (Some(host.id.uuid()), avoid.as_secs_f64()),
            Why::HostLost | Why::Asked(_) => (None, 0.0),
        };
        let values: [&(dyn store::Param + Sync); 4] = [&held.id.uuid(), &why.waiting(), &exhausted, &avoid];
        tx.execute(&sql::INSTANCE_RECREATE, &values).await?;
        let mut data = json!({
            "state": state.name(), "desiredState": held.desired.name(), "poolId": held.pool_id.to_string(),
            "fromNodeId": host.id.to_string(), "reason": why.name(),
        });
        if let Why::Asked(by) = why {
            data["by"] = by.into();
        }
        self.tell(tx, EventKind::InstanceRecreating, held.id, held.tenant_id, data).await?;
        wake(tx, SPEC_QUEUE, &node_key(host.id)).await?;
        wake(tx, QUEUE, &instance_key(held.id)).await?;
        Ok(())
    }

    /// Ends one that is being deleted and whose host nobody waits for.
    pub(crate) async fn end_on(
        &self,
        tx: &mut Tx<'_>,
        held: &Locked,
        host: &Host,
        reason: &str,
    ) -> Result<(), Fault> {
        step(held.state, InstanceEvent::SeenAbsent)?;
        self.leave_place(tx, held, host).await?;
        wake(tx, SPEC_QUEUE, &node_key(host.id)).await?;
        self.end_in(tx, held, reason).await
    }

    /// Whether the place stays behind, for the host to say that nothing of the instance is there.
    pub(crate) async fn leave_place(
        &self,
        tx: &mut Tx<'_>,
        held: &Locked,
        host: &Host,
    ) -> Result<bool, StoreError> {
        if !host.may_return() || kit::mutant::on("instances.nothing-is-left-behind") {
            return Ok(false);
        }
        Ok(tx.query_opt(&sql::PLACE_LEAVE, &[&held.id.uuid()]).await?.is_some())
    }

    async fn free_place(
        &self,
        tx: &mut Tx<'_>,
        allocation_id: AllocationId,
        pool_id: PoolId,
    ) -> Result<(), StoreError> {
        tx.execute(&sql::ADDRESS_RETURN, &[&allocation_id.uuid()]).await?;
        self.capacity().room_free_place(tx, allocation_id, pool_id).await
    }

    /// A host's word on an instance that has no place there. The instance is locked, if there is one.
    pub(crate) async fn hear_left(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        id: InstanceId,
        seen: Seen,
        revision: u64,
    ) -> Result<Left, Fault> {
        let found = tx.query_opt(&sql::PLACE_LEFT, &[&id.uuid(), &node_id.uuid()]).await?;
        let Some(row) = found else { return Ok(Left::Nothing) };
        let asked = whole(row.get("left_revision"));
        if revision > asked {
            return Ok(Left::Unasked);
        }
        if revision == asked && seen == Seen::Absent {
            self.free_place(tx, row.id("allocation_id"), row.id("pool_id")).await?;
            // It may wait for this very host.
            wake(tx, QUEUE, &instance_key(id)).await?;
        }
        Ok(Left::Heard)
    }

    /// Nobody will ever say of a node that is told nothing any more that nothing is left there.
    async fn left_ends(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let left = tx.query(&sql::NODE_LEFT, &[&node_id.uuid()]).await?;
        let gone = match left.is_empty() {
            true => false,
            false => Host::seen(tx, node_id)
                .await?
                .is_some_and(|host| !host.may_return() && host.fence() == Fence::DeclaredDead),
        };
        for row in left.iter().filter(|_| gone) {
            self.free_place(tx, row.id("allocation_id"), row.id("pool_id")).await?;
        }
        Ok(())
    }

    /// Where it cannot be placed for now.
    pub(crate) async fn avoids(&self, stored: &Stored) -> Result<BTreeSet<NodeId>, StoreError> {
        let rows = self.store().read(&sql::INSTANCE_AVOIDS, &[&stored.subject.id.uuid()]).await?;
        Ok(rows.iter().map(|row| row.id("node_id")).collect())
    }

    /// A host that says that it has it already, although no row says so.
    pub(crate) async fn is_elsewhere(&self, stored: &Stored) -> Result<Option<String>, StoreError> {
        let row = self.store().read_opt(&sql::INSTANCE_ELSEWHERE, &[&stored.subject.id.uuid()]).await?;
        Ok(row.map(|row| row.get("name")))
    }
}
