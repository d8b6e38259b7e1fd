//! Opening a session: who had it before, what was in flight on it, and what the node says of itself.

use std::collections::{BTreeMap, HashSet};

use kernel::ports::delivery::{
    DeliveryError, GatewayLease, HelloFacts, SessionKey, SessionOpened, SessionRefused, StoredCommand,
};
use model::CommandKind;
use model::lifecycle::{CommandState, NodeState};
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use super::{Failure, PgDelivery, epoch, guard, observe, sql, to_i64, to_u64};

const OPEN: Op = Op::new("session_open");

impl PgDelivery {
    pub(super) async fn open(
        &self,
        lease: GatewayLease,
        hello: HelloFacts,
    ) -> Result<Result<SessionOpened, SessionRefused>, DeliveryError> {
        let hello = &hello;
        self.store().tx(OPEN, |tx| Box::pin(open_in(tx, lease, hello))).await.map_err(DeliveryError::from)
    }

    pub(super) async fn store_heartbeats(
        &self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<SessionKey>, DeliveryError> {
        let nodes: Vec<Uuid> = sessions.iter().map(|session| session.node_id.uuid()).collect();
        let epochs: Vec<i64> = sessions.iter().map(|session| to_i64(session.epoch)).collect();
        let (nodes, epochs) = (&nodes, &epochs);
        let ours: HashSet<SessionKey> = self
            .store()
            .tx(Op::new("heartbeats"), |tx| {
                Box::pin(async move {
                    let params = (lease.gateway_id.uuid(), epoch(lease));
                    let rows = tx.query(&sql::HEARTBEATS, &[nodes, epochs, &params.0, &params.1]).await?;
                    if rows.is_empty() {
                        guard(tx, lease).await?;
                    }
                    Ok::<_, Failure>(rows.iter().map(session_key).collect())
                })
            })
            .await?;
        Ok(sessions.into_iter().filter(|session| !ours.contains(session)).collect())
    }
}

pub(super) fn session_key(row: &Row) -> SessionKey {
    SessionKey { node_id: row.id("node_id"), epoch: to_u64(row.get("session_epoch")) }
}

async fn open_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    hello: &HelloFacts,
) -> Result<Result<SessionOpened, SessionRefused>, Failure> {
    guard(tx, lease).await?;
    let node_id = hello.node_id.uuid();
    let Some(node) = tx.query_opt(&sql::HELLO_NODE, &[&node_id, &hello.cert_serial]).await? else {
        return Ok(Err(SessionRefused::UnknownNode));
    };
    if let Some(refused) = refusal(&node, hello) {
        if refused == SessionRefused::Ahead {
            claim_ahead(tx, hello).await?;
        }
        return Ok(Err(refused));
    }
    let (before, session_epoch, acked) = take(tx, lease, hello).await?;
    put_hello_status(tx, hello, session_epoch).await?;
    let quiet = node.get("observe_only") || node.opt_ts("quarantined_at").is_some();
    // Where nothing may be sent, nothing is settled either: what was in flight waits for a session that may.
    let replay = if quiet { Vec::new() } else { resume(tx, hello, before.as_ref(), session_epoch).await? };
    let opened = SessionOpened {
        session_epoch: to_u64(session_epoch),
        deployment_epoch: to_u64(node.get("deployment_epoch")),
        server_time: tx.now().await?,
        generation: if quiet || !node.get::<_, bool>("has_spec") {
            0
        } else {
            to_u64(node.get("generation"))
        },
        acked_event_seq: to_u64(acked),
        inventory_sections: stale_sections(tx, hello).await?,
        trust_bundle: tx
            .query_opt(&sql::TRUST_BUNDLE_NEWER, &[&to_i64(hello.trust_version)])
            .await?
            .map(|row| row.get("message")),
        replay,
    };
    observe(tx, [hello.node_id]).await?;
    Ok(Ok(opened))
}

/// Makes the node's session this gateway's. Answers the one before, the new epoch, and up to where events are stored.
async fn take(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    hello: &HelloFacts,
) -> Result<(Option<Row>, i64, i64), Failure> {
    let (node_id, gateway_id) = (hello.node_id.uuid(), lease.gateway_id.uuid());
    let (journal_id, incarnation_id) = (hello.journal_id.uuid(), hello.incarnation_id.uuid());
    let mut before = tx.query_opt(&sql::SESSION_LOCK, &[&node_id]).await?;
    if before.is_none() {
        let acked = acked_seq(tx, hello, None).await?;
        let inserted = tx
            .query_opt(
                &sql::SESSION_INSERT,
                &[
                    &node_id,
                    &gateway_id,
                    &epoch(lease),
                    &hello.cert_serial,
                    &journal_id,
                    &incarnation_id,
                    &hello.boot_id,
                    &acked,
                ],
            )
            .await?;
        if let Some(row) = inserted {
            return Ok((None, row.get("session_epoch"), acked));
        }
        // Another gateway was first after all.
        before = tx.query_opt(&sql::SESSION_LOCK, &[&node_id]).await?;
    }
    let acked = acked_seq(tx, hello, before.as_ref()).await?;
    let taken = tx
        .query_one(
            &sql::SESSION_TAKE,
            &[
                &node_id,
                &gateway_id,
                &epoch(lease),
                &hello.cert_serial,
                &journal_id,
                &incarnation_id,
                &hello.boot_id,
                &acked,
            ],
        )
        .await?;
    Ok((before, taken.get("session_epoch"), acked))
}

