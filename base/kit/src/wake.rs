//! A wake-up that is never lost: a signal during a pass means another pass.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;

/// The side that waits. One waiter.
#[derive(Debug)]
pub struct Wake(Arc<Notify>);

/// The side that signals; cheap to clone.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Notify>);

impl Wake {
    pub fn new() -> (Wake, Waker) {
        // `notify_one` leaves a permit when nobody waits: that is what keeps a signal between check and sleep.
        let notify = Arc::new(Notify::new());
        (Wake(notify.clone()), Waker(notify))
    }

    /// Whether it was signalled since the last return, for whoever waits by other means.
    pub fn take(&mut self) -> bool {
        self.0.notified().now_or_never().is_some()
    }

    /// Returns when signalled since the last return, however long that takes. Cancel-safe.
    pub async fn signalled(&mut self) {
        self.0.notified().await;
    }

    /// Returns when signalled since the last return, or after `at_most`.
    pub async fn wait(&mut self, at_most: Duration) {
        // Cancel-safe: a dropped `notified` that had taken the permit passes it on.
        let _ = tokio::time::timeout(at_most, self.0.notified()).await;
    }
}

impl Waker {
    pub fn wake(&self) {
        self.0.notify_one();
    }
}
