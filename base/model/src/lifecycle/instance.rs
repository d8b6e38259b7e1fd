//! ```text
//! pending -> scheduling -> provisioning -> running <-> stopping -> stopped
//!    |                                        ^                       |
//!    +-> (a refused draft is deleted)         +------- starting <-----+
//!
//! any but pending -> deleting -> deleted        (by the host's word that nothing of it is there)
//! any that is on a host -> error                (the host cannot do what was asked; asking again leaves it)
//! any that is on a host -> lost                 (its host is lost, or was given up)
//! lost, provisioning -> scheduling              (taken off its host, to be placed anew)
//! ```
//! Written by `instances`. What is wanted is [`DesiredPower`], which callers write; the state follows the host's signed
//! reports, and each of those answers to one revision of what was wanted.

use super::Refused;

/// What is wanted of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DesiredPower {
    Running,
    Stopped,
    Deleted,
}

impl DesiredPower {
    pub const ALL: [DesiredPower; 3] = [DesiredPower::Running, DesiredPower::Stopped, DesiredPower::Deleted];

    pub const fn name(self) -> &'static str {
        match self {
            DesiredPower::Running => "running",
            DesiredPower::Stopped => "stopped",
            DesiredPower::Deleted => "deleted",
        }
    }

    pub fn parse(text: &str) -> Option<DesiredPower> {
        DesiredPower::ALL.into_iter().find(|desired| desired.name() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// A draft that waits for the decision on it. Books nothing.
    Pending,
    /// Admitted; waits for a host.
    Scheduling,
    /// Booked on a host, which has not reported it yet.
    Provisioning,
    /// Is to run, and did not when that was asked.
    Starting,
    Running,
    /// Is to stop, and has not yet.
    Stopping,
    Stopped,
    /// Waits for its host's word that nothing of it is there; still booked.
    Deleting,
    Deleted,
    /// Its host cannot do what was asked. Nothing is given back.
    Error,
    /// Its host is lost, or was given up with it.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceEvent {
    Admitted,
    Placed,
    /// Also a start anew of one that runs.
    StartAsked,
    StopAsked,
    DeleteAsked,
    /// Its host reports that it runs, as was asked.
    SeenRunning,
    SeenStopped,
    /// Its host reports that nothing of it is there, or it never had one.
    SeenAbsent,
    /// Its host reports that it cannot be as was asked.
    SeenError,
    HostLost,
    /// It is taken off its host and placed anew: that host is fenced, or never ran it.
    Recreated,
}

impl InstanceState {
    pub const ALL: [InstanceState; 11] = [
        InstanceState::Pending,
        InstanceState::Scheduling,
        InstanceState::Provisioning,
        InstanceState::Starting,
        InstanceState::Running,
        InstanceState::Stopping,
        InstanceState::Stopped,
        InstanceState::Deleting,
        InstanceState::Deleted,
        InstanceState::Error,
        InstanceState::Lost,
    ];
    /// Something is under way: a caller who waits goes on waiting.
    pub const TRANSITIONAL: [InstanceState; 6] = [
        InstanceState::Pending,
        InstanceState::Scheduling,
        InstanceState::Provisioning,
        InstanceState::Starting,
        InstanceState::Stopping,
        InstanceState::Deleting,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            InstanceState::Pending => "pending",
            InstanceState::Scheduling => "scheduling",
            InstanceState::Provisioning => "provisioning",
            InstanceState::Starting => "starting",
            InstanceState::Running => "running",
            InstanceState::Stopping => "stopping",
            InstanceState::Stopped => "stopped",
            InstanceState::Deleting => "deleting",
            InstanceState::Deleted => "deleted",
            InstanceState::Error => "error",
            InstanceState::Lost => "lost",
        }
    }

    pub fn parse(text: &str) -> Option<InstanceState> {
        InstanceState::ALL.into_iter().find(|state| state.name() == text)
    }

    pub const fn terminal(self) -> bool {
        match self {
            InstanceState::Deleted => true,
            InstanceState::Pending
            | InstanceState::Scheduling
            | InstanceState::Provisioning
            | InstanceState::Starting
            | InstanceState::Running
            | InstanceState::Stopping
            | InstanceState::Stopped
            | InstanceState::Deleting
            | InstanceState::Error
            | InstanceState::Lost => false,
        }
    }

    pub fn transitional(self) -> bool {
        InstanceState::TRANSITIONAL.contains(&self)
    }

    pub const fn next(self, event: InstanceEvent) -> Result<InstanceState, Refused> {
        use InstanceEvent as E;
        use InstanceState as S;
        match (self, event) {
            (S::Pending, E::Admitted) => Ok(S::Scheduling),
            (S::Scheduling, E::Placed) => Ok(S::Provisioning),
            // What is wanted of one that has not been seen yet is in its entry; it stays on its way.
            (S::Scheduling | S::Provisioning, E::StartAsked | E::StopAsked) => Ok(self),
            (S::Starting | S::Running | S::Stopping | S::Stopped | S::Error, E::StartAsked) => {
                Ok(S::Starting)
            }
            (S::Starting | S::Running | S::Stopping | S::Error, E::StopAsked) => Ok(S::Stopping),
            (S::Stopped, E::StopAsked) => Ok(S::Stopped),
            (
                S::Scheduling
                | S::Provisioning
                | S::Starting
                | S::Running
                | S::Stopping
                | S::Stopped
                | S::Deleting
                | S::Error
                | S::Lost,
                E::DeleteAsked,
            ) => Ok(S::Deleting),
            (
                S::Provisioning | S::Starting | S::Running | S::Stopping | S::Stopped | S::Error | S::Lost,
                E::SeenRunning,
            ) => Ok(S::Running),
            (
                S::Provisioning | S::Starting | S::Running | S::Stopping | S::Stopped | S::Error | S::Lost,
                E::SeenStopped,
            ) => Ok(S::Stopped),
            (
                S::Provisioning | S::Starting | S::Running | S::Stopping | S::Stopped | S::Error | S::Lost,
                E::SeenError,
            ) => Ok(S::Error),
            (S::Deleting, E::SeenAbsent) => Ok(S::Deleted),
            // Said of what was wanted before, or that it cannot be deleted yet.
            (S::Deleting, E::SeenRunning | E::SeenStopped | E::SeenError) => Ok(S::Deleting),
            (
                S::Provisioning | S::Starting | S::Running | S::Stopping | S::Stopped | S::Error | S::Lost,
                E::HostLost,
            ) => Ok(S::Lost),
            // Nobody will ever say that nothing of it is there.
            (S::Deleting, E::HostLost) => Ok(S::Deleted),
            (S::Lost | S::Provisioning, E::Recreated) => Ok(S::Scheduling),
            (
                S::Pending,
                E::Placed
                | E::StartAsked
                | E::StopAsked
                | E::DeleteAsked
                | E::SeenRunning
                | E::SeenStopped
                | E::SeenAbsent
                | E::SeenError
                | E::HostLost
                | E::Recreated,
            )
            | (
                S::Scheduling,
                E::Admitted
                | E::SeenRunning
                | E::SeenStopped
                | E::SeenAbsent
                | E::SeenError
                | E::HostLost
                | E::Recreated,
            )
            | (
                S::Provisioning | S::Starting | S::Running | S::Stopping | S::Stopped | S::Error,
                E::Admitted | E::Placed | E::SeenAbsent,
            )
            | (S::Starting | S::Running | S::Stopping | S::Stopped | S::Error, E::Recreated)
            | (S::Lost, E::Admitted | E::Placed | E::SeenAbsent | E::StartAsked | E::StopAsked)
            | (S::Deleting, E::Admitted | E::Placed | E::StartAsked | E::StopAsked | E::Recreated)
            | (
                S::Deleted,
                E::Admitted
                | E::Placed
                | E::StartAsked
                | E::StopAsked
                | E::DeleteAsked
                | E::SeenRunning
                | E::SeenStopped
                | E::SeenAbsent
                | E::SeenError
                | E::HostLost
                | E::Recreated,
            ) => Err(Refused { what: "instance", state: self.name(), event: event.name() }),
        }
    }
}

