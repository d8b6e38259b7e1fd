//! A deployment with its keys, one site, one GPU pool, and a clock that the test moves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fleet::{Fleet, FleetKeys};
use kernel::ports::node::{NodeFacts, NodeObserver, SpecContributor};
use kernel::{BoxFuture, Fault};
use kit::{Clock, ManualClock, OsRng, Rng};
use model::{DeploymentId, Id, JoinTokenId, NodeId, PoolId, SiteId, TenantId, Timestamp, UserId};
use pki::ca::{CertificateAuthority, Validity};
use pki::join::JoinPayload;
use pki::seal::DecryptionKey;
use pki::token::JoinToken;
use pki::trust::TrustBundle;
use pki::worker::{CommandVerifier, IntentSigner, WorkerCertificate, WorkerKeyStatement};
use pki::{OsEntropy, SigningKey};
use serde_json::Value;
use store::{Param, Row, RowExt, Store, StoreConfig, StoreError, Tx, sql};
use testkit::TestDb;
use uuid::Uuid;
use wire::proto::agent::{
    DesiredHold, DeviceAssignment, DevicesSection, JoinReply, NodeReport, NodeSpec, join_reply::Outcome,
};

use crate::machine::Machine;

pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Asks for what the test put in.
#[derive(Default)]
pub struct Holds(pub Mutex<Vec<String>>);

impl SpecContributor for Holds {
    fn name(&self) -> &'static str {
        "holds"
    }

    fn part<'a>(&'a self, _: &'a mut Tx<'_>, _: NodeId) -> BoxFuture<'a, Result<NodeSpec, StoreError>> {
        let held = |allocation: &String| DeviceAssignment {
            allocation_id: allocation.clone(),
            desired: i32::from(DesiredHold::Held),
            ..DeviceAssignment::default()
        };
        let assignments = self.0.lock().unwrap().iter().map(held).collect();
        let devices = Some(DevicesSection { assignments });
        Box::pin(async move { Ok(NodeSpec { devices, ..NodeSpec::default() }) })
    }
}

/// Writes down what it hears, as rows of the transaction that it hears it in.
pub struct Listener {
    pub name: &'static str,
    /// Fails on each report, after it has written.
    pub fails: bool,
    /// Reports that fail as in a deadlock, before they go well.
    pub deadlocks: AtomicU32,
    /// Fails on the facts.
    pub facts_fail: AtomicBool,
    /// Cannot use all of the facts yet.
    pub unsettled: AtomicBool,
    pub on_node: Mutex<Vec<String>>,
}

impl Listener {
    pub fn new(name: &'static str, fails: bool) -> Arc<Self> {
        Arc::new(Self {
            name,
            fails,
            deadlocks: AtomicU32::default(),
            facts_fail: AtomicBool::default(),
            unsettled: AtomicBool::default(),
            on_node: Mutex::default(),
        })
    }

    async fn write(&self, tx: &mut Tx<'_>, what: String) -> Result<(), Fault> {
        let heard = sql("heard", "INSERT INTO heard (listener, what) VALUES ($1, $2)");
        tx.execute(&heard, &[&self.name, &what]).await?;
        Ok(())
    }
}

