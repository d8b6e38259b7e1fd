//! One instance on one node, whoever may be let into it, and gateways that hold leases.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access::{Access, AccessParts, GatewayFacts, PgTickets, SshCa};
use api::Ref;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use kernel::module::{Pass, QueueHandler};
use kernel::ports::delivery::GatewayLease;
use kernel::ports::iam::{AuthenticationPort, AuthorizationPort, Identity, Resource};
use kernel::ports::tunnels::{InstanceDoor, InstanceDoors, NodeDoor, NodeDoors, TicketStore, TunnelClosed};
use kernel::testing::{self, DecideBy, Told};
use kernel::{ApiError, BoxFuture, Fault, Pipeline, Principal};
use kit::{OsRng, Rng, SystemClock};
use model::lifecycle::InstanceState;
use model::{
    ErrorCode, GatewayId, InstanceId, NodeId, SshCertId, TenantId, Timestamp, TokenId, TunnelId, UserId,
};
use pki::{OsEntropy, SeededEntropy, SigningKey};
use serde_json::{Value, json};
use store::Store;
use testkit::TestDb;

pub fn id<I: model::Id>() -> I {
    (&OsRng as &dyn Rng).id(testing::now())
}

/// What the rest of the control plane says, and a test changes.
pub struct Doors {
    pub instance: Option<InstanceState>,
    pub node: bool,
    pub connected: bool,
    pub capabilities: Vec<&'static str>,
    /// Actions that nobody may do.
    pub denied: BTreeSet<&'static str>,
    pub token: Token,
}

impl Doors {
    pub fn deny(&mut self, action: &'static str) {
        self.denied.insert(action);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Good,
    Revoked,
    /// Nobody knows: what would say so does not answer.
    Unknown,
}

#[derive(Clone)]
struct Rest {
    doors: Arc<Mutex<Doors>>,
    tenant: TenantId,
    instance: InstanceId,
    node: NodeId,
    principal: Principal,
}

impl InstanceDoors for Rest {
    fn instance(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<InstanceDoor>, Fault>> {
        let state = self
            .doors
            .lock()
            .expect("no holder of this lock panics")
            .instance
            .filter(|_| id == self.instance);
        let resource = Resource::one("compute-instance", id, self.tenant);
        let door = state.map(|state| InstanceDoor { resource, state, node_id: Some(self.node) });
        Box::pin(async move { Ok(door) })
    }
}

impl NodeDoors for Rest {
    fn node<'a>(&'a self, node: &'a Ref<NodeId>) -> BoxFuture<'a, Result<Option<NodeDoor>, Fault>> {
        let doors = self.doors.lock().expect("no holder of this lock panics");
        let is = match node {
            Ref::Id(id) => *id == self.node,
            Ref::Name(name) => name == "node-1",
        };
        let door = (is && doors.node).then(|| NodeDoor {
            node_id: self.node,
            name: "node-1".to_owned(),
            tenant_id: self.tenant,
            resource: Resource::one("compute-node", self.node, self.tenant),
            gateway: doors.connected.then(|| "https://gw.example.test:8443/".to_owned()),
            keys: vec![[9; 32]],
            capabilities: doors.capabilities.iter().map(|has| (*has).to_owned()).collect(),
            deployment_epoch: 3,
        });
        Box::pin(async move { Ok(door) })
    }

    fn sign_ticket(&self, _: &[u8], _: Timestamp) -> Result<Vec<u8>, Fault> {
        Ok(vec![7; 64])
    }
}

impl AuthenticationPort for Rest {
    fn authenticate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        self.again(self.principal.token_id)
    }

