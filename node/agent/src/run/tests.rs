//! The whole agent over a link in memory, in virtual time: a gateway of a few lines on the other end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use kit::SeededRng;
use model::{CommandKind, Role, Section, SectionState, Timestamp, TunnelId};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{
    Ack, AllocationBound, CommandState, EventClass, GatewayFrame, HeartbeatAck, Hello, NodeSpec, RenewReply,
    Welcome, command_result, node_report,
};

use super::*;
use crate::converge::{ConvergeContext, Report, SectionReport};
use crate::hardware::{NoHardware, NoHost};
use crate::identity::MemoryIdentity;
use crate::journal::MemoryJournal;
use crate::kinds::CommandContext;
use crate::link::memory::{GatewayEnd, MemoryLink};
use crate::testing::{Deployment, START, at_ms, command_id, journal_id, nth};
use crate::tunnel::{Order, Refused};

mod durable;
mod tunnels;

const NODE: u128 = 5;

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

/// Runs `inventory.refresh` and counts; `diag.nvml` panics; `logs.collect` waits for its cancel.
struct Counting {
    kind: CommandKind,
    runs: Arc<AtomicU32>,
}

impl KindHandler for Counting {
    fn kind(&self) -> CommandKind {
        self.kind
    }

    fn run(&self, context: CommandContext, _: Payload) -> BoxFuture<'static, Outcome> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        match self.kind {
            CommandKind::DiagNvml => panic!("the handler fails"),
            CommandKind::LogsCollect => Box::pin(async move {
                context.cancel.cancelled().await;
                Outcome::failed("cancelled", "asked to stop")
            }),
            _ => Box::pin(async {
                Outcome::Succeeded(command_result::Result::InventoryRefresh(Default::default()))
            }),
        }
    }
}

/// Reports every generation it sees as bound, once.
struct Binder {
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Converger for Binder {
    fn section(&self) -> Section {
        Section::Devices
    }

    fn converge<'a>(
        &'a mut self,
        _: &'a NodeSpec,
        context: &'a ConvergeContext,
    ) -> BoxFuture<'a, SectionReport> {
        let mut seen = self.seen.lock().unwrap();
        let mut report = SectionReport::of(SectionState::Converged);
        if !seen.contains(&context.generation) {
            seen.push(context.generation);
            let body = AllocationBound { generation: context.generation, ..AllocationBound::default() };
            report.reports.push(Report {
                class: EventClass::Transition,
                body: node_report::Report::AllocationBound(body),
            });
        }
        Box::pin(std::future::ready(report))
    }
}

struct World {
    deployment: Arc<Deployment>,
    identity: MemoryIdentity,
    journal: Arc<dyn JournalStore>,
    link: MemoryLink,
    gateway: mpsc::Receiver<GatewayEnd>,
    runs: Arc<AtomicU32>,
    seen: Arc<Mutex<Vec<u64>>>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    hardware: Arc<dyn Hardware>,
    tunnels: Arc<Opened>,
    starts: u64,
}

/// The number of a tunnel whose gateway is not reached.
const UNREACHABLE: u128 = 99;

/// What was opened and not closed.
#[derive(Default)]
struct Opened(Mutex<Vec<TunnelId>>);

impl Tunnels for Opened {
    fn open(&self, order: Order) -> bool {
        if order.ticket.tunnel_id == nth(UNREACHABLE) {
            let tunnel_id = order.ticket.tunnel_id.to_string();
            order.refusals.tell(Refused { tunnel_id, reason: "not-dialled", message: "no route".to_owned() });
            return true;
        }
        let mut open = self.0.lock().unwrap();
        let has_room = open.len() < 2;
        if has_room {
            open.push(order.ticket.tunnel_id);
        }
        has_room
    }

    fn close_all(&self) {
        self.0.lock().unwrap().clear();
    }
}

impl World {
    fn new() -> Self {
        let deployment = Arc::new(Deployment::new(1));
        let (link, gateway) = MemoryLink::new();
        Self {
            identity: MemoryIdentity::holding(deployment.identity(NODE)),
            deployment,
            journal: Arc::new(MemoryJournal::new(journal_id(1))),
            link,
            gateway,
            runs: Arc::default(),
            seen: Arc::default(),
            clock: Arc::new(VirtualClock(tokio::time::Instant::now())),
            supervisor: Supervisor::new(),
            hardware: Arc::new(NoHardware),
            tunnels: Arc::default(),
            starts: 0,
        }
    }

    fn start(&mut self) -> Agent {
        self.try_start().unwrap()
    }

