//! An engine with its journal, driven step by step, and a gateway in a few lines.

use std::sync::Arc;

use kit::SeededRng;
use model::SectionState;
use prost::Message;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{
    AllocationBound, CommandUpdate, DeviceAssignment, DevicesSection, EventClass, Hello, NodeFrame, NodeSpec,
    StatusReport, Welcome, node_report,
};

use crate::converge::{PassReport, Report, SectionReport};
use crate::engine::*;
use crate::hardware::NoHardware;
use crate::identity::Identity;
use crate::journal::{JournalStore, MemoryJournal};
use crate::testing::{Deployment, at, command_id, incarnation, journal_id};

pub const NODE: u128 = 5;

pub struct Rig {
    pub deployment: Arc<Deployment>,
    pub identity: Identity,
    pub store: Arc<MemoryJournal>,
    pub engine: Engine,
    pub boot: String,
    pub seconds: u64,
    pub sent: Vec<NodeFrame>,
    /// Effects other than sends, since they were last looked at.
    pub effects: Vec<Effect>,
    pub validators: Vec<Validator>,
    pub limits: Limits,
    process: u128,
}

impl Rig {
    pub fn new() -> Self {
        let deployment = Arc::new(Deployment::new(1));
        let identity = deployment.identity(NODE);
        let store = Arc::new(MemoryJournal::new(journal_id(1)));
        let engine = engine(&identity, &store, "boot-1", 1, &[], Limits::default(), 0);
        Self {
            deployment,
            identity,
            store,
            engine,
            boot: "boot-1".into(),
            seconds: 0,
            sent: Vec::new(),
            effects: Vec::new(),
            validators: Vec::new(),
            limits: Limits::default(),
            process: 1,
        }
    }

    pub fn now(&self) -> Now {
        Now { monotonic: Duration::from_secs(self.seconds), wall: at(self.seconds) }
    }

    /// The next process over the same journal and identity; what the last one had in memory is gone.
    pub fn restart(&mut self) {
        self.process += 1;
        self.engine = engine(
            &self.identity,
            &self.store,
            &self.boot,
            self.process,
            &self.validators,
            self.limits,
            self.seconds,
        );
        self.effects.clear();
        self.sent.clear();
    }

    /// One step: decide, make durable, collect effects.
    pub fn step(&mut self, input: Input) {
        self.engine.handle(input, self.now());
        self.commit();
        self.act();
    }

    /// The first half of a step's end. A crash may come right after.
    pub fn commit(&mut self) {
        let writes = self.engine.take_writes();
        self.write(writes);
    }

    pub fn write(&mut self, writes: Vec<Write>) {
        futures::FutureExt::now_or_never(self.store.commit(writes)).expect("memory commits at once").unwrap();
    }

    /// The second half.
    pub fn act(&mut self) {
        for effect in self.engine.take_effects() {
            match effect {
                Effect::Send(outgoing) => {
                    let now = self.engine.server_time(self.now());
                    let frames = render(outgoing, self.store.as_ref(), &NoHardware, now).unwrap();
                    self.sent.extend(frames);
                }
                Effect::StoreMarks(marks) => self.identity.marks = self.identity.marks.max(marks),
                other => self.effects.push(other),
            }
        }
    }

    pub fn tick_to(&mut self, seconds: u64) {
        self.seconds = seconds;
        self.step(Input::Tick);
    }

    pub fn frame(&mut self, frame: Gateway) {
        self.step(Input::Frame(Box::new(GatewayFrame { frame: Some(frame) })));
    }

    /// Dials and greets, up to the Hello.
    pub fn greet(&mut self) -> Hello {
        self.step(Input::Tick);
        self.step(Input::Connected);
        let hello = self.take_sent().into_iter().find_map(|frame| match frame.frame {
            Some(Frame::Hello(hello)) => Some(hello),
            _ => None,
        });
        hello.expect("an engine that is connected says Hello")
    }

    pub fn welcome(&self) -> Welcome {
        Welcome {
            protocol: 1,
            session_epoch: 3,
            deployment_epoch: 1,
            server_time_ms: crate::testing::at_ms(self.seconds),
            journal_id: self.store.id().to_string(),
            heartbeat_interval_ms: 10_000,
            ..Welcome::default()
        }
    }

