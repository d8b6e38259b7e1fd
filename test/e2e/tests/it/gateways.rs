//! Two gateways, one of which is killed, stopped or cut off: every command settles once, and every session comes back.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::serve::{Api, Balancer, Cloud, Namespace, Serve, Server, Sim, Target, Written, eventually, items};
use futures::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};

const NODES: u32 = 4;
const COMMANDS: usize = 40;
/// A silent gateway is given up after three heartbeats of ten seconds, and then its nodes dial.
const MOVED_WITHIN: Duration = Duration::from_secs(60);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
const LEASE_OVER_WITHIN: Duration = Duration::from_secs(20);

/// A gateway process, its login in the database, and where the balancer finds it.
struct Gate {
    server: Server,
    login: String,
    target: Target,
}

// Fields drop in order: who dials ends before who is dialled.
struct Pair {
    sim: Sim,
    a: Gate,
    b: Gate,
    balancer: Balancer,
    api: Api,
    _server: Server,
    _forward: Option<Balancer>,
    cloud: Cloud,
}

/// A gateway's lease, as it registered it.
#[derive(Debug, Clone, PartialEq)]
struct Lease {
    gateway_id: String,
    epoch: i64,
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

async fn gate(
    cloud: &Cloud,
    name: &str,
    namespace: Option<(&Namespace, SocketAddr)>,
) -> anyhow::Result<Gate> {
    let (login, url) = cloud.gateway_login(name, namespace.map(|(_, database)| database)).await?;
    let listen = namespace.map_or_else(loopback, |(namespace, _)| (namespace.address(), 0).into());
    let server = cloud.serve(&Serve {
        gateway_listen: listen,
        namespace: namespace.map(|(namespace, _)| namespace),
        gateway_url: Some(&url),
        // A process that is a gateway alone has no other login.
        ..Serve::new(name, &["gateway"], &url)
    })?;
    let target = Target::Tcp(server.gateway.context("it listens for nodes")?);
    Ok(Gate { server, login, target })
}

impl Pair {
    /// Nodes on both gateways, the first of which may be in a network of its own.
    async fn new(namespace: Option<&Namespace>) -> anyhow::Result<Self> {
        let cloud = Cloud::new().await?;
        cloud.watch().await;
        let forward = match namespace {
            None => None,
            Some(namespace) => {
                let listen = SocketAddr::from((IpAddr::V4(namespace.outside()), 0));
                Some(Balancer::new(listen, vec![Target::Unix(cloud.database_socket()?)]).await?)
            }
        };
        let server = cloud.serve(&Serve::new("api", &["api", "worker", "scheduler"], &cloud.db.url))?;
        let api = cloud.api(&server)?;
        let a = gate(&cloud, "a", namespace.zip(forward.as_ref().map(|forward| forward.address))).await?;
        let b = gate(&cloud, "b", None).await?;
        // It listens before it has its lease.
        eventually(MOVED_WITHIN, "the gateway is ready", async || {
            let ready = b.server.ops("/readyz").await?;
            let so = ready.starts_with("HTTP/1.0 200") && ready.ends_with("ready\n");
            Ok(if so { Ok(()) } else { Err(ready) })
        })
        .await?;
        let counted = b.server.ops("/metrics").await?;
        ensure!(counted.contains("better_compute_gateway_sessions 0"), "{counted}");
        let balancer = Balancer::new(loopback(), vec![a.target.clone(), b.target.clone()]).await?;
        let sim = cloud.sim(&api, balancer.address, NODES).await?;
        let pair = Self { sim, a, b, balancer, api, _server: server, _forward: forward, cloud };
        ensure!(pair.sessions(&pair.a).await? > 0, "no node is on the gateway that will fail");
        let written = pair.cloud.written_since(0).await?;
        let noted = written.iter().any(|row| row.who == pair.a.login && row.relation == "node_sessions");
        ensure!(noted, "what the gateway writes goes unnoticed");
        Ok(pair)
    }

    async fn lease(&self, gate: &Gate) -> anyhow::Result<Lease> {
        let written = self.cloud.written_since(0).await?;
        let last = written.iter().rev().find_map(|row| registered(row, &gate.login));
        last.with_context(|| format!("{} has registered", gate.login))
    }

