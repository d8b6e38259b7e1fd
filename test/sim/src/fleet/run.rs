//! The loop: what can run runs, then time moves to what comes next.

mod acts;
mod checks;
mod faults;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernel::Pipeline;
use kernel::ports::delivery::Poke;
use model::NodeId;
use store::embedded::Embedded;
use store::{Sql, sql};

use super::chaos;
use super::control::SimControl;
use super::cpu::OneCpu;
use super::event::{Event, ToNode};
use super::exec::{Executor, ProcessId};
use super::expect::Shown;
use super::gateway::SimGateway;
use super::node::SimNode;
use super::outcome::{Broken, Outcome};
use super::plant::Plant;
use super::server::Server;
use super::tenants::Tenants;
use super::time::{Core, Due};
use super::workload::Clients;
use super::{Config, setup};
use crate::invariants::{Canary, Checker};

/// Nodes are switched on within this.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Between two things that clients do, for sixty nodes.
const CLIENT_PERIOD: Duration = Duration::from_secs(6);
/// When everything was undone, how often to look whether the world rests, and for how long at most.
const REST_EVERY: Duration = Duration::from_secs(60);
const REST_WITHIN: Duration = Duration::from_secs(45 * 60);
/// In real time.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
const BACKUP_EVERY: Duration = Duration::from_secs(3600);

/// How often what is expected is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// How often hosts are looked at beside the rows: what a row says too early is true soon after.
const HOSTS_EVERY: Duration = Duration::from_secs(1);

const NODE_NAMES: Sql = sql("sim_node_names", "SELECT name FROM nodes ORDER BY name");

/// A folder that goes with the run.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(seed: u64) -> std::io::Result<Self> {
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let unique = Instant::now();
        let path = root.join(format!("bc-sim-{}-{seed}-{unique:p}", std::process::id(), unique = &unique));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

/// Everything of one run.
struct Run<'a> {
    config: &'a Config,
    core: Arc<Core>,
    plant: Arc<Plant>,
    server: Server,
    begun: Duration,
    /// When it was last told how far it is.
    told: Instant,
    /// Restores that no operator has confirmed.
    restoring: u32,
    executor: Executor,
    nodes: Vec<SimNode>,
    gateways: Vec<SimGateway>,
    controls: Vec<SimControl>,
    clients: Arc<Clients>,
    tenants: Arc<Tenants>,
    checker: Checker,
    processes: u32,
    faults: BTreeMap<&'static str, u64>,
    recent: Vec<String>,
    /// Nodes that are kept from starting, by how many faults.
    kept: Vec<u32>,
    /// Nothing more is put in.
    quiet: bool,
    /// Nodes that an operator has yet to take into their pools.
    to_adopt: Vec<(String, &'static str)>,
    shown: Shown,
    /// Since when some node is without a session, if any is.
    unserved_since: Option<Duration>,
    progress: &'a mut (dyn FnMut(String) + Send),
}

/// Simulates on a private database of its own.
///
/// # Errors
/// A [`Broken`] when an invariant was, and whatever keeps the simulation itself from going on.
pub async fn run(config: &Config, progress: &mut (dyn FnMut(String) + Send)) -> anyhow::Result<Outcome> {
    // Its own executor decides who goes on: tokio's would now and then have a ready one wait, at moments no seed decides.
    tokio::task::unconstrained(simulate(config, progress)).await
}