    fn try_start(&mut self) -> Result<Agent, AgentError> {
        self.starts += 1;
        let handler = |kind| -> Arc<dyn KindHandler> { Arc::new(Counting { kind, runs: self.runs.clone() }) };
        let parts = AgentParts {
            agent_version: "1.0.0".into(),
            boot_id: "boot-1".into(),
            limits: Limits::default(),
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(self.starts)),
            link: Arc::new(self.link.clone()),
            journal: self.journal.clone(),
            identity: Arc::new(self.identity.clone()),
            convergers: vec![Box::new(Binder { seen: self.seen.clone() })],
            kinds: vec![
                handler(CommandKind::InventoryRefresh),
                handler(CommandKind::DiagNvml),
                handler(CommandKind::LogsCollect),
            ],
            hardware: self.hardware.clone(),
            host: Arc::new(NoHost),
            tunnels: self.tunnels.clone(),
            on_end: OnEnd::Isolate,
        };
        run(parts, &self.supervisor)
    }

    /// The next session, welcomed.
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
}

struct Session {
    end: GatewayEnd,
}

impl Session {
    /// The next refusal of a tunnel.
    async fn refused(&mut self) -> wire::proto::agent::TunnelRefused {
        loop {
            if let Frame::TunnelRefused(refused) = self.hear().await {
                return refused;
            }
        }
    }

    async fn say(&self, frame: Gateway) {
        self.end.to_node.send(Ok(GatewayFrame { frame: Some(frame) })).await.expect("the agent listens");
    }

    /// The next frame; heartbeats are answered on the way.
    async fn hear(&mut self) -> Frame {
        let frame = within(self.end.from_node.recv()).await.expect("the agent has not hung up");
        let frame = frame.frame.expect("a frame holds something");
        if let Frame::Heartbeat(heartbeat) = &frame {
            let ack = HeartbeatAck { seq: heartbeat.seq, server_time_ms: at_ms(0) };
            // An agent that just hung up is seen by the next read.
            let _ = self.end.to_node.send(Ok(GatewayFrame { frame: Some(Gateway::HeartbeatAck(ack)) })).await;
        }
        frame
    }

    /// Listens until `wanted` finds what it looks for.
    async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(Frame) -> Option<T>) -> T {
        let mut heard = Vec::new();
        for _ in 0..200 {
            let frame = self.hear().await;
            heard.push(format!("{frame:?}").chars().take(60).collect::<String>());
            if let Some(found) = wanted(frame) {
                return found;
            }
        }
        panic!("{what} never came; heard {heard:#?}");
    }

    async fn outcome(&mut self, n: u128) -> wire::proto::agent::CommandUpdate {
        let id = command_id(n).to_string();
        self.until("an outcome", |frame| match frame {
            Frame::CommandUpdate(update)
                if update.command_id == id
                    && !matches!(update.state(), CommandState::Acked | CommandState::Running) =>
            {
                Some(update)
            }
            _ => None,
        })
        .await
    }
}

/// Nothing in these tests takes this long in virtual time.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(600), work).await.expect("it happens in time")
}

