//! A small cloud: a root tenant with a pool `gpu`, a tenant below it, and nodes of eight H100.

use std::collections::BTreeMap;
use std::sync::Arc;

use capacity::Capacity;
use kernel::Pipeline;
use kernel::ports::iam::AuthorizationPort;
use kernel::ports::node::{NodeFacts, NodeObserver, SpecContributor};
use kernel::testing::{self, Told, allow_all};
use kit::{OsRng, Rng, SystemClock};
use model::unit::GIB;
use model::{NodeId, PoolId, SiteId, TenantId, UserId};
use serde_json::{Value, json};
use store::Op;
use testkit::TestDb;
use wire::inventory::{CpuList, Gpu, NodeInventory, NumaNode};
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{AllocationBound, AllocationFailed, AllocationReleased, DevicesSection, NodeReport};

pub const OP: Op = Op::new("test_op");
pub const GPUS: u32 = 8;

pub struct Cloud {
    pub db: TestDb,
    pub capacity: Capacity,
    /// Of the root tenant's user, who may do everything.
    pub root: Pipeline,
    pub root_tenant: TenantId,
    pub root_user: UserId,
    pub tenant: TenantId,
    pub user: UserId,
    pub pool: PoolId,
    site: SiteId,
}

pub fn id<I: model::Id>() -> I {
    (&OsRng as &dyn Rng).id(testing::now())
}

impl Cloud {
    /// Without nodes.
    pub async fn empty() -> Self {
        let db = testkit::db().await;
        let (root_tenant, tenant, root_user, user, pool, site) = (id(), id(), id(), id(), id(), id());
        let (r, t): (TenantId, TenantId) = (root_tenant, tenant);
        let (ru, u): (UserId, UserId) = (root_user, user);
        let (p, s): (PoolId, SiteId) = (pool, site);
        db.batch(&format!(
            "INSERT INTO tenants (tenant_id, parent_id, name) VALUES ('{}', NULL, 'root'), ('{}', '{}', 'acme');
             INSERT INTO users (user_id, tenant_id, kind, name) VALUES ('{}', '{}', 'person', 'root'), ('{}', '{}', 'person', 'ada');
             INSERT INTO sites (site_id, name) VALUES ('{}', 'site');
             INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ('{}', '{}', 'gpu', 'gpu')",
            r.uuid(), t.uuid(), r.uuid(), ru.uuid(), r.uuid(), u.uuid(), t.uuid(), s.uuid(), p.uuid(), r.uuid(),
        ))
        .await;
        let capacity = Capacity::new(db.store.clone(), Arc::new(SystemClock::new()), Arc::new(OsRng));
        let root = pipeline(&capacity, &db, root_user, root_tenant, allow_all());
        Self { db, capacity, root, root_tenant, root_user, tenant, user, pool, site }
    }

    pub async fn with_nodes(count: usize) -> (Self, Vec<NodeId>) {
        let cloud = Self::empty().await;
        let mut nodes = Vec::new();
        for at in 0..count {
            nodes.push(cloud.node(&format!("node-{at}")).await);
        }
        (cloud, nodes)
    }

    /// A ready node of the pool that enforces limits and takes holds without devices.
    pub async fn node(&self, name: &str) -> NodeId {
        self.node_with_id(id(), name).await
    }

    pub async fn node_with_id(&self, node: NodeId, name: &str) -> NodeId {
        let (n, s, p) = (node.uuid(), self.site.uuid(), self.pool.uuid());
        self.db
            .batch(&format!(
                "INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state)
                 VALUES ('{n}', '{s}', '{p}', 'node', '{name}', '{name}', 'ready');
                 INSERT INTO node_status (node_id, session_epoch, capabilities) VALUES ('{n}', 1, '{{devices.host-only,devices.limits}}')"
            ))
            .await;
        self.facts(&facts(node, name, Some((self.pool, self.root_tenant)))).await;
        node
    }

    pub async fn facts(&self, facts: &NodeFacts) {
        let capacity = &self.capacity;
        self.db
            .store
            .tx(OP, |tx| Box::pin(async move { capacity.facts_changed(tx, facts).await }))
            .await
            .expect("facts are taken");
    }

    pub async fn schedulable_changed(&self, node: NodeId) {
        let capacity = &self.capacity;
        self.db
            .store
            .tx(OP, |tx| Box::pin(async move { capacity.schedulable_changed(tx, node).await }))
            .await
            .expect("it is heard");
    }