    fn again(&self, token_id: TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        assert_eq!(token_id, self.principal.token_id);
        let token = self.doors.lock().expect("no holder of this lock panics").token;
        Box::pin(async move {
            match token {
                Token::Good => Ok(Identity {
                    principal: self.principal.clone(),
                    now: testing::now(),
                    iam_version: None,
                    observe_only: false,
                }),
                Token::Revoked => Err(ApiError::new(ErrorCode::Unauthenticated, "it is revoked").into()),
                Token::Unknown => {
                    Err(Fault::Internal { doing: "ask whose token it is", source: "nobody answers".into() })
                }
            }
        })
    }
}

/// A key that signs SSH certificates, by a number.
pub fn ssh_ca(number: u64) -> SshCa {
    SshCa::new(SigningKey::generate(&SeededEntropy::new(number)), Arc::new(OsEntropy))
}

fn access_of(
    store: &Store,
    rest: &Arc<Rest>,
    authorization: &Arc<dyn AuthorizationPort>,
    ssh: Option<SshCa>,
) -> Access {
    Access::new(AccessParts {
        store: store.clone(),
        instances: rest.clone(),
        nodes: rest.clone(),
        authentication: rest.clone(),
        authorization: authorization.clone(),
        gateway: GatewayFacts { server_name: "gw.example.test".to_owned(), serving_ca_pin: "ab".repeat(32) },
        ssh,
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(OsRng),
    })
}

pub struct World {
    pub db: TestDb,
    pub tickets: PgTickets,
    pub pipeline: Pipeline,
    pub instance: InstanceId,
    pub node: NodeId,
    pub tenant: TenantId,
    rest: Arc<Rest>,
    authorization: Arc<dyn AuthorizationPort>,
    doors: Arc<Mutex<Doors>>,
    watch: Arc<dyn QueueHandler>,
    cert_watch: Arc<dyn QueueHandler>,
    passes: Vec<Arc<dyn Pass>>,
}

impl World {
    pub async fn new() -> Self {
        let db = testkit::db().await;
        let (root, tenant, user): (TenantId, TenantId, UserId) = (id(), id(), id());
        let (instance, node): (InstanceId, NodeId) = (id(), id());
        let (r, t, u) = (root.uuid(), tenant.uuid(), user.uuid());
        let (i, n) = (instance.uuid(), node.uuid());
        db.batch(&format!(
            "INSERT INTO tenants (tenant_id, parent_id, name) VALUES ('{r}', NULL, 'root'), ('{t}', '{r}', 'acme');
             INSERT INTO users (user_id, tenant_id, kind, name) VALUES ('{u}', '{t}', 'person', 'ada');
             INSERT INTO sites (site_id, name) VALUES ('{r}', 'hall-1');
             INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ('{r}', '{r}', 'vps', 'vps-host');
             INSERT INTO nodes (node_id, site_id, pool_id, role, name, hostname, state)
               VALUES ('{n}', '{r}', '{r}', 'node', 'node-1', 'node-1', 'ready');
             INSERT INTO flavors (flavor_id, pool_id, name, vcpu, memory_mib, disk_gib) VALUES ('{r}', '{r}', 's', 1, 512, 1);
             INSERT INTO images (image_id, tenant_id, name, url, sha256, format)
               VALUES ('{r}', '{r}', 'tiny', 'https://images.example.test/tiny', decode(repeat('00', 32), 'hex'), 'raw');
             INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime,
                 vcpu, memory_mib, disk_gib)
               VALUES ('{i}', '{t}', '{r}', '{r}', '{r}', '{u}', 'running', 'running', 'fake', 1, 512, 1)"
        ))
        .await;
        let doors = Arc::new(Mutex::new(Doors {
            instance: Some(InstanceState::Running),
            node: true,
            connected: true,
            capabilities: vec!["tunnel.instance-dial", "tunnel.node-console"],
            denied: BTreeSet::new(),
            token: Token::Good,
        }));
        let principal = testing::principal(user, tenant);
        let rest = Arc::new(Rest { doors: doors.clone(), tenant, instance, node, principal });
        let may = doors.clone();
        let authorization = Arc::new(DecideBy(move |_: &Principal, action: &str, _: &Resource| {
            !may.lock().expect("no holder of this lock panics").denied.contains(action)
        }));
        let authorization: Arc<dyn AuthorizationPort> = authorization;
        let access = access_of(&db.store, &rest, &authorization, Some(ssh_ca(1)));
        let module = access::module(&access);
        let [watch, cert_watch] = &module.queues[..] else { panic!("two queues") };
        let (watch, cert_watch, passes) = (watch.clone(), cert_watch.clone(), module.passes.clone());
        let pipeline =
            testing::pipeline_with(&[module], rest.clone(), authorization.clone(), db.store.clone());
        let tickets = PgTickets::new(db.store.clone());
        access.announce_ssh_ca().await.expect("it is announced");
        Self {
            db,
            tickets,
            pipeline,
            instance,
            node,
            tenant,
            rest,
            authorization,
            doors,
            watch,
            cert_watch,
            passes,
        }
    }

