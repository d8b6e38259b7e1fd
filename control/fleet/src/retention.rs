//! Forgets what nobody asks for any longer, a bounded piece at a time.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use store::Sql;

use crate::core::Fleet;
use crate::sql;

/// What one statement deletes at most: a fraction of a second's work.
pub const PIECE_MAX: u64 = 1000;

/// How long each is kept stands in its statement.
const STATEMENTS: &[&Sql] = &[
    &sql::INBOX_FORGET,
    &sql::NODE_EVENTS_FORGET,
    &sql::COMMANDS_FORGET,
    &sql::CERTS_FORGET,
    &sql::JOIN_REQUESTS_FORGET,
    &sql::GATEWAYS_FORGET,
];

impl Fleet {
    pub async fn forget(&self) -> Result<PassOutcome, Fault> {
        let mut more = false;
        for statement in STATEMENTS {
            more |= self.store().execute(statement, &[]).await? >= PIECE_MAX;
        }
        Ok(if more { PassOutcome::More } else { PassOutcome::Idle })
    }
}

/// The retention of the fleet's own tables.
pub struct Retention(pub Fleet);

impl Pass for Retention {
    fn name(&self) -> &'static str {
        "fleet-retention"
    }

    fn period(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.forget())
    }
}
