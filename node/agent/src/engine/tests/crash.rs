//! A crash before and after every single commit, one at a time: whatever is lost in memory, each command is run as often as its kind
//! allows, settles once, and the control plane hears of it.

use std::collections::BTreeMap;

use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{Ack, Command, CommandState, DesiredState, NodeSpec};

use super::rig::*;
use crate::engine::*;
use crate::testing::command_id;

/// The other side: it delivers a spec and commands until every command is settled, as a gateway with a database does.
#[derive(Default)]
struct ControlPlane {
    commands: BTreeMap<CommandId, (CommandKind, Command)>,
    settled: BTreeMap<CommandId, CommandState>,
    /// Terminal updates that contradict an earlier one.
    contradictions: Vec<String>,
}

impl ControlPlane {
    fn hear(&mut self, update: &wire::proto::agent::CommandUpdate) {
        let id: CommandId = update.command_id.parse().unwrap();
        let state = update.state();
        if matches!(state, CommandState::Acked | CommandState::Running | CommandState::Busy) {
            return;
        }
        if self.settled.insert(id, state).is_some_and(|before| before != state) {
            self.contradictions.push(format!("{id} became {state:?}"));
        }
    }
}

/// The machine: side effects by command, and a crash at the wanted commit.
struct World {
    rig: Rig,
    plane: ControlPlane,
    spec: wire::proto::agent::DesiredStateBody,
    runs: BTreeMap<CommandId, u32>,
    commits: u32,
    crash: Crash,
    crashed: bool,
}

/// Where a process dies, by the number of the commit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crash {
    Never,
    /// Its writes are lost; what earlier steps did to the world is done.
    Before(u32),
    /// Its writes are durable, and none of its effects happened.
    After(u32),
}

impl World {
    fn new(kinds: &[CommandKind], crash: Crash) -> Self {
        let rig = Rig::new();
        let mut plane = ControlPlane::default();
        for (n, kind) in kinds.iter().enumerate() {
            let id = command_id(n as u128 + 1);
            plane.commands.insert(id, (*kind, rig.deployment.command(NODE, id, *kind)));
        }
        let spec = rig.deployment.spec_body(NODE, 1, NodeSpec::default());
        Self { rig, plane, spec, runs: BTreeMap::new(), commits: 0, crash, crashed: false }
    }

    /// One step, with the crash where it is wanted. True when it crashed.
    fn step(&mut self, input: Input) -> bool {
        self.rig.engine.handle(input, self.rig.now());
        let writes = self.rig.engine.take_writes();
        if !writes.is_empty() {
            self.commits += 1;
            if self.crash == Crash::Before(self.commits) {
                return self.die();
            }
        }
        self.rig.write(writes);
        if self.crash == Crash::After(self.commits) && !self.crashed {
            return self.die();
        }
        self.rig.act();
        false
    }

    fn die(&mut self) -> bool {
        self.crashed = true;
        self.rig.restart();
        true
    }

    fn frame(&mut self, frame: Gateway) -> bool {
        self.step(Input::Frame(Box::new(GatewayFrame { frame: Some(frame) })))
    }

    /// One session from dial to nothing left to say, or to a crash.
    fn session(&mut self) -> Result<(), Crashed> {
        let crash = |crashed: bool| if crashed { Err(Crashed) } else { Ok(()) };
        self.rig.seconds += 61;
        crash(self.step(Input::Tick))?;
        crash(self.step(Input::Connected))?;
        let hello = self.rig.take_sent().into_iter().find_map(|frame| match frame.frame {
            Some(Frame::Hello(hello)) => Some(hello),
            _ => None,
        });
        let hello = hello.expect("a connected engine says Hello");
        hello.unacked_results.iter().for_each(|update| self.plane.hear(update));
        let welcome = self.rig.welcome();
        crash(self.frame(Gateway::Welcome(welcome)))?;
        if hello.applied_generation < self.spec.generation {
            let nonce = hello.fresh.then_some(&hello.nonce[..]);
            let delivered: DesiredState = self.rig.deployment.signed_spec(&self.spec, nonce);
            crash(self.frame(Gateway::DesiredState(delivered)))?;
        }
        let open: Vec<Command> = self
            .plane
            .commands
            .iter()
            .filter(|(id, _)| !self.plane.settled.contains_key(*id))
            .map(|(_, (_, command))| command.clone())
            .collect();
        for command in open {
            crash(self.frame(Gateway::Command(command)))?;
            crash(self.work()?)?;
        }
        self.hear();
        let command_ids = self.plane.settled.keys().map(CommandId::to_string).collect();
        crash(self.frame(Gateway::Ack(Ack { command_ids, ..Ack::default() })))
    }

