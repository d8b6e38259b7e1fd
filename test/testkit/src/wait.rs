//! Waiting on a condition, with a bound.

use std::fmt::Display;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(5);

/// Asks `probe` until it answers `Ok`, which is returned.
///
/// # Panics
/// When `bound` passes first, saying what the probe saw last.
pub async fn eventually<T, E, F, Fut>(bound: Duration, mut probe: F) -> T
where
    E: Display,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(saw) if started.elapsed() > bound => panic!("not within {bound:?}: last saw {saw}"),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