    /// One look at an SSH certificate.
    pub async fn look_at_cert(&self, cert: SshCertId) -> Option<Duration> {
        let key = cert.uuid().hyphenated().to_string();
        self.cert_watch.handle(&key).await.expect("it can be looked at")
    }

    pub async fn run_passes(&self) {
        for pass in &self.passes {
            pass.run().await.expect("it runs");
        }
    }

    /// Another process of the deployment, where another key signs.
    pub async fn with_ssh_ca(&self, ca: Option<SshCa>) -> Pipeline {
        let access = access_of(&self.db.store, &self.rest, &self.authorization, ca);
        access.announce_ssh_ca().await.expect("it is announced");
        let modules = [access::module(&access)];
        testing::pipeline_with(&modules, self.rest.clone(), self.authorization.clone(), self.db.store.clone())
    }

    pub fn change(&self, change: impl FnOnce(&mut Doors)) {
        change(&mut self.doors.lock().expect("no holder of this lock panics"));
    }

    /// Under a lease that lasts for longer than a test.
    pub async fn gateway(&self, epoch: u64) -> GatewayLease {
        let gateway_id: GatewayId = id();
        self.db
            .batch(&format!(
                "INSERT INTO gateways (gateway_id, epoch, address, expires_at)
                 VALUES ('{}', {epoch}, 'gw', compute_now() + interval '1 hour')",
                gateway_id.uuid()
            ))
            .await;
        GatewayLease { gateway_id, epoch }
    }

    pub async fn lose_leases(&self) {
        self.db.batch("UPDATE gateways SET expires_at = compute_now() - interval '1 second'").await;
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        testing::invoke(&self.pipeline, Some("token"), method, request).await
    }

    pub fn wanted(&self) -> Value {
        json!({ "instance": self.instance.to_string(), "op": "ssh", "clientKey": client_key() })
    }

    pub async fn open(&self) -> TunnelId {
        let opened = self.call("tunnels.open", self.wanted()).await.ok();
        opened["tunnel"]["id"].as_str().expect("it has an id").parse().expect("it is one")
    }

    /// One whose ticket a gateway has taken.
    pub async fn taken(&self, lease: GatewayLease) -> TunnelId {
        let tunnel = self.open().await;
        assert!(self.tickets.take(lease, tunnel, self.node).await.expect("the store answers"));
        tunnel
    }

    pub async fn get(&self, tunnel: TunnelId) -> Value {
        self.call("tunnels.get", json!({ "id": tunnel.to_string() })).await.ok()
    }

    /// One look at it, and when the next is due.
    pub async fn look(&self, tunnel: TunnelId) -> Option<Duration> {
        let key = tunnel.uuid().hyphenated().to_string();
        self.watch.handle(&key).await.expect("it can be looked at")
    }

    pub async fn ended(&self, lease: GatewayLease, open: &[TunnelId]) -> Vec<TunnelId> {
        self.tickets.ended(lease, open.to_vec()).await.expect("the store answers")
    }

    pub async fn closed(&self, lease: GatewayLease, tunnel_id: TunnelId, reason: &'static str) {
        let closed = TunnelClosed { tunnel_id, reason, to_node_bytes: 5, to_client_bytes: 7 };
        self.tickets.closed(lease, vec![closed]).await.expect("the store answers");
    }

    /// What was told of tunnels, in order: events, and what the system entered in the audit log.
    pub async fn told(&self) -> (String, String) {
        let events = "SELECT coalesce(string_agg(substr(kind, 8), ' ' ORDER BY batch_id, place), '') FROM outbox_events
                      WHERE kind LIKE 'tunnel.%'";
        let entries = "SELECT coalesce(string_agg(substr(action, 17), ' ' ORDER BY at, audit_id), '') FROM audit
                       WHERE action IN ('compute:tunnels:opened', 'compute:tunnels:revoke', 'compute:tunnels:closed')";
        (self.db.scalar_text(events).await, self.db.scalar_text(entries).await)
    }

    /// The same, where both say so.
    pub async fn told_both(&self) -> String {
        let (events, entries) = self.told().await;
        assert_eq!(events, entries.replace("revoke", "revoked"), "events and entries differ");
        events
    }
}

pub fn client_key() -> String {
    BASE64URL.encode(SigningKey::generate(&OsEntropy).verifying_key().spki_der())
}
