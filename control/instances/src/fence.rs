//! Whether what a host had of an instance may be placed elsewhere.
//!
//! A host that is not heard of may run what it ran, and write to its disks. So an instance leaves it only when nobody but that
//! host can be wrong about it: the host is back and speaks for itself, or a person declared it dead.

use model::NodeId;
use model::lifecycle::{InstanceState, NodeState};
use store::{Row, RowExt, StoreError, Tx};

use crate::sql::lost as sql;
use crate::state::Stored;

/// Why what a host had may be taken for gone. To add one, like a machine whose power is off by the word of its BMC: a variant
/// here, and what it is seen by in [`fence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    /// It is not heard of, and nothing says that it does not run.
    Open,
    /// It reports: what it says of an instance is so.
    Reports,
    /// A person declared it dead, and it was not heard of since.
    DeclaredDead,
}

pub(crate) fn fence(state: NodeState, declared_dead: bool) -> Fence {
    match state {
        NodeState::Joined | NodeState::Accepting | NodeState::Ready => Fence::Reports,
        NodeState::Removed => Fence::DeclaredDead,
        NodeState::Unreachable | NodeState::Lost | NodeState::Revoked if declared_dead => Fence::DeclaredDead,
        NodeState::Unreachable | NodeState::Lost | NodeState::Revoked => Fence::Open,
    }
}

/// A host as its row says.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub id: NodeId,
    pub name: String,
    pub state: NodeState,
    pub declared_dead: bool,
}

impl Host {
    fn of_row(row: &Row) -> Result<Self, StoreError> {
        let state = NodeState::parse(row.get("state"));
        Ok(Self {
            id: row.id("node_id"),
            name: row.get("name"),
            state: state.ok_or_else(|| StoreError::decode("instance_host", "column \"state\""))?,
            declared_dead: row.get("declared_dead"),
        })
    }

    /// As it stays until the transaction is over. Before any instance on it is locked.
    pub async fn shared(tx: &mut Tx<'_>, id: NodeId) -> Result<Option<Self>, StoreError> {
        let row = tx.query_opt(&sql::HOST_SHARE, &[&id.uuid()]).await?;
        row.as_ref().map(Self::of_row).transpose()
    }

    /// As it is now.
    pub async fn seen(tx: &mut Tx<'_>, id: NodeId) -> Result<Option<Self>, StoreError> {
        let row = tx.query_opt(&sql::HOST, &[&id.uuid()]).await?;
        row.as_ref().map(Self::of_row).transpose()
    }

    pub fn fence(&self) -> Fence {
        fence(self.state, self.declared_dead)
    }

    /// What is on it is taken for lost.
    pub fn is_lost(&self) -> bool {
        self.state == NodeState::Lost || self.fence() == Fence::DeclaredDead
    }

    /// It may come back and be told what to let go of. One whose certificates were revoked is told nothing any more.
    pub fn may_return(&self) -> bool {
        !matches!(self.state, NodeState::Revoked | NodeState::Removed)
    }
}

/// What an instance on a host that is lost waits for, and what to do about it: one stable word, and a sentence.
pub(crate) fn waits_for(stored: &Stored) -> Option<(&'static str, String)> {
    let placed = stored.placed.as_ref()?;
    let (name, id) = (&placed.node_name, stored.subject.id);
    match (stored.state, fence(placed.node_state, placed.declared_dead)) {
        (InstanceState::Lost, Fence::Open) => {
            let then = match stored.recreates {
                true => "it is made anew on another host",
                false => "it can be made anew on another host or deleted",
            };
            let message = format!(
                "host {name} is not heard of, and may run it: nothing of it is placed elsewhere before the host is back and \
                 reports. If nothing runs there any more, {then} after better-compute nodes abandon {name}"
            );
            Some(("not-fenced", message))
        }
        (InstanceState::Lost, Fence::Reports) => {
            let message = format!(
                "host {name} is back, and has not said yet how the instance is: better-compute instances recover {id} asks again"
            );
            Some(("host-back", message))
        }
        (InstanceState::Lost, Fence::DeclaredDead) => Some(match (stored.recreates, placed.before_restore) {
            (true, false) => {
                ("recreating", format!("host {name} was declared dead: the instance is made anew on another"))
            }
            (true, true) => {
                let message = format!(
                    "host {name} was declared dead, but the database was restored since the instance was placed, so another \
                     host may have it by now: if none has, better-compute instances force-release {id}"
                );
                ("restored", message)
            }
            (false, _) => {
                let message = format!(
                    "host {name} was declared dead: better-compute instances force-release {id} makes the instance anew on \
                     another host, better-compute instances delete {id} ends it"
                );
                ("host-dead", message)
            }
        }),
        (InstanceState::Deleting, Fence::Open) => {
            let message = format!(
                "host {name} is not heard of, and may have it: it goes when the host is back and has deleted it. If nothing \
                 runs there any more: better-compute nodes abandon {name}"
            );
            Some(("not-fenced", message))
        }
        (InstanceState::Deleting, Fence::Reports | Fence::DeclaredDead)
        | (
            InstanceState::Pending
            | InstanceState::Scheduling
            | InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Running
            | InstanceState::Stopping
            | InstanceState::Stopped
            | InstanceState::Deleted
            | InstanceState::Error,
            _,
        ) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_host_is_fenced_by_a_persons_word_alone() {
        for state in NodeState::ALL {
            let (said, unsaid) = (fence(state, true), fence(state, false));
            let silent = matches!(state, NodeState::Unreachable | NodeState::Lost | NodeState::Revoked);
            assert_eq!(unsaid == Fence::Open, silent, "{state:?}");
            assert_eq!(said == Fence::DeclaredDead, silent || state == NodeState::Removed, "{state:?}");
        }
    }
}