    /// An open session. Gives back the Hello.
    pub fn open(&mut self) -> Hello {
        let hello = self.greet();
        let welcome = self.welcome();
        self.frame(Gateway::Welcome(welcome));
        hello
    }

    pub fn take_sent(&mut self) -> Vec<NodeFrame> {
        std::mem::take(&mut self.sent)
    }

    /// Command updates among what was sent, as `(state, reason)`.
    pub fn take_updates(&mut self) -> Vec<CommandUpdate> {
        self.take_sent()
            .into_iter()
            .filter_map(|frame| match frame.frame {
                Some(Frame::CommandUpdate(update)) => Some(update),
                _ => None,
            })
            .collect()
    }

    pub fn take_runs(&mut self) -> Vec<CommandId> {
        let (runs, rest) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Run { .. }));
        self.effects = rest;
        let runs: Vec<Effect> = runs;
        runs.into_iter()
            .map(|effect| match effect {
                Effect::Run { id, .. } => id,
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn engine(
    identity: &Identity,
    store: &MemoryJournal,
    boot: &str,
    process: u128,
    validators: &[Validator],
    limits: Limits,
    seconds: u64,
) -> Engine {
    let parts = EngineParts {
        node: Node {
            node_id: identity.node_id,
            site_id: identity.site_id,
            role: identity.role,
            boot_id: boot.to_owned(),
            agent_version: "1.0.0".into(),
            capabilities: vec!["devices.limits".into()],
        },
        key: identity.key.clone(),
        certificate: Certificate { begins: identity.not_before, ends: identity.not_after },
        trust: identity.trust.clone(),
        marks: identity.marks,
        journal_id: store.id(),
        incarnation: incarnation(process),
        limits,
        loaded: store.load().unwrap(),
        handled: CommandKind::ALL.to_vec(),
        validators: validators.to_vec(),
        versions: Versions::SPOKEN,
        rng: Arc::new(SeededRng::new(u64::try_from(process).unwrap())),
    };
    Engine::new(parts, Now { monotonic: Duration::from_secs(seconds), wall: at(seconds) })
}

/// States of updates, for short assertions.
pub fn states(updates: &[CommandUpdate]) -> Vec<wire::proto::agent::CommandState> {
    updates.iter().map(CommandUpdate::state).collect()
}

/// A result of the shape `inventory.refresh` has.
pub fn refreshed() -> Outcome {
    Outcome::Succeeded(wire::proto::agent::command_result::Result::InventoryRefresh(Default::default()))
}

/// The encoded form of any message.
pub fn bytes(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

pub fn spec(hold: &str) -> NodeSpec {
    let assignment = DeviceAssignment { allocation_id: hold.into(), ..DeviceAssignment::default() };
    NodeSpec { devices: Some(DevicesSection { assignments: vec![assignment] }), ..NodeSpec::default() }
}

/// A node at generation 1, with an open session and nothing under way.
pub fn at_generation_one() -> Rig {
    let mut rig = Rig::new();
    let hello = rig.open();
    assert!(hello.fresh);
    let delivered =
        rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 1, spec("a")), Some(&hello.nonce));
    rig.frame(Gateway::DesiredState(delivered));
    rig.step(Input::Passed(pass(1, SectionState::Converged, vec![])));
    rig.take_sent();
    rig.effects.clear();
    rig
}

pub fn pass(generation: u64, devices: SectionState, reports: Vec<Report>) -> PassReport {
    let mut sections: BTreeMap<u32, SectionReport> =
        model::Section::ALL.iter().map(|section| (section.number(), SectionReport::converged())).collect();
    sections.insert(2, SectionReport { reports, ..SectionReport::of(devices) });
    PassReport { generation, sections }
}

pub fn bound(allocation: &str) -> Report {
    let body =
        AllocationBound { allocation_id: allocation.into(), generation: 1, ..AllocationBound::default() };
    Report { class: EventClass::Transition, body: node_report::Report::AllocationBound(body) }
}

pub fn statuses(rig: &mut Rig) -> Vec<StatusReport> {
    rig.take_sent()
        .into_iter()
        .filter_map(|frame| match frame.frame {
            Some(Frame::Status(status)) => Some(status),
            _ => None,
        })
        .collect()
}

pub fn deliver(rig: &mut Rig, n: u128, kind: CommandKind) {
    let command = rig.deployment.command(NODE, command_id(n), kind);
    rig.frame(Gateway::Command(command));
}
