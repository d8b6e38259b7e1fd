//! A small cloud: a root tenant with a pool `vps` of hosts, a flavor and an image, and a tenant below it.

use std::collections::BTreeMap;
use std::sync::Arc;

use capacity::Capacity;
use instances::Instances;
use kernel::Pipeline;
use kernel::ports::iam::AuthorizationPort;
use kernel::ports::node::{NodeFacts, NodeObserver, SpecContributor};
use kernel::testing::{self, Told, allow_all};
use kit::{OsRng, Rng, SystemClock};
use model::unit::GIB;
use model::{InstanceId, NodeId, PoolId, SiteId, TenantId, UserId};
use serde_json::{Value, json};
use store::Op;
use testkit::TestDb;
use wire::inventory::{CpuList, NodeInventory};
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{
    InstanceObservedState as Seen, InstanceSpec, InstanceStatus, InstancesObserved, NodeReport,
};

pub const OP: Op = Op::new("test_op");

pub struct Cloud {
    pub db: TestDb,
    pub capacity: Capacity,
    pub instances: Instances,
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
    /// Without hosts, with a network of six addresses.
    pub async fn empty() -> Self {
        Self::with_policy(json!({ "network": { "subnet": "10.0.0.0/29", "gateway": "10.0.0.1" } })).await
    }

    pub async fn with_policy(policy: Value) -> Self {
        let db = testkit::db().await;
        let (root_tenant, tenant, root_user, user, pool, site) = (id(), id(), id(), id(), id(), id());
        let (r, t): (TenantId, TenantId) = (root_tenant, tenant);
        let (ru, u): (UserId, UserId) = (root_user, user);
        let (p, s): (PoolId, SiteId) = (pool, site);
        db.batch(&format!(
            "INSERT INTO tenants (tenant_id, parent_id, name) VALUES ('{}', NULL, 'root'), ('{}', '{}', 'acme');
             INSERT INTO users (user_id, tenant_id, kind, name) VALUES ('{}', '{}', 'person', 'root'), ('{}', '{}', 'person', 'ada');
             INSERT INTO sites (site_id, name) VALUES ('{}', 'site');
             INSERT INTO pools (pool_id, tenant_id, name, class, policy) VALUES ('{}', '{}', 'vps', 'vps-host', '{policy}')",
            r.uuid(), t.uuid(), r.uuid(), ru.uuid(), r.uuid(), u.uuid(), t.uuid(), s.uuid(), p.uuid(), r.uuid(),
        ))
        .await;
        let clock = Arc::new(SystemClock::new());
        let capacity = Capacity::new(db.store.clone(), clock.clone(), Arc::new(OsRng));
        let instances = Instances::new(db.store.clone(), capacity.clone(), clock, Arc::new(OsRng));
        let root = pipeline(&capacity, &instances, &db, root_user, root_tenant, allow_all());
        let root_user = ru;
        let cloud = Self { db, capacity, instances, root, root_tenant, root_user, tenant, user, pool, site };
        let flavor = json!({ "pool": "vps", "name": "small", "vcpu": 2, "memoryMiB": 512, "diskGiB": 10 });
        cloud.call("flavors.create", flavor).await.ok();
        let image = json!({
            "name": "debian-12", "url": "https://cloud.example.com/debian-12.qcow2", "sha256": "ab".repeat(32),
            "format": "qcow2", "shared": true, "verified": true,
        });
        cloud.call("images.create", image).await.ok();
        cloud
    }

    /// With one host.
    pub async fn with_host() -> (Self, NodeId) {
        let cloud = Self::empty().await;
        let host = cloud.host("host-0").await;
        (cloud, host)
    }

    /// A ready host of the pool: 64 CPUs, 512 GiB.
    pub async fn host(&self, name: &str) -> NodeId {
        self.host_that_runs(name, "libvirt-kvm").await
    }

    pub async fn host_that_runs(&self, name: &str, runtime: &str) -> NodeId {
        self.host_of(name, &format!("runtime.{runtime}"), |_| {}).await
    }

