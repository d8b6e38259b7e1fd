//! What is over is not told to nodes any more: revoked serials of expired certificates, and keys that a newer one replaced.

use std::collections::BTreeSet;
use std::time::Duration;

use kernel::module::{Pass, PassOutcome, wake_all};
use kernel::ports::node::SPEC_QUEUE;
use kernel::{BoxFuture, Fault};
use model::NodeId;
use store::{Op, RowExt};

use super::{spec_key, wake_all_told};
use crate::Access;
use crate::sql::ssh as sql;

const PERIOD: Duration = Duration::from_secs(10);
/// A node's clock may be behind by this, and a certificate still good there.
const CLOCK_ALLOWANCE_SECS: i32 = 600;
const AT_ONCE: i64 = 1000;

const UPKEEP: Op = Op::new("ssh_upkeep");

pub(super) struct Upkeep(pub Access);

impl Pass for Upkeep {
    fn name(&self) -> &'static str {
        "ssh-upkeep"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let over = self.0.certs_over().await?;
            self.0.ca_keys_retire().await?;
            Ok(if over == AT_ONCE.unsigned_abs() { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}

impl Access {
    async fn certs_over(&self) -> Result<u64, Fault> {
        self.store()
            .tx(UPKEEP, |tx| {
                Box::pin(async move {
                    let rows = tx.query(&sql::CERTS_OVER, &[&CLOCK_ALLOWANCE_SECS, &AT_ONCE]).await?;
                    let revoked = rows.iter().filter(|row| row.opt_ts("revoked_at").is_some());
                    let nodes: BTreeSet<NodeId> = revoked.map(|row| row.id("node_id")).collect();
                    let keys: Vec<String> = nodes.into_iter().map(spec_key).collect();
                    wake_all(tx, SPEC_QUEUE, &keys).await?;
                    Ok::<_, Fault>(rows.len() as u64)
                })
            })
            .await
    }

    async fn ca_keys_retire(&self) -> Result<(), Fault> {
        let old: bool = self.store().read_one(&sql::CA_KEYS_OLD, &[]).await?.get("old");
        if !old {
            return Ok(());
        }
        self.store()
            .tx(UPKEEP, |tx| {
                Box::pin(async move {
                    tx.query(&sql::CA_KEYS_LOCK, &[]).await?;
                    if tx.execute(&sql::CA_KEYS_RETIRE, &[]).await? > 0 {
                        wake_all_told(tx).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }
}
