//! ```text
//! joined -> accepting -> ready <-> unreachable -> lost      (lost only where the pool says after how long)
//!   any of these -> revoked -> removed
//! ```
//! Cordoned, draining and quarantined are flags beside the state. Written by `fleet`: join, adoption, the acceptance
//! diagnosis, liveness and revocation.

use super::Refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It has a certificate and waits for somebody to adopt it into a pool.
    Joined,
    /// Adopted; `diag.nvml` decides whether it may take work.
    Accepting,
    Ready,
    /// Its heartbeats stopped. What runs there is taken to run on.
    Unreachable,
    Lost,
    Revoked,
    Removed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeEvent {
    Adopted,
    Accepted,
    HeartbeatsMissed,
    HeartbeatsBack,
    GivenUp,
    Revoked,
    Removed,
    /// The machine joined again under the identity it had.
    Rejoined,
}

impl NodeState {
    pub const ALL: [NodeState; 7] = [
        NodeState::Joined,
        NodeState::Accepting,
        NodeState::Ready,
        NodeState::Unreachable,
        NodeState::Lost,
        NodeState::Revoked,
        NodeState::Removed,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            NodeState::Joined => "joined",
            NodeState::Accepting => "accepting",
            NodeState::Ready => "ready",
            NodeState::Unreachable => "unreachable",
            NodeState::Lost => "lost",
            NodeState::Revoked => "revoked",
            NodeState::Removed => "removed",
        }
    }

    pub fn parse(text: &str) -> Option<NodeState> {
        NodeState::ALL.into_iter().find(|state| state.name() == text)
    }

    pub const fn next(self, event: NodeEvent) -> Result<NodeState, Refused> {
        use NodeEvent as E;
        use NodeState as S;
        match (self, event) {
            (S::Joined, E::Adopted) => Ok(S::Accepting),
            (S::Accepting, E::Accepted) => Ok(S::Ready),
            (S::Ready, E::HeartbeatsMissed) => Ok(S::Unreachable),
            (S::Unreachable | S::Lost, E::HeartbeatsBack) => Ok(S::Ready),
            (S::Unreachable, E::GivenUp) => Ok(S::Lost),
            (S::Joined | S::Accepting | S::Ready | S::Unreachable | S::Lost, E::Revoked) => Ok(S::Revoked),
            (S::Revoked, E::Removed) => Ok(S::Removed),
            (S::Joined | S::Accepting | S::Ready | S::Unreachable | S::Lost, E::Rejoined) => Ok(self),
            // Before a node is ready it holds no work, so silence changes nothing.
            (S::Joined | S::Accepting, E::HeartbeatsMissed | E::HeartbeatsBack) => Ok(self),
            (S::Joined, E::Accepted | E::GivenUp | E::Removed)
            | (S::Accepting, E::Adopted | E::GivenUp | E::Removed)
            | (S::Ready, E::Adopted | E::Accepted | E::HeartbeatsBack | E::GivenUp | E::Removed)
            | (S::Unreachable, E::Adopted | E::Accepted | E::HeartbeatsMissed | E::Removed)
            | (S::Lost, E::Adopted | E::Accepted | E::HeartbeatsMissed | E::GivenUp | E::Removed)
            | (
                S::Revoked,
                E::Adopted
                | E::Accepted
                | E::HeartbeatsMissed
                | E::HeartbeatsBack
                | E::GivenUp
                | E::Revoked
                | E::Rejoined,
            )
            | (
                S::Removed,
                E::Adopted
                | E::Accepted
                | E::HeartbeatsMissed
                | E::HeartbeatsBack
                | E::GivenUp
                | E::Revoked
                | E::Removed
                | E::Rejoined,
            ) => Err(Refused { what: "node", state: self.name(), event: event.name() }),
        }
    }
}

impl NodeEvent {
    pub const fn name(self) -> &'static str {
        match self {
            NodeEvent::Adopted => "adopted",
            NodeEvent::Accepted => "accepted",
            NodeEvent::HeartbeatsMissed => "heartbeats-missed",
            NodeEvent::HeartbeatsBack => "heartbeats-back",
            NodeEvent::GivenUp => "given-up",
            NodeEvent::Revoked => "revoked",
            NodeEvent::Removed => "removed",
            NodeEvent::Rejoined => "rejoined",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_node_comes_back_by_no_event_but_removal() {
        assert_eq!(NodeState::Revoked.next(NodeEvent::Removed), Ok(NodeState::Removed));
        assert!(NodeState::Revoked.next(NodeEvent::HeartbeatsBack).is_err());
        assert!(NodeState::Revoked.next(NodeEvent::Rejoined).is_err());
    }

    #[test]
    fn silence_makes_only_a_ready_node_unreachable() {
        assert_eq!(NodeState::Ready.next(NodeEvent::HeartbeatsMissed), Ok(NodeState::Unreachable));
        assert_eq!(NodeState::Accepting.next(NodeEvent::HeartbeatsMissed), Ok(NodeState::Accepting));
    }
}