    /// As [`Cloud::host`], of a daemon that advertises these beside what every one does, and of a machine that is more.
    pub async fn host_of(
        &self,
        name: &str,
        capabilities: &str,
        more: impl FnOnce(&mut NodeInventory),
    ) -> NodeId {
        let node: NodeId = id();
        let (n, s, p) = (node.uuid(), self.site.uuid(), self.pool.uuid());
        self.db
            .batch(&format!(
                "INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state)
                 VALUES ('{n}', '{s}', '{p}', 'node', '{name}', '{name}', 'ready');
                 INSERT INTO node_status (node_id, session_epoch, capabilities) VALUES ('{n}', 1, '{{devices.host-only,devices.limits,{capabilities}}}')"
            ))
            .await;
        self.facts(node, more).await;
        node
    }

    /// The host's inventory comes: 64 CPUs, 512 GiB, and more.
    pub async fn facts(&self, node_id: NodeId, more: impl FnOnce(&mut NodeInventory)) {
        let mut inventory = NodeInventory::default();
        inventory.cpu.online = Some("0-63".parse::<CpuList>().unwrap());
        inventory.memory.total_bytes = Some(512 * GIB);
        more(&mut inventory);
        let pool = Some((self.pool, self.root_tenant));
        let facts = &NodeFacts { node_id, pool, inventory, unhealthy: BTreeMap::new() };
        let capacity = &self.capacity;
        let taken =
            self.db.store.tx(OP, |tx| Box::pin(async move { capacity.facts_changed(tx, facts).await }));
        taken.await.expect("facts are taken");
    }

    /// A caller of the tenant below, decided by `authorization`.
    pub fn caller(&self, authorization: Arc<dyn AuthorizationPort>) -> Pipeline {
        pipeline(&self.capacity, &self.instances, &self.db, self.user, self.tenant, authorization)
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        call(&self.root, method, request).await
    }

    /// An instance of the small flavor, as the create answers it.
    pub async fn create(&self) -> Value {
        self.call("instances.create", asked()).await.ok()
    }

    pub async fn get(&self, instance: &Value) -> Value {
        self.call("instances.get", json!({ "id": instance["id"] })).await.ok()
    }

    pub async fn change(&self, verb: &str, instance: &Value) -> Told {
        self.call(&format!("instances.{verb}"), json!({ "id": instance["id"] })).await
    }

    /// What the host is told.
    pub async fn entries(&self, host: NodeId) -> Vec<InstanceSpec> {
        let instances = &self.instances;
        let part = self.db.store.tx(OP, |tx| Box::pin(async move { instances.part(tx, host).await })).await;
        let section = part.expect("the spec is read").instances.unwrap_or_default();
        wire::instance::instances(&section).into_iter().map(|entry| entry.unwrap()).collect()
    }

    /// The host says of each of its entries that it is as it was asked to be; and the instance afterwards.
    pub async fn settle(&self, host: NodeId, instance: &Value) -> Value {
        use wire::proto::agent::DesiredInstance as Desired;
        for entry in self.entries(host).await {
            let seen = match entry.desired() {
                Desired::Running => Seen::Running,
                Desired::Stopped => Seen::Stopped,
                Desired::Deleted => Seen::Absent,
                Desired::Unspecified => panic!("{entry:?}"),
            };
            self.say(host, entry.instance_id.parse().unwrap(), entry.revision, seen).await;
        }
        self.get(instance).await
    }

    pub async fn say(&self, host: NodeId, id: InstanceId, revision: u64, seen: Seen) {
        self.say_why(host, id, revision, seen, "", "").await;
    }

