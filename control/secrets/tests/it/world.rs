//! Two tenants below the root, a node, and an instance on it whose rows say what a test has them say.

use std::sync::{Arc, Mutex};

use kernel::ports::iam::AuthorizationPort;
use kernel::ports::secrets::{SecretAsk, SecretBroker, SecretOutcome, SecretUse, SecretUses};
use kernel::testing::{self, Told, allow_all};
use kernel::{BoxFuture, Fault, Pipeline};
use kit::{OsRng, Rng, SystemClock};
use model::{AllocationId, Id, InstanceId, NodeId, SecretId, TenantId, UserId};
use pki::OsEntropy;
use pki::envelope::KekRing;
use pki::seal::DecryptionKey;
use secrets::{Broker, Secrets};
use serde_json::{Value, json};
use store::{Op, Tx};
use testkit::TestDb;

pub const OP: Op = Op::new("test_op");

pub fn id<I: Id>() -> I {
    (&OsRng as &dyn Rng).id(testing::now())
}

/// Says of every instance what it was told to.
#[derive(Default)]
pub struct Uses(pub Mutex<Option<SecretUse>>);

impl SecretUses for Uses {
    fn of_instance<'a>(
        &'a self,
        _: &'a mut Tx<'_>,
        _: InstanceId,
    ) -> BoxFuture<'a, Result<Option<SecretUse>, Fault>> {
        let used = self.0.lock().unwrap().clone();
        Box::pin(async move { Ok(used) })
    }
}

pub struct World {
    pub db: TestDb,
    pub secrets: Secrets,
    pub uses: Arc<Uses>,
    pub broker: Broker,
    pub tenant: TenantId,
    pub other: TenantId,
    pub user: UserId,
    pub node: NodeId,
    pub instance: InstanceId,
    pub allocation: AllocationId,
}

pub fn ring(name: &str) -> KekRing {
    KekRing::generate(name.parse().unwrap(), &OsEntropy)
}

pub async fn world() -> World {
    with_ring(Some(ring("first"))).await
}

pub async fn with_ring(ring: Option<KekRing>) -> World {
    let db = testkit::db().await;
    let (root, tenant, other): (TenantId, TenantId, TenantId) = (id(), id(), id());
    let (user, node): (UserId, NodeId) = (id(), id());
    let (site, pool): (model::SiteId, model::PoolId) = (id(), id());
    db.batch(&format!(
        "INSERT INTO tenants (tenant_id, parent_id, name) VALUES ('{0}', NULL, 'root'), ('{1}', '{0}', 'acme'), ('{2}', '{0}', 'zeta');
         INSERT INTO users (user_id, tenant_id, kind, name) VALUES ('{3}', '{1}', 'person', 'ada');
         INSERT INTO sites (site_id, name) VALUES ('{4}', 'site');
         INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ('{5}', '{0}', 'vps', 'vps-host');
         INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state) VALUES ('{6}', '{4}', '{5}', 'node', 'host-0', 'host-0', 'ready')",
        root.uuid(), tenant.uuid(), other.uuid(), user.uuid(), site.uuid(), pool.uuid(), node.uuid(),
    ))
    .await;
    let secrets = secrets(&db, ring);
    let uses = Arc::new(Uses::default());
    let broker = Broker::new(secrets.clone(), uses.clone());
    World { db, secrets, uses, broker, tenant, other, user, node, instance: id(), allocation: id() }
}

pub fn secrets(db: &TestDb, ring: Option<KekRing>) -> Secrets {
    Secrets::new(db.store.clone(), ring, Arc::new(SystemClock::new()), Arc::new(OsRng), Arc::new(OsEntropy))
}

impl World {
    pub fn caller(&self, authorization: Arc<dyn AuthorizationPort>) -> Pipeline {
        let principal = testing::principal(self.user, self.tenant);
        testing::pipeline(&[secrets::module(&self.secrets)], principal, authorization, self.db.store.clone())
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        testing::invoke(&self.caller(allow_all()), Some("token"), method, request).await
    }

    /// A secret of the first tenant.
    pub async fn put(&self, name: &str, value: &str) -> SecretId {
        let put = self.call("secrets.put", json!({ "name": name, "value": value })).await.ok();
        put["id"].as_str().unwrap().parse().unwrap()
    }

    /// From here on the instance is the first tenant's, on the node, and names this.
    pub fn uses(&self, secret_id: SecretId) -> SecretUse {
        let place = Some((self.node, self.allocation));
        let used = SecretUse { tenant_id: self.tenant, place, going: false, secret_id: Some(secret_id) };
        *self.uses.0.lock().unwrap() = Some(used.clone());
        used
    }

    pub fn ask(&self, secret_id: SecretId, key: &DecryptionKey) -> SecretAsk {
        let request_id = (&OsRng as &dyn Rng).bytes();
        SecretAsk {
            request_id,
            node_id: self.node,
            instance_id: self.instance,
            allocation_id: self.allocation,
            secret_id,
            one_time_key: key.encryption_key().spki_der().to_vec(),
            kid: request_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    pub async fn answer(&self, ask: &SecretAsk) -> SecretOutcome {
        let broker = &self.broker;
        self.db.store.tx(OP, |tx| Box::pin(async move { broker.answer(tx, ask).await })).await.unwrap()
    }

    pub async fn count(&self, what: &str) -> i64 {
        self.db.scalar_i64(&format!("SELECT count(*) FROM {what}")).await
    }
}

/// The one word of an outcome.
pub fn word(outcome: &SecretOutcome) -> &str {
    match outcome {
        SecretOutcome::Sealed(_) => "sealed",
        SecretOutcome::Refused { reason, .. } | SecretOutcome::Later { reason } => reason,
    }
}
