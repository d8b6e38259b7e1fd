//! Certificates are asked for together: who connects while some are being asked for goes into the next statement.

use std::sync::Arc;

use kernel::ports::delivery::DeliveryError;
use kit::Wake;
use tokio::sync::oneshot;

use super::Hub;

/// Of one statement.
const CHECKS_AT_ONCE: usize = 512;

/// A certificate that was shown.
pub(super) struct Check {
    serial: String,
    told: oneshot::Sender<bool>,
}

impl Hub {
    /// Makes a task of its own the one that asks for certificates.
    pub(crate) fn check_apart(&self) -> Wake {
        let (wake, waker) = Wake::new();
        // Asked for once, by whoever serves this lease.
        let _ = self.checker.set(waker);
        wake
    }

    pub(crate) async fn run_checks(self: Arc<Self>, mut wake: Wake) {
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.dispatch) => {}
            }
            self.check_pass().await;
        }
    }

    /// Whether a node certificate still counts.
    pub(crate) async fn certificate_counts(&self, serial: &str) -> Result<bool, DeliveryError> {
        let Some(checker) = self.checker.get() else {
            self.metrics.call("certificate_counts");
            return self.store.certificate_counts(serial).await;
        };
        let (told, answer) = oneshot::channel();
        let check = Check { serial: serial.to_owned(), told };
        self.checks.lock().expect("no holder of this lock panics").push(check);
        checker.wake();
        // Nobody asks any more; what was there before is dropped with the lease.
        if self.is_over() {
            return Err(DeliveryError::LeaseLost);
        }
        // Dropped unanswered when the store did not answer, which is logged there, and when the lease is over.
        answer.await.map_err(|_| DeliveryError::Unavailable("the certificate could not be looked up".into()))
    }

    /// One pass: asks until nobody waits.
    pub(crate) async fn check_pass(&self) {
        loop {
            let batch: Vec<Check> = {
                let mut waiting = self.checks.lock().expect("no holder of this lock panics");
                let count = waiting.len().min(CHECKS_AT_ONCE);
                waiting.drain(..count).collect()
            };
            if batch.is_empty() || self.over.is_cancelled() {
                return;
            }
            let serials = batch.iter().map(|check| check.serial.clone()).collect();
            self.metrics.call("certificates_count");
            match self.store.certificates_count(serials).await {
                Ok(counts) => {
                    for (check, counts) in batch.into_iter().zip(counts) {
                        // Whoever asked may have gone.
                        let _ = check.told.send(counts);
                    }
                }
                Err(err) => self.failed("look certificates up", &err),
            }
        }
    }
}