impl InstanceEvent {
    pub const fn name(self) -> &'static str {
        match self {
            InstanceEvent::Admitted => "admitted",
            InstanceEvent::Placed => "placed",
            InstanceEvent::StartAsked => "start-asked",
            InstanceEvent::StopAsked => "stop-asked",
            InstanceEvent::DeleteAsked => "delete-asked",
            InstanceEvent::SeenRunning => "seen-running",
            InstanceEvent::SeenStopped => "seen-stopped",
            InstanceEvent::SeenAbsent => "seen-absent",
            InstanceEvent::SeenError => "seen-error",
            InstanceEvent::HostLost => "host-lost",
            InstanceEvent::Recreated => "recreated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_goes_only_by_deletion_and_its_hosts_word() {
        for state in InstanceState::ALL {
            let gone = state.next(InstanceEvent::SeenAbsent);
            assert_eq!(gone.is_ok(), state == InstanceState::Deleting, "{state:?}");
        }
        assert_eq!(InstanceState::Deleting.next(InstanceEvent::SeenAbsent), Ok(InstanceState::Deleted));
    }

    #[test]
    fn one_that_is_being_deleted_neither_starts_nor_stops() {
        for event in [InstanceEvent::StartAsked, InstanceEvent::StopAsked] {
            assert!(InstanceState::Deleting.next(event).is_err());
            assert!(InstanceState::Deleted.next(event).is_err());
        }
        assert_eq!(InstanceState::Deleting.next(InstanceEvent::SeenRunning), Ok(InstanceState::Deleting));
        assert_eq!(InstanceState::Deleting.next(InstanceEvent::DeleteAsked), Ok(InstanceState::Deleting));
    }

    #[test]
    fn one_that_failed_starts_when_it_is_asked_to() {
        assert_eq!(InstanceState::Error.next(InstanceEvent::StartAsked), Ok(InstanceState::Starting));
        assert_eq!(InstanceState::Provisioning.next(InstanceEvent::SeenError), Ok(InstanceState::Error));
        assert!(InstanceState::Scheduling.next(InstanceEvent::SeenError).is_err());
    }

    #[test]
    fn only_what_is_lost_or_was_never_seen_is_placed_anew() {
        for state in InstanceState::ALL {
            let anew = state.next(InstanceEvent::Recreated);
            let may = matches!(state, InstanceState::Lost | InstanceState::Provisioning);
            assert_eq!(anew.ok(), may.then_some(InstanceState::Scheduling), "{state:?}");
        }
    }

    #[test]
    fn every_state_but_deleted_comes_to_an_end() {
        for state in InstanceState::ALL.into_iter().filter(|state| !state.terminal()) {
            let leaves = state == InstanceState::Pending || state.next(InstanceEvent::DeleteAsked).is_ok();
            assert!(leaves, "{state:?}");
        }
    }
}
