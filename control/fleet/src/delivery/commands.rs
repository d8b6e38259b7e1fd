//! Commands on their way out, and what their nodes say of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use kernel::ports::delivery::{
    DeliveryError, GatewayLease, LaneCredits, ReportedUpdate, SessionKey, StoredCommand,
};
use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, NodeId};
use store::{Op, RowExt, Tx};
use uuid::Uuid;

use super::sessions::{session_key, stored_command};
use super::{Failure, PgDelivery, epoch, guard, is_doubtful, observe, sql, store_error, to_i64};

const CLAIM: Op = Op::new("commands_claim");
const UPDATE: Op = Op::new("commands_update");
/// Nodes that are asked for by name. With more it is cheaper to look through all commands that wait.
const NAMED_MAX: usize = 64;

impl PgDelivery {
    pub(super) async fn claim(
        &self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Result<Vec<StoredCommand>, DeliveryError> {
        let in_doubt = self.0.claim_in_doubt.load(Ordering::SeqCst);
        let waiting = self.waiting(lease, &lanes).await?;
        // What is in doubt waits only once it is known to.
        let asked = |lane: &LaneCredits| in_doubt || waiting.contains(&lane.session.node_id);
        let lanes: Vec<LaneCredits> = lanes.into_iter().filter(asked).collect();
        // Mostly nothing waits: then this was one statement, and no transaction.
        if lanes.is_empty() && !in_doubt {
            return Ok(Vec::new());
        }
        let lanes = &lanes;
        let claimed = self
            .store()
            .tx(CLAIM, |tx| {
                Box::pin(async move {
                    guard(tx, lease).await?;
                    if in_doubt {
                        let gateway = (lease.gateway_id.uuid(), epoch(lease));
                        tx.execute(&sql::COMMANDS_UNSENT, &[&gateway.0, &gateway.1]).await?;
                    }
                    claim_in(tx, lease, lanes).await
                })
            })
            .await;
        let doubtful = matches!(&claimed, Err(Failure::Store(err)) if is_doubtful(err));
        if doubtful || claimed.is_ok() {
            self.0.claim_in_doubt.store(doubtful, Ordering::SeqCst);
        }
        claimed.map_err(DeliveryError::from)
    }

    /// The nodes among these that have commands waiting.
    async fn waiting(
        &self,
        lease: GatewayLease,
        lanes: &[LaneCredits],
    ) -> Result<HashSet<NodeId>, DeliveryError> {
        let gateway = (lease.gateway_id.uuid(), epoch(lease));
        let rows = if lanes.len() <= NAMED_MAX {
            let nodes: Vec<Uuid> = lanes.iter().map(|lane| lane.session.node_id.uuid()).collect();
            self.store().read(&sql::COMMANDS_WAITING_OF, &[&gateway.0, &gateway.1, &nodes]).await
        } else {
            self.store().read(&sql::COMMANDS_WAITING, &[&gateway.0, &gateway.1]).await
        };
        Ok(rows.map_err(store_error)?.iter().map(|row| row.id("node_id")).collect())
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
        updates: Vec<ReportedUpdate>,
    ) -> Result<Vec<(NodeId, CommandId)>, DeliveryError> {
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
    let gateway = (lease.gateway_id.uuid(), epoch(lease));
    let wanted = Lanes::of(lanes);
    if wanted.nodes.is_empty() {
        return Ok(Vec::new());
    }
    let rows = tx
        .query(
            &sql::COMMANDS_PENDING,
            &[&gateway.0, &gateway.1, &wanted.nodes, &wanted.epochs, &wanted.lanes, &wanted.credits],
        )
        .await?;
    let mut sent = Vec::with_capacity(rows.len());
    let mut epochs: Vec<i64> = Vec::with_capacity(rows.len());
    let mut refused = BTreeSet::new();
    for row in &rows {
        let command = stored_command(row, 1);
        match unsendable(&command) {
            None => {
                epochs.push(row.get("session_epoch"));
                sent.push(command);
            }
            Some((reason, message)) => {
                let state = CommandState::Cancelled.name();
                let params = (command.command_id.uuid(), None::<&str>);
                tx.execute(&sql::COMMAND_SETTLE, &[&params.0, &state, &reason, &message, &params.1]).await?;
                refused.insert(command.node_id);
            }
        }
    }
    let ids: Vec<Uuid> = sent.iter().map(|command| command.command_id.uuid()).collect();
    tx.execute(&sql::COMMANDS_SENT, &[&ids, &epochs]).await?;
    observe(tx, refused).await?;
    Ok(sent)
}

/// Sessions' lanes as columns.
#[derive(Default)]
struct Lanes {
    nodes: Vec<Uuid>,
    epochs: Vec<i64>,
    lanes: Vec<String>,
    credits: Vec<i64>,
}

impl Lanes {
    fn of(sessions: &[LaneCredits]) -> Self {
        let mut columns = Self::default();
        for session in sessions {
            for (lane, credits) in session.credits.iter().filter(|(_, credits)| **credits > 0) {
                columns.nodes.push(session.session.node_id.uuid());
                columns.epochs.push(to_i64(session.session.epoch));
                columns.lanes.push(lane.clone());
                columns.credits.push(i64::from(*credits));
            }
        }
        columns
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
    let held = held_sessions(tx, lease, updates).await?;
    // What another session has by now is said again there: nothing is written and nothing acknowledged.
    let lost = kit::mutant::on("fleet.updates-of-lost-sessions-count");
    let updates: Vec<&ReportedUpdate> =
        updates.iter().filter(|update| lost || held.contains(&update.session)).collect();
    let ids: Vec<Uuid> = updates.iter().map(|update| update.command_id.uuid()).collect();
    let nodes: Vec<Uuid> = updates.iter().map(|update| update.session.node_id.uuid()).collect();
    let mut commands: BTreeMap<(CommandId, NodeId), Moving<'_>> = tx
        .query(&sql::COMMANDS_OF_NODES, &[&ids, &nodes])
        .await?
        .iter()
        .filter_map(|row| {
            let state = CommandState::parse(row.get("state"))?;
            Some(((row.id("command_id"), row.id("node_id")), Moving { state, by: None }))
        })
        .collect();
    let mut acknowledged = Vec::new();
    for update in &updates {
        // An unknown command, or another node's, moves nothing; the node may forget its result.
        if let Some(moving) = commands.get_mut(&(update.command_id, update.session.node_id))
            && let Ok(next) = moving.state.next(update.event)
        {
            *moving = Moving { state: next, by: Some(update) };
        }
        if is_terminal(update.event) {
            acknowledged.push((update.session.node_id, update.command_id));
        }
    }
    write_moves(tx, &commands).await?;
    let settled = commands
        .iter()
        .filter(|(_, moving)| moving.by.is_some() && moving.state.terminal())
        .map(|((_, node_id), _)| *node_id);
    observe(tx, settled).await?;
    Ok(acknowledged)
}

/// Where a command stands after the updates read so far, and the one that moved it last.
struct Moving<'a> {
    state: CommandState,
    by: Option<&'a ReportedUpdate>,
}

async fn held_sessions(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    updates: &[ReportedUpdate],
) -> Result<HashSet<SessionKey>, Failure> {
    let sessions: BTreeSet<SessionKey> = updates.iter().map(|update| update.session).collect();
    let nodes: Vec<Uuid> = sessions.iter().map(|session| session.node_id.uuid()).collect();
    let epochs: Vec<i64> = sessions.iter().map(|session| to_i64(session.epoch)).collect();
    let rows =
        tx.query(&sql::SESSIONS_HELD, &[&nodes, &epochs, &lease.gateway_id.uuid(), &epoch(lease)]).await?;
    Ok(rows.iter().map(session_key).collect())
}

async fn write_moves(
    tx: &mut Tx<'_>,
    commands: &BTreeMap<(CommandId, NodeId), Moving<'_>>,
) -> Result<(), Failure> {
    let mut moved = (Vec::new(), Vec::new(), Vec::new());
    let mut settled = Settled::default();
    for ((command_id, _), moving) in commands {
        let Some(update) = moving.by else { continue };
        if moving.state.terminal() {
            settled.push(moving.state, update);
        } else {
            moved.0.push(command_id.uuid());
            moved.1.push(moving.state.name());
            moved.2.push(update.boot_id.as_str());
        }
    }
    if !moved.0.is_empty() {
        tx.execute(&sql::COMMANDS_MOVE, &[&moved.0, &moved.1, &moved.2]).await?;
    }
    if !settled.ids.is_empty() {
        tx.execute(
            &sql::COMMANDS_RESULT,
            &[
                &settled.ids,
                &settled.states,
                &settled.boot_ids,
                &settled.results,
                &settled.signatures,
                &settled.keys,
                &settled.wire_states,
                &settled.reasons,
                &settled.messages,
            ],
        )
        .await?;
    }
    Ok(())
}

/// Terminal results as columns.
#[derive(Default)]
struct Settled<'a> {
    ids: Vec<Uuid>,
    states: Vec<&'static str>,
    boot_ids: Vec<&'a str>,
    results: Vec<Option<&'a [u8]>>,
    signatures: Vec<Option<&'a [u8]>>,
    keys: Vec<Option<&'a [u8]>>,
    wire_states: Vec<i16>,
    reasons: Vec<&'a str>,
    messages: Vec<&'a str>,
}

impl<'a> Settled<'a> {
    fn push(&mut self, state: CommandState, update: &'a ReportedUpdate) {
        self.ids.push(update.command_id.uuid());
        self.states.push(state.name());
        self.boot_ids.push(&update.boot_id);
        self.results.push(update.result.as_deref());
        self.signatures.push(update.signature.as_deref());
        self.keys.push(update.key_sha256.as_deref());
        self.wire_states.push(i16::try_from(update.wire_state).unwrap_or(0));
        self.reasons.push(&update.reason);
        self.messages.push(&update.message);
    }
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
