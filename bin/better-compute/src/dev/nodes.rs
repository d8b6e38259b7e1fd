//! The nodes of `dev`: made by the API as a person would make them, and run by the daemon's own code.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::config::InstancesConfig;
use anyhow::{Context, bail};
use api::Method;
use bcd::sim::{SimConfig, SimFleet};
use client::{Client, Config};
use kit::{Clock, Rng, Supervisor};
use model::lifecycle::NodeState;
use serde_json::json;
use zeroize::Zeroizing;

use super::DevArgs;
use super::screen::Screen;
use crate::keys::KeyFolder;

const SITE: &str = "dev";
const GPU_POOL: &str = "gpu";
const HOST_POOL: &str = "host";
const TOKEN_BYTES_MAX: u64 = 4096;
/// Joining and the diagnosis of many nodes at once, on a small machine in a debug build.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// What the nodes join.
pub struct Site {
    /// Pool names to ids.
    pub pools: BTreeMap<String, String>,
}

/// What was started.
pub struct Started {
    simulated: usize,
    host: bool,
    _fleet: SimFleet,
}

impl Started {
    pub fn describe(&self) -> String {
        let simulated = match self.simulated {
            0 => "none simulated".to_owned(),
            n => format!("{n} simulated, joined, checked, in pool {GPU_POOL} ({} × H100 80GB)", n * 8),
        };
        if self.host { format!("{simulated}; this machine in pool {HOST_POOL}") } else { simulated }
    }

    fn expected(&self) -> usize {
        self.simulated + usize::from(self.host)
    }
}

pub fn admin_client(
    api: &str,
    token_file: &Path,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
) -> anyhow::Result<Client> {
    let token = Zeroizing::new(String::from_utf8(kit::fs::read_bounded(token_file, TOKEN_BYTES_MAX)?)?);
    Ok(Client::new(Config::new(api).token(token.trim()), clock, rng)?)
}

/// A typed call whose request is written as JSON; it is parsed as the server would.
async fn call<M: Method>(client: &Client, request: serde_json::Value) -> anyhow::Result<M::Response> {
    let request =
        api::parse_request::<M>(request).map_err(|err| anyhow::anyhow!("{err}")).context(M::NAME)?;
    client.call::<M>(&request).await.map_err(|err| anyhow::anyhow!("{}", kit::chain(&err))).context(M::NAME)
}

/// Makes the site and the pools that are not there yet.
pub async fn prepare(client: &Client, host: bool) -> anyhow::Result<Site> {
    let sites = call::<api::sites::List>(client, json!({ "limit": 200 })).await?;
    if !sites.items.iter().any(|site| site.name == SITE) {
        call::<api::sites::Create>(client, json!({ "name": SITE })).await?;
    }
    let mut wanted = vec![(GPU_POOL, json!({ "name": GPU_POOL, "class": "gpu" }))];
    if host {
        // On the bridge that this machine's daemon makes for them.
        let network =
            json!({ "subnet": "10.88.0.0/24", "gateway": "10.88.0.1", "bridge": "vmnat0", "scope": "host" });
        let pool = json!({ "name": HOST_POOL, "class": "vps-host", "policy": { "network": network } });
        wanted.push((HOST_POOL, pool));
    }
    let mut pools = BTreeMap::new();
    let known = call::<api::pools::List>(client, json!({ "limit": 200 })).await?;
    for (name, pool) in wanted {
        let pool = match known.items.iter().find(|pool| pool.name == name) {
            Some(pool) => pool.clone(),
            None => call::<api::pools::Create>(client, pool).await?,
        };
        pools.insert(name.to_owned(), pool.id.0.to_string());
    }
    Ok(Site { pools })
}

