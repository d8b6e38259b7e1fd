//! ```text
//! pending -> dispatched -> acked -> running -> succeeded | failed | rejected | cancelled
//!    |            (reports may skip steps; a lost `acked` does not stop a result)
//!    +-> expired | cancelled                     (never sent)
//! ```
//! Written by the gateway from reports, by the sweeper from time, and by a cancel before dispatch.

use super::Refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandState {
    Pending,
    Dispatched,
    Acked,
    Running,
    Succeeded,
    Failed,
    Rejected,
    Cancelled,
    Expired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandEvent {
    Sent,
    /// The node could not take it yet: it goes back to the queue.
    Busy,
    Acked,
    Running,
    Succeeded,
    Failed,
    Rejected,
    Cancelled,
    Expired,
}

impl CommandState {
    pub const ALL: [CommandState; 9] = [
        CommandState::Pending,
        CommandState::Dispatched,
        CommandState::Acked,
        CommandState::Running,
        CommandState::Succeeded,
        CommandState::Failed,
        CommandState::Rejected,
        CommandState::Cancelled,
        CommandState::Expired,
    ];
    /// On a node, or on its way to one.
    pub const IN_FLIGHT: [CommandState; 3] =
        [CommandState::Dispatched, CommandState::Acked, CommandState::Running];

    pub const fn name(self) -> &'static str {
        match self {
            CommandState::Pending => "pending",
            CommandState::Dispatched => "dispatched",
            CommandState::Acked => "acked",
            CommandState::Running => "running",
            CommandState::Succeeded => "succeeded",
            CommandState::Failed => "failed",
            CommandState::Rejected => "rejected",
            CommandState::Cancelled => "cancelled",
            CommandState::Expired => "expired",
        }
    }

    pub fn parse(text: &str) -> Option<CommandState> {
        CommandState::ALL.into_iter().find(|state| state.name() == text)
    }

    pub const fn terminal(self) -> bool {
        match self {
            CommandState::Succeeded
            | CommandState::Failed
            | CommandState::Rejected
            | CommandState::Cancelled
            | CommandState::Expired => true,
            CommandState::Pending
            | CommandState::Dispatched
            | CommandState::Acked
            | CommandState::Running => false,
        }
    }

    pub const fn next(self, event: CommandEvent) -> Result<CommandState, Refused> {
        use CommandEvent as E;
        use CommandState as S;
        match (self, event) {
            (S::Pending, E::Sent) => Ok(S::Dispatched),
            (S::Pending, E::Expired) => Ok(S::Expired),
            (S::Pending, E::Cancelled) => Ok(S::Cancelled),
            (S::Dispatched | S::Acked | S::Running, E::Sent) => Ok(self),
            (S::Dispatched, E::Busy) => Ok(S::Pending),
            (S::Dispatched, E::Acked) => Ok(S::Acked),
            (S::Dispatched | S::Acked, E::Running) => Ok(S::Running),
            (S::Dispatched | S::Acked | S::Running, E::Succeeded) => Ok(S::Succeeded),
            (S::Dispatched | S::Acked | S::Running, E::Failed) => Ok(S::Failed),
            // What is safe to repeat is checked again when it is sent again, and may be refused then though it had run.
            (S::Dispatched | S::Acked | S::Running, E::Rejected) => Ok(S::Rejected),
            (S::Dispatched | S::Acked | S::Running, E::Cancelled) => Ok(S::Cancelled),
            (S::Pending, E::Busy | E::Acked | E::Running | E::Succeeded | E::Failed | E::Rejected)
            | (S::Dispatched, E::Expired)
            | (S::Acked, E::Busy | E::Acked | E::Expired)
            | (S::Running, E::Busy | E::Acked | E::Running | E::Expired)
            | (
                S::Succeeded | S::Failed | S::Rejected | S::Cancelled | S::Expired,
                E::Sent
                | E::Busy
                | E::Acked
                | E::Running
                | E::Succeeded
                | E::Failed
                | E::Rejected
                | E::Cancelled
                | E::Expired,
            ) => Err(Refused { what: "command", state: self.name(), event: event.name() }),
        }
    }
}

impl CommandEvent {
    pub const fn name(self) -> &'static str {
        match self {
            CommandEvent::Sent => "sent",
            CommandEvent::Busy => "busy",
            CommandEvent::Acked => "acked",
            CommandEvent::Running => "running",
            CommandEvent::Succeeded => "succeeded",
            CommandEvent::Failed => "failed",
            CommandEvent::Rejected => "rejected",
            CommandEvent::Cancelled => "cancelled",
            CommandEvent::Expired => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [CommandEvent; 9] = [
        CommandEvent::Sent,
        CommandEvent::Busy,
        CommandEvent::Acked,
        CommandEvent::Running,
        CommandEvent::Succeeded,
        CommandEvent::Failed,
        CommandEvent::Rejected,
        CommandEvent::Cancelled,
        CommandEvent::Expired,
    ];

    #[test]
    fn a_settled_command_never_changes() {
        for state in CommandState::ALL.into_iter().filter(|state| state.terminal()) {
            for event in EVENTS {
                assert!(state.next(event).is_err(), "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_result_lands_though_its_acknowledgement_was_lost() {
        assert_eq!(CommandState::Dispatched.next(CommandEvent::Succeeded), Ok(CommandState::Succeeded));
    }

    #[test]
    fn a_command_that_is_refused_when_it_is_sent_again_is_settled() {
        assert_eq!(CommandState::Running.next(CommandEvent::Rejected), Ok(CommandState::Rejected));
    }

    #[test]
    fn a_command_that_was_never_sent_has_no_result() {
        assert!(CommandState::Pending.next(CommandEvent::Succeeded).is_err());
    }
}
