//! Opening a session: who had it before, what was in flight on it, and what the node says of itself.

use std::collections::{BTreeMap, HashMap, HashSet};

use kernel::ports::delivery::{
    DeliveryError, GatewayLease, HelloFacts, SessionKey, SessionOpened, SessionRefused, StoredCommand,
};
use model::lifecycle::{CommandState, NodeState};
use model::{CommandKind, NodeId};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use super::{Failure, PgDelivery, epoch, guard, observe, sql, store_error, to_i64, to_u64};

const OPEN: Op = Op::new("sessions_open");

impl PgDelivery {
    /// All in one transaction. Answers in the order of the Hellos.
    pub(super) async fn open_all(
        &self,
        lease: GatewayLease,
        hellos: Vec<HelloFacts>,
    ) -> Result<Vec<Result<SessionOpened, SessionRefused>>, DeliveryError> {
        let hellos = &hellos;
        self.store().tx(OPEN, |tx| Box::pin(open_in(tx, lease, hellos))).await.map_err(DeliveryError::from)
    }

    pub(super) async fn close_all(
        &self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Result<(), DeliveryError> {
        let (nodes, epochs) = columns(&sessions);
        self.store()
            .execute(&sql::SESSIONS_CLOSE, &[&nodes, &epochs, &lease.gateway_id.uuid(), &epoch(lease)])
            .await
            .map(drop)
            .map_err(store_error)
    }

    pub(super) async fn revoked_of(
        &self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<SessionKey>, DeliveryError> {
        let (nodes, epochs) = columns(&sessions);
        let params = (lease.gateway_id.uuid(), epoch(lease));
        let rows = self
            .store()
            .read(&sql::SESSIONS_REVOKED_OF, &[&params.0, &params.1, &nodes, &epochs])
            .await
            .map_err(store_error)?;
        Ok(rows.iter().map(session_key).collect())
    }

    /// One statement, which is its own transaction.
    pub(super) async fn store_heartbeats(
        &self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<SessionKey>, DeliveryError> {
        let (nodes, epochs) = columns(&sessions);
        let params = (lease.gateway_id.uuid(), epoch(lease));
        // It may run twice: what it writes is that these sessions live now.
        let rows = self
            .store()
            .read(&sql::HEARTBEATS, &[&nodes, &epochs, &params.0, &params.1])
            .await
            .map_err(store_error)?;
        if rows.is_empty() {
            self.holds(lease).await?;
        }
        let ours: HashSet<SessionKey> = rows.iter().map(session_key).collect();
        Ok(sessions.into_iter().filter(|session| !ours.contains(session)).collect())
    }
}

/// Sessions as columns.
pub(super) fn columns(sessions: &[SessionKey]) -> (Vec<Uuid>, Vec<i64>) {
    sessions.iter().map(|session| (session.node_id.uuid(), to_i64(session.epoch))).unzip()
}

pub(super) fn session_key(row: &Row) -> SessionKey {
    SessionKey { node_id: row.id("node_id"), epoch: to_u64(row.get("session_epoch")) }
}

async fn open_in(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    hellos: &[HelloFacts],
) -> Result<Vec<Result<SessionOpened, SessionRefused>>, Failure> {
    guard(tx, lease).await?;
    let ids: Vec<Uuid> = hellos.iter().map(|hello| hello.node_id.uuid()).collect();
    let serials: Vec<&str> = hellos.iter().map(|hello| hello.cert_serial.as_str()).collect();
    let rows = tx.query(&sql::HELLO_NODES, &[&ids, &serials]).await?;
    let nodes: HashMap<NodeId, &Row> = rows.iter().map(|row| (row.id("node_id"), row)).collect();
    let mut refused: HashMap<NodeId, SessionRefused> = HashMap::new();
    let mut welcome: Vec<(&HelloFacts, &Row)> = Vec::with_capacity(hellos.len());
    for hello in hellos {
        match nodes.get(&hello.node_id).map(|node| (*node, refusal(node, hello))) {
            None => drop(refused.insert(hello.node_id, SessionRefused::UnknownNode)),
            Some((node, None)) => welcome.push((hello, node)),
            Some((_, Some(why))) => {
                if why == SessionRefused::Ahead {
                    claim_ahead(tx, hello).await?;
                }
                refused.insert(hello.node_id, why);
            }
        }
    }
    welcome.sort_by_key(|(hello, _)| hello.node_id);
    let mut opened = open_welcome(tx, lease, &welcome).await?;
    let answers = hellos.iter().map(|hello| match opened.remove(&hello.node_id) {
        Some(opened) => Ok(opened),
        // Whoever is neither was named twice.
        None => Err(refused.get(&hello.node_id).cloned().unwrap_or(SessionRefused::UnknownNode)),
    });
    Ok(answers.collect())
}

/// `welcome` is in the order of the nodes.
async fn open_welcome(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    welcome: &[(&HelloFacts, &Row)],
) -> Result<HashMap<NodeId, SessionOpened>, Failure> {
    if welcome.is_empty() {
        return Ok(HashMap::new());
    }
    let hellos: Vec<&HelloFacts> = welcome.iter().map(|(hello, _)| *hello).collect();
    let taken = take(tx, lease, &hellos).await?;
    put_hello_statuses(tx, &hellos, &taken).await?;
    // Where nothing may be sent, nothing is settled either: what was in flight waits for a session that may.
    let speaking: Vec<&HelloFacts> =
        welcome.iter().filter(|(_, node)| !is_quiet(node)).map(|(hello, _)| *hello).collect();
    let mut replays = resume(tx, &speaking, &taken).await?;
    let mut stale = stale_sections(tx, &hellos).await?;
    let last = tx.query_one(&sql::TRUST_BUNDLE_NEWEST, &[]).await?;
    let newest: Option<i64> = last.get("version");
    let mut opened = HashMap::with_capacity(welcome.len());
    for (hello, node) in welcome {
        let Some(held) = taken.get(&hello.node_id) else { continue };
        let sends_spec = !is_quiet(node) && node.get::<_, bool>("has_spec");
        let behind = newest.is_some_and(|newest| newest > to_i64(hello.trust_version));
        opened.insert(
            hello.node_id,
            SessionOpened {
                session_epoch: to_u64(held.session_epoch),
                deployment_epoch: to_u64(node.get("deployment_epoch")),
                server_time: last.ts("server_time"),
                generation: if sends_spec { to_u64(node.get("generation")) } else { 0 },
                acked_event_seq: to_u64(held.acked),
                inventory_sections: stale.remove(&hello.node_id).unwrap_or_default(),
                trust_bundle: if behind { last.get("message") } else { None },
                replay: replays.remove(&hello.node_id).unwrap_or_default(),
            },
        );
    }
    observe(tx, hellos.iter().map(|hello| hello.node_id)).await?;
    Ok(opened)
}

fn is_quiet(node: &Row) -> bool {
    node.get("observe_only") || node.opt_ts("quarantined_at").is_some()
}

/// A session that is this gateway's now.
struct Taken {
    session_epoch: i64,
    /// Up to where the journal's events are stored.
    acked: i64,
    before: Option<Before>,
}

/// The node's session before this one.
struct Before {
    journal_id: Uuid,
    boot_id: String,
    acked: i64,
}

/// Makes the nodes' sessions this gateway's.
async fn take(
    tx: &mut Tx<'_>,
    lease: GatewayLease,
    hellos: &[&HelloFacts],
) -> Result<HashMap<NodeId, Taken>, Failure> {
    let mut before = lock(tx, hellos).await?;
    let (known, new): (Vec<&HelloFacts>, Vec<&HelloFacts>) =
        hellos.iter().partition(|hello| before.contains_key(&hello.node_id));
    let mut taken = HashMap::with_capacity(hellos.len());
    write_sessions(tx, &sql::SESSIONS_INSERT, lease, &new, &mut before, &mut taken).await?;
    // Another gateway was first with these after all.
    let raced: Vec<&HelloFacts> =
        new.into_iter().filter(|hello| !taken.contains_key(&hello.node_id)).collect();
    before.extend(lock(tx, &raced).await?);
    let known: Vec<&HelloFacts> = known.into_iter().chain(raced).collect();
    write_sessions(tx, &sql::SESSIONS_TAKE, lease, &known, &mut before, &mut taken).await?;
    Ok(taken)
}

async fn lock(tx: &mut Tx<'_>, hellos: &[&HelloFacts]) -> Result<HashMap<NodeId, Before>, Failure> {
    if hellos.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = hellos.iter().map(|hello| hello.node_id.uuid()).collect();
    let before = |row: &Row| Before {
        journal_id: row.get("journal_id"),
        boot_id: row.get("boot_id"),
        acked: row.get("acked_event_seq"),
    };
    let rows = tx.query(&sql::SESSIONS_LOCK, &[&ids]).await?;
    Ok(rows.iter().map(|row| (row.id("node_id"), before(row))).collect())
}

async fn write_sessions(
    tx: &mut Tx<'_>,
    statement: &store::Sql,
    lease: GatewayLease,
    hellos: &[&HelloFacts],
    before: &mut HashMap<NodeId, Before>,
    taken: &mut HashMap<NodeId, Taken>,
) -> Result<(), Failure> {
    if hellos.is_empty() {
        return Ok(());
    }
    let nodes: Vec<Uuid> = hellos.iter().map(|hello| hello.node_id.uuid()).collect();
    let serials: Vec<&str> = hellos.iter().map(|hello| hello.cert_serial.as_str()).collect();
    let journals: Vec<Uuid> = hellos.iter().map(|hello| hello.journal_id.uuid()).collect();
    let incarnations: Vec<Uuid> = hellos.iter().map(|hello| hello.incarnation_id.uuid()).collect();
    let boots: Vec<&str> = hellos.iter().map(|hello| hello.boot_id.as_str()).collect();
    // A journal that comes back after another one is still known by its events.
    let stored: HashMap<NodeId, Option<i64>> = tx
        .query(&sql::EVENTS_SEQ_MAX, &[&nodes, &journals])
        .await?
        .iter()
        .map(|row| (row.id("node_id"), row.get("seq")))
        .collect();
    let acked: Vec<i64> = hellos
        .iter()
        .map(|hello| {
            let same = before.get(&hello.node_id).filter(|one| {
                let outlives = kit::mutant::on("fleet.acks-outlive-their-journal");
                one.journal_id == hello.journal_id.uuid() || outlives
            });
            let stored = stored.get(&hello.node_id).copied().flatten().unwrap_or(0);
            stored.max(same.map_or(0, |one| one.acked))
        })
        .collect();
    let gateway = (lease.gateway_id.uuid(), epoch(lease));
    let rows = tx
        .query(
            statement,
            &[&gateway.0, &gateway.1, &nodes, &serials, &journals, &incarnations, &boots, &acked],
        )
        .await?;
    let acked: HashMap<NodeId, i64> = hellos.iter().map(|hello| hello.node_id).zip(acked).collect();
    for row in &rows {
        let node_id: NodeId = row.id("node_id");
        let acked = acked.get(&node_id).copied().unwrap_or(0);
        let session_epoch = row.get("session_epoch");
        taken.insert(node_id, Taken { session_epoch, acked, before: before.remove(&node_id) });
    }
    Ok(())
}

fn refusal(node: &Row, hello: &HelloFacts) -> Option<SessionRefused> {
    let state = NodeState::parse(node.get("state"))?;
    if matches!(state, NodeState::Revoked | NodeState::Removed)
        || node.get("cert_unknown")
        || (node.opt_ts("cert_revoked_at").is_some() && !kit::mutant::on("fleet.revoked-certificate-opens"))
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

async fn put_hello_statuses(
    tx: &mut Tx<'_>,
    hellos: &[&HelloFacts],
    taken: &HashMap<NodeId, Taken>,
) -> Result<(), Failure> {
    let column =
        |of: fn(&HelloFacts) -> u64| -> Vec<i64> { hellos.iter().map(|hello| to_i64(of(hello))).collect() };
    let text = |of: fn(&HelloFacts) -> &str| -> Vec<&str> { hellos.iter().map(|hello| of(hello)).collect() };
    let nodes: Vec<Uuid> = hellos.iter().map(|hello| hello.node_id.uuid()).collect();
    let epochs: Vec<i64> =
        hellos.iter().map(|hello| taken.get(&hello.node_id).map_or(0, |one| one.session_epoch)).collect();
    let protocols: Vec<i32> =
        hellos.iter().map(|hello| i32::try_from(hello.protocol).unwrap_or(i32::MAX)).collect();
    let capabilities: Vec<Value> = hellos.iter().map(|hello| json!(hello.capabilities)).collect();
    tx.execute(
        &sql::STATUSES_HELLO,
        &[
            &nodes,
            &epochs,
            &text(|hello| &hello.agent_version),
            &protocols,
            &capabilities,
            &column(|hello| hello.trust_version),
            &column(|hello| hello.applied_generation),
            &column(|hello| hello.observed_generation),
            &text(|hello| &hello.applied_spec_hash),
        ],
    )
    .await?;
    Ok(())
}

/// What becomes of the commands that were on their way when the sessions before these ones ended.
async fn resume(
    tx: &mut Tx<'_>,
    hellos: &[&HelloFacts],
    taken: &HashMap<NodeId, Taken>,
) -> Result<HashMap<NodeId, Vec<StoredCommand>>, Failure> {
    let mut replays: HashMap<NodeId, Vec<StoredCommand>> = HashMap::new();
    let by_node: HashMap<NodeId, &HelloFacts> = hellos.iter().map(|hello| (hello.node_id, *hello)).collect();
    let ids: Vec<Uuid> = hellos.iter().map(|hello| hello.node_id.uuid()).collect();
    let (mut resent, mut epochs) = (Vec::new(), Vec::new());
    for row in tx.query(&sql::IN_FLIGHT, &[&ids]).await? {
        let node_id: NodeId = row.id("node_id");
        let (Some(hello), Some(held)) = (by_node.get(&node_id), taken.get(&node_id)) else { continue };
        match fate(&row, hello, held.before.as_ref()) {
            Fate::Replay => {
                resent.push(row.get::<_, Uuid>("command_id"));
                epochs.push(held.session_epoch);
                replays.entry(node_id).or_default().push(stored_command(&row, 1));
            }
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
    if !resent.is_empty() {
        tx.execute(&sql::IN_FLIGHT_RESENT, &[&resent, &epochs]).await?;
    }
    Ok(replays)
}

fn fate(row: &Row, hello: &HelloFacts, before: Option<&Before>) -> Fate {
    let same_journal = before.is_some_and(|one| one.journal_id == hello.journal_id.uuid());
    let rebooted = before.is_some_and(|one| one.boot_id != hello.boot_id);
    let kind = CommandKind::parse(row.get("kind")).map(CommandKind::policy);
    let running = row.get::<_, &str>("state") == CommandState::Running.name();
    if same_journal {
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
    }
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

async fn stale_sections(
    tx: &mut Tx<'_>,
    hellos: &[&HelloFacts],
) -> Result<HashMap<NodeId, Vec<String>>, Failure> {
    let telling: Vec<&&HelloFacts> =
        hellos.iter().filter(|hello| !hello.inventory_hashes.is_empty()).collect();
    if telling.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<Uuid> = telling.iter().map(|hello| hello.node_id.uuid()).collect();
    let mut stored: HashMap<NodeId, BTreeMap<String, String>> = HashMap::new();
    for row in tx.query(&sql::INVENTORY_HASHES, &[&ids]).await? {
        stored.entry(row.id("node_id")).or_default().insert(row.get("section"), row.get("hash"));
    }
    let stale = |hello: &HelloFacts| {
        let stored = stored.get(&hello.node_id);
        let known = |section: &String| stored.and_then(|stored| stored.get(section));
        let differing = hello.inventory_hashes.iter().filter(|(section, hash)| known(section) != Some(*hash));
        differing.map(|(section, _)| section.clone()).collect()
    };
    Ok(telling.into_iter().map(|hello| (hello.node_id, stale(hello))).collect())
}