impl NodeObserver for Listener {
    fn name(&self) -> &'static str {
        self.name
    }

    fn facts_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        facts: &'a NodeFacts,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            if self.facts_fail.load(Ordering::SeqCst) {
                return Err(kernel::ApiError::conflict("the facts are odd").into());
            }
            self.write(tx, format!("facts pool={}", facts.pool.is_some())).await
        })
    }

    fn unsettled<'a>(
        &'a self,
        _: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeId>, Fault>> {
        let unsettled = if self.unsettled.load(Ordering::SeqCst) { nodes.to_vec() } else { Vec::new() };
        Box::pin(async move { Ok(unsettled) })
    }

    fn schedulable_changed<'a>(&'a self, tx: &'a mut Tx<'_>, _: NodeId) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.write(tx, "schedulable".to_owned()))
    }

    fn report<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        _: NodeId,
        report: &'a NodeReport,
        _: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.write(tx, crate::machine::told(report)).await?;
            if self.deadlocks.load(Ordering::SeqCst) > 0 {
                self.deadlocks.fetch_sub(1, Ordering::SeqCst);
                tx.execute(&sql("deadlock", "DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"), &[]).await?;
            }
            if self.fails {
                // As the database refuses, which leaves the savepoint failed.
                tx.execute(&sql("refused", "INSERT INTO heard (listener, what) VALUES (NULL, NULL)"), &[])
                    .await?;
            }
            Ok(())
        })
    }

    fn holds<'a>(&'a self, _: &'a mut Tx<'_>, _: NodeId) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        let holds = self.on_node.lock().unwrap().clone();
        Box::pin(async move { Ok(holds) })
    }
}

pub struct World {
    pub db: TestDb,
    /// On the test's clock.
    pub store: Store,
    pub clock: Arc<ManualClock>,
    pub fleet: Fleet,
    pub command_root: SigningKey,
    pub holds: Arc<Holds>,
    pub listener: Arc<Listener>,
    pub root: TenantId,
    pub user: UserId,
    pub site: SiteId,
    pub pool: PoolId,
    pub bundle: TrustBundle,
    pub join_key: DecryptionKey,
}

pub fn id<I: Id>() -> I {
    let rng: &dyn Rng = &OsRng;
    rng.id(kernel::testing::now())
}

pub async fn world() -> World {
    with_listeners(Listener::new("listener", false), Vec::new()).await
}

/// Further observers come before the world's own.
pub async fn with_listeners(listener: Arc<Listener>, others: Vec<Arc<Listener>>) -> World {
    let db = testkit::db().await;
    // Whole milliseconds, as the database keeps no finer ones than we compare.
    let start = Timestamp::from_millis(Timestamp::from(SystemTime::now()).millis());
    let clock = Arc::new(ManualClock::at(start));
    let told = clock.clone();
    let config = StoreConfig { virtual_clock: Some(Arc::new(move || told.now())), ..db.config() };
    let store = db.open(config).await;
    let command_root = SigningKey::generate(&OsEntropy);
    let keys = keys(&command_root, start, YEAR);
    let (bundle, join_key) = (keys.trust.clone(), keys.join_encryption.clone());
    let holds = Arc::new(Holds::default());
    let mut observers: Vec<Arc<dyn NodeObserver>> = Vec::new();
    observers.extend(others.into_iter().map(|other| other as Arc<dyn NodeObserver>));
    observers.push(listener.clone());
    let fleet =
        Fleet::new(store.clone(), Some(keys), vec![holds.clone()], observers, clock.clone(), Arc::new(OsRng));
    fleet.publish_trust().await.unwrap();
    let (root, user, site, pool) = (id(), id(), id(), id());
    let world = World {
        db,
        store,
        clock,
        fleet,
        command_root,
        holds,
        listener,
        root,
        user,
        site,
        pool,
        bundle,
        join_key,
    };
    world.seed().await;
    world
}

/// A worker's keys, certified for `lifetime` from an hour before `now`.
pub fn keys(command_root: &SigningKey, now: Timestamp, lifetime: Duration) -> FleetKeys {
    let deployment_id: DeploymentId = id();
    let entropy = &OsEntropy;
    let join_signing = SigningKey::generate(entropy);
    let node_ca =
        CertificateAuthority::create("node CA", Validity::starting(now, 10 * YEAR), entropy).unwrap();
    let serving =
        CertificateAuthority::create("serving CA", Validity::starting(now, 10 * YEAR), entropy).unwrap();
    let trust = TrustBundle {
        version: 1,
        deployment_id,
        deployment_epoch: 1,
        trust_domain: "fleet.test".parse().unwrap(),
        command_roots: vec![command_root.verifying_key().clone()],
        serving_ca_pins: vec![serving.pin()],
        join_signing_pins: vec![join_signing.verifying_key().pin()],
        node_cas: vec![node_ca.certificate_der().to_vec()],
        issued_at: now,
    };
    FleetKeys {
        deployment_id,
        intent: signer(command_root, deployment_id, now, lifetime),
        node_ca,
        join_signing,
        join_encryption: DecryptionKey::generate(entropy),
        trust,
    }
}

