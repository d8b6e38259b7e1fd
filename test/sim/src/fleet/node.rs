//! One simulated machine: the real engine and the real handlers over hardware, files and a journal in memory. What the
//! agent's actor does with tasks is done here in steps, each at one moment of virtual time.

mod hosts;
mod look;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::clock::Now;
use agent::converge::Converger;
use agent::effect::{Effect, Outgoing};
use agent::engine::{self, Certificate, Engine, EngineParts, Input, Node};
use agent::identity::Identity;
use agent::journal::{JournalStore, Limits, MemoryJournal};
use agent::kinds::{CommandContext, KindHandler};
use agent::renew;
use futures::FutureExt;
use handlers::machine::{Machine, PASS_PERIOD};
use handlers::sections::instances::fake::FakeHypervisor;
use handlers::sections::instances::port::Hypervisor;
use handlers::slices::FakeSlices;
use hw::FakeHardware;
use kit::{Backoff, Clock, Rng, SeededRng};
use model::{AllocationId, CommandId, CommandKind, InstanceId, NodeId, Timestamp};
use tokio_util::sync::CancellationToken;
use wire::proto::agent::command_body::Payload;

use super::event::Event;
use super::files::{MemoryFiles, ports};
use super::line::Line;
use super::time::{Core, SimClock, micros};
use crate::world::{DestroyedView, DomainView, EffectView, HoldView, ReleaseView};

const AGENT_VERSION: &str = "0.1";
/// A simulated machine's journal keeps little: it is never away for days.
const EVENTS_MAX: usize = 2_000;
const JOURNAL_BYTES_MAX: u64 = 8 << 20;
/// A renewal is not worth asking for more often.
const RENEWAL_WAIT_MIN: Duration = Duration::from_secs(5);

/// What a step asks of the world around the node.
#[derive(Debug, PartialEq, Eq)]
pub enum Ask {
    Dial,
    Renew,
}

pub struct SimNode {
    pub index: usize,
    pub hostname: String,
    core: Arc<Core>,
    pub clock: Arc<SimClock>,
    pub rng: Arc<dyn Rng>,
    pub hardware: Arc<FakeHardware>,
    slices: Arc<FakeSlices>,
    files: Arc<MemoryFiles>,
    /// What runs instances, on a host.
    pub hypervisor: Option<Arc<FakeHypervisor>>,
    data_dir: PathBuf,
    pub identity: Option<Identity>,
    pub journal: Arc<MemoryJournal>,
    /// Counts starts: what was meant for an earlier one is stale.
    pub life: u64,
    alive: Option<Alive>,
    pub effects: Vec<EffectView>,
    holds: BTreeMap<AllocationId, HoldView>,
    pub releases: Vec<ReleaseView>,
    domains: BTreeMap<InstanceId, DomainView>,
    pub destroyed: Vec<DestroyedView>,
    /// Nothing gets in or out.
    pub partitioned: bool,
    /// By an operator, at some time.
    pub declared_dead: bool,
    pub slow: bool,
    pub asks: Vec<Ask>,
    due: Option<i64>,
    turn: u64,
    /// Certificates it got after its first.
    pub renewals: u64,
    /// Other versions of the daemon that were put in the place of the first.
    upgrades: u64,
}

/// What a crash loses.
struct Alive {
    engine: Engine,
    convergers: Vec<Box<dyn Converger>>,
    kinds: Vec<Arc<dyn KindHandler>>,
    machine: Arc<Machine>,
    host: Arc<dyn agent::hardware::Host>,
    boot_id: String,
    line: Option<Arc<Line>>,
    workers: BTreeMap<CommandId, CancellationToken>,
    next_look: Duration,
    /// A pass over the sections.
    converge_at: Option<Duration>,
    desk: agent::secrets::Desk,
    first_pass: bool,
    renewing: bool,
    renew_not_before: Duration,
    renew_backoff: Backoff,
}

impl SimNode {
    pub fn new(core: &Arc<Core>, index: usize, seed: u64, data_dir: PathBuf, is_host: bool) -> Self {
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
        let hardware = Arc::new(FakeHardware::new(seed));
        let hypervisor = is_host.then(|| hosts::hypervisor(&data_dir, &hardware));
        let journal = Arc::new(MemoryJournal::new(rng.id(core.now())));
        Self {
            index,
            hostname: format!("sim-{index}"),
            core: core.clone(),
            clock: SimClock::new(core),
            hardware,
            hypervisor,
            rng,
            slices: Arc::default(),
            files: Arc::default(),
            data_dir,
            identity: None,
            journal,
            life: 0,
            alive: None,
            effects: Vec::new(),
            holds: BTreeMap::new(),
            releases: Vec::new(),
            domains: BTreeMap::new(),
            destroyed: Vec::new(),
            partitioned: false,
            declared_dead: false,
            slow: false,
            asks: Vec::new(),
            due: None,
            turn: 0,
            renewals: 0,
            upgrades: 0,
        }
    }

