//! A node: the machine, its disk, and the daemon's process on it when there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use agent::clock::Now;
use agent::converge::{ConvergeContext, Converger, Fact, Report, SectionReport};
use agent::desired::HeldSpec;
use agent::effect::Effect;
use agent::engine::{Certificate, Engine, EngineParts, Input, Node as Facts};
use agent::identity::Identity;
use agent::journal::{JournalStore, Limits, Marks, Write};
use futures::future::BoxFuture;
use model::condition::Severity;
use model::{CommandId, CommandKind, IncarnationId, JournalId, Section, SectionState};
use wire::proto::agent::{
    AllocationBound, AllocationReleased, DesiredHold, EventClass, NodeSpec, node_report,
};

use super::action::{How, Point, Release};
use super::clock::{Micros, SECOND, micros_up, moment};
use super::disk::Disk;
use super::draw::Bytes;
use super::plane::keys;

/// Readings that nobody announced are taken up this often, as the daemon's own loop has it.
pub const HARDWARE_PERIOD: Micros = 30 * SECOND;
/// A commit that fails is tried this often before the daemon gives up.
pub const COMMIT_ATTEMPTS: u32 = 5;

/// What the daemon can do to its machine.
#[derive(Debug, Default)]
pub struct Machine {
    /// By allocation.
    pub holds: BTreeSet<String>,
    /// What the last pass did: allocation, and whether it is held since.
    pub changed: Vec<(String, bool)>,
    /// Something else keeps it from changing anything now.
    pub busy: bool,
}

pub type SharedMachine = Arc<Mutex<Machine>>;

/// Brings holds about on a machine of memory.
pub struct Holds(pub SharedMachine);

impl Holds {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().expect("no holder of this lock panics")
    }

    fn pass(&self, spec: &NodeSpec, context: &ConvergeContext) -> SectionReport {
        let mut machine = self.machine();
        if machine.busy {
            return SectionReport::of(SectionState::Progressing).with_reason("busy", "");
        }
        let mut report = SectionReport::converged();
        let generation = context.generation;
        let mut listed = BTreeSet::new();
        for entry in spec.devices.iter().flat_map(|devices| &devices.assignments) {
            let allocation_id = entry.allocation_id.clone();
            listed.insert(allocation_id.clone());
            let held = entry.desired() == DesiredHold::Held;
            let changed = if held {
                machine.holds.insert(allocation_id.clone())
            } else {
                machine.holds.remove(&allocation_id)
            };
            if changed {
                machine.changed.push((allocation_id.clone(), held));
            }
            if changed || context.first_pass {
                let body = if held {
                    let bound = AllocationBound { allocation_id, generation, ..AllocationBound::default() };
                    node_report::Report::AllocationBound(bound)
                } else {
                    node_report::Report::AllocationReleased(AllocationReleased { allocation_id, generation })
                };
                report.reports.push(Report { class: EventClass::Transition, body });
            }
        }
        report.conditions.extend(machine.holds.difference(&listed).map(|allocation| Fact {
            kind: "UnlistedHold".to_owned(),
            severity: Severity::Warning,
            device: allocation.clone(),
            reason: "unlisted".to_owned(),
            message: String::new(),
            age: None,
        }));
        report
    }
}

impl Converger for Holds {
    fn section(&self) -> Section {
        Section::Devices
    }

    fn converge<'a>(
        &'a mut self,
        spec: &'a NodeSpec,
        context: &'a ConvergeContext,
    ) -> BoxFuture<'a, SectionReport> {
        Box::pin(futures::future::ready(self.pass(spec, context)))
    }
}

/// A death that waits for its moment.
#[derive(Debug, Clone, Copy)]
pub struct Trap {
    pub point: Point,
    pub skip: u64,
    pub how: How,
}

pub struct Node {
    pub disk: Arc<Disk>,
    /// `identity.json` and the key.
    pub kept: Identity,
    pub machine: SharedMachine,
    /// Of its daemon.
    pub release: Release,
    pub process: Option<Process>,
    pub starts_at: Option<Micros>,
    pub skew: i64,
    pub boot: u64,
    pub processes: u64,
    pub journals: u64,
    pub traps: Vec<Trap>,
    pub slow_until: Micros,
    /// A gateway lied to this process about the time.
    pub lied_to: bool,
    /// A connection whose Welcome was of no version of ours.
    pub must_leave: Option<u64>,
    /// Counts draws.
    pub drawn: u64,
}

pub struct Process {
    pub engine: Engine,
    pub started: Micros,
    pub incarnation: IncarnationId,
    pub wire: Wire,
    pub workers: BTreeMap<CommandId, Worker>,
    pub convergers: Vec<Box<dyn Converger>>,
    pub pass: Pass,
    pub committing: Option<Committing>,
    pub inputs: Vec<Input>,
    pub next_hardware: Micros,
    /// What its last Hello asked to be bound to.
    pub nonce: Vec<u8>,
}

