//! Forgets tunnels and SSH certificates that are long over. What was done through them is in the audit log for longer.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use store::Store;

use crate::sql;

const PERIOD: Duration = Duration::from_secs(3600);
const KEPT_DAYS: i32 = 30;
/// Whoever looks after an emergency looks for who was let in.
const CERTS_KEPT_DAYS: i32 = 180;
const AT_ONCE: i64 = 1000;

pub(crate) struct Retention(pub Store);

impl Pass for Retention {
    fn name(&self) -> &'static str {
        "tunnel-retention"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let gone = self.0.execute(&sql::TUNNELS_FORGET, &[&KEPT_DAYS, &AT_ONCE]).await?;
            let certs = self.0.execute(&sql::ssh::CERTS_FORGET, &[&CERTS_KEPT_DAYS, &AT_ONCE]).await?;
            Ok(if gone.max(certs) == AT_ONCE.unsigned_abs() { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}
