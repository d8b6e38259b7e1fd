//! A whole node: the real agent over these handlers and a simulated machine, with a gateway of a few lines on the other
//! end of a link in memory, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::sync::Arc;
use std::time::Duration;

use agent::identity::MemoryIdentity;
use agent::journal::{JournalStore, Limits, MemoryJournal};
use agent::link::memory::{GatewayEnd, MemoryLink};
use agent::run::{Agent, AgentParts};
use agent::testing::{Deployment, START, command_id, journal_id, nth};
use futures::future::BoxFuture;
use handlers::logs::LogRing;
use handlers::node::{NodePorts, parts};
use hw::FakeHardware;
use kit::{Clock, OnEnd, SeededRng, Supervisor, TaskKind};
use model::{AllocationId, CommandKind, NodeId, Timestamp};
use prost::Message;
use tempfile::TempDir;
use tokio::sync::mpsc;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{
    AccessSection, Binding, CommandResult, CommandState, CommandUpdate, DesiredHold, DeviceAssignment,
    DevicesSection, GatewayFrame, GpuReset, HeartbeatAck, Hello, Limits as HoldLimits, NodeEvent, NodeReboot,
    NodeReport, NodeSpec, Welcome, command_result,
};

const NODE: u128 = 5;
const WATCH: TaskKind = TaskKind::isolated("watch");

/// Tokio's clock, which a test may pause, dated at the deployment's start.
struct VirtualClock(tokio::time::Instant);

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        START.saturating_add(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

struct World {
    dir: TempDir,
    deployment: Deployment,
    hardware: Arc<FakeHardware>,
    identity: MemoryIdentity,
    journal: Arc<MemoryJournal>,
    link: MemoryLink,
    gateway: mpsc::Receiver<GatewayEnd>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    starts: u64,
}

impl World {
    fn new() -> Self {
        let deployment = Deployment::new(1);
        let (link, gateway) = MemoryLink::new();
        Self {
            dir: tempfile::tempdir().unwrap(),
            identity: MemoryIdentity::holding(deployment.identity(NODE)),
            deployment,
            hardware: Arc::new(FakeHardware::new(4)),
            journal: Arc::new(MemoryJournal::new(journal_id(1))),
            link,
            gateway,
            clock: Arc::new(VirtualClock(tokio::time::Instant::now())),
            supervisor: Supervisor::new(),
            starts: 0,
        }
    }

    async fn start(&mut self) -> Agent {
        self.starts += 1;
        let logs = Arc::new(LogRing::new(self.clock.clone()));
        let ports = NodePorts::simulated(self.hardware.clone(), self.dir.path(), self.clock.clone(), logs);
        let node = parts(ports).await.unwrap();
        let parts = AgentParts {
            agent_version: "1.0.0".into(),
            boot_id: node.boot_id,
            limits: Limits::default(),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(self.starts)),
            link: Arc::new(self.link.clone()),
            journal: self.journal.clone() as Arc<dyn JournalStore>,
            identity: Arc::new(self.identity.clone()),
            convergers: node.convergers,
            kinds: node.kinds,
            hardware: node.hardware,
            host: node.host,
            tunnels: node.tunnels,
            on_end: OnEnd::Isolate,
        };
        let agent = agent::run::run(parts, &self.supervisor).unwrap();
        let (watch, handle) = (node.watch, agent.handle.clone());
        self.supervisor.spawn(WATCH, |stop| watch.run(handle, stop));
        agent
    }

    async fn accept(&mut self) -> (Session, Hello) {
        let mut session = Session { end: within(self.gateway.recv()).await.expect("the agent lives") };
        let Frame::Hello(hello) = session.hear().await else { panic!("the first frame is Hello") };
        session
            .say(Gateway::Welcome(Welcome {
                protocol: 1,
                session_epoch: 1,
                server_time_ms: u64::try_from(self.clock.now().millis()).unwrap(),
                journal_id: hello.journal_id.clone(),
                heartbeat_interval_ms: 10_000,
                ..Welcome::default()
            }))
            .await;
        (session, hello)
    }

    fn spec(&self, generation: u64, nonce: Option<&[u8]>, spec: NodeSpec) -> Gateway {
        let body = self.deployment.spec_body(NODE, generation, spec);
        Gateway::DesiredState(self.deployment.signed_spec(&body, nonce))
    }

    fn command(&self, n: u128, kind: CommandKind, payload: Payload) -> Gateway {
        let mut body = self.deployment.command_body(NODE, command_id(n), kind);
        body.payload = Some(payload);
        Gateway::Command(self.deployment.signed_command(&body))
    }
}

