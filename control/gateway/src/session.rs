//! One node's side of the gateway, without a socket, a clock or a store: frames, answers and moments go in, frames and
//! requests come out.
//!
//! ```text
//! greeting --Hello--> opening --opened--> settling --results stored, spec sent--> open --> ended
//!     |                  |                                                         |
//!     +-- refused -------+----- Refusal, then the end of the stream ---------------+
//! ```
//! While settling, the results that came with the Hello are stored first, a newer spec goes out, and only then the commands
//! that were in flight follow, in their order.

use std::time::Duration;

use kernel::ports::delivery::{
    HelloFacts, LaneCredits, ReportedEvent, ReportedSection, ReportedStatus, ReportedUpdate, SessionEnd,
    SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use model::{CommandId, GatewayId, JournalId, Lane, NodeId, Timestamp};
use wire::inventory::SectionName;
use wire::paths::PROTOCOL_MIN;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    Ack, Cancel, Command, DesiredState, Drain, EventBatch, FreshBinding, FreshStatement, GatewayFrame,
    Heartbeat, HeartbeatAck, Hello, InventoryReport, InventoryRequest, NodeFrame, Refusal, RevocationNotice,
    SpecRequest, StatusReport, Welcome,
};
use wire::proto::common::{IntentSignature, SignedTrustBundle};

mod credits;
mod hashes;
mod hello;
mod report;

pub use report::Violation;

use credits::Credits;
use hashes::Hashes;
use hello::{Greeting, MAP_ENTRIES_MAX};

/// Requests to the store that a session may have under way: past it, its frames wait in the network.
const REQUESTS_MAX: usize = 4;
/// Command updates under way to the store, of one session. A node has at most 22 commands running.
const UPDATES_MAX: usize = 64;
/// Times a binding is asked for again because the spec moved on in between. The backstop comes back later.
const BIND_ATTEMPTS_MAX: u8 = 3;
/// Heartbeats that may be missing on an open stream before it is closed.
const SILENT_HEARTBEATS: u32 = 5;
const STATEMENT_BYTES_MAX: usize = 1024;

/// The two times a decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub monotonic: Duration,
    /// The database's clock, as well as the gateway knows it.
    pub server: Timestamp,
}

/// What is the same for every session of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub gateway_id: GatewayId,
    pub heartbeat: Duration,
    pub hello_within: Duration,
}

/// Who is on the other end, by its certificate.
#[derive(Debug, Clone)]
pub struct Peer {
    pub node_id: NodeId,
    pub cert_serial: String,
    pub cert_ends: Timestamp,
}

#[derive(Debug)]
pub enum Input {
    Frame(NodeFrame),
    Answer(Answer),
    /// Commands claimed for this session.
    Commands(Vec<StoredCommand>),
    /// A cancel was requested for a command under way.
    Cancel(CommandId, String),
    /// The node's spec may be newer than what was sent.
    Spec(StoredSpec),
    Ended(SessionEnd),
    Drain {
        reason: &'static str,
        reconnect_after: Duration,
    },
    /// The store did not answer, or the gateway no longer has its lease.
    Unavailable,
    /// Time passed.
    Tick,
}

