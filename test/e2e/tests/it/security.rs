//! What somebody without the right to it tries, over real TLS against real processes.
//!
//! What a gateway's role may not write is held by the gateway's own tests, statement by statement; `gateways` here runs its gateways
//! under nothing but that role.

use std::sync::Arc;
use std::time::Duration;

use agent::identity::{FileIdentity, IdentityStore};
use agent::link::{Credentials, Link, LinkError};
use agent::transport::{Address, GrpcLink};
use anyhow::{Context, ensure};
use e2e::serve::{Api, Cloud, GATEWAY_NAME, Serve, Server, Sim, eventually, items};
use futures::StreamExt;
use kit::{Clock, Supervisor, SystemClock};
use model::{NodeId, Role};
use pki::join::{JoinPayload, seal_join};
use pki::renew::{RenewProof, RenewStatement};
use pki::seal::EncryptionKey;
use pki::{JoinToken, OsEntropy, SigningKey};
use serde_json::{Value, json};
use wire::paths::PROTOCOL_MAX;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{Hello, JoinRequest, NodeFrame, RenewRequest, join_reply};

mod hostile;

const SOON: Duration = Duration::from_secs(15);
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

// Fields drop in order: who dials ends first.
struct Town {
    sim: Sim,
    api: Api,
    server: Server,
    supervisor: Supervisor,
    cloud: Cloud,
}

impl Town {
    async fn new(nodes: u32) -> anyhow::Result<Self> {
        let cloud = Cloud::new().await?;
        let roles = ["api", "worker", "scheduler", "gateway"];
        let server = cloud.serve(&Serve::new("all", &roles, &cloud.db.url))?;
        let api = cloud.api(&server)?;
        let sim = cloud.sim(&api, server.gateway.context("it listens for nodes")?, nodes).await?;
        Ok(Self { sim, api, server, supervisor: Supervisor::new(), cloud })
    }

    fn pins(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(self.cloud.pki().join("public/pins.json"))?)?)
    }

    /// The daemon's own way to the gateway.
    fn link(&self) -> anyhow::Result<GrpcLink> {
        let gateway = self.server.gateway.context("it listens for nodes")?;
        let address = Address {
            host: gateway.ip().to_string(),
            port: gateway.port(),
            server_name: GATEWAY_NAME.to_owned(),
        };
        let pin = self.pins()?["servingCaPin"].as_str().context("a pin")?.parse()?;
        Ok(GrpcLink::new(address, vec![pin], Arc::new(SystemClock::new()), self.supervisor.clone()))
    }

    /// What the nth machine has on its disk.
    async fn stolen(&self, machine: u32) -> anyhow::Result<Stolen> {
        let store = FileIdentity::new(self.sim.machines.join(machine.to_string()));
        let identity = store.load()?.context("the machine has joined")?;
        let node = model::Id::uuid(identity.node_id);
        let serial = format!("SELECT serial FROM node_certs WHERE node_id = '{node}'");
        let serial = self.cloud.db.scalar_text(&serial).await.parse()?;
        Ok(Stolen { node_id: identity.node_id, serial, credentials: identity.credentials() })
    }

    async fn open_sessions(&self, node_id: NodeId) -> i64 {
        let node = model::Id::uuid(node_id);
        let count =
            format!("SELECT count(*) FROM node_sessions WHERE node_id = '{node}' AND closed_at IS NULL");
        self.cloud.db.scalar_i64(&count).await
    }
}

struct Stolen {
    node_id: NodeId,
    serial: pki::Serial,
    credentials: Credentials,
}

/// Says `Hello` and returns what is said to it first.
async fn greet(link: &GrpcLink, credentials: &Credentials, node_id: NodeId) -> Result<Out, LinkError> {
    let mut connection = link.connect(credentials).await?;
    let hello = Hello {
        node_id: node_id.to_string(),
        protocol_min: 1,
        protocol_max: PROTOCOL_MAX,
        agent_version: "0.1.0".to_owned(),
        journal_id: agent::testing::journal_id(1).to_string(),
        incarnation_id: agent::testing::incarnation(1).to_string(),
        boot_id: "boot".to_owned(),
        deployment_epoch: 1,
        nonce: vec![3; 32].into(),
        ..Hello::default()
    };
    connection.outgoing.send(|| Some(NodeFrame { frame: Some(In::Hello(hello)) })).await;
    let first = tokio::time::timeout(SOON, connection.incoming.next()).await.expect("an answer in time");
    Ok(first.expect("something is said")?.frame.expect("a frame holds something"))
}

