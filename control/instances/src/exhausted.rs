//! Hosts that have no room to start an instance, whatever is booked: memory that something takes which the books do not see.
//!
//! A host says so and goes on trying. An instance that never ran there is placed elsewhere after a minute, three times at
//! most, and those hosts are avoided for a while; then it has failed. One that has run before waits for its host, where its disk is.

use std::time::Duration;

use kernel::Fault;
use kernel::events::EventKind;
use kernel::module::wake_in;
use model::lifecycle::{DesiredPower, InstanceEvent, InstanceState};
use store::{Op, StoreError, Tx};
use wire::proto::agent::{InstanceObservedState as Seen, InstanceStatus};

use crate::Instances;
use crate::change::Locked;
use crate::lost::Why;
use crate::reconcile::{QUEUE, instance_key};
use crate::sql::lost as sql;
use crate::state::{Stored, step};

const INSTANCE_EXHAUSTED: Op = Op::new("instance_exhausted");

/// How long a refusal must stand.
const STANDS: Duration = Duration::from_secs(60);
const MOVES_MAX: i32 = 3;
const AVOID: Duration = Duration::from_secs(600);
/// What a host's refusal begins with.
const WORD: &str = "ResourcesExhausted";
const REASON: &str = "resources-exhausted";

/// Whether a host says that it has no room for a start that is wanted.
pub(crate) fn is_refusal(desired: DesiredPower, seen: Seen, status: &InstanceStatus) -> bool {
    let says =
        status.reason == WORD || status.message.strip_prefix(WORD).is_some_and(|rest| rest.starts_with(':'));
    says && desired == DesiredPower::Running && matches!(seen, Seen::Pending | Seen::Stopped)
}

impl Instances {
    /// Its host has no room for it, by this word.
    pub(crate) async fn refused(&self, tx: &mut Tx<'_>, held: &Locked) -> Result<(), StoreError> {
        if tx.execute(&sql::EXHAUSTED_SINCE, &[&held.id.uuid()]).await? > 0 {
            wake_in(tx, QUEUE, &instance_key(held.id), STANDS).await?;
        }
        Ok(())
    }

    /// Its host says something else.
    pub(crate) async fn not_refused(&self, tx: &mut Tx<'_>, held: &Locked) -> Result<(), StoreError> {
        if held.exhausted_at.is_some() {
            tx.execute(&sql::EXHAUSTED_NO_MORE, &[&held.id.uuid()]).await?;
        }
        Ok(())
    }

    /// It is as was asked: what was is over.
    pub(crate) async fn has_room(&self, tx: &mut Tx<'_>, held: &Locked) -> Result<(), StoreError> {
        if held.exhausted_at.is_some() || held.exhausted_moves > 0 {
            tx.execute(&sql::EXHAUSTED_FORGET, &[&held.id.uuid()]).await?;
        }
        Ok(())
    }

    /// What a refusal that stands comes to, and when to look again. None when it comes to nothing.
    pub(crate) async fn look_at_refusal(&self, stored: &Stored) -> Result<Option<Duration>, Fault> {
        let (Some(since), InstanceState::Provisioning, DesiredPower::Running, Some(placed)) =
            (stored.exhausted_at, stored.state, stored.desired, &stored.placed)
        else {
            return Ok(None);
        };
        let stood = stored.now.since(since);
        if stood < STANDS {
            return Ok(Some(STANDS - stood));
        }
        let (id, node_id) = (stored.subject.id, placed.node_id);
        self.store()
            .tx(INSTANCE_EXHAUSTED, |tx| {
                Box::pin(async move {
                    let Some((host, held)) = self.on_host(tx, node_id, id).await? else { return Ok(()) };
                    let stands = held.state == InstanceState::Provisioning
                        && held.desired == DesiredPower::Running
                        && held.exhausted_at == Some(since);
                    if !stands {
                        return Ok(());
                    }
                    if held.exhausted_moves < MOVES_MAX {
                        return self.recreate_in(tx, &held, &host, Why::Exhausted { avoid: AVOID }).await;
                    }
                    let state = step(held.state, InstanceEvent::SeenError)?;
                    let (reason, message) = (REASON, held.said_message.as_str());
                    let values: [&(dyn store::Param + Sync); 4] =
                        [&id.uuid(), &state.name(), &reason, &message];
                    tx.execute(&crate::sql::INSTANCE_MOVE, &values).await?;
                    let mut data = held.data(state, held.desired);
                    data["reason"] = reason.into();
                    data["message"] = message.into();
                    self.tell(tx, EventKind::InstanceFailed, id, held.tenant_id, data).await?;
                    Ok::<_, Fault>(())
                })
            })
            .await?;
        Ok(Some(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(reason: &str, message: &str) -> InstanceStatus {
        InstanceStatus { reason: reason.into(), message: message.into(), ..InstanceStatus::default() }
    }

    #[test]
    fn only_a_start_that_is_wanted_is_refused_for_want_of_room() {
        use DesiredPower::{Running, Stopped};
        let words = said("", "ResourcesExhausted: 900 MiB of memory needed, 12 MiB left on this host");
        assert!(is_refusal(Running, Seen::Stopped, &words) && is_refusal(Running, Seen::Pending, &words));
        assert!(is_refusal(Running, Seen::Pending, &said("ResourcesExhausted", "")));
        assert!(!is_refusal(Stopped, Seen::Stopped, &words));
        assert!(!is_refusal(Running, Seen::Running, &words) && !is_refusal(Running, Seen::Error, &words));
        for other in ["ResourcesExhaustedness: no", "no ResourcesExhausted: ", "Downloading"] {
            assert!(!is_refusal(Running, Seen::Pending, &said("", other)), "{other}");
        }
    }
}
