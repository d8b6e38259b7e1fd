//! ```text
//! placed -> bound -> releasing -> released
//!    \--> failed        ^
//!    \------------------+
//! ```
//! One placed attempt of a reservation on one node. Its atoms are booked until `released` or `failed`.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocationState {
    Placed,
    Bound,
    /// Out of the node's spec; waits for the node's word that the hold is gone.
    Releasing,
    Released,
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
    /// Listed in its node's spec.
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
