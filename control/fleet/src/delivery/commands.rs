//! Commands on their way out, and what their nodes say of them.

use std::collections::{BTreeMap, BTreeSet};

use kernel::ports::delivery::{
    DeliveryError, GatewayLease, LaneCredits, ReportedUpdate, SessionKey, StoredCommand,
};
use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, NodeId};
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use super::sessions::stored_command;
use super::{Failure, PgDelivery, epoch, guard, observe, sql, store_error, to_i64};

const CLAIM: Op = Op::new("commands_claim");
const UPDATE: Op = Op::new("commands_update");

impl PgDelivery {
    pub(super) async fn claim(
        &self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Result<Vec<StoredCommand>, DeliveryError> {
        let lanes = &lanes;
        self.store().tx(CLAIM, |tx| Box::pin(claim_in(tx, lease, lanes))).await.map_err(DeliveryError::from)
    }

    pub(super) async fn read_cancels(
        &self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<(NodeId, CommandId, String)>, DeliveryError> {
        let nodes: Vec<Uuid> = sessions.iter().map(|session| session.node_id.uuid()).collect();
        let epochs: Vec<i64> = sessions.iter().map(|session| to_i64(session.epoch)).collect();
        let rows = self
            .store()
            .read(&sql::COMMANDS_CANCELLED, &[&nodes, &epochs, &lease.gateway_id.uuid(), &epoch(lease)])
            .await
            .map_err(store_error)?;
        Ok(rows.iter().map(|row| (row.id("node_id"), row.id("command_id"), row.get("reason"))).collect())
    }

    pub(super) async fn store_updates(
        &self,
        lease: GatewayLease,
        mut updates: Vec<ReportedUpdate>,
    ) -> Result<Vec<(NodeId, CommandId)>, DeliveryError> {
        // One order for every gateway, so that two of them never wait for each other. Stable: a node's updates of one command stay in order.
        updates.sort_by_key(|update| update.command_id);
        let updates = &updates;
        self.store()
            .tx(UPDATE, |tx| Box::pin(update_in(tx, lease, updates)))
            .await
            .map_err(DeliveryError::from)
    }
}

async fn claim_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    lanes: &[LaneCredits],
) -> Result<Vec<StoredCommand>, Failure> {
    guard(tx, lease).await?;
    let nodes: Vec<Uuid> = lanes.iter().map(|lane| lane.session.node_id.uuid()).collect();
    let rows = tx.query(&sql::COMMANDS_PENDING, &[&lease.gateway_id.uuid(), &epoch(lease), &nodes]).await?;
    let mut plan = Plan::new(lanes);
    for row in &rows {
        plan.take(row);
    }
    for (command_id, reason, message) in &plan.refused {
        let state = CommandState::Cancelled.name();
        tx.execute(&sql::COMMAND_SETTLE, &[&command_id.uuid(), &state, reason, message, &None::<&str>])
            .await?;
    }
    let ids: Vec<Uuid> = plan.sent.iter().map(|(command, _)| command.command_id.uuid()).collect();
    let epochs: Vec<i64> = plan.sent.iter().map(|(_, session_epoch)| *session_epoch).collect();
    tx.execute(&sql::COMMANDS_SENT, &[&ids, &epochs]).await?;
    observe(tx, plan.refused_nodes.iter().copied()).await?;
    Ok(plan.sent.into_iter().map(|(command, _)| command).collect())
}

/// Which pending commands leave now: in order within a lane, as long as the lane has credit.
struct Plan {
    sessions: BTreeMap<NodeId, i64>,
    credits: BTreeMap<(NodeId, String), u32>,
    sent: Vec<(StoredCommand, i64)>,
    refused: Vec<(CommandId, &'static str, &'static str)>,
    refused_nodes: BTreeSet<NodeId>,
}

impl Plan {
    fn new(lanes: &[LaneCredits]) -> Self {
        let sessions = lanes.iter().map(|lane| (lane.session.node_id, to_i64(lane.session.epoch))).collect();
        let credits = lanes
            .iter()
            .flat_map(|lane| {
                lane.credits.iter().map(|(name, credits)| ((lane.session.node_id, name.clone()), *credits))
            })
            .collect();
        Self { sessions, credits, sent: Vec::new(), refused: Vec::new(), refused_nodes: BTreeSet::new() }
    }

