//! File reads off the async threads. Some of procfs and sysfs waits for a device, for a kernel lock, or for ever in a
//! driver that hangs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::commands::TIME_LIMIT;

/// Reads at the same time. One pass needs three; a read that never ends keeps its place, so a hung driver costs at most
/// this many threads and not one a pass.
const READERS_MAX: usize = 8;

/// Hands out the places.
#[derive(Debug, Clone)]
pub struct Readers {
    places: Arc<Semaphore>,
    time_limit: Duration,
}

impl Default for Readers {
    fn default() -> Self {
        Self::new()
    }
}

/// The reading did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stalled {
    #[error("no answer in time")]
    TimedOut,
    #[error("the reading task ended early")]
    Ended,
}

impl Readers {
    pub fn new() -> Self {
        Self::with_time_limit(TIME_LIMIT)
    }

    pub fn with_time_limit(time_limit: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(READERS_MAX)), time_limit }
    }

    /// Runs a reading on its own thread, and gives it up after the time limit.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let places = self.places.clone();
        let reading = async {
            let place = places.acquire_owned().await.map_err(|_| Stalled::Ended)?;
            let task = tokio::task::spawn_blocking(move || {
                let value = read();
                drop(place);
                value
            });
            task.await.map_err(|_| Stalled::Ended)
        };
        tokio::time::timeout(self.time_limit, reading).await.unwrap_or(Err(Stalled::TimedOut))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_reading_that_hangs_is_given_up_and_keeps_its_place() {
        let readers = Readers::with_time_limit(Duration::from_millis(50));
        assert_eq!(readers.read(|| 7).await, Ok(7));
        let (release, hung) = mpsc::channel::<()>();
        let hung = Arc::new(std::sync::Mutex::new(hung));
        for _ in 0..READERS_MAX {
            let hung = hung.clone();
            let read = move || hung.lock().map(|hung| hung.recv().is_ok()).unwrap_or(false);
            assert_eq!(readers.read(read).await, Err(Stalled::TimedOut));
        }
        assert_eq!(readers.places.available_permits(), 0);
        assert_eq!(readers.read(|| 7).await, Err(Stalled::TimedOut), "no thread is left for it");
        drop(release);
        let freed = readers.places.acquire_many(READERS_MAX as u32);
        assert!(tokio::time::timeout(Duration::from_secs(10), freed).await.is_ok(), "the places come back");
    }
}