pub enum Wire {
    Down,
    Dialing { due: Micros, gateway: usize },
    Up(u64),
}

pub struct Worker {
    pub kind: CommandKind,
    /// When it acts on the machine, until it has.
    pub acts_at: Option<Micros>,
    pub done_at: Micros,
    pub cancelled: bool,
    pub keys: Vec<String>,
}

#[derive(Default)]
pub struct Pass {
    pub woken: bool,
    pub running: Option<(Arc<HeldSpec>, Micros)>,
    pub next: Micros,
    pub not_first: bool,
}

/// A step between its decision and its effects.
pub struct Committing {
    pub writes: Vec<Write>,
    pub effects: Vec<Effect>,
    /// What was durable when it was decided.
    pub marks: Marks,
    pub attempts: u32,
    pub at: Micros,
}

pub fn boot_id(boot: u64) -> String {
    format!("boot-{boot}")
}

/// The id of a node's nth journal.
pub fn journal_id(node: usize, journals: u64) -> JournalId {
    agent::testing::journal_id(((node as u128 + 1) << 32) | u128::from(journals))
}

impl Node {
    pub fn new(index: usize) -> Self {
        Self {
            disk: Arc::new(Disk::new(journal_id(index, 1))),
            kept: keys().identities[index].clone(),
            machine: SharedMachine::default(),
            release: Release::Current,
            process: None,
            starts_at: Some(0),
            skew: 0,
            boot: 1,
            processes: 0,
            journals: 1,
            traps: Vec::new(),
            slow_until: 0,
            lied_to: false,
            must_leave: None,
            drawn: 0,
        }
    }

    pub fn now(&self, now: Micros, started: Micros) -> Now {
        let wall = moment(now).micros().saturating_add(self.skew);
        Now {
            monotonic: std::time::Duration::from_micros(now - started),
            wall: model::Timestamp::from_micros(wall),
        }
    }

    /// Starts the daemon.
    pub fn start(&mut self, index: usize, now: Micros, seed: u64) {
        self.processes += 1;
        self.lied_to = false;
        let number = ((index as u128 + 1) << 32) | u128::from(self.processes);
        let incarnation = agent::testing::incarnation(number);
        let identity = &self.kept;
        let loaded = self.disk.load().expect("the simulated disk always reads");
        let parts = EngineParts {
            node: Facts {
                node_id: identity.node_id,
                site_id: identity.site_id,
                role: identity.role,
                boot_id: boot_id(self.boot),
                agent_version: "1.0.0".to_owned(),
                capabilities: Vec::new(),
            },
            key: identity.key.clone(),
            certificate: Certificate { begins: identity.not_before, ends: identity.not_after },
            trust: identity.trust.clone(),
            marks: identity.marks,
            journal_id: self.disk.id(),
            incarnation,
            limits: Limits::default(),
            loaded,
            handled: CommandKind::ALL.into_iter().filter(|kind| self.release.handles(*kind)).collect(),
            validators: Vec::new(),
            versions: self.release.versions(),
            rng: Arc::new(Bytes::new(seed ^ (number as u64))),
        };
        self.process = Some(Process {
            engine: Engine::new(parts, self.now(now, now)),
            started: now,
            incarnation,
            wire: Wire::Down,
            workers: BTreeMap::new(),
            convergers: vec![Box::new(Holds(self.machine.clone()))],
            pass: Pass::default(),
            committing: None,
            inputs: vec![hardware()],
            next_hardware: now + HARDWARE_PERIOD,
            nonce: Vec::new(),
        });
    }

    /// When it next has something to do by itself.
    pub fn deadline(&self, now: Micros) -> Micros {
        let due = match (&self.process, self.starts_at) {
            (Some(process), _) => process.deadline(now),
            (None, Some(at)) => return at,
            (None, None) => Micros::MAX,
        };
        due.max(self.slow_until)
    }
}

/// Nothing is known of a simulated machine but that it is there.
pub fn hardware() -> Input {
    Input::Hardware { hashes: BTreeMap::new(), conditions: Vec::new(), pressure: None }
}

impl Process {
    fn deadline(&self, now: Micros) -> Micros {
        if let Some(committing) = &self.committing {
            return committing.at;
        }
        if !self.inputs.is_empty() {
            return now;
        }
        let engine = micros_up(self.engine.deadline());
        let mut due = engine.saturating_add(self.started).min(self.next_hardware);
        for worker in self.workers.values() {
            due = due.min(worker.acts_at.unwrap_or(worker.done_at));
        }
        if let Wire::Dialing { due: dialed, .. } = self.wire {
            due = due.min(dialed);
        }
        due = match &self.pass.running {
            Some((_, at)) => due.min(*at),
            None if self.pass.woken => now,
            None if self.engine.held().is_some() => due.min(self.pass.next),
            None => due,
        };
        due.max(now)
    }
}
