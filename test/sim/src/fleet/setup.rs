//! What is there before the simulation begins: an administrator, a site, a pool, and nodes that have joined.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use agent::identity::Identity;
use agent::journal::Marks;
use anyhow::{Context, bail};
use bytes::Bytes;
use fleet::Fleet;
use iam::Authorizer;
use kernel::{CallLimits, Incoming, Pipeline};
use kit::{Clock, Rng};
use model::Role;
use pki::join::{JoinPayload, seal_join};
use pki::response::{Expected, verify_join_response};
use pki::{JoinToken, SigningKey};
use prost::Message;
use serde_json::{Value, json};
use store::{Sql, sql};
use uuid::Uuid;
use wire::proto::agent::{JoinReply, JoinRequest, join_reply::Outcome};

use super::Config;
use super::control::{Modules, modules};
use super::keys::AsEntropy;
use super::node::SimNode;
use super::plant::Plant;

pub const SITE: &str = "hall";
pub const POOL: &str = "gpus";
/// Of the machines that run instances.
pub const HOSTS: &str = "hosts";
pub const IMAGE: &str = "debian-12";
/// By name, with CPUs, memory in MiB and disk in GiB. Not all that tenants ask for fits at once.
pub const FLAVORS: [(&str, u32, u32, u32); 5] = [
    ("tiny", 1, 512, 4),
    ("small", 2, 1024, 8),
    ("medium", 4, 4096, 8),
    ("large", 8, 8192, 20),
    ("huge", 24, 65_536, 40),
];
/// Of 224 CPUs that a simulated machine has.
const HOST_KEEPS_CPUS: u32 = 96;
pub const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const DEADLINE: Duration = Duration::from_secs(30);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

const INBOX_INSERT: Sql = sql(
    "sim_inbox_insert",
    "INSERT INTO join_inbox (inbox_id, kind, gateway_id, request, source_ip) VALUES ($1, 'join', $2, $3, '192.0.2.1')",
);
const INBOX_REPLY: Sql = sql("sim_inbox_reply", "SELECT reply, refusal FROM join_inbox WHERE inbox_id = $1");

/// Machines that join over longer renew before the last has joined.
const AGES_MAX: Duration = Duration::from_secs(14 * 3600);
/// Between the begin and the first renewal.
const RENEWAL_AFTER: Duration = Duration::from_secs(120);

/// What whoever made everything knows.
pub struct Secrets {
    /// The administrator's.
    pub token: String,
    /// What the nodes joined with.
    pub join_token: String,
}

/// Makes everything, and lets the nodes join.
pub async fn prepare(plant: &Plant, nodes: &mut [SimNode], config: &Config) -> anyhow::Result<Secrets> {
    let rng = plant.rng();
    let made = modules(plant, &plant.store, &rng)?;
    made.fleet.claim_database().await?;
    store::restore::check(&plant.store, &plant.record_dir).await?;
    made.fleet.publish_trust().await?;
    let bootstrapped = iam::bootstrap(&plant.store, &*rng, &AsEntropy(rng.clone()), YEAR).await?;
    let token = bootstrapped.context("a new database has no administrator")?.secret.to_string();
    let setup = Setup { plant, pipeline: pipeline(plant, &made, &rng)?, token, rng };
    setup.call("sites.create", json!({ "name": SITE })).await?;
    setup.call("pools.create", json!({ "name": POOL, "class": "gpu" })).await?;
    let (secret, join_token) = setup.join_token(POOL, nodes.len(), config).await?;
    let of_hosts = match config.instances {
        0 => None,
        _ => {
            setup.hosts().await?;
            Some(setup.join_token(HOSTS, config.hosts, config).await?.1)
        }
    };
    let ages = if config.renewals { config.time.min(AGES_MAX) } else { Duration::ZERO };
    let apart = ages / u32::try_from(nodes.len().max(1))?;
    for node in nodes.iter_mut() {
        let token = of_hosts.as_ref().filter(|_| config.is_host(node.index)).unwrap_or(&join_token);
        node.identity = Some(setup.join(&made.fleet, node, token).await?);
        plant.core.skip(apart.max(Duration::from_millis(1)));
    }
    if config.renewals
        && let Some(first) = nodes.first().and_then(|node| node.identity.as_ref())
    {
        let due = agent::renew::due(first.not_before, first.not_after);
        plant.core.skip(due.since(plant.core.now()).saturating_sub(RENEWAL_AFTER));
    }
    Ok(Secrets { token: setup.token, join_token: secret })
}

/// The pool of the node of this name, which is its machine's.
pub fn pool_of(nodes: &[SimNode], name: &str, config: &Config) -> &'static str {
    let is_host = nodes.iter().any(|node| node.hostname == name && config.is_host(node.index));
    if is_host { HOSTS } else { POOL }
}