#[allow(clippy::too_many_arguments)] // One call, from one place, of things that have nothing else in common.
pub async fn start(
    args: &DevArgs,
    dir: &Path,
    gateway: SocketAddr,
    keys: &KeyFolder,
    client: &Client,
    _site: &Site,
    supervisor: &Supervisor,
    clock: &Arc<dyn Clock>,
    rng: &Arc<dyn Rng>,
) -> anyhow::Result<Started> {
    let pins = keys.public_pins()?;
    let server_name = keys.deployment.gateway_names.first().cloned().unwrap_or_default();
    let config = SimConfig {
        dir: dir.join("sim"),
        nodes: args.sim,
        seed: args.seed,
        gateway: agent::transport::Address {
            host: gateway.ip().to_string(),
            port: gateway.port(),
            server_name,
        },
        serving_ca_pins: vec![pins.serving_ca_pin.parse()?],
        join_signing_pins: vec![pins.join_signing_pin.parse()?],
        join_encryption_key: pki::seal::EncryptionKey::from_jwk(&pins.join_encryption_jwk.to_string())?,
        clock: clock.clone(),
        rng: rng.clone(),
    };
    let unjoined = bcd::sim::unjoined(&config)?;
    if unjoined > 0 {
        let token = join_token(client, GPU_POOL, unjoined).await?;
        bcd::sim::join(&config, &token, supervisor).await?;
    }
    let mut fleet = bcd::sim::start(&config, supervisor).await?;
    if args.host {
        let host_dir = dir.join("host");
        if !bcd::sim::has_joined(&host_dir)? {
            let token = join_token(client, HOST_POOL, 1).await?;
            bcd::sim::join_host(&config, &host_dir, &token, supervisor).await?;
        }
        let instances = instances(args, dir).await?;
        bcd::sim::start_host(&config, &host_dir, instances.as_ref(), &mut fleet, supervisor).await?;
    }
    Ok(Started { simulated: usize::try_from(args.sim)?, host: args.host, _fleet: fleet })
}

/// How this machine runs instances; none where no libvirt answers.
async fn instances(args: &DevArgs, dir: &Path) -> anyhow::Result<Option<InstancesConfig>> {
    if args.libvirt.is_none() && !bcd::hypervisor::answers().await {
        return Ok(None);
    }
    Ok(Some(InstancesConfig {
        dir: super::instances_dir(dir)?,
        libvirt_uri: args.libvirt.clone(),
        network_namespace: args.network_namespace.clone(),
        ..InstancesConfig::usual()
    }))
}

async fn join_token(client: &Client, pool: &str, uses: u32) -> anyhow::Result<pki::JoinToken> {
    let request = json!({ "site": SITE, "pool": pool, "usesMax": uses, "expiresInHours": 1 });
    let made = call::<api::join_tokens::Create>(client, request).await?;
    let secret = made.secret.context("the join token came without its secret")?;
    secret.expose().parse().context("the join token")
}

/// Waits until every node takes work, and returns their names.
pub async fn wait_ready(
    client: &Client,
    started: &Started,
    screen: &mut Screen,
) -> anyhow::Result<Vec<String>> {
    let clock = kit::SystemClock::new();
    loop {
        let nodes = all_nodes(client).await?;
        let ready = nodes.iter().filter(|node| node.state.0 == NodeState::Ready).count();
        if ready >= started.expected() {
            return Ok(nodes.into_iter().map(|node| node.name).collect());
        }
        screen.waiting(&format!("nodes: {ready} of {} ready", started.expected()));
        if clock.monotonic() > READY_WITHIN {
            let states: Vec<String> =
                nodes.iter().map(|node| format!("{} {}", node.name, node.state.0.name())).collect();
            bail!(
                "{ready} of {} nodes are ready after {} s: {}",
                started.expected(),
                READY_WITHIN.as_secs(),
                states.join(", ")
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn all_nodes(client: &Client) -> anyhow::Result<Vec<api::nodes::Node>> {
    let mut nodes = Vec::new();
    let mut cursor = None;
    loop {
        let page = call::<api::nodes::List>(client, json!({ "limit": 200, "cursor": cursor })).await?;
        nodes.extend(page.items);
        match page.cursor {
            Some(next) => cursor = Some(next.as_str().to_owned()),
            None => return Ok(nodes),
        }
    }
}

/// The live line.
pub async fn summary(client: &Client) -> String {
    let counted = async {
        let nodes = all_nodes(client).await?;
        let request = json!({ "limit": 200 });
        let reservations = call::<api::reservations::List>(client, request).await?;
        let ready = nodes.iter().filter(|node| node.state.0 == NodeState::Ready).count();
        let sessions = nodes
            .iter()
            .filter(|node| node.session.as_ref().is_some_and(|session| session.connected))
            .count();
        let live = reservations.items.iter().filter(|reservation| !reservation.state.0.terminal()).count();
        let free: u32 = nodes.iter().map(|node| node.gpus.free).sum();
        let total: u32 = nodes.iter().map(|node| node.gpus.total).sum();
        anyhow::Ok(format!(
            "  nodes {ready}/{} ready · sessions {sessions} · reservations {live} · GPUs {free}/{total} free",
            nodes.len()
        ))
    };
    counted.await.unwrap_or_else(|err| format!("  the control plane does not answer: {err:#}"))
}
