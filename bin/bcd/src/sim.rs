//! Many real agents on simulated hardware in one process, each with its own identity, journal and files.
//!
//! A simulated machine `i` lives in `<dir>/<i>` and is made from `seed + i`: it is the same machine each time. A reboot restarts its agent
//! under a new boot id, and a start of this process counts as one, as it would for a machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::config::{Config, InstancesConfig};
use agent::join::{JoinParts, joined_before};
use agent::journal::Limits;
use agent::transport::{Address, GrpcLink};
use anyhow::{Context, bail};
use handlers::files::{HostFiles, HostPaths};
use handlers::logs::LogRing;
use handlers::node::NodePorts;
use handlers::slices::FakeSlices;
use handlers::sshd::NoSshd;
use hw::FakeHardware;
use kit::{Backoff, Clock, OnEnd, Rng, Supervisor, TaskHandle, TaskKind, Wake};
use model::Role;
use pki::seal::EncryptionKey;
use pki::{JoinToken, Pin};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::hypervisor;
use crate::machine::{self, Machine};

pub mod faults;
mod link;

pub use faults::{Fault, Faults};
use link::SimLink;

/// Joins in flight at once.
const JOINS_AT_ONCE: usize = 16;
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// A simulated machine's journal: the smallest that a configuration may ask for.
const JOURNAL_BYTES_MAX: u64 = 16 << 20;
const LOG_BYTES_MAX: usize = 64 * 1024;
const MACHINE: TaskKind = TaskKind::isolated("sim_machine");
/// What may be asked of a machine at once; each is handled before the next.
const ORDERS: usize = 8;
const RESTART_FIRST: Duration = Duration::from_secs(1);
const RESTART_CEILING: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct SimConfig {
    pub dir: PathBuf,
    pub nodes: u32,
    pub seed: u64,
    pub gateway: Address,
    pub serving_ca_pins: Vec<Pin>,
    pub join_signing_pins: Vec<Pin>,
    pub join_encryption_key: EncryptionKey,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

impl SimConfig {
    /// From a daemon's configuration; the machines live under its data folder.
    pub fn of(config: &Config, key: EncryptionKey, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            dir: config.data_dir.join("sim"),
            nodes: 1,
            seed: 1,
            gateway: config.gateway.clone(),
            serving_ca_pins: config.serving_ca_pins.clone(),
            join_signing_pins: config.join_signing_pins.clone(),
            join_encryption_key: key,
            clock,
            rng,
        }
    }

    fn machine_dir(&self, index: u32) -> PathBuf {
        self.dir.join(index.to_string())
    }

    fn link(&self, supervisor: &Supervisor) -> Arc<GrpcLink> {
        let pins = self.serving_ca_pins.clone();
        Arc::new(GrpcLink::new(self.gateway.clone(), pins, self.clock.clone(), supervisor.clone()))
    }
}

/// Whether a machine in `dir` has an identity.
pub fn has_joined(dir: &Path) -> anyhow::Result<bool> {
    Ok(joined_before(dir, Role::Node)?.is_some())
}

/// How many of the machines have not joined yet.
pub fn unjoined(config: &SimConfig) -> anyhow::Result<u32> {
    let mut count = 0;
    for index in 0..config.nodes {
        count += u32::from(!has_joined(&config.machine_dir(index))?);
    }
    Ok(count)
}

/// Joins every machine that has not, with one token that allows as many uses.
pub async fn join(config: &SimConfig, token: &JoinToken, supervisor: &Supervisor) -> anyhow::Result<()> {
    use futures::stream::{StreamExt, TryStreamExt};
    kit::fs::create_dir(&config.dir, 0o700)?;
    let joins = (0..config.nodes).map(|index| async move {
        let parts = join_parts(config, index, supervisor);
        agent::join::join(&parts, token)
            .await
            .map(drop)
            .with_context(|| format!("join simulated machine {index}"))
    });
    futures::stream::iter(joins).buffer_unordered(JOINS_AT_ONCE).try_collect().await
}

fn join_parts(config: &SimConfig, index: u32, supervisor: &Supervisor) -> JoinParts {
    let seed = config.seed.wrapping_add(u64::from(index));
    JoinParts {
        role: Role::Node,
        hostname: format!("sim-{index}"),
        agent_version: crate::VERSION.to_owned(),
        hardware_key: Sha256::digest(format!("simulated machine {seed}")).to_vec(),
        data_dir: config.machine_dir(index),
        join_signing_pins: config.join_signing_pins.clone(),
        encryption_key: config.join_encryption_key.clone(),
        encryption_key_pin: config.join_encryption_key.pin(),
        timeout: JOIN_TIMEOUT,
        link: config.link(supervisor),
        clock: config.clock.clone(),
        rng: config.rng.clone(),
    }
}