fn refused(answer: Result<impl std::fmt::Debug, LinkError>, why: &str) -> anyhow::Result<()> {
    match answer {
        Err(err) if err.refused && err.reason.contains(why) => Ok(()),
        other => anyhow::bail!("not refused for {why:?}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relayed_join_a_borrowed_name_and_a_renewal_without_proof_are_refused() -> anyhow::Result<()> {
    let town = Town::new(2).await?;
    let link = town.link()?;
    relayed_joins(&town, &link).await?;

    let (own, other) = (town.stolen(0).await?, town.stolen(1).await?);
    let others = model::Id::uuid(other.node_id);
    let epoch = format!("SELECT session_epoch FROM node_sessions WHERE node_id = '{others}'");
    let before = town.cloud.db.scalar_i64(&epoch).await;
    match greet(&link, &own.credentials, other.node_id).await {
        Ok(Out::Refusal(_)) => {}
        Err(err) if err.refused => {}
        spoken => anyhow::bail!("spoken to as another node: {spoken:?}"),
    }
    ensure!(town.cloud.db.scalar_i64(&epoch).await == before, "the other node's session was touched");
    renewals(&link, &own, &other).await?;
    // The same certificate in its own name is welcome.
    let spoken = greet(&link, &own.credentials, own.node_id).await?;
    ensure!(matches!(spoken, Out::Welcome(_)), "{spoken:?}");
    Ok(())
}

async fn relayed_joins(town: &Town, link: &GrpcLink) -> anyhow::Result<()> {
    let request = json!({ "site": "e2e", "usesMax": 1, "expiresInHours": 1 });
    let made = town.api.ok("joinTokens.create", request).await?;
    let token: JoinToken = made["secret"].as_str().context("a secret")?.parse()?;
    let to = EncryptionKey::from_jwk(&town.pins()?["joinEncryptionJwk"].to_string())?;
    let csr = |name: &str| pki::make_csr(&SigningKey::generate(&OsEntropy), name);
    let (machine, thief) = (csr("machine"), csr("machine"));
    let payload = JoinPayload {
        token,
        issued_at: SystemClock::new().now(),
        hostname: "machine".to_owned(),
        role: Role::Node,
    };
    let sealed = seal_join(&payload, &machine, &to, &OsEntropy);
    let ask = |csr: &[u8]| JoinRequest {
        csr_der: csr.to_vec().into(),
        sealed_token: sealed.clone(),
        role: Role::Node.name().to_owned(),
        hostname: "machine".to_owned(),
        agent_version: "0.1.0".to_owned(),
        protocol: PROTOCOL_MAX,
        hardware_key: vec![0; 32].into(),
    };
    refused(link.join(ask(&thief)).await, "another CSR")?;
    let listed = town.api.ok("nodes.list", json!({})).await?;
    ensure!(items(&listed).len() == 2, "{listed}");
    // The token is unspent, and takes the machine it was sealed for.
    let reply = link.join(ask(&machine)).await?;
    ensure!(matches!(reply.outcome, Some(join_reply::Outcome::Accepted(_))), "{reply:?}");
    refused(link.join(ask(&thief)).await, "")
}

async fn renewals(link: &GrpcLink, own: &Stolen, other: &Stolen) -> anyhow::Result<()> {
    let next = SigningKey::generate(&OsEntropy);
    let csr = pki::make_csr(&next, "node");
    let ask = |proof: Vec<u8>| {
        let request = RenewRequest { csr_der: csr.clone().into(), proof: proof.into() };
        link.renew(&own.credentials, request)
    };
    refused(ask(Vec::new()).await, "proof")?;
    refused(ask(vec![1; 200]).await, "")?;
    let proof = |of: &Stolen, csr: &[u8], key: &SigningKey| {
        let now = SystemClock::new().now();
        let statement = RenewStatement::new(of.node_id, csr, of.serial, now, &OsEntropy);
        RenewProof::sign(key, statement).encode()
    };
    // The new key for itself, another node's certificate, and a proof for another request.
    refused(ask(proof(own, &csr, &next)).await, "signature")?;
    refused(ask(proof(other, &csr, &other.credentials.key)).await, "another certificate")?;
    let elsewhere = pki::make_csr(&SigningKey::generate(&OsEntropy), "node");
    refused(ask(proof(own, &elsewhere, &own.credentials.key)).await, "another CSR")?;
    let renewed = ask(proof(own, &csr, &own.credentials.key)).await?;
    ensure!(renewed.renewed.is_some(), "{renewed:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_nodes_session_ends_within_five_seconds_and_stays_closed() -> anyhow::Result<()> {
    let town = Town::new(2).await?;
    let (revoked, stays) = (town.stolen(0).await?, town.stolen(1).await?);
    let node = town.api.ok("nodes.get", json!({ "node": revoked.node_id.to_string() })).await?;
    ensure!(town.open_sessions(revoked.node_id).await == 1);
    town.api.ok("nodes.revoke", json!({ "node": node["id"], "confirm": node["name"] })).await?;
    eventually(REVOKED_WITHIN, "the session of the revoked node ends", async || {
        let open = town.open_sessions(revoked.node_id).await;
        Ok(if open == 0 { Ok(()) } else { Err(format!("{open} open")) })
    })
    .await?;
    let link = town.link()?;
    match greet(&link, &revoked.credentials, revoked.node_id).await {
        Err(err) if err.refused => {}
        Ok(Out::Refusal(_) | Out::Revocation(_)) => {}
        spoken => anyhow::bail!("a revoked node is spoken to: {spoken:?}"),
    }
    let csr = pki::make_csr(&SigningKey::generate(&OsEntropy), "node");
    let request = RenewRequest { csr_der: csr.into(), proof: vec![1; 200].into() };
    refused(link.renew(&revoked.credentials, request).await, "revoked")?;
    ensure!(town.open_sessions(revoked.node_id).await == 0, "it came back");
    ensure!(town.open_sessions(stays.node_id).await == 1, "the other node's session ended too");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenant_is_told_that_nothing_is_there() -> anyhow::Result<()> {
    let town = Town::new(1).await?;
    let Town { api, cloud, .. } = &town;
    let made = api.ok("reservations.create", json!({ "pool": "gpu", "gpus": 1 })).await?;
    let tenant = api.ok("tenants.create", json!({ "name": "other" })).await?;
    let user =
        api.ok("users.create", json!({ "tenant": tenant["id"], "kind": "service", "name": "robot" })).await?;
    let document = json!({ "statements": [{ "sid": "All", "effect": "allow", "actions": ["compute:*"], "resources": ["*"] }] });
    let policy = api
        .ok("policies.put", json!({ "tenant": tenant["id"], "name": "everything", "document": document }))
        .await?;
    let binding = json!({ "tenant": tenant["id"], "user": user["id"], "policy": policy["id"] });
    api.ok("bindings.put", binding).await?;
    let token = api.ok("tokens.create", json!({ "user": user["id"], "name": "t" })).await?;
    let file = cloud.dir().join("other.token");
    kit::fs::create_exclusive(&file, token["secret"].as_str().context("a secret")?.as_bytes(), 0o600)?;

    let whoami = cloud.cli(api, &file, &["tokens", "whoami", "--output", "json"])?.json()?;
    ensure!(whoami.to_string().contains(user["id"].as_str().context("an id")?), "{whoami}");
    let reservation = made["id"].as_str().context("an id")?;
    let pool = made["pool"]["id"].as_str().context("an id")?;
    let admin = made["createdBy"]["id"].as_str().context("an id")?;
    let nowhere = "rsv_01k5w000000000000000000000";
    for args in [
        &["reservations", "get", reservation][..],
        &["reservations", "get", nowhere][..],
        &["reservations", "release", reservation, "--yes"][..],
        &["pools", "get", pool][..],
        &["users", "get", admin][..],
    ] {
        let done = cloud.cli(api, &file, args)?;
        ensure!(done.code == 3, "{args:?}: {done:?}");
        ensure!(done.stderr.contains("NOT_FOUND"), "{args:?}: {done:?}");
    }
    let listed = cloud.cli(api, &file, &["reservations", "list", "--output", "json"])?.json()?;
    ensure!(items(&listed).is_empty(), "{listed}");
    let seen = api.ok("reservations.get", json!({ "id": reservation })).await?;
    ensure!(seen["state"] != "released" && seen["state"] != "releasing", "{seen}");
    Ok(())
}
