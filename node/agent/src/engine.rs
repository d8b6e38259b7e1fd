//! The node as one state machine: session, journal, dispatcher, spec and status, with no I/O, no clock and no randomness
//! of their own. A thin actor feeds it, commits its writes and then does its effects; a simulator can do the same.
//!
//! One step is: [`Engine::handle`] for each input that is there, [`Engine::take_writes`] into one commit, and only when that
//! returned the effects, in order. A crash at any point then leaves either nothing, or something a restart settles once.

mod frames;
mod outbox;
mod report;
mod secrets;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kit::{Rng, mutant};
use model::condition::Severity;
use model::{CommandId, CommandKind, IncarnationId, JournalId, NodeId, Role, SiteId, Timestamp};
use pki::worker::CommandVerifier;
use pki::{SigningKey, TrustBundle};
use wire::proto::agent::{GatewayFrame, Pressure};
use wire::versions::Versions;

use crate::acceptance;
use crate::clock::{self, Now, ServerClock};
use crate::conditions::{Conditions, Source};
use crate::converge::{Fact, PassReport, Validator};
use crate::desired::{self, HeldSpec};
use crate::dispatch::{self, Cx, Dispatcher};
use crate::effect::{Effect, Outgoing};
use crate::journal::rules;
use crate::journal::{Journal, Limits, Loaded, Marks, Write};
use crate::kinds::Outcome;
use crate::session::{Due, Phase, Session};
use crate::tunnel::Refused;

pub use outbox::render;
pub use view::StatusView;

/// The server-time mark is journaled when it has moved this far, not with every heartbeat: what a restart loses of it is
/// well within the allowance it is compared with.
const TIME_MARK_STEP_MS: u64 = 30_000;
/// The mirror beside the journal follows in larger steps, since it costs two more fsyncs.
const TIME_MIRROR_STEP_MS: u64 = 240_000;
/// How often old entries are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(3600);
/// A gateway that keeps sending what does not apply is asked for a full spec this often.
const SPEC_REQUEST_PERIOD: Duration = Duration::from_secs(5);

/// Who the node is. Fixed for the life of an engine.
#[derive(Debug, Clone)]
pub struct Node {
    pub node_id: NodeId,
    pub site_id: SiteId,
    pub role: Role,
    pub boot_id: String,
    pub agent_version: String,
    pub capabilities: Vec<String>,
}

/// From when to when the node's certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    pub begins: Timestamp,
    pub ends: Timestamp,
}

/// What an engine is made from.
pub struct EngineParts {
    pub node: Node,
    pub key: SigningKey,
    pub certificate: Certificate,
    pub trust: TrustBundle,
    /// Mirrored beside the journal.
    pub marks: Marks,
    pub journal_id: JournalId,
    pub incarnation: IncarnationId,
    pub limits: Limits,
    pub loaded: Loaded,
    pub handled: Vec<CommandKind>,
    pub validators: Vec<Validator>,
    /// Protocol versions spoken to gateways.
    pub versions: Versions,
    pub rng: Arc<dyn Rng>,
}

/// What happens to the node.
#[derive(Debug)]
pub enum Input {
    /// Nothing but time.
    Tick,
    /// The connection asked for is there.
    Connected,
    /// The connection ended or could not be made. `pushback` is a busy gateway's wish.
    Disconnected {
        why: String,
        pushback: Option<Duration>,
    },
    Frame(Box<GatewayFrame>),
    /// A worker is done.
    Finished {
        id: CommandId,
        outcome: Outcome,
    },
    /// A converge pass is done.
    Passed(PassReport),
    /// What the machine's readers know now.
    Hardware {
        hashes: BTreeMap<String, String>,
        conditions: Vec<Fact>,
        pressure: Option<Pressure>,
    },
    /// Look at the machine again.
    Converge,
    /// A trust bundle is durable.
    TrustStored {
        version: u64,
    },
    /// The node has a new key and certificate, both durable.
    Renewed {
        key: Box<SigningKey>,
        certificate: Certificate,
    },
    /// A tunnel that was to be opened did not come about.
    TunnelRefused(Refused),
}

