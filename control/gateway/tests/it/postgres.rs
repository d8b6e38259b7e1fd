//! The store over PostgreSQL as a [`World`]: the store under one role, the rest of the control plane as the owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleet::PgDelivery;
use gateway::conformance::World;
use gateway::memory::CommandFate;
use kernel::BoxFuture;
use kernel::ports::delivery::{
    DeliveryStore, InboxAnswer, InboxKind, InboxRequest, StoredCommand, StoredSpec,
};
use kit::{OsRng, SystemClock};
use model::lifecycle::CommandState;
use model::{CommandId, GatewayId, JournalId, NodeId};
use store::{RowExt, Sql, sql};
use testkit::TestDb;
use uuid::Uuid;

pub struct Postgres {
    pub db: TestDb,
    pub delivery: PgDelivery,
}

const SITE: Uuid = Uuid::from_u128(1);

const NODE: Sql = sql(
    "test_node",
    "INSERT INTO nodes (node_id, site_id, role, name, hostname, state) VALUES ($1, $2, 'node', $3, $3, 'ready')",
);
const CERT: Sql = sql(
    "test_cert",
    "INSERT INTO node_certs (serial, node_id, spki_der, spki_sha256, not_before, not_after, csr_sha256, reply)
     VALUES ($1, $2, 'x', 'x', compute_now(), compute_now() + interval '1 day', decode($1, 'hex'), 'x')",
);
const COMMAND: Sql = sql(
    "test_command",
    "INSERT INTO commands (command_id, node_id, kind, lane, destructive, body, signature, not_before, not_after,
       timeout_at, created_by)
     VALUES ($1, $2, $3, $4, false, $5, $6, compute_now(), compute_now() + interval '1 hour',
       compute_now() + interval '2 hours', 'test')",
);
const SPEC: Sql = sql(
    "test_spec",
    "UPDATE nodes SET generation = $2, spec_hash = 'h', spec_body = $3, spec_signature = $4 WHERE node_id = $1",
);
const REVOKE_NODE: Sql = sql("test_revoke", "UPDATE nodes SET state = 'revoked' WHERE node_id = $1");
const REVOKE_CERT: Sql =
    sql("test_revoke_cert", "UPDATE node_certs SET revoked_at = compute_now() WHERE serial = $1");
const QUARANTINE: Sql =
    sql("test_quarantine", "UPDATE nodes SET quarantined_at = compute_now() WHERE node_id = $1");
const OBSERVE_ONLY: Sql = sql(
    "test_observe_only",
    "UPDATE deployment SET observe_only = true, observe_reason = 'test', observe_since = compute_now()",
);
const CANCEL: Sql = sql(
    "test_cancel",
    "UPDATE commands SET cancel_requested_at = compute_now(), cancel_reason = $2 WHERE command_id = $1",
);
const EXPIRE: Sql =
    sql("test_expire", "UPDATE gateways SET expires_at = compute_now() WHERE gateway_id = $1");
const INBOX: Sql = sql(
    "test_inbox",
    "UPDATE join_inbox SET reply = $1, refusal = $2, answered_at = compute_now()
     WHERE inbox_id = (SELECT inbox_id FROM join_inbox WHERE answered_at IS NULL ORDER BY created_at LIMIT 1)
     RETURNING kind, request, source_ip, peer_serial",
);
const FATE: Sql = sql("test_fate", "SELECT state, reason, result FROM commands WHERE command_id = $1");
const SEQS: Sql =
    sql("test_seqs", "SELECT seq FROM node_events WHERE node_id = $1 AND journal_id = $2 ORDER BY seq");
const STATUS: Sql =
    sql("test_status", "SELECT status_key, observed_generation FROM node_status WHERE node_id = $1");
const INVENTORY: Sql = sql("test_inventory", "SELECT section, hash FROM node_inventory WHERE node_id = $1");
const NOTIFY: Sql = sql("test_notify", "SELECT pg_notify($1, '')");

impl Postgres {
    /// The store's own connections run under `role`.
    pub async fn under(role: Option<&str>) -> Self {
        let db = testkit::db().await;
        db.batch("INSERT INTO sites (site_id, name) VALUES ('00000000-0000-0000-0000-000000000001', 'here')")
            .await;
        let mut config = db.config();
        config.role = role.map(str::to_owned);
        let store = db.open(PgDelivery::store_config(config, Duration::from_secs(600))).await;
        let delivery = PgDelivery::new(store, Arc::new(SystemClock::new()), Arc::new(OsRng));
        Self { db, delivery }
    }

    async fn run(&self, statement: &Sql, params: &[&(dyn store::Param + Sync)]) {
        self.db.store.execute(statement, params).await.expect("the fixture's statement is right");
        let channel = fleet::DELIVERY_CHANNEL;
        self.db.store.read(&NOTIFY, &[&channel]).await.expect("anybody may notify");
    }
}

