//! When a call is tried again. Pure.

use std::time::Duration;

use api::{Idempotency, MethodRow};
use model::ErrorCode;
use serde_json::Value;

use crate::ClientError;

/// Tries of one call, the first included. With the waits below about ten seconds.
pub const TRIES_MAX: u32 = 5;
pub const WAIT_FIRST: Duration = Duration::from_millis(200);
pub const WAIT_CEILING: Duration = Duration::from_secs(5);
/// A server that asks for more patience than this is answered to the caller instead.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    GiveUp,
    /// After the backoff's own wait.
    Again,
    /// After at least this.
    AgainAfter(Duration),
}

/// Whether doing it twice is doing it once: reads, and creates that carry their key.
pub fn repeatable(row: &MethodRow, body: &Value) -> bool {
    match row.idempotency {
        Idempotency::Read => true,
        Idempotency::Key => body.get("idempotencyKey").is_some(),
        Idempotency::Natural => false,
    }
}

/// What to do after `tries` tries, the last of which failed.
pub fn decide(error: &ClientError, repeatable: bool, tries: u32) -> Decision {
    if tries >= TRIES_MAX {
        return Decision::GiveUp;
    }
    match error {
        // Nothing was sent, so nothing can be done twice.
        ClientError::Connect { .. } => Decision::Again,
        ClientError::Timeout { .. } | ClientError::Broken { .. } if repeatable => Decision::Again,
        ClientError::Refused(refusal) => {
            let wait = Duration::from_secs(refusal.retry_after.unwrap_or(0));
            if wait > RETRY_AFTER_MAX {
                return Decision::GiveUp;
            }
            match refusal.code() {
                // Refused before anything was done.
                ErrorCode::RateLimited => Decision::AgainAfter(wait),
                ErrorCode::Unavailable | ErrorCode::ProviderError if repeatable => Decision::AgainAfter(wait),
                // No room now is an answer, not a failure: whoever wants to wait says so.
                _ => Decision::GiveUp,
            }
        }
        ClientError::Untrusted { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. }
        | ClientError::Answer { .. }
        | ClientError::Encode(_) => Decision::GiveUp,
    }
}

#[cfg(test)]
mod tests;
