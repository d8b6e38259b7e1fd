//! A small cloud under several processes: eight of them, each with one connection, over machines that keep their holds in memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use capacity::Capacity;
use fleet::{Fleet, FleetKeys};
use instances::Instances;
use kernel::ports::iam::{AuthenticationPort, Identity};
use kernel::ports::node::{NodeFacts, NodeObserver, SPEC_QUEUE};
use kernel::run::Running;
use kernel::testing::{self, Told, allow_all};
use kernel::{BoxFuture, CallLimits, Fault, Incoming, Module, Pipeline, Principal};
use kit::{Clock, OsRng, Rng, Supervisor};
use model::unit::GIB;
use model::{DeploymentId, NodeId, PoolId, SiteId, TenantId, UserId};
use pki::ca::{CertificateAuthority, Validity};
use pki::seal::DecryptionKey;
use pki::trust::TrustBundle;
use pki::worker::{IntentSigner, WorkerCertificate, WorkerKeyStatement};
use pki::{OsEntropy, SigningKey};
use serde_json::Value;
use sim::invariants::{Checker, Violation};
use sim::world::World;
use store::{Op, Sql, Store, StoreConfig, StoreError, sql};
use testkit::TestDb;
use tokio::sync::Mutex;
use wire::inventory::{CpuList, Gpu, NodeInventory, NumaNode};

use crate::clock::HandClock;
use crate::machine::Machine;

pub const OP: Op = Op::new("test_op");
pub const GPUS: u32 = 4;
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub struct Cloud {
    pub db: TestDb,
    pub clock: Arc<HandClock>,
    /// The test's own.
    pub store: Store,
    pub processes: Vec<Process>,
    pub machines: Vec<Mutex<Machine>>,
    pub pool: PoolId,
}

/// One process of the control plane on one connection.
pub struct Process {
    pub store: Store,
    pub capacity: Capacity,
    pub fleet: Fleet,
    pub modules: Vec<Module>,
    api: Pipeline,
    /// Whether calls that come together are one transaction.
    pub gathers: bool,
    /// Of what gathers them.
    _running: Option<Running>,
}

pub fn id<I: model::Id>(clock: &dyn Clock) -> I {
    (&OsRng as &dyn Rng).id(clock.now())
}

/// Takes any token for the one user there is.
struct Anyone(Principal, Arc<HandClock>);

impl AuthenticationPort for Anyone {
    fn authenticate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        let identity =
            Identity { principal: self.0.clone(), now: self.1.now(), iam_version: None, observe_only: false };
        Box::pin(std::future::ready(Ok(identity)))
    }

    fn again(&self, _: model::TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        self.authenticate("any")
    }
}

impl Cloud {
    pub async fn new(processes: usize, nodes: usize) -> Self {
        Self::with_owners_from(usize::MAX, processes, nodes).await
    }

    /// Pools of so many nodes have one process that places in them.
    pub async fn with_owners_from(nodes_min: usize, processes: usize, nodes: usize) -> Self {
        // What went wrong inside is in the log, and shown with a test that fails.
        let log = tracing_subscriber::fmt().with_test_writer().with_ansi(false);
        let _ = log.with_env_filter("warn").try_init();
        let db = testkit::db().await;
        let clock = Arc::new(HandClock::new());
        let open = async |pool_size, name: String| {
            let told = clock.clone();
            let virtual_clock: Option<store::VirtualClock> = Some(Arc::new(move || told.now()));
            db.open(StoreConfig { virtual_clock, pool_size, application_name: name, ..db.config() }).await
        };
        let store = open(2, "test".to_owned()).await;
        let (tenant, user, site, pool): (TenantId, UserId, SiteId, PoolId) =
            (id(&*clock), id(&*clock), id(&*clock), id(&*clock));
        run_all(
            &store,
            &format!(
                "SELECT partition_ensure(parent, compute_now() + month * interval '1 month')
                   FROM unnest(ARRAY['events', 'audit']) AS parent, generate_series(0, 1) AS month;
                 INSERT INTO tenants (tenant_id, parent_id, name) VALUES ('{0}', NULL, 'root');
                 INSERT INTO users (user_id, tenant_id, kind, name) VALUES ('{1}', '{0}', 'person', 'ada');
                 INSERT INTO sites (site_id, name) VALUES ('{2}', 'site');
                 INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ('{3}', '{0}', 'gpu', 'gpu')",
                tenant.uuid(),
                user.uuid(),
                site.uuid(),
                pool.uuid(),
            ),
        )
        .await;
        let roots = Roots::new(&*clock);
        let principal = testing::principal(user, tenant);
        let mut running = Vec::new();
        for at in 0..processes {
            // Every other one does each call by itself.
            let gathers = at % 2 == 1;
            running.push(Process::new(
                open(1, format!("process-{at}")).await,
                &clock,
                &roots,
                principal.clone(),
                nodes_min,
                gathers,
            ));
        }
        running[0].fleet.publish_trust().await.expect("the bundle is stored");
        let mut machines = Vec::new();
        for at in 0..nodes {
            let node_id: NodeId = id(&*clock);
            let machine = Machine::new(at, node_id);
            let name = format!("node-{at}");
            run_all(
                &store,
                &format!(
                    "INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state)
                     VALUES ('{0}', '{1}', '{2}', 'node', '{name}', '{name}', 'ready');
                     INSERT INTO node_status (node_id, session_epoch, capabilities)
                     VALUES ('{0}', 1, '{{devices.host-only,devices.limits}}')",
                    node_id.uuid(),
                    site.uuid(),
                    pool.uuid()
                ),
            )
            .await;
            let facts = NodeFacts {
                node_id,
                pool: Some((pool, tenant)),
                inventory: inventory(&name),
                unhealthy: BTreeMap::new(),
            };
            let (capacity, facts) = (&running[0].capacity, &facts);
            running[0]
                .store
                .tx(OP, |tx| Box::pin(async move { capacity.facts_changed(tx, facts).await }))
                .await
                .expect("facts are taken");
            machines.push(Mutex::new(machine));
        }
        Self { db, clock, store, processes: running, machines, pool }
    }

