//! Holding an answer until what was asked for has settled.

use std::time::Duration;

use kit::{Clock, Rng};

use crate::BoxFuture;
use crate::fault::Fault;

/// The longest a caller may wait: below the idle limits of common proxies.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

const PAUSE_FIRST: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Looks at a thing until it has settled or `at_most` has passed, and returns how it was seen last. `look` returns the
/// thing and whether it settled. Pauses grow from 25 ms to half a second, each shortened at random by up to a quarter, so
/// that callers who came together do not look together. Without `at_most` it looks once.
pub async fn until_settled<'a, T, F>(
    clock: &'a dyn Clock,
    rng: &'a dyn Rng,
    at_most: Option<Duration>,
    mut look: F,
) -> Result<T, Fault>
where
    T: Send,
    F: FnMut() -> BoxFuture<'a, Result<(T, bool), Fault>> + Send,
{
    let deadline = clock.monotonic().saturating_add(at_most.unwrap_or_default().min(WAIT_MAX));
    let mut pause = PAUSE_FIRST;
    loop {
        let (thing, settled) = look().await?;
        let left = deadline.saturating_sub(clock.monotonic());
        if settled || left.is_zero() {
            return Ok(thing);
        }
        let quarter = u64::try_from(pause.as_micros() / 4).expect("pauses are short");
        let jittered = pause.saturating_sub(Duration::from_micros(rng.below(quarter)));
        clock.sleep(jittered.min(left)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests;