/// Joins this very machine, whose agent will live in `dir`.
pub async fn join_host(
    config: &SimConfig,
    dir: &Path,
    token: &JoinToken,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let parts = JoinParts {
        hostname: machine::hostname(),
        hardware_key: machine::hardware_key(Path::new("/")),
        data_dir: dir.to_owned(),
        ..join_parts(config, 0, supervisor)
    };
    agent::join::join(&parts, token).await.map(drop).context("join this machine")
}

/// What a machine can be told from outside: what happens to machines.
enum Order {
    Crash,
    Reboot,
    LoseJournal,
}

/// A running simulated machine.
#[derive(Clone)]
pub struct SimMachine {
    pub index: u32,
    pub hardware: Arc<FakeHardware>,
    link: Arc<SimLink>,
    orders: mpsc::Sender<Order>,
}

impl SimMachine {
    /// Makes a fault happen, or ends one that lasts.
    pub async fn inject(&self, fault: Fault) {
        let order = match fault {
            Fault::Crash => Order::Crash,
            Fault::Reboot => Order::Reboot,
            Fault::JournalLoss => Order::LoseJournal,
            Fault::Slow(on) => return self.link.set_slow(on),
            Fault::Partition(on) => return self.link.set_partitioned(on),
        };
        // A machine that is gone feels nothing.
        let _ = self.orders.send(order).await;
    }
}

/// Machines that run until their supervisor stops.
pub struct SimFleet {
    pub machines: Vec<SimMachine>,
    _tasks: Vec<TaskHandle>,
    _host: Option<agent::run::Agent>,
}

/// Starts every machine; each must have joined.
pub async fn start(config: &SimConfig, supervisor: &Supervisor) -> anyhow::Result<SimFleet> {
    let mut fleet = SimFleet { machines: Vec::new(), _tasks: Vec::new(), _host: None };
    for index in 0..config.nodes {
        let dir = config.machine_dir(index);
        if !has_joined(&dir)? {
            bail!("simulated machine {index} in {} has not joined", dir.display());
        }
        let hardware = Arc::new(FakeHardware::new(config.seed.wrapping_add(u64::from(index))));
        for _ in 0..count_boot(&dir)? {
            hardware.power_cycle();
        }
        let link = Arc::new(SimLink::new(config.link(supervisor), config.clock.clone()));
        let (orders, inbox) = mpsc::channel(ORDERS);
        let machine = SimMachine { index, hardware, link, orders };
        let life = Life { dir, machine: machine.clone(), config: config.clone(), inbox };
        fleet._tasks.push(supervisor.spawn(MACHINE, move |stop| life.run(stop)));
        fleet.machines.push(machine);
    }
    Ok(fleet)
}

/// Starts the agent of this very machine with its real inventory. Its own files are below `dir`, and it reboots nothing.
pub async fn start_host(
    config: &SimConfig,
    dir: &Path,
    instances: Option<&InstancesConfig>,
    fleet: &mut SimFleet,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let link = config.link(supervisor);
    let (arrived, waker) = Wake::new();
    let hypervisor = match instances {
        Some(instances) => {
            let (clock, supervisor) = (config.clock.clone(), supervisor.clone());
            hypervisor::of_host(dir, instances, link.clone(), clock, supervisor, waker).await?
        }
        None => None,
    };
    let logs = Arc::new(LogRing::bounded(config.clock.clone(), LOG_BYTES_MAX));
    let ports = NodePorts {
        files: Arc::new(HostFiles::new(HostPaths::simulated(dir.join("root")))),
        slices: Arc::new(FakeSlices::unsupported("this node writes only below its data folder")),
        sshd: Arc::new(NoSshd),
        ..NodePorts::host(dir, config.clock.clone(), logs)
    };
    let ports = match (hypervisor, instances) {
        (Some(hypervisor), Some(instances)) => {
            ports.with_instances(hypervisor, hypervisor::dir(dir, instances))
        }
        _ => ports,
    };
    let machine = Machine {
        data_dir: dir.to_owned(),
        ports,
        tunnels: Some(link.clone()),
        link,
        host: Some(Arc::new(agent::hardware::NoHost)),
        journal_file_bytes_max: JOURNAL_BYTES_MAX,
        journal_layer: None,
        limits: limits(),
        arrived: Some(arrived),
        status_socket: Some(dir.join("run/bcd.sock")),
        clock: config.clock.clone(),
        rng: config.rng.clone(),
        on_end: OnEnd::Isolate,
    };
    fleet._host = Some(machine::start(machine, supervisor).await.context("start this machine's agent")?);
    Ok(())
}