    /// Open sessions under its present lease.
    async fn sessions(&self, gate: &Gate) -> anyhow::Result<usize> {
        let Lease { gateway_id, epoch } = self.lease(gate).await?;
        let count = format!(
            "SELECT count(*) FROM node_sessions s JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch
             WHERE s.closed_at IS NULL AND g.expires_at > compute_now() AND g.gateway_id = '{gateway_id}' AND g.epoch = {epoch}"
        );
        Ok(usize::try_from(self.cloud.db.scalar_i64(&count).await)?)
    }

    async fn all_on(&self, gate: &Gate) -> anyhow::Result<()> {
        eventually(MOVED_WITHIN, "every session is on the other gateway", async || {
            let there = self.sessions(gate).await?;
            Ok(if there == NODES as usize { Ok(()) } else { Err(format!("{there} of {NODES}")) })
        })
        .await
        .with_context(|| {
            format!("the machines said:\n{}\nthe gateway said:\n{}", self.sim.log(), gate.server.log())
        })
    }

    /// Creates commands over all nodes, a few at a time, and does `midway` when a third of them is made.
    async fn commands(
        &self,
        midway: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<BTreeSet<String>> {
        let listed = self.api.ok("nodes.list", json!({})).await?;
        let nodes: Vec<Value> = items(&listed).iter().map(|node| node["id"].clone()).collect();
        let mut created = futures::stream::iter(0..COMMANDS)
            .map(|n| {
                let kind = if n % 2 == 0 { "diag.nvml" } else { "inventory.refresh" };
                let node = nodes[n / 2 % nodes.len()].clone();
                async move { self.api.ok("commands.create", json!({ "node": node, "kind": kind })).await }
            })
            .buffer_unordered(6);
        let (mut ids, mut midway) = (BTreeSet::new(), Some(midway));
        while let Some(command) = created.next().await {
            ids.insert(command?["id"].as_str().context("a command has an id")?.to_owned());
            if ids.len() >= COMMANDS / 3
                && let Some(midway) = midway.take()
            {
                midway()?;
            }
        }
        ensure!(ids.len() == COMMANDS);
        Ok(ids)
    }

    /// Every one of them succeeded, by the API; and by the rows it settled once and stayed as it was.
    async fn settled_once(&self, ids: &BTreeSet<String>) -> anyhow::Result<()> {
        for id in ids {
            eventually(SETTLED_WITHIN, "the command settles", async || {
                let seen = self.api.ok("commands.get", json!({ "id": id })).await?;
                let settled = seen["settledAt"].is_string();
                Ok(if settled { Ok(()) } else { Err(seen.to_string()) })
            })
            .await?;
            let seen = self.api.ok("commands.get", json!({ "id": id })).await?;
            ensure!(seen["state"] == "succeeded", "{seen}");
            ensure!(seen["attempts"].as_u64() >= Some(1), "{seen}");
        }
        let rows = self.cloud.written_since(0).await?;
        let rows: Vec<&Written> = rows.iter().filter(|row| row.relation == "commands").collect();
        let wanted: BTreeSet<uuid::Uuid> = ids
            .iter()
            .map(|id| id.parse::<model::CommandId>().map(model::Id::uuid))
            .collect::<Result<_, _>>()?;
        let mut settled = Vec::new();
        for row in rows {
            let id: uuid::Uuid = row.became["command_id"].as_str().context("an id")?.parse()?;
            if row.was["settled_at"].is_string() {
                // What a worker draws from it comes later, and changes nothing of what happened.
                for what in ["state", "settled_at", "result_state", "attempts", "session_epoch"] {
                    ensure!(row.was[what] == row.became[what], "{row:?}");
                }
            } else if row.became["settled_at"].is_string() && wanted.contains(&id) {
                settled.push(id);
            }
        }
        ensure!(settled.len() == ids.len(), "{} settlings of {} commands", settled.len(), ids.len());
        ensure!(settled.into_iter().collect::<BTreeSet<_>>() == wanted);
        Ok(())
    }

    async fn lease_over(&self, lease: &Lease) -> anyhow::Result<()> {
        let Lease { gateway_id, epoch } = lease;
        let over = format!(
            "SELECT count(*) FROM gateways WHERE gateway_id = '{gateway_id}' AND epoch = {epoch} AND expires_at > compute_now()"
        );
        eventually(LEASE_OVER_WITHIN, "the lease runs out", async || {
            let held = self.cloud.db.scalar_i64(&over).await;
            Ok(if held == 0 { Ok(()) } else { Err("it is held".to_owned()) })
        })
        .await
    }

    /// The gateway is back, under another epoch, and since `mark` it has touched no row under the old one.
    async fn came_back_anew(&self, gate: &Gate, old: &Lease, mark: i64) -> anyhow::Result<()> {
        eventually(Duration::from_secs(30), "the gateway registers anew", async || {
            let lease = self.lease(gate).await?;
            Ok(if lease == *old { Err(format!("{lease:?}")) } else { Ok(()) })
        })
        .await?;
        let written = self.cloud.written_since(mark).await?;
        let by_it: Vec<&Written> = written.iter().filter(|row| row.who == gate.login).collect();
        let before = by_it.iter().take_while(|row| registered(row, &gate.login).is_none());
        let before: Vec<_> = before.collect();
        ensure!(before.is_empty(), "written after the lease was over: {before:?}");
        let under_old = |row: &&Written| {
            // A worker may close what it left open.
            row.relation == "node_sessions"
                && row.became["gateway_epoch"].as_i64() == Some(old.epoch)
                && row.became["closed_at"].is_null()
        };
        let back: Vec<_> = written.iter().filter(under_old).collect();
        ensure!(back.is_empty(), "sessions under the old epoch: {back:?}");
        Ok(())
    }
}

/// The lease that a write took, when it is this login's registration.
fn registered(row: &Written, login: &str) -> Option<Lease> {
    let took = row.relation == "gateways" && row.who == login && row.was["epoch"] != row.became["epoch"];
    let gateway_id = row.became["gateway_id"].as_str()?.to_owned();
    Some(Lease { gateway_id, epoch: row.became["epoch"].as_i64()? }).filter(|_| took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateways_nodes_go_to_the_other_and_commands_settle_once() -> anyhow::Result<()> {
    let pair = Pair::new(None).await?;
    let ids = pair
        .commands(|| {
            pair.balancer.set_taking(&pair.a.target, false);
            pair.a.server.running.signal(Signal::KILL)
        })
        .await?;
    pair.all_on(&pair.b).await?;
    pair.settled_once(&ids).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_stopped_past_its_lease_writes_nothing_when_it_goes_on() -> anyhow::Result<()> {
    let pair = Pair::new(None).await?;
    let old = pair.lease(&pair.a).await?;
    let ids = pair
        .commands(|| {
            pair.balancer.set_taking(&pair.a.target, false);
            pair.a.server.running.signal(Signal::STOP)
        })
        .await?;
    pair.lease_over(&old).await?;
    let mark = pair.cloud.written_until().await;
    pair.all_on(&pair.b).await?;
    pair.a.server.running.signal(Signal::CONT)?;
    pair.came_back_anew(&pair.a, &old, mark).await?;
    pair.settled_once(&ids).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_cut_off_from_the_database_lets_its_nodes_go_and_writes_nothing_late() -> anyhow::Result<()>
{
    let Some(namespace) = Namespace::new()? else { return Ok(()) };
    let pair = Pair::new(Some(&namespace)).await?;
    let old = pair.lease(&pair.a).await?;
    let ids = pair.commands(|| namespace.cut()).await?;
    pair.lease_over(&old).await?;
    let mark = pair.cloud.written_until().await;
    // It still takes connections, and tells nodes to come back later: to whichever is next in turn.
    pair.all_on(&pair.b).await?;
    // What waits in its sockets arrives now, and comes too late.
    namespace.mend()?;
    pair.came_back_anew(&pair.a, &old, mark).await?;
    pair.settled_once(&ids).await
}