    fn take(&mut self, row: &Row) {
        let command = stored_command(row, 1);
        let session_epoch: i64 = row.get("session_epoch");
        // The session that is in the database must be the one this gateway has in memory.
        if self.sessions.get(&command.node_id) != Some(&session_epoch) {
            return;
        }
        if let Some(why) = unsendable(&command) {
            self.refused_nodes.insert(command.node_id);
            self.refused.push((command.command_id, why.0, why.1));
            return;
        }
        match self.credits.get_mut(&(command.node_id, command.lane.clone())) {
            // Out of credit: what comes after it in its lane waits too, since the count stays at zero.
            None | Some(0) => {}
            Some(credits) => {
                *credits -= 1;
                self.sent.push((command, session_epoch));
            }
        }
    }
}

/// Why a stored command is settled instead of sent.
fn unsendable(command: &StoredCommand) -> Option<(&'static str, &'static str)> {
    const INVALID: &str = "its stored body is not what its row says";
    if command.cancel_requested.is_some() {
        return Some(("cancelled", "it was cancelled before it was sent"));
    }
    match wire::command::decode_body(&command.body) {
        Ok(body)
            if body.not_after_ms > 0
                && body.command_id == command.command_id.to_string()
                && body.node_id == command.node_id.to_string() =>
        {
            None
        }
        _ => Some(("invalid-body", INVALID)),
    }
}

async fn update_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    updates: &[ReportedUpdate],
) -> Result<Vec<(NodeId, CommandId)>, Failure> {
    guard(tx, lease).await?;
    let mut acknowledged = Vec::new();
    let mut settled = BTreeSet::new();
    for update in updates {
        let moved = apply(tx, lease, update).await?;
        if moved == Moved::Settled {
            settled.insert(update.session.node_id);
        }
        if is_terminal(update.event) && moved != Moved::NotOurs {
            acknowledged.push((update.session.node_id, update.command_id));
        }
    }
    observe(tx, settled).await?;
    Ok(acknowledged)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// The session is another's: nothing was written and nothing is acknowledged.
    NotOurs,
    Unchanged,
    Moved,
    Settled,
}

async fn apply(tx: &mut Tx<'_>, lease: GatewayLease, update: &ReportedUpdate) -> Result<Moved, Failure> {
    let (command_id, node_id) = (update.command_id.uuid(), update.session.node_id.uuid());
    let session_epoch = to_i64(update.session.epoch);
    let row = tx
        .query_opt(
            &sql::COMMAND_OF_SESSION,
            &[&command_id, &node_id, &session_epoch, &lease.gateway_id.uuid(), &epoch(lease)],
        )
        .await?;
    let Some(row) = row else {
        // Not this node's command, or unknown: the node may forget it. Not this gateway's session: the node will say it again elsewhere.
        let held = tx
            .query_opt(
                &sql::SESSION_JOURNAL,
                &[&node_id, &session_epoch, &lease.gateway_id.uuid(), &epoch(lease)],
            )
            .await?;
        return Ok(if held.is_some() { Moved::Unchanged } else { Moved::NotOurs });
    };
    let Some(state) = CommandState::parse(row.get("state")) else { return Ok(Moved::Unchanged) };
    let Ok(next) = state.next(update.event) else { return Ok(Moved::Unchanged) };
    if !next.terminal() {
        tx.execute(&sql::COMMAND_MOVE, &[&command_id, &next.name(), &update.boot_id]).await?;
        return Ok(Moved::Moved);
    }
    let wire_state = i16::try_from(update.wire_state).unwrap_or(0);
    tx.execute(
        &sql::COMMAND_RESULT,
        &[
            &command_id,
            &next.name(),
            &update.boot_id,
            &update.result,
            &update.signature,
            &update.key_sha256,
            &wire_state,
            &update.reason,
            &update.message,
        ],
    )
    .await?;
    Ok(Moved::Settled)
}

fn is_terminal(event: CommandEvent) -> bool {
    match event {
        CommandEvent::Succeeded
        | CommandEvent::Failed
        | CommandEvent::Rejected
        | CommandEvent::Cancelled
        | CommandEvent::Expired => true,
        CommandEvent::Sent | CommandEvent::Busy | CommandEvent::Acked | CommandEvent::Running => false,
    }
}