pub struct Engine {
    node: Node,
    key: SigningKey,
    certificate: Certificate,
    trust: TrustBundle,
    /// A newer bundle on its way to disk.
    trust_pending: Option<Box<TrustBundle>>,
    verifier: CommandVerifier,
    journal: Journal,
    handled: Vec<CommandKind>,
    validators: Vec<Validator>,
    versions: Versions,
    rng: Arc<dyn Rng>,

    clock: ServerClock,
    session: Session,
    dispatcher: Dispatcher,
    held: Option<Arc<HeldSpec>>,
    /// Revoked by notice on this session: no new work, holds stay.
    revoked: bool,

    status: report::Status,
    conditions: Conditions,
    own_facts: BTreeMap<&'static str, Fact>,
    hashes: BTreeMap<String, String>,
    pressure: Option<Pressure>,

    mirrored: Marks,
    next_sweep: Duration,
    spec_requested: Option<Duration>,
    questions: secrets::Questions,
    effects: Vec<Effect>,
}

impl Engine {
    /// The engine of a process that has just started: what an earlier one left and needs no one's word is settled at once,
    /// and the spec it held is enforced again.
    pub fn new(parts: EngineParts, now: Now) -> Self {
        let EngineParts { node, key, certificate, trust, marks, journal_id, incarnation, .. } = parts;
        let mut journal = Journal::new(journal_id, incarnation, parts.limits, &parts.loaded);
        journal.raise_marks(marks);
        let held = parts.loaded.spec.as_ref().and_then(|stored| {
            desired::from_stored(stored)
                .inspect_err(|err| tracing::error!(err = %err, "journaled spec cannot be read"))
                .ok()
                .map(Arc::new)
        });
        let mut engine = Self {
            verifier: CommandVerifier::new(trust.deployment_id, &trust.command_roots),
            node,
            key,
            certificate,
            trust,
            trust_pending: None,
            journal,
            handled: parts.handled,
            validators: parts.validators,
            versions: parts.versions,
            rng: parts.rng,
            clock: ServerClock::default(),
            session: Session::new(),
            dispatcher: Dispatcher::default(),
            held,
            revoked: false,
            status: report::Status::default(),
            conditions: Conditions::default(),
            own_facts: BTreeMap::new(),
            hashes: BTreeMap::new(),
            pressure: None,
            mirrored: marks,
            next_sweep: now.monotonic + SWEEP_PERIOD,
            spec_requested: None,
            questions: secrets::Questions::default(),
            effects: Vec::new(),
        };
        engine.recover(now);
        if engine.held.is_some() {
            engine.effects.push(Effect::Converge);
        }
        engine
    }

    fn recover(&mut self, now: Now) {
        for (id, kind, settlement) in self.journal.recover(&self.node.boot_id) {
            let update = rules::settled_update(id, &kind, &settlement, &self.node.boot_id);
            tracing::info!(command_id = %id, kind = %kind, state = ?update.state(), "settled a command an earlier process left");
            let mut cx = self.cx(now);
            dispatch::settle(&mut cx, id, &kind, update);
        }
    }