    fn hear(&mut self) {
        for update in self.rig.take_updates() {
            self.plane.hear(&update);
        }
    }

    /// Does what workers are told to: the side effect happens, then its outcome comes back.
    fn work(&mut self) -> Result<bool, Crashed> {
        self.hear();
        for id in self.rig.take_runs() {
            *self.runs.entry(id).or_default() += 1;
            let (kind, _) = self.plane.commands[&id];
            if kind.policy().self_terminating {
                self.rig.boot = format!("boot-after-{id}");
                self.rig.restart();
                return Err(Crashed);
            }
            if self.step(Input::Finished { id, outcome: refreshed() }) {
                return Ok(true);
            }
            self.hear();
        }
        Ok(false)
    }
}

#[derive(Debug)]
struct Crashed;

/// Runs until the control plane has every outcome, then once more to see that nothing is left.
fn settle_all(kinds: &[CommandKind], crash: Crash) -> World {
    let mut world = World::new(kinds, crash);
    for _ in 0..20 {
        let over = world.session().is_ok();
        world.rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
        if over && world.plane.settled.len() == kinds.len() {
            break;
        }
    }
    world
}

#[test]
fn a_crash_around_any_commit_settles_every_command_once() {
    let kinds = [
        CommandKind::InventoryRefresh,
        CommandKind::GpuReset,
        CommandKind::NodeReboot,
        CommandKind::DiagNvml,
    ];
    let without = settle_all(&kinds, Crash::Never);
    let commits = without.commits;
    assert!(commits >= 10, "the walk has something to walk over: {commits}");
    assert!(
        without.plane.settled.values().all(|state| *state == CommandState::Succeeded),
        "{:?}",
        without.plane.settled
    );
    for crash in (1..=commits).flat_map(|n| [Crash::Before(n), Crash::After(n)]) {
        let mut world = settle_all(&kinds, crash);
        assert!(world.crashed, "{crash:?} of {commits}");
        let context = format!("{crash:?}: {:?}, runs {:?}", world.plane.settled, world.runs);
        assert_eq!(world.plane.settled.len(), kinds.len(), "{context}");
        assert_eq!(world.plane.contradictions, [] as [String; 0], "{context}");
        for (id, (kind, _)) in &world.plane.commands {
            let runs = world.runs.get(id).copied().unwrap_or(0);
            let allowed = if kind.policy().retry_safe { 2 } else { 1 };
            assert!(runs <= allowed, "{} ran {runs} times; {context}", kind.name());
            // The end of the boot is either there or it is not, so no crash leaves a doubt about it.
            if kind.policy().self_terminating {
                assert_eq!((runs, world.plane.settled[id]), (1, CommandState::Succeeded), "{context}");
            }
            // A success that never happened would be a lie; `running` is durable before the effect, so the one crash
            // between them may cost a command that did nothing, never the other way round.
            if world.plane.settled[id] == CommandState::Succeeded {
                assert!(runs >= 1, "{} succeeded without running; {context}", kind.name());
            }
        }
        world.rig.tick_to(world.rig.seconds + 120);
        world.rig.restart();
        let hello = world.rig.greet();
        assert!(hello.unacked_results.is_empty() && hello.in_flight.is_empty(), "{context}");
        assert_eq!(hello.applied_generation, 1, "{context}");
    }
}
