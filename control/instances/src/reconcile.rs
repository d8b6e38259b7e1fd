//! Looks again at an instance: places one that waits for a host, sees to one whose host is lost or has no room for it, and tells of
//! one whose state lasts too long.

use std::time::Duration;

use api::pools::Network;
use kernel::events::EventKind;
use kernel::module::QueueHandler;
use kernel::{BoxFuture, Fault};
use model::InstanceId;
use model::lifecycle::{InstanceEvent, InstanceState};
use serde_json::{Value, json};
use store::{Op, Tx};
use uuid::Uuid;

use crate::create::{Stop, TRIES_MAX};
use crate::ipam::policy_of;
use crate::state::{Stored, patience, step};
use crate::view::stuck;
use crate::{Instances, sql};

/// The queue of instances to look at again. Key: the instance's UUID.
pub const QUEUE: &str = "instance";

const INSTANCE_PLACE: Op = Op::new("instance_place");
const INSTANCE_WAITS: Op = Op::new("instance_waits");
const INSTANCE_STUCK: Op = Op::new("instance_stuck");

/// How often a place is looked for.
pub(crate) const PLACE_AGAIN: Duration = Duration::from_secs(30);
/// The database may be one of before it was placed: then it runs on a host that this database knows nothing of.
const RESTORED: &str =
    "the database was restored while it waited, so a host may have it by now: delete it and make it anew";
const NO_ADDRESS: &str = "the pool's network has no free address";

pub(crate) fn instance_key(id: InstanceId) -> String {
    id.uuid().hyphenated().to_string()
}

pub(crate) struct Reconcile(pub Instances);

impl QueueHandler for Reconcile {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match Uuid::parse_str(key) {
                Ok(id) => self.0.reconcile(InstanceId::from_uuid(id)).await,
                Err(_) => Ok(None),
            }
        })
    }
}

/// What became of looking for a place.
enum Found {
    /// It has one, or does not wait any more.
    Done,
    Not(String),
}

impl Instances {
    /// When to look again, if ever.
    async fn reconcile(&self, id: InstanceId) -> Result<Option<Duration>, Fault> {
        let Some(stored) = self.stored(id).await? else { return Ok(None) };
        if stored.state == InstanceState::Scheduling {
            return match self.place(&stored).await? {
                Found::Done => Ok(None),
                Found::Not(reason) => {
                    self.waits(&stored, &reason).await?;
                    if let Some(reason) = stuck(&stored) {
                        self.tell_stuck(&stored, &reason).await?;
                    }
                    Ok(Some(PLACE_AGAIN))
                }
            };
        }
        if let Some(again) = self.look_at_host(&stored).await? {
            return Ok(Some(again));
        }
        if let Some(again) = self.look_at_refusal(&stored).await? {
            return Ok(Some(again));
        }
        let Some(patience) = patience(stored.state) else { return Ok(None) };
        match stuck(&stored) {
            Some(reason) => {
                self.tell_stuck(&stored, &reason).await?;
                Ok(None)
            }
            None => Ok(Some(patience.saturating_sub(stored.now.since(stored.state_since)))),
        }
    }

    async fn place(&self, stored: &Stored) -> Result<Found, Fault> {
        let restored_at = store::deployment::read(self.store()).await?.restored_at;
        // One that came into line since was on no host by any row that may be forgotten.
        if restored_at.is_some_and(|restored| stored.state_since < restored) {
            return Ok(Found::Not(RESTORED.to_owned()));
        }
        let room = &stored.subject.room();
        if let Some(host) = self.is_elsewhere(stored).await? {
            return Ok(Found::Not(format!("host {host} says that it has it, and no row places it there")));
        }
        let avoid = &self.avoids(stored).await?;
        for _ in 0..TRIES_MAX {
            let Some(place) = self.capacity().room_find(room, avoid).await? else {
                let pool_name = &stored.subject.pool_name;
                return Ok(Found::Not(self.capacity().room_reason_avoiding(room, pool_name, avoid)));
            };
            let chosen = &place;
            let done = self
                .store()
                .tx(INSTANCE_PLACE, |tx| {
                    Box::pin(async move {
                        let held = self.locked(tx, stored.subject.id).await?;
                        let Some(held) = held.filter(|held| held.state == InstanceState::Scheduling) else {
                            return Ok(None);
                        };
                        let state = step(held.state, InstanceEvent::Placed)?;
                        let network = self.network_of(tx, stored).await?;
                        tx.execute(&sql::INSTANCE_MOVE, &[&held.id.uuid(), &state.name(), &"", &""]).await?;
                        let network = network.as_ref();
                        self.place_in(tx, room, chosen, network, held.desired, state).await.map(Some)
                    })
                })
                .await;
            match done {
                Ok(Some(version)) => {
                    place.confirm(version);
                    return Ok(Found::Done);
                }
                Ok(None) => return Ok(Found::Done),
                Err(Stop::Taken | Stop::OverQuota | Stop::Earlier(_)) => {}
                Err(Stop::NoAddress) => return Ok(Found::Not(NO_ADDRESS.to_owned())),
                Err(Stop::Fault(fault)) => return Err(fault),
            }
        }
        Ok(Found::Not("others were faster".to_owned()))
    }

    async fn network_of(&self, tx: &mut Tx<'_>, stored: &Stored) -> Result<Option<Network>, Fault> {
        let row = tx.query_opt(&sql::POOL_POLICY, &[&stored.subject.pool_id.uuid()]).await?;
        Ok(row.and_then(|row| policy_of(&row.get::<_, Value>("policy")).network))
    }

    async fn waits(&self, stored: &Stored, reason: &str) -> Result<(), Fault> {
        let subject = &stored.subject;
        self.store()
            .tx(INSTANCE_WAITS, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::INSTANCE_WAIT, &[&subject.id.uuid(), &reason]).await? > 0 {
                        let data = json!({
                            "state": stored.state.name(), "poolId": subject.pool_id.to_string(), "reason": reason,
                        });
                        self.tell(tx, EventKind::InstanceWaiting, subject.id, subject.tenant_id, data).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    /// Once for as long as it lasts.
    async fn tell_stuck(&self, stored: &Stored, reason: &str) -> Result<(), Fault> {
        let subject = &stored.subject;
        self.store()
            .tx(INSTANCE_STUCK, |tx| {
                Box::pin(async move {
                    let values: [&(dyn store::Param + Sync); 2] = [&subject.id.uuid(), &stored.state.name()];
                    if tx.execute(&sql::INSTANCE_STUCK, &values).await? > 0 {
                        tracing::warn!(instance_id = %subject.id, state = stored.state.name(), "instance is stuck");
                        let node_id = stored.placed.as_ref().map(|placed| placed.node_id.to_string());
                        let data = json!({
                            "state": stored.state.name(), "desiredState": stored.desired.name(),
                            "poolId": subject.pool_id.to_string(), "nodeId": node_id, "reason": reason,
                        });
                        self.tell(tx, EventKind::InstanceStuck, subject.id, subject.tenant_id, data).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }
}
