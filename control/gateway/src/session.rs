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
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::{GatewayFrame, NodeFrame, OpenTunnel, Refusal, SecretRequest};
use wire::versions::Versions;

mod credits;
mod hashes;
mod hello;
mod incoming;
mod outgoing;
mod pace;
mod report;
mod secrets;

pub use report::Violation;

use credits::Credits;
use hashes::Hashes;
use hello::Greeting;
use pace::Pace;

/// Requests to the store that a session may have under way: past it, its frames wait in the network.
const REQUESTS_MAX: usize = 4;
/// Command updates under way to the store, of one session. A node has at most 22 commands running.
const UPDATES_MAX: usize = 64;
/// How long a node whose events were refused stays before it is asked to come again with them.
const EVENTS_PAUSE: Duration = Duration::from_secs(60);
/// Heartbeats that may be missing on an open stream before it is closed.
const SILENT_HEARTBEATS: u32 = 5;

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
    pub versions: Versions,
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
#[allow(clippy::large_enum_variant)] // It is passed on and never kept.
pub enum Input {
    Frame(NodeFrame),
    Answer(Answer),
    /// Commands claimed for this session.
    Commands(Vec<StoredCommand>),
    /// A cancel was requested for a command under way.
    Cancel(CommandId, String),
    /// The node's spec may be newer than what was sent.
    Spec(StoredSpec),
    /// Somebody with a ticket is here.
    Tunnel(OpenTunnel),
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
    /// A question for a worker. Beside the others: it may take its time.
    Secret(Box<AskedSecret>),
}

/// A node's question for a secret, as it came, and over which connection.
#[derive(Debug)]
pub struct AskedSecret {
    pub request: SecretRequest,
    pub cert_serial: String,
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
    /// Too many of the node's events wait to be handled.
    EventsRefused,
    Inventory(Vec<(SectionName, String)>),
    Spec {
        spec: Option<StoredSpec>,
        binding: Option<Vec<u8>>,
    },
    /// To one of the node's questions, as a worker signed it; none when no worker did.
    Secret {
        request_id: Vec<u8>,
        answer: Option<Vec<u8>>,
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
    /// Questions for secrets under way.
    secrets: usize,
    pace: Pace,
    /// Events came faster than they may: nothing is read until that is made up for.
    slowed: bool,
    /// Since when events are refused. None of this session is taken after one that was not: its acknowledgement would stand for
    /// both.
    events_refused: Option<Duration>,
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
            secrets: 0,
            pace: Pace::new(now.monotonic),
            slowed: false,
            events_refused: None,
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
                !self.slowed && self.requests < REQUESTS_MAX && self.updates < UPDATES_MAX
            }
            Phase::Opening(_) | Phase::Ended => false,
        }
    }

    /// Whether events may be stored.
    pub fn takes_events(&self) -> bool {
        self.events_refused.is_none()
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
                if let Err(violation) = self.frame(frame, terms, now, effects) {
                    self.end(End::Violation(violation), effects);
                }
            }
            Input::Answer(answer) => self.answer(terms, answer, now, effects),
            Input::Commands(commands) => self.send_commands(commands, effects),
            Input::Cancel(command_id, reason) => self.cancel(command_id, reason, effects),
            Input::Spec(spec) => self.pushed(spec, effects),
            Input::Tunnel(open) => self.open_tunnel(open, effects),
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
            self.slowed = self.pace.is_ahead(now.monotonic);
        } else if now.monotonic.saturating_sub(self.heard) > patience {
            return self.end(End::Silent, effects);
        }
        // It sends again what is not acknowledged only to a session that is new.
        if let Some(since) = self.events_refused
            && !self.draining
            && now.monotonic.saturating_sub(since) > EVENTS_PAUSE
        {
            self.drain("events wait to be handled", Duration::ZERO, effects);
        }
    }

    fn request(&mut self, request: Request, effects: &mut Vec<Effect>) {
        self.requests += 1;
        effects.push(Effect::Store(request));
    }

    fn answered(&mut self) {
        self.requests = self.requests.saturating_sub(1);
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

fn send(effects: &mut Vec<Effect>, frame: Out) {
    effects.push(Effect::Send(GatewayFrame { frame: Some(frame) }));
}

fn wire_ms(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