fn limits() -> Limits {
    Limits::for_file(JOURNAL_BYTES_MAX, agent::journal::EVENTS_MAX)
}

/// Counts this start, so that each has a boot id of its own.
fn count_boot(dir: &Path) -> anyhow::Result<u64> {
    let path = dir.join("boots");
    let bytes = kit::fs::read_if_present(&path, 64)?.unwrap_or_default();
    let boots: u64 = String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0);
    kit::fs::write_atomic(&path, (boots + 1).to_string().as_bytes(), 0o600)?;
    Ok(boots)
}

/// One machine from boot to boot.
struct Life {
    dir: PathBuf,
    machine: SimMachine,
    config: SimConfig,
    inbox: mpsc::Receiver<Order>,
}

impl Life {
    async fn run(
        mut self,
        stop: tokio_util::sync::CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let mut backoff = Backoff::new(RESTART_FIRST, RESTART_CEILING);
        while !stop.is_cancelled() {
            // What this boot spawns ends with it.
            let boot = Supervisor::new();
            let agent = match machine::start(self.parts(&boot), &boot).await {
                Ok(agent) => agent,
                Err(err) => {
                    tracing::warn!(
                        machine = self.machine.index,
                        err = format!("{err:#}"),
                        "simulated machine does not start"
                    );
                    let wait = backoff.next_wait(&*self.config.rng);
                    self.config.clock.sleep(wait).await;
                    continue;
                }
            };
            backoff.reset();
            // Cancel-safe: an order stays in its channel, the token stays cancelled.
            let order = tokio::select! {
                () = stop.cancelled() => None,
                order = self.inbox.recv() => order,
            };
            match order {
                None => {
                    agent.stop().await;
                    boot.shutdown(Duration::from_secs(5)).await;
                    return Ok(());
                }
                Some(order) => {
                    agent.crash().await;
                    boot.shutdown(Duration::from_secs(5)).await;
                    self.obey(order);
                }
            }
        }
        Ok(())
    }

    fn obey(&self, order: Order) {
        match order {
            Order::Crash => {}
            // A reboot that a command asked for has changed the hardware's boot id already.
            Order::Reboot => {
                if let Err(err) = count_boot(&self.dir) {
                    tracing::warn!(err = format!("{err:#}"), "cannot count a simulated boot");
                }
            }
            Order::LoseJournal => {
                let path = self.dir.join(agent::journal::JOURNAL_FILE);
                if let Err(err) = kit::fs::remove_if_present(&path) {
                    tracing::warn!(err = kit::chain(&err), "cannot lose a simulated journal");
                }
            }
        }
    }

    fn parts(&self, boot: &Supervisor) -> Machine {
        let config = &self.config;
        let logs = Arc::new(LogRing::bounded(config.clock.clone(), LOG_BYTES_MAX));
        let hardware = self.machine.hardware.clone();
        Machine {
            data_dir: self.dir.clone(),
            ports: NodePorts::simulated(hardware.clone(), &self.dir, config.clock.clone(), logs),
            link: self.machine.link.clone(),
            tunnels: Some(self.config.link(boot)),
            host: Some(Arc::new(SimHost { hardware, orders: self.machine.orders.clone() })),
            journal_file_bytes_max: JOURNAL_BYTES_MAX,
            journal_layer: None,
            limits: limits(),
            arrived: None,
            status_socket: None,
            clock: config.clock.clone(),
            rng: config.rng.clone(),
            on_end: OnEnd::Isolate,
        }
    }
}

/// A reboot of a simulated machine: a new boot id, and its agent starts again.
struct SimHost {
    hardware: Arc<FakeHardware>,
    orders: mpsc::Sender<Order>,
}

impl agent::hardware::Host for SimHost {
    fn reboot(&self, reason: &str) -> futures::future::BoxFuture<'static, Result<(), String>> {
        let (hardware, orders, reason) = (self.hardware.clone(), self.orders.clone(), reason.to_owned());
        Box::pin(async move {
            hw::Hardware::reboot(&*hardware, &reason).await.map_err(|err| kit::chain(&err))?;
            orders.send(Order::Reboot).await.map_err(|_| "the machine is gone".to_owned())
        })
    }
}