/// What the store is asked. Each is answered by the [`Answer`] of its name, in order per kind.
#[derive(Debug)]
pub enum Request {
    Open(Box<HelloFacts>),
    Updates(Vec<ReportedUpdate>),
    Events {
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    },
    Inventory(Vec<ReportedSection>),
    /// The node's current spec; with `bind`, first an encoded `FreshStatement` to be made a binding of.
    Spec {
        bind: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
pub enum Answer {
    Open(Result<Box<SessionOpened>, SessionRefused>),
    /// How many of the updates are through, and the commands to acknowledge.
    Updates {
        count: usize,
        acknowledged: Vec<CommandId>,
    },
    Events(Option<u64>),
    Inventory(Vec<(SectionName, String)>),
    Spec {
        spec: Option<StoredSpec>,
        binding: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
pub enum Effect {
    Send(GatewayFrame),
    Store(Request),
    /// Nothing comes after it. What was sent before still goes out.
    End(End),
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A Refusal or a RevocationNotice says why.
    Said(&'static str),
    /// Another session of the node took over.
    TakenOver,
    /// Nothing was heard for five heartbeats, or no Hello came in time.
    Silent,
    Violation(Violation),
    /// The certificate it was opened with is over.
    CertificateOver,
    /// The store did not answer, or the gateway's lease is over.
    Unavailable,
    /// The gateway stops.
    Stopping,
}

#[derive(Debug)]
enum Phase {
    Greeting,
    Opening(Box<Greeting>),
    Settling { results: bool, spec: bool, replay: Vec<StoredCommand> },
    Open,
    Ended,
}

/// The sans-I/O core of a session.
#[derive(Debug)]
pub struct Session {
    peer: Peer,
    phase: Phase,
    /// Known once opened.
    key: Option<SessionKey>,
    journal_id: Option<JournalId>,
    credits: Credits,
    stored: Hashes,
    /// When the last frame came.
    heard: Duration,
    /// The generation the node holds or was sent, whichever is higher.
    sent_generation: u64,
    /// Of a node without a mark of its own: a spec must be bound to it.
    nonce: Option<[u8; 32]>,
    bind_attempts: u8,
    spec_requested: bool,
    /// A heartbeat since the last collection.
    beat: bool,
    status: Option<Box<ReportedStatus>>,
    requests: usize,
    updates: usize,
    draining: bool,
}

impl Session {
    pub fn new(peer: Peer, now: Now) -> Self {
        Self {
            peer,
            phase: Phase::Greeting,
            key: None,
            journal_id: None,
            credits: Credits::default(),
            stored: Hashes::default(),
            heard: now.monotonic,
            sent_generation: 0,
            nonce: None,
            bind_attempts: 0,
            spec_requested: false,
            beat: false,
            status: None,
            requests: 0,
            updates: 0,
            draining: false,
        }
    }

    pub fn node_id(&self) -> NodeId {
        self.peer.node_id
    }

    /// The session's fencing token, once the store has opened it.
    pub fn key(&self) -> Option<SessionKey> {
        self.key
    }

    /// Whether the next frame may be read: not before the store has answered the Hello, and not while it is behind.
    pub fn reads(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Settling { .. } | Phase::Open => {
                self.requests < REQUESTS_MAX && self.updates < UPDATES_MAX
            }
            Phase::Opening(_) | Phase::Ended => false,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// What may be sent on this session's lanes now; none while it is not open.
    pub fn lanes(&self) -> Option<LaneCredits> {
        let session = self.key.filter(|_| matches!(self.phase, Phase::Open) && !self.draining)?;
        let credits: std::collections::BTreeMap<String, u32> = Lane::ALL
            .into_iter()
            .map(|lane| (lane.name().to_owned(), self.credits.left(lane)))
            .filter(|(_, left)| *left > 0)
            .collect();
        (!credits.is_empty()).then_some(LaneCredits { session, credits })
    }

    /// The session, while commands it was sent are not settled.
    pub fn in_flight(&self) -> Option<SessionKey> {
        self.key.filter(|_| matches!(self.phase, Phase::Open) && self.credits.any_in_flight())
    }

    /// What the node holds or was sent, to compare with the newest there is.
    pub fn spec_sent(&self) -> Option<(SessionKey, u64)> {
        let key = self.key.filter(|_| matches!(self.phase, Phase::Open))?;
        Some((key, self.sent_generation))
    }

    /// Whether a heartbeat came since this was last asked.
    pub fn take_beat(&mut self) -> Option<SessionKey> {
        let beat = std::mem::take(&mut self.beat);
        self.key.filter(|_| beat)
    }

    /// The latest status since this was last asked.
    pub fn take_status(&mut self) -> Option<Box<ReportedStatus>> {
        self.status.take()
    }

    pub fn handle(&mut self, terms: &Terms, input: Input, now: Now, effects: &mut Vec<Effect>) {
        if self.is_over() {
            return;
        }
        match input {
            Input::Frame(frame) => {
                self.heard = now.monotonic;
                if let Err(violation) = self.frame(frame, now, effects) {
                    self.end(End::Violation(violation), effects);
                }
            }
            Input::Answer(answer) => self.answer(terms, answer, now, effects),
            Input::Commands(commands) => self.send_commands(commands, effects),
            Input::Cancel(command_id, reason) => self.cancel(command_id, reason, effects),
            Input::Spec(spec) => self.pushed(spec, effects),
            Input::Ended(SessionEnd::Revoked) => self.revoked(effects),
            Input::Ended(SessionEnd::TakenOver) => self.end(End::TakenOver, effects),
            Input::Drain { reason, reconnect_after } => self.drain(reason, reconnect_after, effects),
            Input::Unavailable => self.end(End::Unavailable, effects),
            Input::Tick => self.tick(terms, now, effects),
        }
    }

    fn tick(&mut self, terms: &Terms, now: Now, effects: &mut Vec<Effect>) {
        if now.server > self.peer.cert_ends {
            return self.end(End::CertificateOver, effects);
        }
        let patience = match self.phase {
            Phase::Greeting => terms.hello_within,
            Phase::Settling { .. } | Phase::Open => terms.heartbeat * SILENT_HEARTBEATS,
            // It waits for the store, and so may its frames.
            Phase::Opening(_) | Phase::Ended => return,
        };
        if !self.reads() {
            self.heard = now.monotonic;
        } else if now.monotonic.saturating_sub(self.heard) > patience {
            self.end(End::Silent, effects);
        }
    }

    fn frame(&mut self, frame: NodeFrame, now: Now, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let Some(frame) = frame.frame else {
            // A frame of a newer daemon; but nothing comes before the Hello.
            if matches!(self.phase, Phase::Greeting) {
                self.refuse("bad_hello", "the first frame must be a Hello", effects);
            }
            return Ok(());
        };
        let key = match (&self.phase, self.key) {
            (Phase::Greeting, _) => {
                match frame {
                    In::Hello(hello) => self.hello(hello, effects),
                    _ => self.refuse("bad_hello", "the first frame must be a Hello", effects),
                }
                return Ok(());
            }
            (Phase::Settling { .. } | Phase::Open, Some(key)) => key,
            _ => return Err(Violation { frame: "frame", field: "order: the Welcome has not come yet" }),
        };
        match frame {
            In::Hello(_) => return Err(Violation { frame: "second Hello", field: "order" }),
            In::Heartbeat(heartbeat) => self.heartbeat(heartbeat, now, effects)?,
            In::Status(report) => self.status(report, key, now)?,
            In::CommandUpdate(update) => {
                let update = report::update(update, key)?;
                self.credits.update(update.command_id, update.event);
                self.updates += 1;
                effects.push(Effect::Store(Request::Updates(vec![update])));
            }
            In::Events(batch) => self.events(batch, now, effects)?,
            In::SpecRequest(request) => self.spec_request(&request, effects),
            In::Inventory(report) => self.inventory(report, key, effects)?,
        }
        Ok(())
    }

    fn hello(&mut self, hello: Hello, effects: &mut Vec<Effect>) {
        let claimed: String = hello.node_id.chars().filter(|c| !c.is_control()).take(64).collect();
        match hello::parse(hello, self.peer.node_id, &self.peer.cert_serial) {
            Ok(greeting) => {
                self.request(Request::Open(Box::new(greeting.facts.clone())), effects);
                self.phase = Phase::Opening(Box::new(greeting));
            }
            Err(hello::Refused::WrongNode) => {
                tracing::warn!(
                    target: "security",
                    node_id = %self.peer.node_id, claimed, cert_serial = %self.peer.cert_serial,
                    "Hello names another node than its certificate"
                );
                self.refuse("wrong_node", "the Hello names another node than the certificate", effects);
            }
            Err(hello::Refused::UpgradeRequired) => {
                let message =
                    format!("no common protocol version: this gateway speaks {PROTOCOL_MIN} and later");
                self.refuse("upgrade_required", &message, effects);
            }
            Err(hello::Refused::Bad(field)) => {
                self.refuse("bad_hello", &format!("the Hello has an invalid {field}"), effects);
            }
        }
    }

    fn opened(&mut self, terms: &Terms, opened: SessionOpened, effects: &mut Vec<Effect>) {
        let Phase::Opening(greeting) = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let key = SessionKey { node_id: self.peer.node_id, epoch: opened.session_epoch };
        let Greeting { facts, mut results, credits, hashes, nonce, protocol } = *greeting;
        self.key = Some(key);
        self.journal_id = Some(facts.journal_id);
        self.credits.report(&credits);
        self.stored = hashes;
        opened.inventory_sections.iter().for_each(|name| self.stored.forget(name));
        self.nonce = nonce;
        self.sent_generation = facts.applied_generation;
        self.beat = true;
        send(
            effects,
            Out::Welcome(Welcome {
                protocol,
                session_epoch: opened.session_epoch,
                deployment_epoch: opened.deployment_epoch,
                server_time_ms: wire_ms(opened.server_time),
                journal_id: facts.journal_id.to_string(),
                acked_event_seq: opened.acked_event_seq,
                heartbeat_interval_ms: u32::try_from(terms.heartbeat.as_millis()).unwrap_or(u32::MAX),
                trust_bundle: opened.trust_bundle.map(|value| SignedTrustBundle { value: value.into() }),
                inventory_sections: opened.inventory_sections,
                upgrade_only: false,
                gateway_id: terms.gateway_id.to_string(),
            }),
        );
        let waits_for_results = !results.is_empty();
        if waits_for_results {
            results.iter_mut().for_each(|result| result.session = key);
            self.updates += results.len();
            effects.push(Effect::Store(Request::Updates(results)));
        }
        let waits_for_spec = opened.generation > self.sent_generation;
        self.phase =
            Phase::Settling { results: waits_for_results, spec: waits_for_spec, replay: opened.replay };
        if waits_for_spec {
            self.ask_spec(effects);
        }
        self.settle(effects);
    }

    /// Sends what was in flight once nothing has to go before it.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Settling { results: false, spec: false, replay } = &mut self.phase else { return };
        let replay = std::mem::take(replay);
        self.phase = Phase::Open;
        let cancels: Vec<(CommandId, String)> = replay
            .iter()
            .filter_map(|command| Some((command.command_id, command.cancel_requested.clone()?)))
            .collect();
        self.send_commands(replay, effects);
        for (command_id, reason) in cancels {
            self.cancel(command_id, reason, effects);
        }
    }

    fn heartbeat(&mut self, beat: Heartbeat, now: Now, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let violation = |field| Violation { frame: "heartbeat", field };
        if beat.lane_credits.len() > MAP_ENTRIES_MAX {
            return Err(violation("lane_credits"));
        }
        if beat.inventory_hashes.len() > MAP_ENTRIES_MAX {
            return Err(violation("inventory_hashes"));
        }
        self.credits.report(&beat.lane_credits);
        self.beat = true;
        send(effects, Out::HeartbeatAck(HeartbeatAck { seq: beat.seq, server_time_ms: wire_ms(now.server) }));
        let sections = self.stored.changed(&beat.inventory_hashes);
        if !sections.is_empty() {
            send(effects, Out::InventoryRequest(InventoryRequest { sections }));
        }
        Ok(())
    }

    fn status(&mut self, report: StatusReport, key: SessionKey, now: Now) -> Result<(), Violation> {
        let mut status = report::status(report, key, now.server)?;
        if status.applied_generation > 0 {
            self.has_a_mark();
        }
        // A word on trust is said in one report only: a later one must not swallow it.
        if let Some(before) = &self.status
            && status.trust_version == 0
        {
            status.trust_version = before.trust_version;
        }
        self.status = Some(Box::new(status));
        Ok(())
    }

    fn events(&mut self, batch: EventBatch, now: Now, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        let Some(journal_id) = self.journal_id.filter(|held| batch.journal_id == held.to_string()) else {
            return Ok(());
        };
        let events = report::events(batch, now.server)?;
        if !events.is_empty() {
            self.request(Request::Events { journal_id, events }, effects);
        }
        Ok(())
    }

    fn inventory(
        &mut self,
        report: InventoryReport,
        key: SessionKey,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let sections = report::inventory(report, key)?;
        if !sections.is_empty() {
            self.request(Request::Inventory(sections), effects);
        }
        Ok(())
    }

    fn spec_request(&mut self, request: &SpecRequest, effects: &mut Vec<Effect>) {
        if request.have_generation > 0 {
            self.has_a_mark();
        } else {
            self.bind_attempts = 0;
        }
        // What was sent may not have been taken; the answer carries the current one whatever was sent.
        if !self.spec_requested {
            self.ask_spec(effects);
        }
    }

    /// It has taken a spec since its Hello, so that what follows needs no binding.
    fn has_a_mark(&mut self) {
        self.nonce = None;
    }

    fn ask_spec(&mut self, effects: &mut Vec<Effect>) {
        let bind = self.nonce.map(|nonce| {
            let statement = FreshStatement {
                node_id: self.peer.node_id.to_string(),
                nonce: nonce.to_vec().into(),
                ..FreshStatement::default()
            };
            prost::Message::encode_to_vec(&statement)
        });
        self.spec_requested = true;
        self.request(Request::Spec { bind }, effects);
    }

    /// The hub found a newer spec.
    fn pushed(&mut self, spec: StoredSpec, effects: &mut Vec<Effect>) {
        if self.spec_requested || spec.generation <= self.sent_generation || self.key.is_none() {
            return;
        }
        if self.nonce.is_some() {
            self.bind_attempts = 0;
            self.ask_spec(effects);
        } else {
            self.send_spec(spec, None, effects);
        }
    }

    fn send_spec(&mut self, spec: StoredSpec, fresh: Option<FreshBinding>, effects: &mut Vec<Effect>) {
        // A late answer never takes back what a later one brought.
        if spec.generation < self.sent_generation {
            return;
        }
        self.sent_generation = spec.generation;
        send(
            effects,
            Out::DesiredState(DesiredState {
                body: spec.body.into(),
                signature: Some(IntentSignature { value: spec.signature.into() }),
                fresh,
            }),
        );
    }

    fn send_commands(&mut self, commands: Vec<StoredCommand>, effects: &mut Vec<Effect>) {
        // Marked as sent in the store but not sent here: the next session of the node replays them.
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        for command in commands {
            let Some(lane) = Lane::parse(&command.lane) else { continue };
            self.credits.sent(command.command_id, lane);
            send(
                effects,
                Out::Command(Command {
                    body: command.body.into(),
                    signature: Some(IntentSignature { value: command.signature.into() }),
                    delivery_attempt: command.attempt,
                }),
            );
        }
    }

    fn cancel(&mut self, command_id: CommandId, reason: String, effects: &mut Vec<Effect>) {
        if self.credits.cancel(command_id) {
            send(
                effects,
                Out::Cancel(Cancel { command_id: command_id.to_string(), reason: report::text(&reason) }),
            );
        }
    }

    fn answer(&mut self, terms: &Terms, answer: Answer, now: Now, effects: &mut Vec<Effect>) {
        match answer {
            Answer::Open(opened) => {
                self.answered();
                self.heard = now.monotonic;
                match opened {
                    Ok(opened) => self.opened(terms, *opened, effects),
                    Err(refused) => {
                        let (reason, message) = refusal(&refused);
                        self.refuse(reason, message, effects);
                    }
                }
            }
            Answer::Updates { count, acknowledged } => self.updates_stored(count, acknowledged, effects),
            Answer::Events(stored) => {
                self.answered();
                match (stored, self.journal_id) {
                    (Some(event_seq), Some(journal_id)) => {
                        let journal_id = journal_id.to_string();
                        send(effects, Out::Ack(Ack { journal_id, event_seq, command_ids: Vec::new() }));
                    }
                    _ => self.end(End::TakenOver, effects),
                }
            }
            Answer::Inventory(sections) => {
                self.answered();
                sections.iter().for_each(|(name, hash)| self.stored.set(*name, hash));
            }
            Answer::Spec { spec, binding } => {
                self.answered();
                self.spec_answered(spec, binding, effects);
            }
        }
    }

    fn updates_stored(&mut self, count: usize, acknowledged: Vec<CommandId>, effects: &mut Vec<Effect>) {
        self.updates = self.updates.saturating_sub(count);
        if let Phase::Settling { results, replay, .. } = &mut self.phase {
            *results = false;
            replay.retain(|command| !acknowledged.contains(&command.command_id));
        }
        if !acknowledged.is_empty() {
            let command_ids = acknowledged.iter().map(ToString::to_string).collect();
            send(effects, Out::Ack(Ack { command_ids, ..Ack::default() }));
        }
        self.settle(effects);
    }

    fn spec_answered(
        &mut self,
        spec: Option<StoredSpec>,
        binding: Option<Vec<u8>>,
        effects: &mut Vec<Effect>,
    ) {
        self.spec_requested = false;
        match (spec, self.nonce) {
            (Some(spec), None) => self.send_spec(spec, None, effects),
            (Some(spec), Some(_)) => match bound_to(binding.as_deref(), spec.generation) {
                Bound::Yes(binding) => self.send_spec(spec, Some(binding), effects),
                // The spec moved on between the two.
                Bound::Other if self.bind_attempts < BIND_ATTEMPTS_MAX => {
                    self.bind_attempts += 1;
                    return self.ask_spec(effects);
                }
                // No worker answered: the backstop finds the node behind and asks again.
                Bound::Other | Bound::No => {}
            },
            (None, _) => {}
        }
        if let Phase::Settling { spec, .. } = &mut self.phase {
            *spec = false;
        }
        self.settle(effects);
    }

    fn request(&mut self, request: Request, effects: &mut Vec<Effect>) {
        self.requests += 1;
        effects.push(Effect::Store(request));
    }

    fn answered(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    fn revoked(&mut self, effects: &mut Vec<Effect>) {
        let reason = "the node or its certificate was revoked".to_owned();
        send(effects, Out::Revocation(RevocationNotice { reason }));
        self.end(End::Said("revoked"), effects);
    }

    fn drain(&mut self, reason: &'static str, reconnect_after: Duration, effects: &mut Vec<Effect>) {
        if self.key.is_none() {
            return self.end(End::Stopping, effects);
        }
        self.draining = true;
        send(
            effects,
            Out::Drain(Drain {
                reason: reason.to_owned(),
                reconnect_after_ms: u32::try_from(reconnect_after.as_millis()).unwrap_or(u32::MAX),
            }),
        );
    }

    fn refuse(&mut self, reason: &'static str, message: &str, effects: &mut Vec<Effect>) {
        send(effects, Out::Refusal(Refusal { reason: reason.to_owned(), message: message.to_owned() }));
        self.end(End::Said(reason), effects);
    }

    fn end(&mut self, end: End, effects: &mut Vec<Effect>) {
        self.phase = Phase::Ended;
        effects.push(Effect::End(end));
    }
}

enum Bound {
    Yes(FreshBinding),
    /// It speaks of another generation.
    Other,
    No,
}

fn bound_to(binding: Option<&[u8]>, generation: u64) -> Bound {
    let Some(binding) = binding else { return Bound::No };
    let Ok(binding) = wire::decode::<FreshBinding>("binding", binding, 4 * STATEMENT_BYTES_MAX * 2) else {
        return Bound::No;
    };
    match wire::decode::<FreshStatement>("statement", &binding.statement, STATEMENT_BYTES_MAX) {
        Ok(statement) if statement.generation == generation => Bound::Yes(binding),
        Ok(_) => Bound::Other,
        Err(_) => Bound::No,
    }
}

const fn refusal(refused: &SessionRefused) -> (&'static str, &'static str) {
    match refused {
        SessionRefused::UnknownNode => ("unknown_node", "the control plane does not know this node"),
        SessionRefused::Revoked => ("revoked", "the node or its certificate was revoked"),
        SessionRefused::Ahead | SessionRefused::ObserveOnly => (
            "observe_only",
            "the node holds newer intent than the control plane, which sends nothing until that is settled",
        ),
        SessionRefused::Quarantined => {
            ("quarantined", "the node claims newer intent than the control plane and could not prove it")
        }
    }
}

fn send(effects: &mut Vec<Effect>, frame: Out) {
    effects.push(Effect::Send(GatewayFrame { frame: Some(frame) }));
}

fn wire_ms(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