    fn cx(&mut self, now: Now) -> Cx<'_> {
        let at = self.clock.estimate(now, self.journal.marks().server_time_ms);
        Cx {
            journal: &mut self.journal,
            effects: &mut self.effects,
            node_id: self.node.node_id,
            boot_id: &self.node.boot_id,
            signer: &self.key,
            at,
        }
    }

    /// Writes to commit before any effect of the inputs so far.
    pub fn take_writes(&mut self) -> Vec<Write> {
        self.journal.take_writes()
    }

    /// Effects of the inputs so far, in order, for after the commit.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Starts no more workers: the process is about to stop, and what is accepted waits for the next one.
    pub fn pause(&mut self) {
        self.dispatcher.pause();
    }

    /// The spec the node enforces.
    pub fn held(&self) -> Option<&Arc<HeldSpec>> {
        self.held.as_ref()
    }

    /// Server time, as well as the node knows it.
    pub fn server_time(&self, now: Now) -> Timestamp {
        self.clock.estimate(now, self.journal.marks().server_time_ms)
    }

    /// When a `Tick` is due, if nothing happens before. Monotonic.
    pub fn deadline(&self) -> Duration {
        let mut next = self.next_sweep;
        let due = [self.session.deadline(), self.status_deadline(), self.questions.deadline()];
        for due in due.into_iter().flatten() {
            next = next.min(due);
        }
        if self.dispatcher.deferred() > 0 {
            // A deferred command is answered when its deadline passes, give or take a second.
            next = next.min(self.status.last_tick + Duration::from_secs(1));
        }
        next
    }

    pub fn handle(&mut self, input: Input, now: Now) {
        match input {
            Input::Tick => {}
            Input::Connected => self.greet(now),
            Input::Disconnected { why, pushback } => self.disconnected(&why, pushback, now),
            Input::Frame(frame) => self.frame(*frame, now),
            Input::Finished { id, outcome } => self.with_dispatcher(now, |dispatcher, _, cx| {
                dispatcher.finished(id, outcome, cx);
            }),
            Input::Passed(pass) => self.passed(pass, now),
            Input::Hardware { hashes, conditions, pressure } => {
                self.hardware(hashes, conditions, pressure, now)
            }
            Input::Converge => self.effects.push(Effect::Converge),
            Input::TrustStored { version } => self.trust_stored(version),
            Input::Renewed { key, certificate } => {
                self.key = *key;
                self.certificate = certificate;
            }
            Input::TunnelRefused(refused) => {
                self.refuse_tunnel(refused.tunnel_id, refused.reason, &refused.message);
            }
        }
        self.tick(now);
    }

    /// What is due by time, and what the input made possible.
    fn tick(&mut self, now: Now) {
        self.status.last_tick = now.monotonic;
        if self.dispatcher.deferred() > 0 {
            self.recheck(now);
        }
        self.pump(now);
        while let Some(due) = self.session.due(now.monotonic) {
            match due {
                Due::Dial => self.effects.push(Effect::Dial),
                Due::Close(why) => self.hang_up(why, now),
                Due::Heartbeat { seq, with_hashes } => self.beat(seq, with_hashes),
            }
        }
        self.expire_questions(now);
        self.watch_certificate(now);
        self.send_events();
        self.send_status(now);
        if self.next_sweep <= now.monotonic {
            self.next_sweep = now.monotonic + SWEEP_PERIOD;
            let at = self.clock.estimate(now, self.journal.marks().server_time_ms);
            self.journal.sweep(at);
        }
    }

    fn pump(&mut self, now: Now) {
        // Commands are only ever taken on a session, so server time is known by then.
        let Some(server_now) = self.clock.now(now) else { return };
        self.with_dispatcher(now, |dispatcher, _, cx| dispatcher.pump(server_now, cx));
    }

    fn recheck(&mut self, now: Now) {
        self.with_dispatcher(now, |dispatcher, facts, cx| dispatcher.recheck(facts, cx));
    }

    /// Runs the dispatcher with what it may look at and what it may write to.
    fn with_dispatcher<T>(
        &mut self,
        now: Now,
        act: impl FnOnce(&mut Dispatcher, &acceptance::Facts<'_>, &mut Cx<'_>) -> T,
    ) -> T {
        let estimate = self.clock.estimate(now, self.journal.marks().server_time_ms);
        let node_id = self.node.node_id.to_string();
        let facts = acceptance::Facts {
            node_id: &node_id,
            role: self.node.role,
            upgrade_only: self.session.upgrade_only(),
            handled: &self.handled,
            applied_generation: self.held.as_ref().map_or(0, |held| held.generation),
            deployment_epoch: self.journal.marks().deployment_epoch,
            now: if mutant::on("agent.deadline-by-own-clock") {
                now.wall
            } else {
                self.clock.now(now).unwrap_or(estimate)
            },
            verifier: &self.verifier,
        };
        let mut cx = Cx {
            journal: &mut self.journal,
            effects: &mut self.effects,
            node_id: self.node.node_id,
            boot_id: &self.node.boot_id,
            signer: &self.key,
            at: estimate,
        };
        act(&mut self.dispatcher, &facts, &mut cx)
    }

    /// A renewal that is late is told while there is still time to do something about it.
    fn watch_certificate(&mut self, now: Now) {
        const KIND: &str = "CertificateExpiring";
        let Certificate { begins, ends } = self.certificate;
        let at = self.server_time(now);
        let late = at > crate::renew::late(begins, ends);
        if !late && !self.own_facts.contains_key(KIND) {
            return;
        }
        let fact = late.then(|| {
            let (severity, reason) =
                if at > ends { (Severity::Blocking, "expired") } else { (Severity::Warning, "renewal-late") };
            frames::agent_fact(KIND, severity, reason, &format!("the node's certificate ends at {ends}"))
        });
        self.own_fact(KIND, fact, now);
    }

    fn disconnected(&mut self, why: &str, pushback: Option<Duration>, now: Now) {
        if matches!(self.session.phase(), Phase::Waiting { .. }) {
            return;
        }
        tracing::info!(node_id = %self.node.node_id, why, "session ended");
        self.session.ended(why, pushback, now.monotonic, self.rng.as_ref());
        self.forget_questions();
    }

    fn hang_up(&mut self, why: &str, now: Now) {
        self.effects.push(Effect::Hangup);
        self.disconnected(why, None, now);
    }

    fn hardware(
        &mut self,
        hashes: BTreeMap<String, String>,
        conditions: Vec<Fact>,
        pressure: Option<Pressure>,
        now: Now,
    ) {
        if self.hashes != hashes {
            self.hashes = hashes;
            self.session.hashes_changed(now.monotonic);
        }
        if self.conditions.set(Source::Hardware, conditions, now.monotonic) {
            self.status.changed();
        }
        self.pressure = pressure;
    }

    fn trust_stored(&mut self, version: u64) {
        let Some(bundle) = self.trust_pending.take_if(|bundle| bundle.version == version) else { return };
        if !mutant::on("agent.old-roots-stay") {
            self.verifier = CommandVerifier::new(bundle.deployment_id, &bundle.command_roots);
        }
        self.trust = *bundle;
        self.status.trust_taken(version);
        tracing::info!(version, "took a newer trust bundle");
    }

    /// Records something only the agent knows; `None` takes it back.
    fn own_fact(&mut self, kind: &'static str, fact: Option<Fact>, now: Now) {
        let changed = match fact {
            Some(fact) => self.own_facts.insert(kind, fact).is_none(),
            None => self.own_facts.remove(kind).is_some(),
        };
        let facts = self.own_facts.values().cloned().collect();
        if self.conditions.set(Source::Agent, facts, now.monotonic) || changed {
            self.status.changed();
        }
    }

    /// Journals marks that rose, the server-time mark in steps, and mirrors them in larger ones.
    fn raise_marks(&mut self, seen: Marks) {
        let held = self.journal.marks();
        let intent_rose = seen.generation > held.generation || seen.deployment_epoch > held.deployment_epoch;
        if intent_rose || seen.server_time_ms >= held.server_time_ms.saturating_add(TIME_MARK_STEP_MS) {
            self.journal.raise_marks(seen);
        }
        self.mirror_marks();
    }

    fn raise_time_mark(&mut self, stated_ms: u64, now: Now) {
        self.raise_marks(Marks { server_time_ms: clock::durable_ms(stated_ms, now), ..Marks::default() });
    }

    fn mirror_marks(&mut self) {
        let held = self.journal.marks();
        let behind = held.generation != self.mirrored.generation
            || held.deployment_epoch != self.mirrored.deployment_epoch
            || held.server_time_ms >= self.mirrored.server_time_ms.saturating_add(TIME_MIRROR_STEP_MS);
        if behind && !mutant::on("agent.marks-not-mirrored") {
            self.mirrored = held;
            self.effects.push(Effect::StoreMarks(held));
        }
    }

    fn send(&mut self, outgoing: Outgoing) {
        self.effects.push(Effect::Send(outgoing));
    }

    /// Results to go with a Hello: as many as fit in a frame beside the spec's body, oldest ids first.
    fn hello_results(&self, budget: usize) -> BTreeSet<CommandId> {
        let mut left = budget;
        self.journal
            .unacked_results()
            .take(wire::limits::HELLO_COMMANDS_MAX)
            .take_while(|id| {
                let bytes = self.journal.entry(*id).map_or(0, crate::journal::Head::bytes);
                let fits = bytes <= left;
                left = left.saturating_sub(bytes);
                fits
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
