//! Puts a control plane together: the modules over one store, in the roles that this process has.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use access::{Access, AccessParts, GatewayFacts, PgTickets, SshCa, SshSpec};
use anyhow::Context;
use capacity::Capacity;
use fleet::{Fleet, FleetKeys, PgDelivery};
use gateway::{Gateway, GatewayConfig, GatewayParts, Timing, Tls, TunnelParts};
use iam::{Authorizer, Iam};
use instances::{ImageFolder, Instances};
use kernel::ports::images::ImageStore;
use kernel::run::{Running, run_passes, run_queues, run_relay};
use kernel::{CallLimits, Pipeline};
use kit::{Clock, Rng, Supervisor, TaskKind};
use ledger::Ledger;
use model::GatewayId;
use pki::tls::TlsClock;
use pki::{NodeTrust, OsEntropy};
use secrets::{Broker, Secrets};
use server::{OpsConfig, Server, ServerConfig, Vitals, serve_ops};
use store::restore::{self, RestoreVerdict};
use store::{Store, StoreConfig};
use tokio::net::TcpListener;

use crate::keys::KeyFolder;

/// How often the database is held against the record kept outside it.
const RESTORE_CHECK_PERIOD: Duration = Duration::from_secs(30);
/// Keys of one queue handled at once in one process.
const QUEUE_CONCURRENCY: usize = 8;
/// Of the own store, in the data folder.
pub const IMAGES_FOLDER: &str = "images";
const GATEWAY: TaskKind = TaskKind::fatal("gateway");
const RESTORE_CHECK: TaskKind = TaskKind::isolated("restore_check");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub api: bool,
    pub gateway: bool,
    pub worker: bool,
    pub scheduler: bool,
}

impl Roles {
    pub const ALL: Roles = Roles { api: true, gateway: true, worker: true, scheduler: true };
    pub const GATEWAY: Roles = Roles { api: false, gateway: true, worker: false, scheduler: false };

    /// Signs intent: needs the worker keys.
    fn signs(self) -> bool {
        self.api || self.worker || self.scheduler
    }
}

