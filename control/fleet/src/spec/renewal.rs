//! Finds stored specs that no node would take any longer and has them assembled anew.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome, queue};
use kernel::ports::node::SPEC_QUEUE;
use kernel::{BoxFuture, Fault};
use model::NodeId;
use store::{Op, Row, RowExt};
use uuid::Uuid;

use crate::core::{Fleet, node_key};
use crate::keys::SIGN_AGAIN_BEFORE;
use crate::sql;

const WAKE: Op = Op::new("node_spec_renew");
/// A page of signatures is some hundred kilobytes.
const PAGE: i64 = 500;

impl Fleet {
    /// Wakes the specs whose signature is to be made anew. Reads every served node's signature once, in pages.
    async fn renew_signatures(&self) -> Result<PassOutcome, Fault> {
        let keys = self.keys()?;
        let now = self.store().tx(WAKE, |tx| Box::pin(async move { tx.now().await })).await?;
        let ends = keys.worker_ends();
        if let Err(over) = keys.usable(now) {
            tracing::error!(err = %over, "nothing can be signed");
        } else if ends < now.saturating_add(SIGN_AGAIN_BEFORE) {
            tracing::warn!(ends = %ends, "the worker certificate ends soon: certify the worker key again");
        }
        let mut after = Uuid::nil();
        loop {
            let rows = self.store().read(&sql::SPEC_SIGNATURES, &[&after, &PAGE]).await?;
            let Some(last) = rows.last() else { return Ok(PassOutcome::Idle) };
            after = last.get("node_id");
            let stale = |row: &&Row| keys.should_sign_again(row.get("spec_signature"), now);
            self.wake_specs(rows.iter().filter(stale).map(|row| row.id("node_id")).collect()).await?;
        }
    }

    /// Publishes the trust bundle for the epoch of a confirmed restore, where it is of an earlier one. Wakes the specs signed
    /// under an epoch from before it: nodes refuse those once they have seen the new one.
    async fn renew_epochs(&self) -> Result<PassOutcome, Fault> {
        if self.is_trust_of_earlier_epoch().await? {
            self.publish_trust().await?;
        }
        let rows = self.store().read(&sql::SPECS_BEFORE_RESTORE, &[&PAGE]).await?;
        self.wake_specs(rows.iter().map(|row| row.id("node_id")).collect()).await?;
        // Woken specs leave the list only when they are assembled, so the next look is the next period's.
        Ok(PassOutcome::Idle)
    }

    async fn wake_specs(&self, nodes: Vec<NodeId>) -> Result<(), Fault> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut keys: Vec<String> = nodes.into_iter().map(node_key).collect();
        keys.sort_unstable();
        let keys = &keys;
        self.store()
            .tx(WAKE, |tx| {
                Box::pin(async move { Ok(store::work::enqueue_all(tx, queue(SPEC_QUEUE), keys).await?) })
            })
            .await
    }
}

/// Has specs signed anew in time. Also says when the worker certificate itself ends soon.
pub struct SpecRenewal(pub Fleet);

impl Pass for SpecRenewal {
    fn name(&self) -> &'static str {
        "node-spec-renewal"
    }

    fn period(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.renew_signatures())
    }
}

/// Brings the trust bundle and every spec under the epoch of a confirmed restore.
pub struct SpecEpochs(pub Fleet);

impl Pass for SpecEpochs {
    fn name(&self) -> &'static str {
        "node-spec-epochs"
    }

    fn period(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(self.0.renew_epochs())
    }
}