pub fn signer(
    command_root: &SigningKey,
    deployment_id: DeploymentId,
    now: Timestamp,
    lifetime: Duration,
) -> IntentSigner {
    let worker = SigningKey::generate(&OsEntropy);
    let statement = WorkerKeyStatement {
        key: worker.verifying_key().clone(),
        not_before: now.saturating_sub(Duration::from_secs(3600)),
        not_after: now.saturating_add(lifetime),
        deployment_id,
    };
    IntentSigner::new(worker, WorkerCertificate::issue(command_root, statement)).unwrap()
}

impl World {
    async fn seed(&self) {
        self.run(
            "CREATE TABLE heard (n bigint GENERATED ALWAYS AS IDENTITY, listener text NOT NULL, what text)",
            &[],
        )
        .await;
        self.run("INSERT INTO tenants (tenant_id, name) VALUES ($1, 'root')", &[&self.root.uuid()]).await;
        self.run(
            "INSERT INTO users (user_id, tenant_id, kind, name) VALUES ($1, $2, 'person', 'ada')",
            &[&self.user.uuid(), &self.root.uuid()],
        )
        .await;
        self.run("INSERT INTO sites (site_id, name) VALUES ($1, 'hall-1')", &[&self.site.uuid()]).await;
        self.run(
            "INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ($1, $2, 'gpus', 'gpu')",
            &[&self.pool.uuid(), &self.root.uuid()],
        )
        .await;
    }

