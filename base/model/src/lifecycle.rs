//! The states of commands, nodes, reservations, allocations and instances, and their moves. Pure: `next(state, event)`.

mod allocation;
mod command;
mod instance;
mod node;
mod reservation;

pub use allocation::AllocationState;
pub use command::{CommandEvent, CommandState};
pub use instance::{DesiredPower, InstanceEvent, InstanceState};
pub use node::{NodeEvent, NodeState};
pub use reservation::{ReservationEvent, ReservationState};

/// A move that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {what} that is {state} does not take {event}")]
pub struct Refused {
    pub what: &'static str,
    pub state: &'static str,
    pub event: &'static str,
}
