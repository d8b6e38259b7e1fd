//! A node that holds newer intent than this database. Proved by our own signature, the database is older than what it ordered,
//! and the deployment only observes. Unproved, that node alone is quarantined: one node cannot silence the fleet.
//!
//! ```text
//! Hello ahead -> claim -> proved, of this epoch or a later one  -> restore suspected
//!                      -> proved, of an epoch before a confirmed restore -> its next spec goes above what it holds
//!                      -> unproved -> quarantined -> a Hello that is not ahead, or an uncordon -> released
//! ```

use kernel::Fault;
use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use model::{NodeId, Timestamp};
use pki::Purpose;
use pki::worker::CommandVerifier;
use serde_json::json;
use store::{Row, RowExt, Tx};
use wire::limits::SPEC_BODY_BYTES_MAX;
use wire::proto::agent::DesiredStateBody;

use crate::core::{Fleet, node_key};
use crate::{DELIVERY_CHANNEL, sql};

/// What a claim comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// We have caught up since.
    NotAhead,
    /// Our signature is over an epoch that a confirmed restore has ended: known, and no reason to stop.
    BeforeRestore {
        epoch: u64,
        generation: u64,
    },
    Proved {
        epoch: u64,
        generation: u64,
    },
    Unproved(String),
}

/// What a node claims, beside what is stored.
pub(super) struct Claim<'a> {
    pub node_id: NodeId,
    pub generation: u64,
    pub epoch: u64,
    pub body: &'a [u8],
    pub signature: &'a [u8],
    pub stored_generation: u64,
    pub stored_epoch: u64,
}

impl Claim<'_> {
    pub(super) fn judge(&self, verifier: &CommandVerifier, at: Timestamp) -> Judgement {
        if self.generation <= self.stored_generation && self.epoch <= self.stored_epoch {
            return Judgement::NotAhead;
        }
        let unproved = |why: String| Judgement::Unproved(format!("it claims newer intent: {why}"));
        if self.body.is_empty() {
            return unproved("it showed none".to_owned());
        }
        let decoded: Result<DesiredStateBody, _> =
            wire::decode("desired state", self.body, SPEC_BODY_BYTES_MAX);
        let body = match decoded {
            Ok(body) => body,
            Err(err) => return unproved(err.to_string()),
        };
        if body.node_id != self.node_id.to_string() {
            return unproved("what it showed is for another node".to_owned());
        }
        if let Err(err) = verifier.verify_bytes(Purpose::DesiredState, self.body, self.signature, at) {
            return unproved(kit::chain(&err));
        }
        let (epoch, generation) = (body.deployment_epoch, body.generation);
        if epoch > self.stored_epoch || (epoch == self.stored_epoch && generation > self.stored_generation) {
            Judgement::Proved { epoch, generation }
        } else if generation > self.stored_generation {
            Judgement::BeforeRestore { epoch, generation }
        } else {
            unproved("what it showed is not newer than what is stored".to_owned())
        }
    }
}

impl Fleet {
    /// Judges the node's claim, and releases it from a quarantine that its newest session contradicts.
    pub(super) async fn judge_claim(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        if let Some(row) = tx.query_opt(&sql::CLAIM, &[&node_id.uuid()]).await? {
            if row.opt_ts("judged_at").is_some() {
                // Proved earlier. Whoever confirmed the restore since has made this the spec's turn.
                wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
                return Ok(());
            }
            let verifier = self.keys()?.verifier();
            let judgement = claim(node_id, &row).judge(&verifier, tx.now().await?);
            return self.act_on(tx, node_id, judgement).await;
        }
        if tx.execute(&sql::QUARANTINE_OUTLIVED, &[&node_id.uuid()]).await? == 1 {
            self.released(tx, node_id, "it no longer claims newer intent").await?;
        }
        Ok(())
    }

    async fn act_on(&self, tx: &mut Tx<'_>, node_id: NodeId, judgement: Judgement) -> Result<(), Fault> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        match judgement {
            Judgement::NotAhead => {
                tx.execute(&sql::CLAIM_FORGET, &[&node_id.uuid(), &i64::MAX]).await?;
                Ok(())
            }
            Judgement::BeforeRestore { epoch, generation } => {
                let (epoch, generation) = (signed(epoch), signed(generation));
                tx.execute(&sql::CLAIM_PROVED, &[&node_id.uuid(), &generation, &epoch]).await?;
                wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
                Ok(())
            }
            Judgement::Proved { epoch, generation } => {
                let (epoch, generation) = (signed(epoch), signed(generation));
                tx.execute(&sql::CLAIM_PROVED, &[&node_id.uuid(), &generation, &epoch]).await?;
                let why = format!(
                    "node {node_id} proved generation {generation} of epoch {epoch}, which this database does not know"
                );
                if store::restore::suspect(tx, &why, epoch).await? {
                    tracing::error!(%node_id, epoch, generation, "the database is older than what it ordered");
                    let data = json!({ "epoch": epoch, "generation": generation, "reason": why });
                    self.emit(tx, EventKind::SecurityRestoreSuspected, node_id, data).await?;
                }
                Ok(())
            }
            Judgement::Unproved(reason) => {
                tx.execute(&sql::CLAIM_FORGET, &[&node_id.uuid(), &i64::MAX]).await?;
                if tx.execute(&sql::NODE_QUARANTINE, &[&node_id.uuid(), &reason]).await? == 1 {
                    tracing::warn!(%node_id, reason, "node quarantined");
                    let data = json!({ "quarantined": true, "reason": reason });
                    self.emit(tx, EventKind::NodeQuarantined, node_id, data).await?;
                    self.publish_schedulable(tx, node_id).await?;
                }
                Ok(())
            }
        }
    }

    /// Ends a quarantine by a person's word. Should the node still claim what it cannot prove, its next Hello brings it back.
    pub(crate) async fn release_quarantine(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        by: &str,
    ) -> Result<bool, Fault> {
        if tx.execute(&sql::QUARANTINE_END, &[&node_id.uuid()]).await? == 0 {
            return Ok(false);
        }
        self.released(tx, node_id, &format!("released by {by}")).await?;
        Ok(true)
    }

    async fn released(&self, tx: &mut Tx<'_>, node_id: NodeId, reason: &str) -> Result<(), Fault> {
        let data = json!({ "quarantined": false, "reason": reason });
        self.emit(tx, EventKind::NodeQuarantined, node_id, data).await?;
        tx.notify(DELIVERY_CHANNEL, node_key(node_id));
        self.publish_schedulable(tx, node_id).await
    }
}

fn claim(node_id: NodeId, row: &Row) -> Claim<'_> {
    let unsigned = |column: &str| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
    Claim {
        node_id,
        generation: unsigned("generation"),
        epoch: unsigned("epoch"),
        body: row.get("body"),
        signature: row.get("signature"),
        stored_generation: unsigned("stored_generation"),
        stored_epoch: unsigned("stored_epoch"),
    }
}