async fn simulate(config: &Config, progress: &mut (dyn FnMut(String) + Send)) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let _cpu = OneCpu::take();
    pki::sign_the_same_each_time();
    let folder = Folder::new(config.seed)?;
    let server = Server::start(folder.0.join("server")).await?;
    let core = Core::new(config.seed);
    let database = server.embedded()?.store_config(Embedded::DATABASE);
    let plant =
        Plant::open(&core, config.seed, database, folder.0.join("record"), config.instances > 0).await?;
    kit::fs::create_dir(&folder.0.join("record"), 0o700)?;
    let memory_before = resident_bytes();
    let mut nodes: Vec<SimNode> = (0..config.nodes)
        .map(|index| {
            let dir = folder.0.join(format!("node-{index}"));
            SimNode::new(&core, index, config.seed.wrapping_add(1 + index as u64), dir, config.is_host(index))
        })
        .collect();
    let secrets = setup::prepare(&plant, &mut nodes, config).await?;
    let mut checker = Checker::new();
    checker.plant(Canary::new("the administrator's token", None, secrets.token.as_bytes()));
    checker.plant(Canary::new("the join token", None, secrets.join_token.as_bytes()));
    checker.plant(Canary::new("user data", None, super::tenants::TOLD.as_bytes()));
    let names: Vec<String> = plant.store.read(&NODE_NAMES, &[]).await?.iter().map(|row| row.get(0)).collect();
    let plant = Arc::new(plant);
    let to_adopt = match config.renewals {
        true => names.iter().map(|name| (name.clone(), setup::pool_of(&nodes, name, config))).collect(),
        false => Vec::new(),
    };
    let tenants = Tenants::new(secrets.token.clone(), config.instances, config.seed, config.time);
    let mut run = Run {
        config,
        core: core.clone(),
        executor: Executor::new(&core),
        gateways: Vec::new(),
        controls: Vec::new(),
        clients: Clients::new(secrets.token, names),
        tenants,
        checker,
        processes: 0,
        faults: BTreeMap::new(),
        recent: Vec::new(),
        kept: vec![0; nodes.len()],
        quiet: false,
        to_adopt,
        nodes,
        plant,
        server,
        begun: core.elapsed(),
        told: Instant::now(),
        restoring: 0,
        shown: Shown::default(),
        unserved_since: None,
        progress,
    };
    run.begin();
    run.until(run.begun + config.time).await?;
    run.rest().await?;
    let mut outcome = run.outcome().await?;
    run.judge_expected(&outcome)?;
    outcome.took = started.elapsed();
    let grown = resident_bytes().saturating_sub(memory_before);
    outcome.bytes_per_node = grown / (config.nodes.max(1) as u64);
    run.server.stop().await?;
    Ok(outcome)
}

/// Of this process; the database's are others.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

