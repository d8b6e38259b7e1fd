//! Keeping the lease, and the database's time with it.

use std::sync::Arc;
use std::time::Duration;

use kernel::ports::delivery::DeliveryError;

use super::Hub;

/// A renewal that failed is tried again this soon.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl Hub {
    pub(crate) async fn run_lease(self: Arc<Self>) {
        let mut pause = self.timing.renew;
        loop {
            // Both arms are cancel-safe: neither takes anything.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = self.clock.sleep(pause) => {}
            }
            pause = self.renew_once().await;
        }
    }

    /// One renewal; says how long to pause.
    pub(crate) async fn renew_once(&self) -> Duration {
        let asked = self.clock.monotonic();
        self.metrics.call("renew");
        // A renewal that takes as long as the lease has renewed nothing. Dropping the call is safe: it may be repeated.
        let renewed = tokio::select! {
            biased;
            renewed = self.store.renew(self.lease, self.timing.ttl) => renewed,
            () = self.clock.sleep(self.timing.ttl) => Err(DeliveryError::Unavailable("no answer in time".into())),
        };
        match renewed {
            Ok(server_time) => {
                self.time.set(server_time, asked, self.clock.monotonic());
                let late = kit::mutant::on("gateway.lease-from-its-answer");
                let from = if late { self.clock.monotonic() } else { asked };
                self.set_valid_until(from + self.timing.ttl);
                return self.timing.renew;
            }
            Err(err) => self.failed("renew the gateway's lease", &err),
        }
        if self.is_over() {
            self.end();
        }
        RETRY_PAUSE.min(self.timing.renew)
    }
}
