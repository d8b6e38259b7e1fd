//! Room for request bodies, so that what callers send at once is bounded by more than their number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kernel::ApiError;
use model::{ErrorCode, UserId};

/// A body up to this is not counted: the rate of its caller bounds those.
const SMALL_BYTES_MAX: usize = 16 * 1024;
/// Bytes of larger bodies at once, 64 of the largest.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// A quarter of it for one user, so that none keeps the others out.
const BYTES_OF_USER_MAX: usize = BYTES_MAX / 4;

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_user: HashMap<UserId, usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Bodies {
    taken: Arc<Mutex<Taken>>,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    taken: Arc<Mutex<Taken>>,
    user_id: UserId,
    bytes: usize,
}

impl Bodies {
    /// Room for a body of a known caller; none is needed for a small one.
    pub(crate) fn room(&self, user_id: UserId, bytes: usize) -> Result<Option<Room>, ApiError> {
        if bytes <= SMALL_BYTES_MAX {
            return Ok(None);
        }
        let mut taken = self.taken.lock().expect("no holder of this lock panics");
        let of_user = taken.by_user.get(&user_id).copied().unwrap_or(0);
        if taken.all + bytes > BYTES_MAX || of_user + bytes > BYTES_OF_USER_MAX {
            let error =
                ApiError::new(ErrorCode::Unavailable, "too many large requests at once: try again in 1 s");
            return Err(ApiError { retry_after: Some(1), ..error });
        }
        taken.all += bytes;
        taken.by_user.insert(user_id, of_user + bytes);
        Ok(Some(Room { taken: self.taken.clone(), user_id, bytes }))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().expect("no holder of this lock panics");
        taken.all -= self.bytes;
        if let Some(of_user) = taken.by_user.get_mut(&self.user_id) {
            *of_user -= self.bytes;
            if *of_user == 0 {
                taken.by_user.remove(&self.user_id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