    pub fn verifier(&self) -> CommandVerifier {
        CommandVerifier::new(self.bundle.deployment_id, &self.bundle.command_roots)
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub async fn run(&self, text: &'static str, params: &[&(dyn Param + Sync)]) -> u64 {
        self.store.execute(&sql("test_run", text), params).await.unwrap()
    }

    pub async fn rows(&self, text: &'static str, params: &[&(dyn Param + Sync)]) -> Vec<Row> {
        self.store.read(&sql("test_rows", text), params).await.unwrap()
    }

    pub async fn row(&self, text: &'static str, params: &[&(dyn Param + Sync)]) -> Row {
        self.store.read_one(&sql("test_row", text), params).await.unwrap()
    }

    pub async fn count(&self, text: &'static str) -> i64 {
        self.row(text, &[]).await.get(0)
    }

    /// Data of the events of one kind, oldest first.
    pub async fn events(&self, kind: &str) -> Vec<Value> {
        let rows = self
            .rows("SELECT data FROM outbox_events WHERE kind = $1 ORDER BY batch_id, place", &[&kind])
            .await;
        rows.iter().map(|row| row.get("data")).collect()
    }

    /// What a listener committed.
    pub async fn heard(&self, listener: &str) -> Vec<String> {
        let rows = self.rows("SELECT what FROM heard WHERE listener = $1 ORDER BY n", &[&listener]).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Keys that wait in a queue.
    pub async fn woken(&self, queue: &str) -> BTreeSet<String> {
        let rows = self.rows("SELECT key FROM work WHERE queue = $1 UNION SELECT key FROM work_wake_keys WHERE queue = $1 ORDER BY key", &[&queue]).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub async fn drop_work(&self) {
        self.run("DELETE FROM work", &[]).await;
        self.run("DELETE FROM work_wake_batches", &[]).await;
    }

    /// A join token as the API would have made it.
    pub async fn token(&self, changes: TokenIs) -> JoinToken {
        let token_id: JoinTokenId = id();
        let token = JoinToken::generate(token_id, &OsEntropy);
        let pool = changes.pool.then(|| self.pool.uuid());
        self.run(
            "INSERT INTO join_tokens (join_token_id, site_id, pool_id, role, secret_sha256, uses_max, deferred, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, compute_now() + interval '1 day')",
            &[
                &token_id.uuid(),
                &self.site.uuid(),
                &pool,
                &changes.role,
                &token.hash().as_bytes().as_slice(),
                &changes.uses_max,
                &changes.deferred,
            ],
        )
        .await;
        token
    }

    pub async fn uses(&self, token: &JoinToken) -> i32 {
        self.row("SELECT uses FROM join_tokens WHERE join_token_id = $1", &[&token.id().uuid()]).await.get(0)
    }

    /// Leaves a request in the inbox as a gateway does. What was answered: a reply or a refusal.
    pub async fn ask(
        &self,
        kind: &str,
        request: &[u8],
        peer_serial: Option<&str>,
    ) -> Result<Vec<u8>, String> {
        let inbox_id = Uuid::from_bytes((&OsRng as &dyn Rng).bytes());
        let gateway: Uuid = Uuid::nil();
        self.run(
            "INSERT INTO join_inbox (inbox_id, kind, gateway_id, request, source_ip, peer_serial)
             VALUES ($1, $2, $3, $4, '192.0.2.7', $5)",
            &[&inbox_id, &kind, &gateway, &request, &peer_serial],
        )
        .await;
        self.fleet.answer_join(inbox_id).await.unwrap();
        let row = self
            .row("SELECT reply, refusal, answered_at FROM join_inbox WHERE inbox_id = $1", &[&inbox_id])
            .await;
        assert!(row.opt_ts("answered_at").is_some(), "it was answered");
        match row.get::<_, Option<Vec<u8>>>("reply") {
            Some(reply) => Ok(reply),
            None => Err(row.get("refusal")),
        }
    }

    pub async fn join(&self, machine: &Machine, token: &JoinToken) -> Result<Outcome, String> {
        let reply = self.ask("join", &machine.join_request(self, token), None).await?;
        let reply: JoinReply = wire::decode("join reply", &reply, 1 << 20).unwrap();
        Ok(reply.outcome.unwrap())
    }

    /// A machine that joined, and in the pool when the token says so.
    pub async fn joined(&self, hostname: &str, is: TokenIs) -> Machine {
        // Ids are ordered by the millisecond, and so are lists.
        self.clock.advance(Duration::from_millis(1));
        let mut machine = Machine::new(hostname);
        let token = self.token(is).await;
        let outcome = self.join(&machine, &token).await.unwrap();
        machine.accept(self, outcome);
        machine
    }

    /// Adopted and past its diagnosis, by way of the rows.
    pub async fn ready(&self, hostname: &str) -> Machine {
        let machine = self.joined(hostname, TokenIs { pool: true, ..TokenIs::default() }).await;
        self.run("UPDATE nodes SET state = 'ready' WHERE node_id = $1", &[&machine.node_id().uuid()]).await;
        machine
    }

    pub async fn state(&self, machine: &Machine) -> String {
        self.row("SELECT state FROM nodes WHERE node_id = $1", &[&machine.node_id().uuid()]).await.get(0)
    }

    /// A payload as the machine seals it.
    pub fn payload(&self, token: &JoinToken, hostname: &str) -> JoinPayload {
        JoinPayload {
            token: token.clone(),
            issued_at: self.now(),
            hostname: hostname.to_owned(),
            role: model::Role::Node,
        }
    }
}

pub struct TokenIs {
    pub uses_max: i32,
    pub deferred: bool,
    pub pool: bool,
    pub role: &'static str,
}

impl Default for TokenIs {
    fn default() -> Self {
        Self { uses_max: 1, deferred: false, pool: false, role: "node" }
    }
}