struct Session {
    end: GatewayEnd,
}

impl Session {
    async fn say(&self, frame: Gateway) {
        self.end.to_node.send(Ok(GatewayFrame { frame: Some(frame) })).await.expect("the agent listens");
    }

    /// The next frame; heartbeats are answered on the way.
    async fn hear(&mut self) -> Frame {
        let frame = within(self.end.from_node.recv()).await.expect("the agent has not hung up");
        let frame = frame.frame.expect("a frame holds something");
        if let Frame::Heartbeat(heartbeat) = &frame {
            let server_time_ms = u64::try_from(START.millis()).unwrap();
            let ack = Gateway::HeartbeatAck(HeartbeatAck { seq: heartbeat.seq, server_time_ms });
            // An agent that just hung up is seen by the next read.
            let _ = self.end.to_node.send(Ok(GatewayFrame { frame: Some(ack) })).await;
        }
        frame
    }

    async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(Frame) -> Option<T>) -> T {
        let mut heard = Vec::new();
        for _ in 0..200 {
            let frame = self.hear().await;
            heard.push(format!("{frame:?}").chars().take(80).collect::<String>());
            if let Some(found) = wanted(frame) {
                return found;
            }
        }
        panic!("{what} never came; heard {heard:#?}");
    }

    async fn event(&mut self, seq: u64) -> Report {
        let event: NodeEvent = self
            .until("an event", |frame| match frame {
                Frame::Events(batch) => batch.events.into_iter().find(|event| event.seq == seq),
                _ => None,
            })
            .await;
        assert!(event.signature.is_some(), "the node vouches for what its holds came to");
        NodeReport::decode(event.report).unwrap().report.unwrap()
    }

    async fn observed(&mut self, generation: u64) {
        self.until("the observed generation", |frame| match frame {
            Frame::Status(status) => (status.observed_generation == generation).then_some(()),
            _ => None,
        })
        .await;
    }

    async fn outcome(&mut self, n: u128) -> CommandUpdate {
        let id = command_id(n).to_string();
        let ended = |update: &CommandUpdate| {
            update.command_id == id && !matches!(update.state(), CommandState::Acked | CommandState::Running)
        };
        self.until("an outcome", |frame| match frame {
            Frame::CommandUpdate(update) => Some(update).filter(ended),
            _ => None,
        })
        .await
    }
}

/// Nothing in these tests takes this long in virtual time.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(600), work).await.expect("it happens in time")
}

async fn first_gpu(hardware: &FakeHardware) -> String {
    let inventory = hw::Hardware::inventory(hardware).await;
    inventory.gpus.gpus[0].uuid.clone().unwrap()
}

fn hold(gpu: &str, desired: DesiredHold) -> NodeSpec {
    let assignment = DeviceAssignment {
        allocation_id: nth::<AllocationId>(1).to_string(),
        atoms: vec![gpu.to_owned()],
        device_class: "gpu".into(),
        binding: Binding::Hold.into(),
        limits: Some(HoldLimits { cpu_millis: 8000, memory_bytes: 64 << 30, ..HoldLimits::default() }),
        desired: desired.into(),
    };
    NodeSpec { devices: Some(DevicesSection { assignments: vec![assignment] }), ..NodeSpec::default() }
}

fn reset(gpu: &str) -> Payload {
    Payload::GpuReset(GpuReset { gpu_uuids: vec![gpu.to_owned()] })
}