    /// Every process does the same kind of thing at the same time: one task each.
    pub async fn violations(&self, checker: &mut Checker, rests: bool) -> Vec<Violation> {
        let (mut nodes, mut releases) = (Vec::new(), Vec::new());
        for machine in &self.machines {
            let machine = machine.lock().await;
            nodes.push(machine.view());
            releases.extend(machine.releases.iter().cloned());
        }
        let world = World {
            store: &self.store,
            now: self.clock.now(),
            nodes: &nodes,
            releases: &releases,
            destroyed: &[],
        };
        let found = if rests { checker.at_rest(&world).await } else { checker.every_minute(&world).await };
        found.expect("the rows can be read")
    }

    /// Runs what waits in the queues, and the relay, once. The machines say nothing meanwhile.
    pub async fn catch_up(&self) {
        let process = &self.processes[0];
        process.sweep().await.expect("the pass runs");
        process.run_queues().await;
        process.relay().await;
    }

    /// Runs what waits in the queues, the machines, and the relay, until nothing is left to do.
    pub async fn settle(&self) {
        let process = &self.processes[0];
        let mut quiet = 0;
        for _ in 0..200 {
            // What waits for a place is looked at again and again; that alone is not restlessness.
            self.clock.pass(10);
            process.sweep().await.expect("the pass runs");
            process.run_queues().await;
            let mut moved = false;
            for machine in &self.machines {
                moved |= machine.lock().await.live(process, &self.clock, &Calm).await;
            }
            moved |= process.relay().await;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == 3 {
                process.run_queues().await;
                return;
            }
        }
        panic!("the cloud does not come to rest");
    }
}

/// Dice that always say the first.
pub struct Calm;

impl Rng for Calm {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

pub async fn run_all(store: &Store, text: &str) {
    for statement in store::migrate::statements(text) {
        let statement = sql("test", Box::leak(statement.to_owned().into_boxed_str()));
        if let Err(err) = store.execute(&statement, &[]).await {
            panic!("{}: {}", statement.text, kit::chain(&err));
        }
    }
}

const WORK: Sql = sql(
    "test_work",
    "WITH rows_of AS (DELETE FROM work WHERE state = 'ready' RETURNING queue, key),
       woken AS (DELETE FROM work_wake_batches RETURNING queue, keys)
     SELECT queue, key FROM rows_of UNION SELECT queue, unnest(keys) FROM woken ORDER BY 1, 2",
);

impl Process {
    fn new(
        store: Store,
        clock: &Arc<HandClock>,
        roots: &Roots,
        principal: Principal,
        nodes_min: usize,
        gathers: bool,
    ) -> Self {
        let capacity = Capacity::with_owners_from(nodes_min, store.clone(), clock.clone(), Arc::new(OsRng));
        let instances = Instances::new(store.clone(), capacity.clone(), clock.clone(), Arc::new(OsRng));
        let fleet = Fleet::new(
            store.clone(),
            Some(roots.keys()),
            vec![Arc::new(capacity.clone()), Arc::new(instances)],
            vec![Arc::new(capacity.clone())],
            clock.clone(),
            Arc::new(OsRng),
        );
        let modules = vec![capacity::module(&capacity)];
        let plenty = kernel::rate::Rate { per_second: 1_000_000, burst: 1_000_000 };
        let api = Pipeline::new(
            &modules,
            Arc::new(Anyone(principal, clock.clone())),
            allow_all(),
            store.clone(),
            clock.clone(),
            Arc::new(OsRng),
            CallLimits { calls: plenty, unknown: plenty },
        )
        .expect("the modules fit the method table");
        let running = gathers.then(|| {
            let running =
                Running::new("test", store.clone(), Supervisor::new(), clock.clone(), Arc::new(OsRng));
            capacity.start(&running);
            running
        });
        Self { store, capacity, fleet, modules, api, gathers, _running: running }
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        let body = request.to_string().into();
        let source_ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let deadline = Duration::from_secs(60);
        let incoming =
            Incoming { method, body, bearer: Some("token"), source_ip, deadline, request_id: None };
        let answer = self.api.call(incoming).await;
        let body = serde_json::from_slice(&answer.body).expect("an answer is JSON");
        Told { status: answer.status, body, answer }
    }

