//! Slices that exist only in memory, for simulated machines and tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures::future::{BoxFuture, ready};
use model::AllocationId;

use super::{NoLimits, Removal, SliceError, SliceLimits, Slices, name};

#[derive(Debug, Default)]
struct State {
    unsupported: Option<String>,
    slices: BTreeMap<AllocationId, (SliceLimits, bool)>,
    failing: bool,
    applied: Vec<AllocationId>,
}

#[derive(Debug, Default)]
pub struct FakeSlices(Mutex<State>);

impl FakeSlices {
    pub fn new() -> Self {
        Self::default()
    }

    /// A host that cannot keep limits.
    pub fn unsupported(why: &str) -> Self {
        Self(Mutex::new(State { unsupported: Some(why.into()), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Something starts or ends in a slice.
    pub fn set_populated(&self, allocation: AllocationId, populated: bool) {
        if let Some(slice) = self.state().slices.get_mut(&allocation) {
            slice.1 = populated;
        }
    }

    /// What a reboot does: slices are runtime state.
    pub fn reboot(&self) {
        self.state().slices.clear();
    }

    /// Every change fails until told otherwise.
    pub fn set_failing(&self, failing: bool) {
        self.state().failing = failing;
    }

    /// Every apply so far, oldest first.
    pub fn applied(&self) -> Vec<AllocationId> {
        self.state().applied.clone()
    }

    fn check(
        &self,
        doing: &'static str,
        allocation: AllocationId,
    ) -> Result<MutexGuard<'_, State>, SliceError> {
        self.support()?;
        let state = self.state();
        if state.failing {
            let why = "told to fail".into();
            return Err(SliceError::Refused { doing, slice: name(allocation), why });
        }
        Ok(state)
    }
}

impl Slices for FakeSlices {
    fn support(&self) -> Result<(), NoLimits> {
        self.state().unsupported.clone().map_or(Ok(()), |why| Err(NoLimits { why }))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<AllocationId>, SliceError>> {
        Box::pin(ready(Ok(self.state().slices.keys().copied().collect())))
    }

    fn in_force<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<bool, SliceError>> {
        let held = self.state().slices.get(&allocation).is_some_and(|(held, _)| held == limits);
        Box::pin(ready(self.support().map(|()| held).map_err(SliceError::from)))
    }

    fn apply<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<(), SliceError>> {
        let applied = self.check("set up", allocation).map(|mut state| {
            state.applied.push(allocation);
            let populated = state.slices.get(&allocation).is_some_and(|(_, populated)| *populated);
            state.slices.insert(allocation, (limits.clone(), populated));
        });
        Box::pin(ready(applied))
    }

    fn remove(&self, allocation: AllocationId) -> BoxFuture<'_, Result<Removal, SliceError>> {
        let removed = self.check("remove", allocation).map(|mut state| match state.slices.get(&allocation) {
            Some((_, true)) => Removal::InUse,
            _ => {
                state.slices.remove(&allocation);
                Removal::Gone
            }
        });
        Box::pin(ready(removed))
    }
}