    pub async fn say_why(
        &self,
        host: NodeId,
        id: InstanceId,
        revision: u64,
        seen: Seen,
        reason: &str,
        message: &str,
    ) {
        let status = InstanceStatus {
            instance_id: id.to_string(),
            revision,
            state: seen.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        self.report(host, vec![status]).await;
    }

    pub async fn report(&self, host: NodeId, said: Vec<InstanceStatus>) {
        let report = Report::InstancesObserved(InstancesObserved { generation: 1, instances: said });
        let report = &NodeReport { node_id: host.to_string(), report: Some(report) };
        let (instances, now) = (&self.instances, testing::now());
        let done =
            self.db.store.tx(OP, |tx| Box::pin(async move { instances.report(tx, host, report, now).await }));
        done.await.expect("the report is handled");
    }

    pub async fn holds(&self, host: NodeId) -> Vec<String> {
        let instances = &self.instances;
        let held = self.db.store.tx(OP, |tx| Box::pin(async move { instances.holds(tx, host).await })).await;
        held.expect("they are read")
    }

    /// The host, in this state, is declared dead.
    pub async fn given_up(&self, host: NodeId, state: &str) {
        let set = format!(
            "UPDATE nodes SET state = '{state}', dead_at = compute_now(), dead_by = 'root' WHERE node_id = '{}'",
            host.uuid()
        );
        self.db.batch(&set).await;
        self.changed(host).await;
        let instances = &self.instances;
        let done =
            self.db.store.tx(OP, |tx| Box::pin(async move { instances.abandoned(tx, host).await })).await;
        done.expect("it is heard");
    }

    /// The host is in this state, and nobody declares it dead.
    pub async fn host_becomes(&self, host: NodeId, state: &str) {
        let set = format!(
            "UPDATE nodes SET state = '{state}', dead_at = CASE WHEN '{state}' <> 'ready' THEN dead_at END
             WHERE node_id = '{}'",
            host.uuid()
        );
        self.db.batch(&set).await;
        self.changed(host).await;
    }

    async fn changed(&self, host: NodeId) {
        let (instances, capacity) = (&self.instances, &self.capacity);
        let done = self.db.store.tx(OP, |tx| {
            Box::pin(async move {
                capacity.schedulable_changed(tx, host).await?;
                instances.schedulable_changed(tx, host).await
            })
        });
        done.await.expect("it is heard");
    }

    /// What the host says of itself that it has and was not told of.
    pub async fn says_unlisted(&self, host: NodeId, ids: &[InstanceId]) {
        let conditions: Vec<Value> =
            ids.iter().map(|id| json!({ "kind": "UnlistedInstance", "reason": id.to_string() })).collect();
        let set = format!(
            "UPDATE node_status SET conditions = '{}' WHERE node_id = '{}'",
            Value::Array(conditions),
            host.uuid()
        );
        self.db.batch(&set).await;
        let inventory = NodeInventory::default();
        let facts = &NodeFacts { node_id: host, pool: None, inventory, unhealthy: BTreeMap::new() };
        let instances = &self.instances;
        let done =
            self.db.store.tx(OP, |tx| Box::pin(async move { instances.facts_changed(tx, facts).await }));
        done.await.expect("facts are taken");
    }

    /// Runs the handler of the queue for the instance.
    pub async fn reconcile(&self, instance: &Value) -> Option<std::time::Duration> {
        let module = instances::module(&self.instances, None);
        let queue = module.queues.iter().find(|queue| queue.queue() == instances::QUEUE).unwrap();
        queue.handle(&instance_of(instance).uuid().hyphenated().to_string()).await.expect("it is looked at")
    }

    pub async fn count(&self, table: &str) -> i64 {
        self.db.scalar_i64(&format!("SELECT count(*) FROM {table}")).await
    }

    pub async fn events(&self, kind: &str) -> i64 {
        self.count(&format!("outbox_events WHERE kind = '{kind}'")).await
    }

    /// Nothing is booked, leased or held by anybody, and the books are right.
    pub async fn assert_empty(&self) {
        for table in ["bookings", "host_bookings", "ip_leases", "instance_holds"] {
            assert_eq!(self.count(table).await, 0, "{table}");
        }
        assert_eq!(self.count("instance_allocations WHERE ended_at IS NULL").await, 0);
        self.assert_sound().await;
    }

    pub async fn assert_sound(&self) {
        let found = capacity::invariants(&self.db.store).await.expect("the rules are asked");
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// What most tests ask for.
pub fn asked() -> Value {
    json!({ "pool": "vps", "flavor": "small", "image": "debian-12" })
}

pub fn instance_of(instance: &Value) -> InstanceId {
    instance["id"].as_str().unwrap_or_else(|| panic!("no instance: {instance}")).parse().unwrap()
}

fn pipeline(
    capacity: &Capacity,
    instances: &Instances,
    db: &TestDb,
    user: UserId,
    tenant: TenantId,
    authorization: Arc<dyn AuthorizationPort>,
) -> Pipeline {
    let modules = [capacity::module(capacity), instances::module(instances, None)];
    testing::pipeline(&modules, testing::principal(user, tenant), authorization, db.store.clone())
}

pub async fn call(pipeline: &Pipeline, method: &str, request: Value) -> Told {
    testing::invoke(pipeline, Some("token"), method, request).await
}
