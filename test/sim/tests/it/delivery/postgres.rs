//! The store over PostgreSQL under a gateway's role, and the rest of the control plane as the owner of the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fleet::PgDelivery;
use gateway::memory::CommandFate;
use kernel::BoxFuture;
use kernel::ports::delivery::{
    DeliveryStore, InboxAnswer, InboxKind, InboxRequest, StoredCommand, StoredSpec,
};
use kit::{Clock, OsRng};
use model::lifecycle::CommandState;
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};
use store::{Param, Sql, Store, StoreConfig, sql};
use testkit::TestDb;
use uuid::Uuid;

use super::side::Side;
use crate::clock::HandClock;

pub struct Postgres {
    pub clock: Arc<HandClock>,
    delivery: PgDelivery,
    owner: Store,
    _db: TestDb,
}

const SITE: Uuid = Uuid::from_u128(1);

const EMPTY: &[Sql] = &[
    sql(
        "test_empty",
        "TRUNCATE nodes, node_certs, gateways, node_sessions, node_status, node_inventory, node_events, commands,
           trust_bundles, restore_claims, join_inbox, work CASCADE",
    ),
    OBSERVE[0],
];
const OBSERVE: [Sql; 2] = [
    sql(
        "test_act",
        "UPDATE deployment SET observe_only = false, observe_reason = NULL, observe_since = NULL",
    ),
    sql(
        "test_observe",
        "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()",
    ),
];
const NODE: Sql = sql(
    "test_node",
    "INSERT INTO nodes (node_id, site_id, role, name, hostname, state) VALUES ($1, $2, 'node', $3, $3, 'ready')
     ON CONFLICT DO NOTHING",
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
     VALUES ($1, $2, $3, $4, false, $5, $6, compute_now(), to_timestamp($7::bigint / 1000.0),
       compute_now() + interval '2 hours', 'test')",
);
const SPEC: Sql = sql(
    "test_spec",
    "UPDATE nodes SET generation = $2, spec_hash = 'h', spec_body = $3, spec_signature = $4 WHERE node_id = $1",
);
const BUNDLE: Sql = sql("test_bundle", "INSERT INTO trust_bundles (version, message) VALUES ($1, $2)");
const REVOKE_NODE: Sql = sql("test_revoke", "UPDATE nodes SET state = 'revoked' WHERE node_id = $1");
const REVOKE_CERT: Sql =
    sql("test_revoke_cert", "UPDATE node_certs SET revoked_at = compute_now() WHERE serial = $1");
const QUARANTINE: Sql =
    sql("test_quarantine", "UPDATE nodes SET quarantined_at = compute_now() WHERE node_id = $1");
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
const NOTIFY: Sql = sql("test_notify", "SELECT pg_notify($1, '')");
const FATE: Sql = sql("test_fate", "SELECT state, reason, result FROM commands WHERE command_id = $1");
const SEQS: Sql =
    sql("test_seqs", "SELECT seq FROM node_events WHERE node_id = $1 AND journal_id = $2 ORDER BY seq");
const STATUS: Sql =
    sql("test_status", "SELECT status_key, observed_generation FROM node_status WHERE node_id = $1");
const INVENTORY: Sql = sql("test_inventory", "SELECT section, hash FROM node_inventory WHERE node_id = $1");
const OPEN: Sql =
    sql("test_open", "SELECT session_epoch FROM node_sessions WHERE node_id = $1 AND closed_at IS NULL");

impl Postgres {
    pub async fn new() -> Arc<Self> {
        let db = testkit::db().await;
        db.batch("INSERT INTO sites (site_id, name) VALUES ('00000000-0000-0000-0000-000000000001', 'here')")
            .await;
        let clock = Arc::new(HandClock::new());
        let told = clock.clone();
        let timed = StoreConfig { virtual_clock: Some(Arc::new(move || told.now())), ..db.config() };
        let owner = db.open(timed.clone()).await;
        let gateway = StoreConfig { role: Some("bc_gateway".to_owned()), ..timed };
        let store = db.open(PgDelivery::store_config(gateway, Duration::from_secs(600))).await;
        let delivery = PgDelivery::new(store, clock.clone(), Arc::new(OsRng));
        Arc::new(Self { clock, delivery, owner, _db: db })
    }

    /// Nothing of an earlier history is left.
    pub async fn empty(&self) {
        self.clock.begin();
        for statement in EMPTY {
            self.run(statement, &[]).await;
        }
    }

    async fn run(&self, statement: &Sql, params: &[&(dyn Param + Sync)]) {
        self.owner.execute(statement, params).await.expect("the fixture's statement is right");
    }
}

impl Side for Arc<Postgres> {
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

    fn observe_only(&self, on: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&OBSERVE[usize::from(on)], &[]).await })
    }

    fn put_trust_bundle(&self, version: u64, message: Vec<u8>) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.run(&BUNDLE, &[&small(version), &message]).await })
    }

    fn put_spec(&self, spec: StoredSpec) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let generation = small(spec.generation);
            self.run(&SPEC, &[&spec.node_id.uuid(), &generation, &spec.body, &spec.signature]).await;
        })
    }

    fn enqueue(&self, command: StoredCommand, not_after: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (command_id, node_id) = (command.command_id.uuid(), command.node_id.uuid());
            let StoredCommand { kind, lane, body, signature, .. } = command;
            let until = not_after.millis();
            self.run(&COMMAND, &[&command_id, &node_id, &kind, &lane, &body, &signature, &until]).await;
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
                let row = self.owner.read_opt(&INBOX, &[&reply, &refusal]).await;
                row.map_err(|err| err.to_string())?.ok_or_else(|| "no request".to_owned())
            })
            .await;
            self.owner.read(&NOTIFY, &[&fleet::JOIN_CHANNEL]).await.expect("anybody may notify");
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

    fn fate(&self, command_id: CommandId) -> BoxFuture<'_, CommandFate> {
        Box::pin(async move {
            let row = self.owner.read_one(&FATE, &[&command_id.uuid()]).await.expect("it was enqueued");
            let state = CommandState::parse(row.get("state")).expect("the schema knows these states");
            CommandFate { state, reason: row.get("reason"), result: row.get("result") }
        })
    }

    fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> BoxFuture<'_, Vec<u64>> {
        Box::pin(async move {
            let rows = self.owner.read(&SEQS, &[&node_id.uuid(), &journal_id.uuid()]).await;
            rows.expect("it is right").iter().map(|row| large(row.get("seq"))).collect()
        })
    }

    fn status(&self, node_id: NodeId) -> BoxFuture<'_, Option<(String, u64)>> {
        Box::pin(async move {
            let row = self.owner.read_opt(&STATUS, &[&node_id.uuid()]).await.expect("it is right")?;
            Some((row.get("status_key"), large(row.get("observed_generation"))))
        })
    }

    fn inventory(&self, node_id: NodeId) -> BoxFuture<'_, BTreeMap<String, String>> {
        Box::pin(async move {
            let rows = self.owner.read(&INVENTORY, &[&node_id.uuid()]).await.expect("it is right");
            rows.iter().map(|row| (row.get("section"), row.get("hash"))).collect()
        })
    }

    fn open_session(&self, node_id: NodeId) -> BoxFuture<'_, Option<u64>> {
        Box::pin(async move {
            let row = self.owner.read_opt(&OPEN, &[&node_id.uuid()]).await.expect("it is right")?;
            Some(large(row.get("session_epoch")))
        })
    }
}

fn small(value: u64) -> i64 {
    i64::try_from(value).expect("tests use small numbers")
}

fn large(value: i64) -> u64 {
    u64::try_from(value).expect("they count up")
}
