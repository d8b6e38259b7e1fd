//! ```text
//! placed -> bound -> releasing -> released
//!    |        |       ^    |
//!    +--------+-------+    |
//!    +--------+------------+-> failed
//! ```
//! One placed attempt of a reservation on one node. Its atoms are booked until it has ended, by the node's word that it
//! holds nothing of it: `released` is that word, and what failed waits for it still, while its reservation is placed
//! elsewhere.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocationState {
    Placed,
    Bound,
    /// Named in the node's spec as one to let go of; waits for the node's word that the hold is gone.
    Releasing,
    Released,
    /// Refused by its node, or left behind on a lost one. Named in the spec as one to let go of until it has ended.
    Failed,
}

impl AllocationState {
    pub const ALL: [AllocationState; 5] = [
        AllocationState::Placed,
        AllocationState::Bound,
        AllocationState::Releasing,
        AllocationState::Released,
        AllocationState::Failed,
    ];
    /// Listed in its node's spec as one to hold.
    pub const IN_SPEC: [AllocationState; 2] = [AllocationState::Placed, AllocationState::Bound];

    pub const fn name(self) -> &'static str {
        match self {
            AllocationState::Placed => "placed",
            AllocationState::Bound => "bound",
            AllocationState::Releasing => "releasing",
            AllocationState::Released => "released",
            AllocationState::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<AllocationState> {
        AllocationState::ALL.into_iter().find(|state| state.name() == text)
    }
}