fn refusal(node: &Row, hello: &HelloFacts) -> Option<SessionRefused> {
    let state = NodeState::parse(node.get("state"))?;
    if matches!(state, NodeState::Revoked | NodeState::Removed)
        || node.get("cert_unknown")
        || node.opt_ts("cert_revoked_at").is_some()
    {
        return Some(SessionRefused::Revoked);
    }
    let ahead = hello.applied_generation > to_u64(node.get("generation"))
        || hello.deployment_epoch > to_u64(node.get("deployment_epoch"));
    if ahead {
        return Some(if node.get("observe_only") {
            SessionRefused::ObserveOnly
        } else if node.opt_ts("quarantined_at").is_some() {
            SessionRefused::Quarantined
        } else {
            SessionRefused::Ahead
        });
    }
    None
}

/// Leaves the node's proof for a worker to judge: this role may not.
async fn claim_ahead(tx: &mut Tx<'_>, hello: &HelloFacts) -> Result<(), Failure> {
    let (body, signature) = hello.applied_spec.clone().unwrap_or_default();
    tx.execute(
        &sql::RESTORE_CLAIM,
        &[
            &hello.node_id.uuid(),
            &to_i64(hello.applied_generation),
            &to_i64(hello.deployment_epoch),
            &body,
            &signature,
        ],
    )
    .await?;
    observe(tx, [hello.node_id]).await?;
    Ok(())
}

/// Up to where this journal's events are stored. A journal that comes back after another one is still known by its events.
async fn acked_seq(tx: &mut Tx<'_>, hello: &HelloFacts, before: Option<&Row>) -> Result<i64, Failure> {
    let stored: i64 = tx
        .query_one(&sql::EVENTS_SEQ_MAX, &[&hello.node_id.uuid(), &hello.journal_id.uuid()])
        .await?
        .get("seq");
    let remembered = before
        .filter(|row| row.get::<_, Uuid>("journal_id") == hello.journal_id.uuid())
        .map_or(0, |row| row.get::<_, i64>("acked_event_seq"));
    Ok(stored.max(remembered))
}

async fn put_hello_status(tx: &mut Tx<'_>, hello: &HelloFacts, session_epoch: i64) -> Result<(), Failure> {
    tx.execute(
        &sql::STATUS_HELLO,
        &[
            &hello.node_id.uuid(),
            &session_epoch,
            &hello.agent_version,
            &i32::try_from(hello.protocol).unwrap_or(i32::MAX),
            &hello.capabilities,
            &to_i64(hello.trust_version),
            &to_i64(hello.applied_generation),
            &to_i64(hello.observed_generation),
            &hello.applied_spec_hash,
        ],
    )
    .await?;
    Ok(())
}

/// What becomes of the commands that were on their way when the session before this one ended.
async fn resume(
    tx: &mut Tx<'_>,
    hello: &HelloFacts,
    before: Option<&Row>,
    session_epoch: i64,
) -> Result<Vec<StoredCommand>, Failure> {
    let same_journal = before.is_some_and(|row| row.get::<_, Uuid>("journal_id") == hello.journal_id.uuid());
    let rebooted = before.is_some_and(|row| row.get::<_, &str>("boot_id") != hello.boot_id);
    let mut replay = Vec::new();
    for row in tx.query(&sql::IN_FLIGHT, &[&hello.node_id.uuid()]).await? {
        let kind = CommandKind::parse(row.get("kind")).map(CommandKind::policy);
        let running = row.get::<_, &str>("state") == CommandState::Running.name();
        let fate = if same_journal {
            Fate::Replay
        } else if kind.is_some_and(|kind| kind.self_terminating) && running && rebooted {
            Fate::Settle(CommandState::Succeeded, "rebooted", "the machine came back with a new boot")
        } else if kind.is_some_and(|kind| kind.retry_safe) {
            Fate::Replay
        } else {
            Fate::Settle(
                CommandState::Failed,
                "journal-lost",
                "the node lost its journal and cannot say what was done",
            )
        };
        match fate {
            Fate::Replay => replay.push(stored_command(&row, 1)),
            Fate::Settle(state, reason, message) => {
                let command_id: Uuid = row.get("command_id");
                tx.execute(
                    &sql::COMMAND_SETTLE,
                    &[&command_id, &state.name(), &reason, &message, &hello.boot_id],
                )
                .await?;
            }
        }
    }
    let ids: Vec<Uuid> = replay.iter().map(|command| command.command_id.uuid()).collect();
    tx.execute(&sql::IN_FLIGHT_RESENT, &[&ids, &session_epoch]).await?;
    Ok(replay)
}

enum Fate {
    Replay,
    Settle(CommandState, &'static str, &'static str),
}

/// `more` is added to the attempts the row counts.
pub(super) fn stored_command(row: &Row, more: u32) -> StoredCommand {
    let cancelled = row.opt_ts("cancel_requested_at").is_some();
    StoredCommand {
        command_id: row.id("command_id"),
        node_id: row.id("node_id"),
        kind: row.get("kind"),
        lane: row.get("lane"),
        body: row.get("body"),
        signature: row.get("signature"),
        attempt: u32::try_from(row.get::<_, i32>("attempts")).unwrap_or(0) + more,
        cancel_requested: cancelled
            .then(|| row.get::<_, Option<String>>("cancel_reason").unwrap_or_default()),
    }
}

async fn stale_sections(tx: &mut Tx<'_>, hello: &HelloFacts) -> Result<Vec<String>, Failure> {
    let stored: BTreeMap<String, String> = tx
        .query(&sql::INVENTORY_HASHES, &[&hello.node_id.uuid()])
        .await?
        .iter()
        .map(|row| (row.get("section"), row.get("hash")))
        .collect();
    let stale = hello.inventory_hashes.iter().filter(|(section, hash)| stored.get(*section) != Some(*hash));
    Ok(stale.map(|(section, _)| section.clone()).collect())
}