#[tokio::test(start_paused = true)]
async fn a_node_goes_from_its_first_session_to_a_bound_hold_and_a_result() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, hello) = world.accept().await;
    assert!(hello.fresh);
    let spec = world.deployment.spec_body(NODE, 1, NodeSpec::default());
    let spec = world.deployment.signed_spec(&spec, Some(&hello.nonce));
    session.say(Gateway::DesiredState(spec)).await;
    let event = session
        .until("an event", |frame| match frame {
            Frame::Events(batch) => batch.events.into_iter().next(),
            _ => None,
        })
        .await;
    assert_eq!(event.seq, 1);
    session
        .until("the observed generation", |frame| match frame {
            Frame::Status(status) => (status.observed_generation == 1).then_some(()),
            _ => None,
        })
        .await;
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::InventoryRefresh)))
        .await;
    assert_eq!(session.outcome(1).await.state(), CommandState::Succeeded);
    let ack = Ack {
        journal_id: hello.journal_id.clone(),
        event_seq: 1,
        command_ids: vec![command_id(1).to_string()],
    };
    session.say(Gateway::Ack(ack)).await;
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::InventoryRefresh)))
        .await;
    assert_eq!(session.outcome(1).await.state(), CommandState::Succeeded);
    assert_eq!(world.runs.load(Ordering::SeqCst), 1, "a duplicate runs nothing");
    let status = agent.handle.status().await.unwrap();
    assert_eq!((status.applied_generation, status.observed_generation), (1, 1));
    assert_eq!((status.journal.event_backlog, status.journal.unacked_results), (0, 0));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crashed_agent_comes_back_with_its_spec_and_its_results() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, hello) = world.accept().await;
    let spec = world.deployment.spec_body(NODE, 1, NodeSpec::default());
    session.say(Gateway::DesiredState(world.deployment.signed_spec(&spec, Some(&hello.nonce)))).await;
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::InventoryRefresh)))
        .await;
    session.outcome(1).await;
    agent.crash().await;
    drop(session);
    world.seen.lock().unwrap().clear();
    let agent = world.start();
    let (_session, hello) = world.accept().await;
    assert_eq!(hello.applied_generation, 1);
    assert_eq!(hello.unacked_results.len(), 1);
    assert_eq!(*world.seen.lock().unwrap(), [1], "the journaled spec was converged before the session");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_is_a_failure_and_the_agent_goes_on() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session.say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::DiagNvml))).await;
    let update = session.outcome(1).await;
    assert_eq!((update.state(), update.reason.as_str()), (CommandState::Failed, "internal"));
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(2), CommandKind::InventoryRefresh)))
        .await;
    assert_eq!(session.outcome(2).await.state(), CommandState::Succeeded);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_a_running_command_end_and_journals_what_it_came_to() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session
        .say(Gateway::Command(world.deployment.command(NODE, command_id(1), CommandKind::LogsCollect)))
        .await;
    session
        .until("running", |frame| match frame {
            Frame::CommandUpdate(update) => (update.state() == CommandState::Running).then_some(()),
            _ => None,
        })
        .await;
    agent.stop().await;
    drop(session);
    let agent = world.start();
    let (_session, hello) = world.accept().await;
    assert_eq!(hello.unacked_results[0].reason, "cancelled");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_gateway_is_left_and_dialed_again() {
    let mut world = World::new();
    let agent = world.start();
    let (session, _) = world.accept().await;
    // Nothing is answered: the agent hangs up by itself and comes back.
    let (_second, _) = world.accept().await;
    drop(session);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_at_sixty_percent_and_used_from_the_next_connection_on() {
    let mut world = World::new();
    let deployment = world.deployment.clone();
    let clock = world.clock.clone();
    let asked = Arc::new(AtomicU32::new(0));
    world.link = world.link.on_renew({
        let asked = asked.clone();
        move |request| {
            if asked.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(crate::link::LinkError::new("renew", "try later"));
            }
            let renewed = deployment.admit(NODE, Role::Node, &request.csr_der, clock.now());
            Ok(RenewReply { renewed: Some(renewed) })
        }
    });
    let agent = world.start();
    let (session, _) = world.accept().await;
    let first = session.end.certificate.clone();
    drop(session);
    // Fourteen hours and a bit is 60% of a day. The sessions in between are not answered.
    let renewed = loop {
        let end =
            tokio::time::timeout(Duration::from_secs(3600), world.gateway.recv()).await.unwrap().unwrap();
        if end.certificate != first {
            break end.certificate;
        }
        assert!(world.clock.monotonic() < Duration::from_secs(16 * 3600), "it renews in time");
    };
    assert!(world.clock.monotonic() > Duration::from_secs(14 * 3600));
    let kept = world.identity.load().unwrap().unwrap();
    assert_eq!(kept.chain[0], renewed);
    assert!(asked.load(Ordering::SeqCst) >= 2, "a failed renewal was tried again");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_has_not_joined_does_not_start() {
    let mut world = World::new();
    world.identity = MemoryIdentity::default();
    assert!(matches!(world.try_start(), Err(AgentError::NotJoined)));
    assert!(world.supervisor.running().is_empty());
}

/// A machine that was looked at before the agent started.
struct Known;

impl Hardware for Known {
    fn inventory_hashes(&self) -> std::collections::BTreeMap<String, String> {
        [("cpu".to_owned(), "a".repeat(64))].into()
    }

    fn inventory_section(&self, _: &str) -> Option<crate::hardware::InventorySection> {
        None
    }

    fn conditions(&self) -> Vec<crate::converge::Fact> {
        Vec::new()
    }

    fn pressure(&self) -> Option<wire::proto::agent::Pressure> {
        None
    }

    fn capabilities(&self) -> Vec<String> {
        Vec::new()
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_hello_tells_what_the_machine_is() {
    let mut world = World::new();
    world.hardware = Arc::new(Known);
    let agent = world.start();
    let (_session, hello) = world.accept().await;
    assert_eq!(hello.inventory_hashes.keys().collect::<Vec<_>>(), ["cpu"]);
    agent.stop().await;
}