fn pipeline(plant: &Plant, made: &Modules, rng: &Arc<dyn Rng>) -> anyhow::Result<Pipeline> {
    let clock: Arc<dyn Clock> = plant.clock.clone();
    let authorizer = Authorizer::new(plant.store.clone());
    let (store, rng) = (plant.store.clone(), rng.clone());
    Ok(Pipeline::new(&made.modules, made.iam.clone(), authorizer, store, clock, rng, CallLimits::default())?)
}

struct Setup<'a> {
    plant: &'a Plant,
    pipeline: Pipeline,
    token: String,
    rng: Arc<dyn Rng>,
}

impl Setup<'_> {
    async fn call(&self, method: &str, body: Value) -> anyhow::Result<Value> {
        let incoming = Incoming {
            method,
            body: Bytes::from(body.to_string()),
            bearer: Some(&self.token),
            source_ip: SOURCE,
            deadline: DEADLINE,
            request_id: None,
        };
        let answer = self.pipeline.call(incoming).await;
        if answer.code.is_some() {
            bail!("{method}: {}", String::from_utf8_lossy(&answer.body));
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }

    /// What machines join a pool with, by its secret and as they read it.
    async fn join_token(
        &self,
        pool: &str,
        uses: usize,
        config: &Config,
    ) -> anyhow::Result<(String, JoinToken)> {
        let mut request = json!({ "site": SITE, "usesMax": uses.max(1), "expiresInHours": 48 });
        // Nodes that age before they start are adopted when they do, or their diagnosis would have expired.
        if !config.renewals {
            request["pool"] = json!(pool);
        }
        let created = self.call("joinTokens.create", request).await?;
        let secret = created["secret"].as_str().context("a new token comes with its secret")?.to_owned();
        let token = secret.parse()?;
        Ok((secret, token))
    }

    /// A pool of hosts with a network, and what its instances are made of.
    async fn hosts(&self) -> anyhow::Result<()> {
        let policy = json!({
            "network": { "subnet": "10.0.0.0/24", "gateway": "10.0.0.1" },
            "hostReserve": { "vcpu": HOST_KEEPS_CPUS },
            "placement": "spread",
            "lostAfterMinutes": 5,
            "recreateOnHostLoss": true,
        });
        self.call("pools.create", json!({ "name": HOSTS, "class": "vps-host", "policy": policy })).await?;
        for (name, vcpu, memory, disk) in FLAVORS {
            let flavor =
                json!({ "pool": HOSTS, "name": name, "vcpu": vcpu, "memoryMiB": memory, "diskGiB": disk });
            self.call("flavors.create", flavor).await?;
        }
        let image = json!({
            "name": IMAGE, "url": "https://cloud.example.com/debian-12.qcow2", "sha256": "ab".repeat(32),
            "format": "qcow2",
        });
        self.call("images.create", image).await?;
        Ok(())
    }

    /// A machine's side of a join; the worker's side answers at once.
    async fn join(&self, fleet: &Fleet, node: &SimNode, token: &JoinToken) -> anyhow::Result<Identity> {
        let entropy = AsEntropy(node.rng.clone());
        let key = SigningKey::generate(&entropy);
        let csr_der = pki::make_csr(&key, &node.hostname);
        let at = self.plant.core.now();
        let payload = JoinPayload {
            token: token.clone(),
            issued_at: at,
            hostname: node.hostname.clone(),
            role: Role::Node,
        };
        let encryption_key = self.plant.keys.join_encryption_key()?;
        let request = JoinRequest {
            csr_der: csr_der.clone().into(),
            sealed_token: seal_join(&payload, &csr_der, &encryption_key, &entropy),
            role: Role::Node.name().to_owned(),
            hostname: node.hostname.clone(),
            agent_version: node.agent_version(),
            protocol: wire::paths::PROTOCOL_MAX,
            hardware_key: node.rng.bytes::<32>().to_vec().into(),
        };
        let inbox_id = Uuid::from_u128(u128::from_be_bytes(self.rng.bytes()));
        let store = &self.plant.store;
        store.execute(&INBOX_INSERT, &[&inbox_id, &Uuid::nil(), &request.encode_to_vec()]).await?;
        fleet.answer_join(inbox_id).await?;
        let row = store.read_one(&INBOX_REPLY, &[&inbox_id]).await?;
        let Some(reply) = row.get::<_, Option<Vec<u8>>>("reply") else {
            bail!("a join was refused: {:?}", row.get::<_, Option<String>>("refusal"));
        };
        let reply: JoinReply = wire::decode("join reply", &reply, 1 << 20)?;
        let Some(Outcome::Accepted(accepted)) = reply.outcome else { bail!("a join was not accepted") };
        let joined = verify_join_response(
            &accepted.value,
            &Expected {
                pins: &[self.plant.keys.join_signing_pin()],
                csr_der: &csr_der,
                key: key.verifying_key(),
                role: Role::Node,
                node_id: None,
                at,
            },
        )?;
        Ok(Identity::from_joined(joined, key, Marks::default()))
    }
}
