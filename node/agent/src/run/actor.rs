//! One task a node: it waits for whatever comes first, lets the engine decide, and acts.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kit::{Backoff, Clock, Rng, Supervisor, TaskHandle, TaskKind};
use model::{CommandId, CommandKind, Timestamp};
use tokio_util::sync::CancellationToken;
use wire::proto::agent::NodeFrame;
use wire::proto::agent::command_body::Payload;

use super::connection::{Wire, WireEvent};
use super::renewal::Renewal;
use super::{AgentError, Mailbox, Message, STOP_PATIENCE};
use crate::clock::Now;
use crate::effect::{Effect, Outgoing};
use crate::engine::{self, Engine, Input};
use crate::hardware::{Hardware, Host};
use crate::identity::{Identity, IdentityStore};
use crate::journal::{JournalStore, Write};
use crate::kinds::{CommandContext, KindHandler, Outcome};
use crate::link::{Connection, Link};
use crate::tunnel::{Order, Refusals, Refused, Tunnels};

const COMMAND: TaskKind = TaskKind::isolated("command");
/// Inputs of one step, and so of one fsync. More would only make the first of them wait.
const BATCH: usize = 64;
/// Frames that wait for the transport. A gateway that lets this many pile up has stopped reading.
const OUTBOX_MAX: usize = 512;
/// How often readings that nobody announced are taken up.
const HARDWARE_PERIOD: Duration = Duration::from_secs(30);
/// A commit that fails is tried this often, opening the file again each time, before the daemon gives up and is started
/// afresh: it cannot work without its memory.
const COMMIT_ATTEMPTS: u32 = 5;

pub(super) struct Ports {
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub link: Arc<dyn Link>,
    pub journal: Arc<dyn JournalStore>,
    pub identity: Arc<dyn IdentityStore>,
    pub kinds: Vec<Arc<dyn KindHandler>>,
    pub hardware: Arc<dyn Hardware>,
    pub host: Arc<dyn Host>,
    pub tunnels: Arc<dyn Tunnels>,
    pub supervisor: Supervisor,
}

pub(super) struct Actor {
    pub(super) ports: Ports,
    pub(super) engine: Engine,
    pub(super) identity: Identity,
    boot_id: String,
    pub(super) mailbox: Mailbox,
    wire: Wire,
    outbox: VecDeque<NodeFrame>,
    workers: HashMap<CommandId, TaskHandle>,
    next_hardware: Duration,
    pub(super) renewal: Renewal,
}

impl Actor {
    pub fn new(ports: Ports, engine: Engine, identity: Identity, boot_id: String, mailbox: Mailbox) -> Self {
        Self {
            ports,
            engine,
            identity,
            boot_id,
            mailbox,
            wire: Wire::Down,
            outbox: VecDeque::new(),
            workers: HashMap::new(),
            next_hardware: Duration::ZERO,
            renewal: Renewal::default(),
        }
    }

    pub(super) fn now(&self) -> Now {
        Now::read(self.ports.clock.as_ref())
    }

    pub async fn run(mut self, stop: CancellationToken) -> Result<(), AgentError> {
        // The readings first: the Hello that may follow at once tells what the machine is.
        let first = vec![self.readings(), Input::Tick];
        self.settle(first).await?;
        while !stop.is_cancelled() {
            let inputs = self.next_inputs(&stop).await;
            self.settle(inputs).await?;
        }
        self.stop().await
    }

    /// Lets running commands come to an end, journals what they came to, and goes. The session is closed first, so that
    /// nothing new arrives.
    async fn stop(mut self) -> Result<(), AgentError> {
        self.wire = Wire::Down;
        self.engine.pause();
        for worker in self.workers.values() {
            worker.cancel();
        }
        let over = self.now().monotonic + STOP_PATIENCE;
        while !self.workers.is_empty() && self.now().monotonic < over {
            let patience = self.ports.clock.sleep(over.saturating_sub(self.now().monotonic));
            // Cancel-safe: `recv` takes nothing before it returns.
            let message = tokio::select! {
                message = self.mailbox.messages.recv() => message,
                () = patience => None,
            };
            let Some(Message::Finished { id, outcome }) = message else { continue };
            self.workers.remove(&id);
            self.engine.handle(Input::Finished { id, outcome }, self.now());
            let writes = self.engine.take_writes();
            self.engine.take_effects();
            self.commit(writes).await?;
        }
        Ok(())
    }