    /// What the node is said to hold.
    pub async fn holds(&self, node: NodeId) -> Vec<String> {
        let capacity = &self.capacity;
        let held = self.db.store.tx(OP, |tx| Box::pin(async move { capacity.holds(tx, node).await })).await;
        held.expect("they are read")
    }

    pub async fn abandoned(&self, node: NodeId) {
        let capacity = &self.capacity;
        let done =
            self.db.store.tx(OP, |tx| Box::pin(async move { capacity.abandoned(tx, node).await })).await;
        done.expect("it is heard");
    }

    /// A tenant below the tenant.
    pub async fn tenant_below(&self, name: &str) -> TenantId {
        let (fresh, above) = (id::<TenantId>(), self.tenant.uuid());
        let values = format!("'{}', '{above}', '{name}'", fresh.uuid());
        self.db.batch(&format!("INSERT INTO tenants (tenant_id, parent_id, name) VALUES ({values})")).await;
        fresh
    }

    /// As `fleet` moves a node.
    pub async fn node_becomes(&self, node: NodeId, state: &str) {
        self.db.batch(&format!("UPDATE nodes SET state = '{state}' WHERE node_id = '{}'", node.uuid())).await;
        self.schedulable_changed(node).await;
    }

    /// Atoms booked on a node.
    pub async fn booked(&self, node: NodeId) -> i64 {
        self.db.scalar_i64(&format!("SELECT count(*) FROM bookings WHERE node_id = '{}'", node.uuid())).await
    }

    /// A caller of the tenant below, decided by `authorization`.
    pub fn caller(&self, authorization: Arc<dyn AuthorizationPort>) -> Pipeline {
        pipeline(&self.capacity, &self.db, self.user, self.tenant, authorization)
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        call(&self.root, method, request).await
    }

    /// A reservation in the pool, as the create answers it.
    pub async fn reserve(&self, claim: Value) -> Value {
        let mut request = claim;
        request["pool"] = json!("gpu");
        self.call("reservations.create", request).await.ok()
    }

    pub async fn get(&self, reservation: &Value) -> Value {
        self.call("reservations.get", json!({ "id": reservation["id"] })).await.ok()
    }

    pub async fn report(&self, node: NodeId, report: Report) -> Result<(), kernel::Fault> {
        let (capacity, now) = (&self.capacity, testing::now());
        let report = &NodeReport { node_id: node.to_string(), report: Some(report) };
        self.db.store.tx(OP, |tx| Box::pin(async move { capacity.report(tx, node, report, now).await })).await
    }

    /// The node binds what the reservation booked on it.
    pub async fn bind(&self, reservation: &Value) -> Value {
        self.report(node_of(reservation), bound(reservation)).await.expect("the report is handled");
        self.get(reservation).await
    }

    pub async fn confirm_released(&self, reservation: &Value) -> Value {
        self.report(node_of(reservation), released(reservation)).await.expect("the report is handled");
        self.get(reservation).await
    }

    pub async fn devices(&self, node: NodeId) -> DevicesSection {
        let capacity = &self.capacity;
        let spec = self
            .db
            .store
            .tx(OP, |tx| Box::pin(async move { capacity.part(tx, node).await }))
            .await
            .expect("the spec is read");
        spec.devices.unwrap_or_default()
    }

    /// Runs the handler of the placing queue for the pool.
    pub async fn place_waiting(&self) {
        run_queue(&self.capacity, self.pool).await;
    }

    pub async fn sweep(&self) {
        let module = capacity::module(&self.capacity);
        for pass in &module.passes {
            pass.run().await.expect("the pass runs");
        }
    }

    /// How the database would go about a statement of which it knows no parameter, where it may not read tables whole.
    pub async fn plan(&self, statement: &store::Sql) -> String {
        let leak = |text: String| store::sql("plan", Box::leak(text.into_boxed_str()));
        let count = (1..20).filter(|n| statement.text.contains(&format!("${n}"))).count();
        let nulls = vec!["NULL"; count].join(", ");
        let nulls = if count > 0 { format!("({nulls})") } else { nulls };
        let steps = [
            leak("SET LOCAL enable_seqscan = off".to_owned()),
            leak("SET LOCAL plan_cache_mode = force_generic_plan".to_owned()),
            leak(format!("PREPARE planned AS {}", statement.text)),
        ];
        let explain = leak(format!("EXPLAIN EXECUTE planned {nulls}"));
        let steps = &steps;
        let rows = self
            .db
            .store
            .tx(OP, |tx| {
                Box::pin(async move {
                    for step in steps {
                        tx.execute(step, &[]).await?;
                    }
                    let rows = tx.query(&explain, &[]).await?;
                    tx.execute(&store::sql("plan", "DEALLOCATE planned"), &[]).await?;
                    Ok::<_, store::StoreError>(rows)
                })
            })
            .await
            .expect("the statement is planned");
        rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
    }