    /// Handles one key as the worker of its queue does.
    pub async fn handle(&self, queue: &str, key: &str) -> Result<(), Fault> {
        if queue == SPEC_QUEUE {
            let node_id = NodeId::from_uuid(uuid::Uuid::parse_str(key).expect("the key of a node"));
            return self.fleet.assemble(node_id).await.map(drop);
        }
        let handlers = self.modules.iter().flat_map(|module| &module.queues);
        for handler in handlers.filter(|handler| handler.queue() == queue) {
            handler.handle(key).await?;
        }
        Ok(())
    }

    /// Whether there was any.
    async fn run_queues(&self) -> bool {
        let rows = self
            .store
            .tx(OP, |tx| Box::pin(async move { tx.query(&WORK, &[]).await }))
            .await
            .map_err(|err: StoreError| err)
            .expect("the queue is read");
        for row in &rows {
            self.handle(row.get("queue"), row.get("key")).await.expect("the handler runs");
        }
        !rows.is_empty()
    }

    pub async fn sweep(&self) -> Result<(), Fault> {
        for pass in self.modules.iter().flat_map(|module| &module.passes) {
            pass.run().await?;
        }
        Ok(())
    }

    /// Whether any event got its number.
    pub async fn relay(&self) -> bool {
        let lease = self
            .store
            .tx(OP, |tx| {
                Box::pin(async move {
                    store::lease::acquire(tx, store::outbox::RELAY_LEASE, "test", Duration::from_secs(60))
                        .await
                })
            })
            .await
            .map_err(|err: StoreError| err)
            .expect("the lease is asked for");
        let Some(lease) = lease else { return false };
        let moved = store::outbox::relay_pass(&self.store, &lease, 10_000).await.expect("the relay runs");
        moved != store::outbox::Relayed::Moved(0)
    }
}

/// What all processes of one deployment share.
struct Roots {
    deployment_id: DeploymentId,
    command_root: SigningKey,
    now: model::Timestamp,
}

impl Roots {
    fn new(clock: &dyn Clock) -> Self {
        Self { deployment_id: id(clock), command_root: SigningKey::generate(&OsEntropy), now: clock.now() }
    }

    fn keys(&self) -> FleetKeys {
        let (entropy, now) = (&OsEntropy, self.now);
        let authority = |name| {
            CertificateAuthority::create(name, Validity::starting(now, 10 * YEAR), entropy).expect("fixed")
        };
        let (node_ca, serving) = (authority("node CA"), authority("serving CA"));
        let join_signing = SigningKey::generate(entropy);
        let worker = SigningKey::generate(entropy);
        let statement = WorkerKeyStatement {
            key: worker.verifying_key().clone(),
            not_before: now.saturating_sub(Duration::from_secs(3600)),
            not_after: now.saturating_add(5 * YEAR),
            deployment_id: self.deployment_id,
        };
        let certificate = WorkerCertificate::issue(&self.command_root, statement);
        FleetKeys {
            deployment_id: self.deployment_id,
            intent: IntentSigner::new(worker, certificate).expect("they belong together"),
            trust: TrustBundle {
                version: 1,
                deployment_id: self.deployment_id,
                deployment_epoch: 1,
                trust_domain: "fleet.test".parse().expect("fixed"),
                command_roots: vec![self.command_root.verifying_key().clone()],
                serving_ca_pins: vec![serving.pin()],
                join_signing_pins: vec![join_signing.verifying_key().pin()],
                node_cas: vec![node_ca.certificate_der().to_vec()],
                issued_at: now,
            },
            node_ca,
            join_signing,
            join_encryption: DecryptionKey::generate(entropy),
        }
    }
}

fn inventory(name: &str) -> NodeInventory {
    let mut inventory = NodeInventory::default();
    let cpus = |text: &str| text.parse::<CpuList>().expect("fixed");
    inventory.cpu.online = Some(cpus("0-31"));
    inventory.cpu.numa_nodes = vec![NumaNode { id: 0, cpus: cpus("0-31"), memory_bytes: Some(256 * GIB) }];
    inventory.memory.total_bytes = Some(256 * GIB);
    inventory.gpus.gpus = (0..GPUS)
        .map(|index| Gpu {
            uuid: Some(format!("GPU-{name}-{index}")),
            index: Some(index),
            model: Some("H100".to_owned()),
            memory_bytes: Some(80 * GIB),
            numa_node: Some(0),
            nvlink_count: Some(18),
            ..Gpu::default()
        })
        .collect();
    inventory
}
