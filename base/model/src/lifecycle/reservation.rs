//! ```text
//! draft -> scheduling -> placed -> active -> releasing -> released
//!   |          ^           |         |           ^   \--> expired   (when expiry asked for the release)
//!   |          +-----------+         +-----------+
//!   |        allocation failed      release, expiry
//!   +-> (a refused draft is deleted)      scheduling | placed -> failed
//! ```
//! Written by `capacity`. `degraded` is a condition, not a state: a hold is never dropped because its node is silent.

use super::Refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationState {
    /// Waits for the decision on it. Books nothing.
    Draft,
    /// Admitted; waits for a node.
    Scheduling,
    /// Booked on a node, which has not confirmed yet.
    Placed,
    /// The node's signed `AllocationBound` arrived.
    Active,
    /// Waits for the node's signed `AllocationReleased`; still booked.
    Releasing,
    Released,
    /// Gave up placing it.
    Failed,
    /// Released because its time was over.
    Expired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationEvent {
    Admitted,
    Placed,
    Bound,
    /// The node could not honour it: it is placed again.
    AllocationFailed,
    ReleaseAsked,
    /// Nothing is bound or booked any more.
    ReleaseConfirmed,
    ExpiryConfirmed,
    GivenUp,
}

impl ReservationState {
    pub const ALL: [ReservationState; 8] = [
        ReservationState::Draft,
        ReservationState::Scheduling,
        ReservationState::Placed,
        ReservationState::Active,
        ReservationState::Releasing,
        ReservationState::Released,
        ReservationState::Failed,
        ReservationState::Expired,
    ];
    /// Has atoms in the books.
    pub const HOLDS_CAPACITY: [ReservationState; 3] =
        [ReservationState::Placed, ReservationState::Active, ReservationState::Releasing];
    /// Counts against quota.
    pub const HOLDS_QUOTA: [ReservationState; 4] = [
        ReservationState::Scheduling,
        ReservationState::Placed,
        ReservationState::Active,
        ReservationState::Releasing,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ReservationState::Draft => "draft",
            ReservationState::Scheduling => "scheduling",
            ReservationState::Placed => "placed",
            ReservationState::Active => "active",
            ReservationState::Releasing => "releasing",
            ReservationState::Released => "released",
            ReservationState::Failed => "failed",
            ReservationState::Expired => "expired",
        }
    }

    pub fn parse(text: &str) -> Option<ReservationState> {
        ReservationState::ALL.into_iter().find(|state| state.name() == text)
    }

    pub const fn terminal(self) -> bool {
        match self {
            ReservationState::Released | ReservationState::Failed | ReservationState::Expired => true,
            ReservationState::Draft
            | ReservationState::Scheduling
            | ReservationState::Placed
            | ReservationState::Active
            | ReservationState::Releasing => false,
        }
    }

    pub const fn next(self, event: ReservationEvent) -> Result<ReservationState, Refused> {
        use ReservationEvent as E;
        use ReservationState as S;
        match (self, event) {
            (S::Draft, E::Admitted) => Ok(S::Scheduling),
            (S::Scheduling, E::Placed) => Ok(S::Placed),
            (S::Placed, E::Bound) => Ok(S::Active),
            // A bound report is delivered at least once.
            (S::Active | S::Releasing, E::Bound) => Ok(self),
            (S::Placed | S::Active, E::AllocationFailed) => Ok(S::Scheduling),
            (S::Scheduling | S::Placed | S::Active | S::Releasing, E::ReleaseAsked) => Ok(S::Releasing),
            (S::Releasing, E::AllocationFailed) => Ok(S::Releasing),
            (S::Releasing, E::ReleaseConfirmed) => Ok(S::Released),
            (S::Releasing, E::ExpiryConfirmed) => Ok(S::Expired),
            (S::Scheduling | S::Placed, E::GivenUp) => Ok(S::Failed),
            (
                S::Draft,
                E::Placed
                | E::Bound
                | E::AllocationFailed
                | E::ReleaseAsked
                | E::ReleaseConfirmed
                | E::ExpiryConfirmed
                | E::GivenUp,
            )
            | (
                S::Scheduling,
                E::Admitted | E::Bound | E::AllocationFailed | E::ReleaseConfirmed | E::ExpiryConfirmed,
            )
            | (S::Placed, E::Admitted | E::Placed | E::ReleaseConfirmed | E::ExpiryConfirmed)
            | (S::Active, E::Admitted | E::Placed | E::ReleaseConfirmed | E::ExpiryConfirmed | E::GivenUp)
            | (S::Releasing, E::Admitted | E::Placed | E::GivenUp)
            | (
                S::Released | S::Failed | S::Expired,
                E::Admitted
                | E::Placed
                | E::Bound
                | E::AllocationFailed
                | E::ReleaseAsked
                | E::ReleaseConfirmed
                | E::ExpiryConfirmed
                | E::GivenUp,
            ) => Err(Refused { what: "reservation", state: self.name(), event: event.name() }),
        }
    }
}

impl ReservationEvent {
    pub const fn name(self) -> &'static str {
        match self {
            ReservationEvent::Admitted => "admitted",
            ReservationEvent::Placed => "placed",
            ReservationEvent::Bound => "bound",
            ReservationEvent::AllocationFailed => "allocation-failed",
            ReservationEvent::ReleaseAsked => "release-asked",
            ReservationEvent::ReleaseConfirmed => "release-confirmed",
            ReservationEvent::ExpiryConfirmed => "expiry-confirmed",
            ReservationEvent::GivenUp => "given-up",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_allocation_sends_its_reservation_back_to_scheduling() {
        let state = ReservationState::Placed.next(ReservationEvent::AllocationFailed);
        assert_eq!(state, Ok(ReservationState::Scheduling));
    }

    #[test]
    fn a_bound_report_that_arrives_twice_changes_nothing() {
        assert_eq!(ReservationState::Active.next(ReservationEvent::Bound), Ok(ReservationState::Active));
    }

    #[test]
    fn what_holds_capacity_holds_quota() {
        for state in ReservationState::HOLDS_CAPACITY {
            assert!(ReservationState::HOLDS_QUOTA.contains(&state), "{state:?}");
            assert!(!state.terminal(), "{state:?}");
        }
    }

    #[test]
    fn capacity_is_let_go_only_by_confirmation() {
        assert!(ReservationState::Active.next(ReservationEvent::ReleaseConfirmed).is_err());
        assert_eq!(
            ReservationState::Releasing.next(ReservationEvent::ReleaseConfirmed),
            Ok(ReservationState::Released)
        );
    }
}