    /// Waits for something to happen and takes what else is there already, up to a batch.
    async fn next_inputs(&mut self, stop: &CancellationToken) -> Vec<Input> {
        let now = self.now();
        let due = self.engine.deadline().min(self.next_hardware).min(self.renewal_due(now));
        let sleep = self.ports.clock.sleep(due.saturating_sub(now.monotonic));
        let mut inputs = Vec::new();
        // Every arm is cancel-safe: `recv`, `next` and `reserve` take nothing before they return, a dial goes on where it
        // was, and the sleep is made anew each time.
        let (message, event) = tokio::select! {
            message = self.mailbox.messages.recv() => (message, None),
            event = self.wire.next(&mut self.outbox) => (None, event),
            () = sleep => (None, None),
            () = stop.cancelled() => (None, None),
        };
        if let Some(message) = message {
            self.message(message, &mut inputs);
        }
        if let Some(event) = event {
            self.wire_event(event, &mut inputs);
        }
        while inputs.len() < BATCH {
            let Ok(message) = self.mailbox.messages.try_recv() else { break };
            self.message(message, &mut inputs);
        }
        while inputs.len() < BATCH {
            let Wire::Up { incoming, .. } = &mut self.wire else { break };
            let Some(next) = incoming.next().now_or_never() else { break };
            self.wire_event(WireEvent::incoming(next), &mut inputs);
        }
        self.periodic(&mut inputs);
        self.take_renewal(&mut inputs).await;
        if inputs.is_empty() {
            inputs.push(Input::Tick);
        }
        inputs
    }

    fn periodic(&mut self, inputs: &mut Vec<Input>) {
        let now = self.now();
        if self.next_hardware <= now.monotonic {
            self.next_hardware = now.monotonic + HARDWARE_PERIOD;
            inputs.push(self.readings());
        }
        if self.renewal_due(now) <= now.monotonic {
            self.start_renewal(now);
        }
    }

    fn readings(&self) -> Input {
        let hardware = &self.ports.hardware;
        Input::Hardware {
            hashes: hardware.inventory_hashes(),
            conditions: hardware.conditions(),
            pressure: hardware.pressure(),
        }
    }

    fn message(&mut self, message: Message, inputs: &mut Vec<Input>) {
        match message {
            Message::Finished { id, outcome } => {
                self.workers.remove(&id);
                inputs.push(Input::Finished { id, outcome });
            }
            Message::Passed(report) => inputs.push(Input::Passed(report)),
            Message::HardwareChanged => inputs.push(self.readings()),
            Message::Converge => inputs.push(Input::Converge),
            Message::TunnelRefused(refused) => inputs.push(Input::TunnelRefused(refused)),
            Message::Renewed(result) => self.renewed(*result),
            Message::Status(reply) => {
                // Whoever asked may have gone; that is not our concern.
                let _ = reply.send(self.engine.view(self.now()));
            }
        }
    }

    fn wire_event(&mut self, event: WireEvent, inputs: &mut Vec<Input>) {
        match event {
            WireEvent::Connected(connection) => {
                let Connection { outgoing, incoming } = *connection;
                self.outbox.clear();
                self.wire = Wire::Up { outgoing, incoming };
                inputs.push(Input::Connected);
            }
            WireEvent::Frame(frame) => inputs.push(Input::Frame(frame)),
            WireEvent::Ended(err) => {
                self.wire = Wire::Down;
                self.outbox.clear();
                let pushback = err.as_ref().and_then(|err| err.pushback);
                let why =
                    err.map_or_else(|| "the gateway closed the session".to_owned(), |err| err.to_string());
                inputs.push(Input::Disconnected { why, pushback });
            }
        }
    }

    /// Steps until nothing follows from what was done: decide, make durable, act.
    async fn settle(&mut self, mut inputs: Vec<Input>) -> Result<(), AgentError> {
        while !inputs.is_empty() {
            for input in inputs.drain(..) {
                let now = self.now();
                self.engine.handle(input, now);
            }
            let writes = self.engine.take_writes();
            self.commit(writes).await?;
            for effect in self.engine.take_effects() {
                self.perform(effect, &mut inputs).await;
            }
        }
        Ok(())
    }