    pub fn is_up(&self) -> bool {
        self.alive.is_some()
    }

    pub fn line(&self) -> Option<&Arc<Line>> {
        self.alive.as_ref()?.line.as_ref()
    }

    fn now(&self) -> Now {
        Now::read(&*self.clock)
    }

    fn node_id(&self) -> Option<NodeId> {
        self.identity.as_ref().map(|identity| identity.node_id)
    }

    /// The daemon starts, over what earlier ones left.
    pub fn start(&mut self) {
        let Some(identity) = self.identity.clone() else { return };
        self.life += 1;
        let clock: Arc<dyn Clock> = self.clock.clone();
        let hypervisor = self.hypervisor.clone().map(|one| one as Arc<dyn Hypervisor>);
        let ports = ports(&self.hardware, &self.slices, &self.files, &self.data_dir, clock, hypervisor);
        let parts = handlers::node::parts(ports);
        let parts =
            at_once("start a machine", parts).expect("a simulated machine has a folder and a boot id");
        let now = self.now();
        let engine = Engine::new(
            EngineParts {
                node: Node {
                    node_id: identity.node_id,
                    site_id: identity.site_id,
                    role: identity.role,
                    boot_id: parts.boot_id.clone(),
                    agent_version: self.agent_version(),
                    capabilities: parts.hardware.capabilities(),
                },
                key: identity.key.clone(),
                certificate: Certificate { begins: identity.not_before, ends: identity.not_after },
                trust: identity.trust.clone(),
                marks: identity.marks,
                journal_id: self.journal.id(),
                incarnation: self.rng.id(now.wall),
                limits: Limits::for_file(JOURNAL_BYTES_MAX, EVENTS_MAX),
                loaded: self.journal.load().expect("memory loads"),
                handled: parts.kinds.iter().map(|handler| handler.kind()).collect(),
                validators: parts.convergers.iter().filter_map(|converger| converger.validator()).collect(),
                versions: wire::versions::Versions::SPOKEN,
                rng: self.rng.clone(),
            },
            now,
        );
        self.alive = Some(Alive {
            engine,
            convergers: parts.convergers,
            kinds: parts.kinds,
            machine: parts.machine,
            host: parts.host,
            boot_id: parts.boot_id,
            line: None,
            workers: BTreeMap::new(),
            next_look: now.monotonic + PASS_PERIOD,
            converge_at: None,
            desk: Default::default(),
            first_pass: true,
            renewing: false,
            renew_not_before: Duration::ZERO,
            renew_backoff: Backoff::new(renew::RETRY_FIRST, renew::RETRY_CEILING),
        });
        self.due = None;
        let readings = self.readings();
        self.settle(vec![readings, Input::Tick]);
    }

    pub fn agent_version(&self) -> String {
        format!("{AGENT_VERSION}.{}", self.upgrades)
    }

    /// The daemon stops, and what starts next is of another version.
    pub fn upgrade(&mut self) {
        self.crash();
        self.upgrades += 1;
    }

    /// The daemon is gone between two steps. What it held open is closed by the machine's kernel.
    pub fn crash(&mut self) {
        if let Some(alive) = self.alive.take()
            && let Some(line) = alive.line
        {
            line.send(None);
            line.cut();
        }
        self.life += 1;
        self.asks.clear();
        self.due = None;
    }

    /// The power goes: nobody is told anything. What lives in memory is gone, and the next start has another boot id.
    pub fn power_off(&mut self) {
        if let Some(line) = self.line() {
            line.cut();
        }
        self.crash();
        self.hardware.power_cycle();
        self.lose_runtime();
    }

    /// What a reboot that somebody asked for loses; the hardware has its new boot id already.
    pub fn lose_runtime(&mut self) {
        self.files.reboot();
        self.slices.reboot();
        self.lose_guests();
    }

    pub fn lose_journal(&mut self) {
        self.crash();
        self.journal = Arc::new(MemoryJournal::new(self.rng.id(self.core.now())));
    }