impl Run<'_> {
    fn process(&mut self) -> ProcessId {
        self.processes += 1;
        ProcessId(self.processes)
    }

    fn begin(&mut self) {
        for index in 0..self.config.controls {
            let process = self.process();
            self.controls.push(SimControl::new(&self.plant, index, process));
            self.core.post(self.core.up_to(Duration::from_secs(1)), Event::ControlStarts { control: index });
        }
        for index in 0..self.config.gateways {
            let process = self.process();
            self.gateways.push(SimGateway::new(&self.plant, index, process));
            self.core.post(self.core.up_to(Duration::from_secs(1)), Event::GatewayStarts { gateway: index });
        }
        for node in 0..self.nodes.len() {
            let life = self.nodes[node].life;
            self.core.post(self.core.up_to(START_WITHIN), Event::NodeStarts { node, life });
        }
        if self.config.workload {
            self.core.post(START_WITHIN + CLIENT_PERIOD, Event::Client);
        }
        if self.config.instances > 0 {
            self.tenants.begin(&self.core);
            self.core.post(HOSTS_EVERY, Event::Hosts);
        }
        self.core.post(self.config.check_every, Event::Check);
        if !self.config.expects.is_empty() {
            self.core.post(WATCH_EVERY, Event::Watch);
        }
        if self.config.restores {
            self.core.post(BACKUP_EVERY / 2, Event::Backup);
        }
        let planned = self.config.script.clone().unwrap_or_else(|| chaos::deal(self.config));
        for one in planned {
            self.core.post(one.at, Event::Fault(one));
        }
    }

    /// Runs until this moment.
    async fn until(&mut self, until: Duration) -> anyhow::Result<()> {
        let epoch = super::time::EPOCH_MS * 1000;
        let until = epoch + super::time::micros(until);
        loop {
            let killed = self.executor.run_ready().await?;
            if self.core.take_broken() || !killed.is_empty() {
                self.buried(killed).await?;
                continue;
            }
            match self.core.next_at() {
                Some(at) if at <= until => {}
                _ => break,
            }
            match self.core.advance() {
                Some(Due::Timer(waker)) => waker.wake(),
                Some(Due::Event(event)) => self.event(event).await?,
                None => break,
            }
            if self.told.elapsed() >= PROGRESS_EVERY {
                self.told = Instant::now();
                self.tell();
            }
        }
        Ok(())
    }

    fn tell(&mut self) {
        let up = self.nodes.iter().filter(|node| node.is_up()).count();
        let lines = self.nodes.iter().filter(|node| node.line().is_some()).count();
        let faults: u64 = self.faults.values().sum();
        let minutes = self.core.elapsed().saturating_sub(self.begun).as_secs() / 60;
        (self.progress)(format!(
            "  {minutes:>5} min  nodes {up} up, {lines} connected · faults {faults} · steps {}",
            self.executor.polls
        ));
    }

    async fn event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Notified(channel, payload) => self.notified(channel, &payload),
            Event::NodeDue { node, turn } => {
                self.nodes[node].due(turn);
                self.after_node(node);
            }
            Event::NodeStarts { node, life } => self.node_starts(node, life),
            Event::NodeReboots { node, life } => self.node_reboots(node, life),
            Event::WorkerDone { node, life, id, outcome } => {
                if self.nodes[node].life == life && self.nodes[node].is_up() {
                    self.nodes[node].worker_done(id, outcome);
                    self.after_node(node);
                }
            }
            Event::Renewed { node, life, renewed } => {
                if self.nodes[node].life == life && self.nodes[node].is_up() {
                    self.nodes[node].renewed(renewed);
                    self.after_node(node);
                }
            }
            Event::ToNode(line, what) => self.node_hears(&line, what),
            Event::ToGateway(line, frame) => line.arrive(frame),
            Event::GatewayStarts { gateway } => {
                if !self.gateways[gateway].up {
                    let process = self.process();
                    self.gateways[gateway].start(&self.plant, process);
                }
            }
            Event::ControlStarts { control } => {
                if !self.controls[control].up {
                    let process = self.process();
                    self.controls[control].start(&self.plant, process);
                }
            }
            Event::Fault(planned) => self.fault(planned).await?,
            Event::FaultEnds(fault) => self.fault_ends(fault).await?,
            Event::Backup => self.back_up().await?,
            Event::Client => self.client(),
            Event::Tenant { life, turn } => {
                let serving = self.serving();
                self.tenants.act(&self.core, serving, life, turn);
            }
            Event::Watch => self.watch().await?,
            Event::Hosts => {
                self.check_hosts().await?;
                if !self.quiet {
                    self.core.post(HOSTS_EVERY, Event::Hosts);
                }
            }
            Event::Check => {
                self.check().await?;
                if !self.quiet {
                    self.core.post(self.config.check_every, Event::Check);
                }
            }
        }
        Ok(())
    }

    fn notified(&mut self, channel: &'static str, payload: &str) {
        if !self.config.pokes {
            return;
        }
        match channel {
            fleet::DELIVERY_CHANNEL => {
                let poke = match payload.parse::<uuid::Uuid>() {
                    Ok(node_id) => Poke::Nodes([NodeId::from_uuid(node_id)].into()),
                    Err(_) => Poke::Everything,
                };
                for served in self.gateways.iter().filter_map(SimGateway::served) {
                    served.driven.poked(poke.clone());
                }
            }
            _ => self.controls.iter().for_each(|control| control.told(channel, payload)),
        }
    }

    fn client(&mut self) {
        if self.quiet {
            return;
        }
        let scale = f64::from(u32::try_from(self.nodes.len()).unwrap_or(1)) / 60.0;
        let period = CLIENT_PERIOD.div_f64(scale.clamp(0.2, 20.0));
        self.core.post(self.core.up_to(2 * period), Event::Client);
        let Some((process, pipeline)) = self.serving() else { return };
        if self.to_adopt.is_empty() {
            self.clients.act(&self.core, process, &pipeline, self.config.calm);
        } else {
            let some = self.to_adopt.len().min(20);
            let nodes: Vec<(String, &'static str)> = self.to_adopt.drain(..some).collect();
            self.clients.adopt(&self.core, process, &pipeline, &nodes);
        }
    }

    /// One of those that take calls, by the seed.
    fn serving(&self) -> Option<(ProcessId, Arc<Pipeline>)> {
        let serving: Vec<(ProcessId, Arc<Pipeline>)> = self
            .controls
            .iter()
            .filter(|control| control.up)
            .filter_map(|control| Some((control.process, control.pipeline()?)))
            .collect();
        self.core.pick(&serving).cloned()
    }

    fn node_hears(&mut self, line: &Arc<super::line::Line>, what: ToNode) {
        let node = &mut self.nodes[line.node];
        if !node.uses(line) {
            return;
        }
        match what {
            ToNode::Connected => node.step(agent::engine::Input::Connected),
            ToNode::Frame(frame) => node.step(agent::engine::Input::Frame(frame)),
            ToNode::Ended { why, pushback } => node.line_ended(why, pushback),
        }
        self.after_node(line.node);
    }

    fn database_is_down(&self) -> bool {
        self.plant.database.down.load(Ordering::Relaxed)
    }

    fn broken(&self, violations: Vec<String>) -> anyhow::Error {
        Broken {
            violations,
            at: self.core.now(),
            elapsed: self.core.elapsed(),
            begun: self.begun,
            config: self.config.clone(),
            faults: self.recent.clone(),
        }
        .into()
    }
}