    async fn commit(&mut self, writes: Vec<Write>) -> Result<(), AgentError> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            match self.ports.journal.commit(writes.clone()).await {
                Ok(()) => return Ok(()),
                Err(err) if backoff.attempt() + 1 < COMMIT_ATTEMPTS => {
                    tracing::error!(
                        err = kit::chain(&err),
                        attempt = backoff.attempt() + 1,
                        "journal commit failed"
                    );
                    let wait = backoff.next_wait(self.ports.rng.as_ref());
                    self.ports.clock.sleep(wait).await;
                }
                Err(err) => return Err(err.into()),
            }
        }
    }

    async fn perform(&mut self, effect: Effect, inputs: &mut Vec<Input>) {
        match effect {
            Effect::Send(outgoing) => self.send(outgoing, inputs),
            Effect::Run { id, kind, payload, not_after } => self.start_worker(id, kind, payload, not_after),
            Effect::Cancel(id) => {
                if let Some(worker) = self.workers.get(&id) {
                    worker.cancel();
                }
            }
            Effect::Converge => {
                self.mailbox.spec.send_replace(self.engine.held().cloned());
                self.mailbox.waker.wake();
            }
            Effect::Dial => self.wire = Wire::Dialing(self.ports.link.connect(&self.identity.credentials())),
            Effect::Hangup => {
                self.wire = Wire::Down;
                self.outbox.clear();
            }
            Effect::StoreTrust { version, signed } => self.store_trust(version, signed, inputs).await,
            Effect::StoreMarks(marks) => {
                let identity = Identity { marks: self.identity.marks.max(marks), ..self.identity.clone() };
                self.store_identity(identity).await;
            }
            Effect::OpenTunnel { ticket, address, lasts } => {
                let (id, credentials) = (ticket.tunnel_id, self.identity.credentials());
                let refusals = self.refusals();
                if !self.ports.tunnels.open(Order { ticket, address, credentials, lasts, refusals }) {
                    inputs.push(Input::TunnelRefused(Refused {
                        tunnel_id: id.to_string(),
                        reason: "busy",
                        message: "this node has as many tunnels as it may".to_owned(),
                    }));
                }
            }
            Effect::CloseTunnels => self.ports.tunnels.close_all(),
            Effect::Told { wanted, told } => self.mailbox.desk.put(wanted, told),
        }
    }

    fn refusals(&self) -> Refusals {
        let inbox = self.mailbox.inbox.clone();
        Refusals::new(move |refused| {
            // With an inbox that is full, whoever waits for the tunnel does so until its time is over.
            let _ = inbox.try_send(Message::TunnelRefused(refused));
        })
    }

    fn send(&mut self, outgoing: Outgoing, inputs: &mut Vec<Input>) {
        if !matches!(self.wire, Wire::Up { .. }) {
            return;
        }
        let at = self.engine.server_time(self.now());
        let why =
            match engine::render(outgoing, self.ports.journal.as_ref(), self.ports.hardware.as_ref(), at) {
                Ok(frames) if self.outbox.len() + frames.len() <= OUTBOX_MAX => {
                    self.outbox.extend(frames);
                    return;
                }
                Ok(_) => "the gateway stopped reading",
                Err(err) => {
                    tracing::error!(err = kit::chain(&err), "journal read failed");
                    "the journal could not be read"
                }
            };
        self.wire = Wire::Down;
        self.outbox.clear();
        inputs.push(Input::Disconnected { why: why.to_owned(), pushback: None });
    }

    fn start_worker(&mut self, id: CommandId, kind: CommandKind, payload: Payload, not_after: Timestamp) {
        let inbox = self.mailbox.inbox.clone();
        let handler = self.ports.kinds.iter().find(|handler| handler.kind() == kind).cloned();
        let (node_id, boot_id, host) = (self.identity.node_id, self.boot_id.clone(), self.ports.host.clone());
        let worker = self.ports.supervisor.spawn(COMMAND, |cancel| async move {
            let context = CommandContext { command_id: id, node_id, boot_id, not_after, cancel, host };
            let outcome = match handler {
                Some(handler) => {
                    let run =
                        std::panic::AssertUnwindSafe(async move { handler.run(context, payload).await });
                    run.catch_unwind().await.unwrap_or_else(|_| {
                        tracing::error!(command_id = %id, kind = kind.name(), "command handler panicked");
                        Outcome::failed("internal", "the command's handler failed; see the node's log")
                    })
                }
                None => Outcome::failed("internal", "this daemon has no handler for the kind"),
            };
            // An agent that is gone settles the command at its next start.
            let _ = inbox.send(Message::Finished { id, outcome }).await;
            Ok::<_, Infallible>(())
        });
        self.workers.insert(id, worker);
    }

    async fn store_trust(&mut self, version: u64, signed: bytes::Bytes, inputs: &mut Vec<Input>) {
        let parsed =
            pki::SignedMessage::decode(&signed).and_then(|message| pki::TrustBundle::parse(&message.body));
        let trust = match parsed {
            Ok(trust) => trust,
            Err(err) => {
                tracing::error!(err = kit::chain(&err), "a verified trust bundle could not be read again");
                return;
            }
        };
        if self.store_identity(Identity { trust, signed_trust: signed, ..self.identity.clone() }).await {
            inputs.push(Input::TrustStored { version });
        }
    }

    /// True when it is durable; only then it is used.
    pub(super) async fn store_identity(&mut self, identity: Identity) -> bool {
        let store = self.ports.identity.clone();
        let stored = identity.clone();
        let result = tokio::task::spawn_blocking(move || store.store(&stored)).await;
        match result {
            Ok(Ok(())) => {
                self.identity = identity;
                true
            }
            Ok(Err(err)) => {
                tracing::error!(err = kit::chain(&err), "identity could not be stored");
                false
            }
            Err(err) => {
                tracing::error!(err = %err, "identity could not be stored");
                false
            }
        }
    }
}