    fn readings(&self) -> Input {
        let machine = &self.alive.as_ref().expect("it runs").machine;
        let hardware: &dyn agent::hardware::Hardware = &**machine;
        Input::Hardware {
            hashes: hardware.inventory_hashes(),
            conditions: hardware.conditions(),
            pressure: hardware.pressure(),
        }
    }

    /// Something came: the engine decides, what it writes is durable, then its effects happen.
    pub fn step(&mut self, input: Input) {
        if self.alive.is_some() {
            self.settle(vec![input]);
        }
    }

    fn settle(&mut self, mut inputs: Vec<Input>) {
        while !inputs.is_empty() {
            let now = self.now();
            let alive = self.alive.as_mut().expect("only a running daemon steps");
            for input in inputs.drain(..) {
                alive.engine.handle(input, now);
            }
            let writes = alive.engine.take_writes();
            if !writes.is_empty() {
                at_once("commit", self.journal.commit(writes)).expect("memory takes every write");
            }
            for effect in alive.engine.take_effects() {
                self.perform(effect, &mut inputs);
                if self.alive.is_none() {
                    return;
                }
            }
        }
        self.schedule();
    }

    fn perform(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        match effect {
            Effect::Send(outgoing) => self.send(outgoing, inputs),
            Effect::Run { id, kind, payload, not_after } => self.run_command(id, kind, payload, not_after),
            Effect::Cancel(id) => {
                if let Some(cancel) = self.alive.as_ref().and_then(|alive| alive.workers.get(&id)) {
                    cancel.cancel();
                }
            }
            Effect::Converge => {
                let soon = self.now().monotonic + self.core.between(MS, 40 * MS);
                let alive = self.alive.as_mut().expect("it runs");
                alive.converge_at = Some(alive.converge_at.map_or(soon, |at| at.min(soon)));
            }
            Effect::Dial => self.asks.push(Ask::Dial),
            Effect::Hangup => self.hang_up(),
            Effect::StoreTrust { version, signed } => {
                let parsed = pki::SignedMessage::decode(&signed)
                    .and_then(|message| pki::TrustBundle::parse(&message.body));
                if let (Ok(trust), Some(identity)) = (parsed, &mut self.identity) {
                    (identity.trust, identity.signed_trust) = (trust, signed);
                    inputs.push(Input::TrustStored { version });
                }
            }
            Effect::StoreMarks(marks) => {
                if let Some(identity) = &mut self.identity {
                    identity.marks = identity.marks.max(marks);
                }
            }
            Effect::Told { wanted, told } => self.told(wanted, told),
            Effect::OpenTunnel { .. } | Effect::CloseTunnels => {}
        }
    }

    fn send(&mut self, outgoing: Outgoing, inputs: &mut Vec<Input>) {
        let now = self.now();
        let Some(alive) = &self.alive else { return };
        let Some(line) = &alive.line else { return };
        let hardware: &dyn agent::hardware::Hardware = &*alive.machine;
        match engine::render(outgoing, &*self.journal, hardware, alive.engine.server_time(now)) {
            Ok(frames) => frames.into_iter().for_each(|frame| line.send(Some(frame))),
            Err(err) => {
                self.hang_up();
                inputs.push(Input::Disconnected { why: kit::chain(&err), pushback: None });
            }
        }
    }

    /// The handler acts now; that it is done is known a while later, and not at all when the daemon dies before.
    fn run_command(&mut self, id: CommandId, kind: CommandKind, payload: Payload, not_after: Timestamp) {
        let (node_id, life) = (self.node_id().expect("it has joined"), self.life);
        let alive = self.alive.as_mut().expect("it runs");
        let cancel = CancellationToken::new();
        alive.workers.insert(id, cancel.clone());
        let context = CommandContext {
            command_id: id,
            node_id,
            boot_id: alive.boot_id.clone(),
            not_after,
            cancel,
            host: alive.host.clone(),
        };
        // What may be repeated is not asked about.
        if !kind.policy().retry_safe {
            self.effects.push(EffectView {
                command_id: id,
                kind,
                at: self.core.now(),
                journal_id: self.journal.id(),
                boot_id: alive.boot_id.clone(),
            });
        }
        let handler = alive.kinds.iter().find(|handler| handler.kind() == kind).cloned();
        let handler = handler.expect("the engine runs what is handled");
        let outcome = at_once(kind.name(), handler.run(context, payload));
        let took = self.core.between(50 * MS, 4_000 * MS);
        if outcome == agent::kinds::Outcome::Ending {
            // On its way down, it still answers for a while.
            let down = Event::NodeReboots { node: self.index, life };
            self.core.post(took + self.core.up_to(2_000 * MS), down);
        }
        self.core.post(took, Event::WorkerDone { node: self.index, life, id, outcome });
    }