    pub async fn events(&self, kind: &str) -> i64 {
        self.db.scalar_i64(&format!("SELECT count(*) FROM outbox_events WHERE kind = '{kind}'")).await
    }

    pub async fn assert_sound(&self) {
        let found = capacity::invariants(&self.db.store).await.expect("the rules are asked");
        assert!(found.is_empty(), "{found:#?}");
    }
}

pub async fn run_queue(capacity: &Capacity, pool: PoolId) {
    let module = capacity::module(capacity);
    let queue = module.queues.iter().find(|queue| queue.queue() == capacity::PLACE_QUEUE).unwrap();
    queue.handle(&pool.uuid().hyphenated().to_string()).await.expect("the pass runs");
}

pub fn pipeline(
    capacity: &Capacity,
    db: &TestDb,
    user: UserId,
    tenant: TenantId,
    authorization: Arc<dyn AuthorizationPort>,
) -> Pipeline {
    let modules = [capacity::module(capacity)];
    testing::pipeline(&modules, testing::principal(user, tenant), authorization, db.store.clone())
}

pub async fn call(pipeline: &Pipeline, method: &str, request: Value) -> Told {
    testing::invoke(pipeline, Some("token"), method, request).await
}

pub fn inventory(name: &str) -> NodeInventory {
    let mut inventory = NodeInventory::default();
    let cpus = |text: &str| text.parse::<CpuList>().unwrap();
    inventory.cpu.online = Some(cpus("0-63"));
    inventory.cpu.numa_nodes = vec![
        NumaNode { id: 0, cpus: cpus("0-31"), memory_bytes: Some(256 * GIB) },
        NumaNode { id: 1, cpus: cpus("32-63"), memory_bytes: Some(256 * GIB) },
    ];
    inventory.memory.total_bytes = Some(512 * GIB);
    inventory.gpus.gpus = (0..GPUS)
        .map(|index| Gpu {
            uuid: Some(format!("GPU-{name}-{index}")),
            index: Some(index),
            model: Some("H100".to_owned()),
            memory_bytes: Some(80 * GIB),
            numa_node: Some(index / 4),
            nvlink_count: Some(18),
            ..Gpu::default()
        })
        .collect();
    inventory
}

pub fn facts(node: NodeId, name: &str, pool: Option<(PoolId, TenantId)>) -> NodeFacts {
    NodeFacts { node_id: node, pool, inventory: inventory(name), unhealthy: BTreeMap::new() }
}

pub fn node_of(reservation: &Value) -> NodeId {
    reservation["node"]["id"].as_str().unwrap_or_else(|| panic!("not placed: {reservation}")).parse().unwrap()
}

pub fn allocation_of(reservation: &Value) -> String {
    reservation["allocation"].as_str().unwrap_or_else(|| panic!("not placed: {reservation}")).to_owned()
}

pub fn atoms_of(reservation: &Value) -> Vec<String> {
    let devices = reservation["devices"].as_array().unwrap();
    devices.iter().map(|device| device["uuid"].as_str().unwrap().to_owned()).collect()
}

pub fn bound(reservation: &Value) -> Report {
    let atoms = atoms_of(reservation);
    Report::AllocationBound(AllocationBound {
        allocation_id: allocation_of(reservation),
        generation: 1,
        cdi_devices: match atoms.is_empty() {
            true => vec![format!("bcd.dev/host={}", allocation_of(reservation))],
            false => atoms.iter().map(|atom| format!("bcd.dev/gpu={atom}")).collect(),
        },
        atoms,
    })
}

pub fn failed(reservation: &Value, reason: &str) -> Report {
    Report::AllocationFailed(AllocationFailed {
        allocation_id: allocation_of(reservation),
        generation: 1,
        reason: reason.to_owned(),
        message: String::new(),
    })
}

pub fn released(reservation: &Value) -> Report {
    Report::AllocationReleased(AllocationReleased {
        allocation_id: allocation_of(reservation),
        generation: 1,
    })
}