impl World for Postgres {
    fn store(&self) -> Arc<dyn DeliveryStore> {
        Arc::new(self.delivery.clone())
    }

    fn add_node(&self, node_id: NodeId, cert_serial: String) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let name = node_id.to_string();
            self.run(&NODE, &[&node_id.uuid(), &SITE, &name]).await;
            self.run(&CERT, &[&cert_serial, &node_id.uuid()]).await;
        })
    }

    fn revoke_node(&self, node_id: NodeId) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&REVOKE_NODE, &[&node_id.uuid()]).await })
    }

    fn revoke_certificate(&self, cert_serial: String) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&REVOKE_CERT, &[&cert_serial]).await })
    }

    fn quarantine(&self, node_id: NodeId) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&QUARANTINE, &[&node_id.uuid()]).await })
    }

    fn set_observe_only(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&OBSERVE_ONLY, &[]).await })
    }

    fn put_spec(&self, spec: StoredSpec) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let generation = i64::try_from(spec.generation).expect("tests use small numbers");
            self.run(&SPEC, &[&spec.node_id.uuid(), &generation, &spec.body, &spec.signature]).await;
        })
    }

    fn enqueue(&self, command: StoredCommand) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (command_id, node_id) = (command.command_id.uuid(), command.node_id.uuid());
            let StoredCommand { kind, lane, body, signature, .. } = command;
            self.run(&COMMAND, &[&command_id, &node_id, &kind, &lane, &body, &signature]).await;
        })
    }

    fn request_cancel(&self, command_id: CommandId, reason: &'static str) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&CANCEL, &[&command_id.uuid(), &reason]).await })
    }

    fn expire(&self, gateway_id: GatewayId) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&EXPIRE, &[&gateway_id.uuid()]).await })
    }

    fn answer_next(&self, answer: InboxAnswer) -> BoxFuture<'_, InboxRequest> {
        Box::pin(async move {
            let (reply, refusal) = match answer {
                InboxAnswer::Reply(reply) => (Some(reply), None),
                InboxAnswer::Refused(why) => (None, Some(why)),
                InboxAnswer::TimedOut => (None, None),
            };
            let row = testkit::eventually(Duration::from_secs(10), || async {
                let row = self.db.store.read_opt(&INBOX, &[&reply, &refusal]).await;
                row.map_err(|err| err.to_string())?.ok_or_else(|| "no request".to_owned())
            })
            .await;
            self.db.store.read(&NOTIFY, &[&fleet::JOIN_CHANNEL]).await.expect("anybody may notify");
            let kind = match row.get("kind") {
                "join" => InboxKind::Join,
                "renew" => InboxKind::Renew,
                "secret" => InboxKind::Secret,
                _ => InboxKind::Fresh,
            };
            InboxRequest {
                kind,
                request: row.get("request"),
                source_ip: row.get("source_ip"),
                peer_serial: row.get("peer_serial"),
            }
        })
    }

    fn command_fate(&self, command_id: CommandId) -> BoxFuture<'_, CommandFate> {
        Box::pin(async move {
            let row = self.db.store.read_one(&FATE, &[&command_id.uuid()]).await.expect("it was enqueued");
            let state = CommandState::parse(row.get("state")).expect("the schema knows these states");
            CommandFate { state, reason: row.get("reason"), result: row.get("result") }
        })
    }

    fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> BoxFuture<'_, Vec<u64>> {
        Box::pin(async move {
            let rows = self.db.store.read(&SEQS, &[&node_id.uuid(), &journal_id.uuid()]).await;
            let rows = rows.expect("the statement is right");
            rows.iter().map(|row| u64::try_from(row.get::<_, i64>("seq")).expect("they count up")).collect()
        })
    }

    fn status(&self, node_id: NodeId) -> BoxFuture<'_, Option<(String, u64)>> {
        Box::pin(async move {
            let row = self.db.store.read_opt(&STATUS, &[&node_id.uuid()]).await.expect("it is right")?;
            let observed: i64 = row.get("observed_generation");
            Some((row.get("status_key"), u64::try_from(observed).expect("it never falls below 0")))
        })
    }

    fn inventory(&self, node_id: NodeId) -> BoxFuture<'_, BTreeMap<String, String>> {
        Box::pin(async move {
            let rows = self.db.store.read(&INVENTORY, &[&node_id.uuid()]).await.expect("it is right");
            rows.iter().map(|row| (row.get("section"), row.get("hash"))).collect()
        })
    }
}

/// Rows of a claim that a node is ahead.
pub async fn restore_claims(db: &TestDb) -> Vec<NodeId> {
    const CLAIMS: Sql = sql("test_claims", "SELECT node_id FROM restore_claims ORDER BY node_id");
    let rows = db.store.read(&CLAIMS, &[]).await.expect("the statement is right");
    rows.iter().map(|row| row.id("node_id")).collect()
}