    /// Takes up a line; the daemon hears of it when it stands.
    pub fn dialed(&mut self, line: Arc<Line>) {
        if let Some(alive) = &mut self.alive {
            alive.line = Some(line);
        }
    }

    /// Whether this is the line the daemon uses.
    pub fn uses(&self, line: &Arc<Line>) -> bool {
        self.life == line.life && self.line().is_some_and(|own| Arc::ptr_eq(own, line))
    }

    pub fn line_ended(&mut self, why: String, pushback: Option<Duration>) {
        if let Some(alive) = &mut self.alive {
            alive.line = None;
        }
        self.step(Input::Disconnected { why, pushback });
    }

    pub fn worker_done(&mut self, id: CommandId, outcome: agent::kinds::Outcome) {
        if let Some(alive) = &mut self.alive {
            alive.workers.remove(&id);
        }
        self.look();
        let readings = self.readings();
        self.settle(vec![Input::Finished { id, outcome }, readings]);
    }

    pub fn renewed(&mut self, renewed: Result<Box<Identity>, String>) {
        let now = self.now();
        let Some(alive) = &mut self.alive else { return };
        alive.renewing = false;
        match (renewed, &self.identity) {
            (Ok(renewed), Some(held)) => {
                let identity = renew::take(held, *renewed);
                let key = Box::new(identity.key.clone());
                let certificate = Certificate { begins: identity.not_before, ends: identity.not_after };
                self.identity = Some(identity);
                alive.renew_backoff.reset();
                self.renewals += 1;
                self.settle(vec![Input::Renewed { key, certificate }]);
            }
            _ => {
                let wait = alive.renew_backoff.next_wait(&*self.rng).max(RENEWAL_WAIT_MIN);
                alive.renew_not_before = now.monotonic + wait;
                self.schedule();
            }
        }
    }

    /// The node's own clock says that something is due.
    pub fn due(&mut self, turn: u64) {
        if turn != self.turn || self.alive.is_none() {
            return;
        }
        self.due = None;
        let now = self.now();
        let mut inputs = Vec::new();
        if self.alive.as_ref().is_some_and(|alive| alive.next_look <= now.monotonic) {
            self.look();
            inputs.push(self.readings());
        }
        if self.alive.as_ref().and_then(|alive| alive.converge_at).is_some_and(|at| at <= now.monotonic) {
            inputs.extend(self.converge());
            if self.dies_in_its_pass() {
                return;
            }
            inputs.push(self.readings());
        }
        let renewal = self.renewal_due(now);
        let alive = self.alive.as_mut().expect("looked at above");
        if renewal <= now.monotonic {
            alive.renewing = true;
            self.asks.push(Ask::Renew);
        }
        if inputs.is_empty() {
            inputs.push(Input::Tick);
        }
        self.settle(inputs);
    }

    fn renewal_due(&self, now: Now) -> Duration {
        let (Some(alive), Some(identity)) = (&self.alive, &self.identity) else { return Duration::MAX };
        if alive.renewing {
            return Duration::MAX;
        }
        let due = renew::due(identity.not_before, identity.not_after);
        let wait = due.since(alive.engine.server_time(now));
        (now.monotonic + wait).max(alive.renew_not_before)
    }

    fn schedule(&mut self) {
        let now = self.now();
        let Some(alive) = &self.alive else { return };
        let mut next = alive.engine.deadline().min(alive.next_look).min(self.renewal_due(now));
        if let Some(at) = alive.converge_at {
            next = next.min(at);
        }
        let at = self.core.now().micros() + micros(next.saturating_sub(now.monotonic));
        if self.due.is_some_and(|due| due <= at) {
            return;
        }
        self.due = Some(at);
        self.turn += 1;
        self.core.post_at(at, Event::NodeDue { node: self.index, turn: self.turn });
    }
}

const MS: Duration = Duration::from_millis(1);

/// Everything of a simulated machine is in memory, so nothing of it waits.
fn at_once<T>(doing: &str, work: impl Future<Output = T>) -> T {
    work.now_or_never().unwrap_or_else(|| panic!("a simulated machine waited to {doing}"))
}