#[tokio::test(start_paused = true)]
async fn a_hold_keeps_its_gpu_from_a_reset_over_a_crash_until_it_is_released() {
    let mut world = World::new();
    let gpu = first_gpu(&world.hardware).await;
    let agent = world.start().await;
    let (mut session, hello) = world.accept().await;
    assert!(hello.capabilities.contains(&"devices.limits".to_owned()), "{:?}", hello.capabilities);

    session.say(world.spec(1, Some(&hello.nonce), hold(&gpu, DesiredHold::Held))).await;
    let Report::AllocationBound(bound) = session.event(1).await else { panic!("not bound") };
    assert_eq!((bound.generation, bound.atoms), (1, vec![gpu.clone()]));
    session.observed(1).await;
    session.say(world.command(1, CommandKind::GpuReset, reset(&gpu))).await;
    let update = session.outcome(1).await;
    assert_eq!((update.state(), update.reason.as_str()), (CommandState::Failed, "gpu-busy"));
    assert!(update.signature.is_some());

    agent.crash().await;
    drop(session);
    let agent = world.start().await;
    let (mut session, hello) = world.accept().await;
    assert_eq!(hello.applied_generation, 1);
    // Whether the last process got to report it cannot be known, so the new one says again what holds.
    let Report::AllocationBound(again) = session.event(2).await else { panic!("not bound") };
    assert_eq!(again.allocation_id, bound.allocation_id);

    session.say(world.spec(2, None, hold(&gpu, DesiredHold::Released))).await;
    let Report::AllocationReleased(released) = session.event(3).await else { panic!("not released") };
    assert_eq!((released.allocation_id, released.generation), (bound.allocation_id, 2));
    session.observed(2).await;
    session.say(world.command(2, CommandKind::GpuReset, reset(&gpu))).await;
    let update = session.outcome(2).await;
    assert_eq!(update.state(), CommandState::Succeeded, "{update:?}");
    let Some(command_result::Result::GpuReset(result)) = CommandResult::decode(update.result).unwrap().result
    else {
        panic!("no result")
    };
    assert!(result.gpus[0].reset && result.gpus[0].healthy);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_could_add_a_line_to_sshds_files_is_not_taken() {
    let mut world = World::new();
    let agent = world.start().await;
    let (mut session, hello) = world.accept().await;
    session.say(world.spec(1, Some(&hello.nonce), NodeSpec::default())).await;
    session.observed(1).await;
    let ssh_ca_keys = vec!["ssh-ed25519 AAAA\nssh-ed25519 BBBB".into()];
    let access = Some(AccessSection { ssh_ca_keys, ..AccessSection::default() });
    session.say(world.spec(2, None, NodeSpec { access, ..NodeSpec::default() })).await;
    let refresh = wire::command::empty_payload(CommandKind::InventoryRefresh);
    session.say(world.command(1, CommandKind::InventoryRefresh, refresh)).await;
    assert_eq!(session.outcome(1).await.state(), CommandState::Succeeded);
    assert_eq!(agent.handle.status().await.unwrap().applied_generation, 1);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_settled_by_the_next_boot_and_names_the_one_before() {
    let mut world = World::new();
    let agent = world.start().await;
    let (mut session, _) = world.accept().await;
    let before = hw::Hardware::boot_id(&*world.hardware).await.unwrap();
    let reboot = Payload::NodeReboot(NodeReboot { reason: "new kernel".into() });
    session.say(world.command(1, CommandKind::NodeReboot, reboot)).await;
    let hardware = world.hardware.clone();
    session.until("the reboot", |_| (!hardware.reboots().is_empty()).then_some(())).await;
    agent.crash().await;
    drop(session);
    let agent = world.start().await;
    let (_session, hello) = world.accept().await;
    let update = &hello.unacked_results[0];
    assert_eq!(update.state(), CommandState::Succeeded);
    let Some(command_result::Result::NodeReboot(result)) =
        CommandResult::decode(update.result.clone()).unwrap().result
    else {
        panic!("no result")
    };
    assert_eq!(result.previous_boot_id, before);
    assert_ne!(result.boot_id, before);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_gpu_reaches_the_status_and_a_reset_takes_it_away() {
    let mut world = World::new();
    let gpu = first_gpu(&world.hardware).await;
    let agent = world.start().await;
    let (mut session, hello) = world.accept().await;
    session.say(world.spec(1, Some(&hello.nonce), NodeSpec::default())).await;
    world.hardware.inject(hw::fake::Fault::Xid { gpu: 0, code: 63 });
    session
        .until("the condition", |frame| match frame {
            Frame::Status(status) => {
                status.conditions.iter().any(|c| c.kind == "Xid" && c.device == gpu).then_some(())
            }
            _ => None,
        })
        .await;
    session.say(world.command(1, CommandKind::GpuReset, reset(&gpu))).await;
    session
        .until("its end", |frame| match frame {
            Frame::Status(status) => status.conditions.iter().all(|c| c.kind != "Xid").then_some(()),
            _ => None,
        })
        .await;
    agent.stop().await;
}

#[test]
fn the_tests_node_is_the_one_commands_name() {
    assert_eq!(Deployment::new(1).identity(NODE).node_id, nth::<NodeId>(NODE));
}