pub struct PlaneConfig {
    pub roles: Roles,
    /// As the owner of the schema; in a process that is a gateway alone, the same as `gateway_store`.
    pub store: Store,
    /// For the gateway's half, under its narrow role.
    pub gateway_store: Store,
    pub keys: KeyFolder,
    /// Where the record of the database is kept, outside of it.
    pub record_dir: PathBuf,
    /// Where images of the own store are, which every process of the deployment shares.
    pub images_dir: PathBuf,
    pub api: ServerConfig,
    pub limits: CallLimits,
    /// Health and metrics beside the API, or without one.
    pub ops: Option<OpsConfig>,
    pub gateway_listen: SocketAddr,
    /// What machines dial; made from the address it listens on when absent.
    pub gateway_url: Option<String>,
    /// What reaches this very gateway, where `gateway_url` may lead to another.
    pub gateway_own_url: Option<String>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// What runs.
pub struct Plane {
    pub api: Option<String>,
    pub gateway: Option<SocketAddr>,
    pub ops: Option<SocketAddr>,
}

/// Starts the roles under `supervisor`, and returns when they take work.
pub async fn start(config: PlaneConfig, supervisor: &Supervisor) -> anyhow::Result<Plane> {
    let store = config.store.clone();
    let serving = match config.roles.signs() {
        true => Some(modules(&config)?),
        false => None,
    };
    if let Some(Serving { fleet, .. }) = &serving {
        fleet.claim_database().await.map_err(fault).context("claim the database")?;
        watch_record(&config, supervisor).await?;
        fleet.publish_trust().await.map_err(fault).context("publish the trust bundle")?;
    }
    let metrics = gateway::Metrics::default();
    let gateway = match config.roles.gateway {
        true => Some(start_gateway(&config, metrics.clone(), supervisor).await?),
        false => None,
    };
    let (gateway, address) = gateway.unzip();
    let gateway_url =
        config.gateway_url.clone().or_else(|| address.map(|address| format!("https://{address}")));
    let running =
        Running::new("serve", store.clone(), supervisor.clone(), config.clock.clone(), config.rng.clone());
    let mut parts = parts(serving.as_ref().map(|serving| &serving.fleet), gateway, metrics, &config.clock);
    if let Some(instances) = serving.as_ref().map(|serving| serving.instances.clone()) {
        parts.metrics.push(Arc::new(move |registry| instances.register_metrics(registry)));
    }
    let Some(Serving { capacity, instances, secrets, fleet }) = serving else {
        let ops = serve_vitals(&config, Vitals::new(&running, &parts), &running).await?;
        return Ok(Plane { api: None, gateway: address, ops });
    };
    let iam = Iam::new(store.clone(), config.clock.clone(), config.rng.clone(), Arc::new(OsEntropy));
    iam.set_belongings(vec![
        Arc::new(instances.clone()),
        Arc::new(capacity.clone()),
        Arc::new(secrets.clone()),
    ]);
    let join = if config.roles.api { join_facts(&config.keys, gateway_url.as_deref())? } else { None };
    let ledger = Ledger::with_join(store.clone(), config.rng.clone(), join);
    let access = access(&config, &store, &iam, &instances, &fleet)?;
    access.announce_ssh_ca().await.map_err(fault).context("announce the SSH CA key")?;
    let methods = vec![
        iam::module(&iam),
        ledger::module(&ledger),
        fleet::methods::module(&fleet),
        capacity::module(&capacity),
        instances::module(&instances, Some(images(&config))),
        secrets::module(&secrets),
        access::module(&access),
    ];
    if config.roles.worker || config.roles.scheduler {
        let worker = fleet::methods::worker(&fleet);
        let all = || methods.iter().chain([&worker]);
        let queues: Vec<_> = all().flat_map(|module| module.queues.iter().cloned()).collect();
        let passes: Vec<_> = all().flat_map(|module| module.passes.iter().cloned()).collect();
        run_queues(&running, &queues, QUEUE_CONCURRENCY);
        run_passes(&running, &passes);
        run_relay(&running);
    }
    capacity.start(&running);
    let (api, vitals) = match config.roles.api {
        false => (None, Vitals::new(&running, &parts)),
        true => {
            let pipeline = Pipeline::new(
                &methods,
                iam.clone(),
                Authorizer::new(store.clone()),
                store.clone(),
                config.clock.clone(),
                config.rng.clone(),
                config.limits,
            )?;
            let mut api = config.api.clone();
            api.parts = parts;
            api.discovery = discovery(&config.keys, gateway_url.as_deref())?;
            let server = Server::start(api, Arc::new(pipeline), running.clone()).await?;
            (Some(server.url()), server.vitals())
        }
    };
    let ops = serve_vitals(&config, vitals, &running).await?;
    Ok(Plane { api, gateway: address, ops })
}

async fn serve_vitals(
    config: &PlaneConfig,
    vitals: Arc<Vitals>,
    running: &Running,
) -> anyhow::Result<Option<SocketAddr>> {
    Ok(match config.ops.clone() {
        Some(ops) => Some(serve_ops(ops, vitals, running).await.context("ops.listen")?),
        None => None,
    })
}

/// A connection for the gateway's half: under its narrow role, and with every stalled transaction ended by the server well before the
/// gateway's lease is over.
pub fn gateway_store(mut config: StoreConfig) -> StoreConfig {
    config.role = Some("bc_gateway".to_owned());
    config.application_name = "better-compute-gateway".to_owned();
    PgDelivery::store_config(config, Timing::default().ttl)
}

/// The modules of a process that signs intent.
struct Serving {
    capacity: Capacity,
    instances: Instances,
    secrets: Secrets,
    fleet: Fleet,
}

fn modules(config: &PlaneConfig) -> anyhow::Result<Serving> {
    let keys: FleetKeys = config.keys.worker().context("the worker keys")?;
    let capacity = Capacity::new(config.store.clone(), config.clock.clone(), config.rng.clone());
    let instances =
        Instances::new(config.store.clone(), capacity.clone(), config.clock.clone(), config.rng.clone());
    let (ring, entropy) =
        (config.keys.secrets_ring().context("the key ring of secrets")?, Arc::new(OsEntropy));
    let secrets = Secrets::new(config.store.clone(), ring, config.clock.clone(), config.rng.clone(), entropy);
    instances.set_keeper(Arc::new(secrets.clone()));
    let fleet = Fleet::new(
        config.store.clone(),
        Some(keys),
        vec![Arc::new(capacity.clone()), Arc::new(instances.clone()), Arc::new(SshSpec)],
        vec![Arc::new(capacity.clone()), Arc::new(instances.clone())],
        config.clock.clone(),
        config.rng.clone(),
    );
    fleet.set_broker(Arc::new(Broker::new(secrets.clone(), Arc::new(instances.clone()))));
    Ok(Serving { capacity, instances, secrets, fleet })
}

fn access(
    config: &PlaneConfig,
    store: &Store,
    iam: &Arc<Iam>,
    instances: &Instances,
    fleet: &Fleet,
) -> anyhow::Result<Access> {
    let server_name = config.keys.deployment.gateway_names.first().cloned().unwrap_or_default();
    let serving_ca_pin = config.keys.public_pins()?.serving_ca_pin;
    let ssh_ca = config.keys.ssh_ca().context("the SSH CA key")?;
    Ok(Access::new(AccessParts {
        store: store.clone(),
        instances: Arc::new(instances.clone()),
        nodes: Arc::new(fleet.clone()),
        authentication: iam.clone(),
        authorization: Authorizer::new(store.clone()),
        gateway: GatewayFacts { server_name, serving_ca_pin },
        ssh: ssh_ca.map(|key| SshCa::new(key, Arc::new(OsEntropy))),
        clock: config.clock.clone(),
        rng: config.rng.clone(),
    }))
}

fn images(config: &PlaneConfig) -> Arc<dyn ImageStore> {
    Arc::new(ImageFolder::new(&config.images_dir))
}

async fn start_gateway(
    config: &PlaneConfig,
    metrics: gateway::Metrics,
    supervisor: &Supervisor,
) -> anyhow::Result<(Gateway, SocketAddr)> {
    let delivery = PgDelivery::new(config.gateway_store.clone(), config.clock.clone(), config.rng.clone());
    let listener = TcpListener::bind(config.gateway_listen)
        .await
        .with_context(|| format!("listen on {}", config.gateway_listen))?;
    let address = listener.local_addr()?;
    let gateway_id: GatewayId = config.rng.id(config.clock.now());
    let node_cas = config.keys.node_cas()?;
    let clock = config.clock.clone();
    let tls = Tls {
        config: pki::tls::server_config(
            &config.keys.gateway().context("the gateway's certificate")?,
            &node_cas,
            TlsClock::new(move || clock.now()),
        )?,
        trust: Arc::new(NodeTrust::new(config.keys.trust_domain()?, &node_cas)?),
    };
    let own_url = config.gateway_own_url.as_ref();
    let tunnels = TunnelParts {
        store: Arc::new(PgTickets::new(config.gateway_store.clone())),
        verifier: config.keys.verifier()?,
        own_address: own_url.map(|url| url.trim_start_matches("https://").trim_end_matches('/').to_owned()),
    };
    let gateway = Gateway::new(GatewayParts {
        config: GatewayConfig::new(
            gateway_id,
            own_url.or(config.gateway_url.as_ref()).cloned().unwrap_or_else(|| address.to_string()),
        ),
        tls,
        store: Arc::new(delivery),
        images: Some(images(config)),
        tunnels: Some(tunnels),
        clock: config.clock.clone(),
        rng: config.rng.clone(),
        supervisor: supervisor.clone(),
        metrics,
    });
    let serving = gateway.clone();
    supervisor.spawn(GATEWAY, move |stop| async move {
        serving.run(listener, stop).await;
        Ok::<(), Infallible>(())
    });
    Ok((gateway, address))
}

/// What `system.info` tells whoever installs a machine.
fn join_facts(keys: &KeyFolder, gateway_url: Option<&str>) -> anyhow::Result<Option<api::system::JoinFacts>> {
    let Some(gateway_url) = gateway_url else { return Ok(None) };
    let pins = keys.public_pins()?;
    Ok(Some(api::system::JoinFacts {
        gateway_url: gateway_url.to_owned(),
        server_name: keys.deployment.gateway_names.first().cloned(),
        serving_ca_pin: pins.serving_ca_pin,
        join_signing_pin: pins.join_signing_pin,
        join_encryption_pin: pins.join_encryption_pin,
        join_encryption_key: Some(pins.join_encryption_jwk.to_string()),
    }))
}

/// What `/metrics` and `/readyz` say for the rest of the process.
fn parts(
    fleet: Option<&Fleet>,
    gateway: Option<Gateway>,
    metrics: gateway::Metrics,
    clock: &Arc<dyn Clock>,
) -> server::Parts {
    let mut parts = server::Parts::default();
    if let Some(fleet) = fleet.cloned() {
        let clock = clock.clone();
        parts.ready.push(Arc::new(move || fleet.signing_problem(clock.now())));
    }
    if let Some(gateway) = gateway {
        parts.metrics.push(Arc::new(move |registry| metrics.register(registry)));
        parts.ready.push(Arc::new(move || {
            (!gateway.is_serving()).then(|| "the gateway holds no lease and takes no sessions".to_owned())
        }));
    }
    parts
}

/// What a machine reads before it joins. Its pins are checked against those it was given by another way.
fn discovery(keys: &KeyFolder, gateway_url: Option<&str>) -> anyhow::Result<serde_json::Value> {
    let pins = keys.public_pins()?;
    Ok(serde_json::json!({
        "gateway": { "url": gateway_url, "serverName": keys.deployment.gateway_names.first() },
        "join": { "encryptionJwk": pins.join_encryption_jwk },
        "pins": {
            "servingCa": [pins.serving_ca_pin],
            "joinSigning": [pins.join_signing_pin],
            "joinEncryption": pins.join_encryption_pin,
        },
    }))
}

/// Compares at the start, before anything acts, and then by period.
async fn watch_record(config: &PlaneConfig, supervisor: &Supervisor) -> anyhow::Result<()> {
    let (store, dir) = (config.store.clone(), config.record_dir.clone());
    if let RestoreVerdict::Suspected { why } = restore::check(&store, &dir).await? {
        eprintln!("observe-only: {why}");
        eprintln!("  if this database is the right one: better-compute system confirm-restore");
    }
    let clock = config.clock.clone();
    supervisor.spawn(RESTORE_CHECK, move |cancel| async move {
        loop {
            // Cancel-safe: nothing is half done between two checks.
            tokio::select! {
                () = cancel.cancelled() => return Ok::<(), Infallible>(()),
                () = clock.sleep(RESTORE_CHECK_PERIOD) => {}
            }
            if let Err(err) = restore::check(&store, &dir).await {
                tracing::warn!(err = kit::chain(&err), "cannot compare the database with its record");
            }
        }
    });
    Ok(())
}

/// A module's fault, whose external half is a text of its own.
pub fn fault(fault: kernel::Fault) -> anyhow::Error {
    match fault {
        kernel::Fault::Refused(error) => anyhow::anyhow!("{} ({})", error.message, error.code.name()),
        other => anyhow::Error::new(other),
    }
}
