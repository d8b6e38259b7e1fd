//! Commands from delivery to result: lanes with credits and workers, locks on resources across lanes, and the queue of
//! commands that wait for a newer spec. No I/O: what must be durable goes to the journal's writes, what must happen
//! after that to the effects.

pub(crate) mod update;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kit::mutant;
use model::command::RejectReason;
use model::{CommandId, CommandKind, Lane, NodeId, Timestamp};
use pki::SigningKey;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::{Command, CommandBody, CommandState, CommandUpdate};

use crate::acceptance::{self, Facts, Verdict};
use crate::effect::{Effect, Outgoing};
use crate::journal::rules::{self, Answer};
use crate::journal::{Full, Head, HeadStage, Journal, Marks};
use crate::kinds::Outcome;

/// Commands that wait for a newer spec. The lanes admit 22, so more than this is not a backlog but a fault.
const DEFERRED_MAX: usize = 64;
/// Resource keys of one command: every GPU, disk and NIC of a large machine.
const RESOURCE_KEYS_MAX: usize = 256;

/// What a step of the dispatcher works with.
pub struct Cx<'a> {
    pub journal: &'a mut Journal,
    pub effects: &'a mut Vec<Effect>,
    pub node_id: NodeId,
    pub boot_id: &'a str,
    pub signer: &'a SigningKey,
    /// For the journal's retention.
    pub at: Timestamp,
}

struct Job {
    kind: CommandKind,
    keys: BTreeSet<String>,
    not_after: Timestamp,
    phase: Phase,
    /// An earlier process had begun it, and may have acted.
    begun_before: bool,
}

enum Phase {
    Queued(Payload),
    Running,
}

struct Deferred {
    id: CommandId,
    body: CommandBody,
    command: Command,
}

#[derive(Default)]
struct LaneState {
    queue: VecDeque<CommandId>,
    running: usize,
    /// From acceptance until the result is journaled.
    admitted: u32,
}

#[derive(Default)]
pub struct Dispatcher {
    lanes: BTreeMap<Lane, LaneState>,
    jobs: BTreeMap<CommandId, Job>,
    locks: BTreeSet<String>,
    deferred: VecDeque<Deferred>,
    paused: bool,
}

/// What the caller has to do beside the effects.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The command waits for a newer spec: ask for it.
    pub wants_spec: bool,
    /// It was refused for want of room in the journal.
    pub journal_full: bool,
}

impl Dispatcher {
    /// Credits left by lane name.
    pub fn credits(&self) -> BTreeMap<String, u32> {
        Lane::ALL.into_iter().map(|lane| (lane.name().to_owned(), self.credit(lane))).collect()
    }

    fn credit(&self, lane: Lane) -> u32 {
        lane.credits().saturating_sub(self.lanes.get(&lane).map_or(0, |state| state.admitted))
    }

    /// Commands with a worker.
    pub fn running(&self) -> impl Iterator<Item = (CommandId, CommandKind)> {
        self.jobs
            .iter()
            .filter(|(_, job)| matches!(job.phase, Phase::Running))
            .map(|(id, job)| (*id, job.kind))
    }

    pub fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// Takes a command off the session. What cannot be answered, because it has no readable id, is dropped with a log line.
    pub fn deliver(&mut self, command: Command, facts: &Facts<'_>, cx: &mut Cx<'_>) -> Delivered {
        let (id, body) = match read(&command, facts.node_id) {
            Read::Body(id, body) => (id, body),
            Read::Unfit(id, kind, message) => {
                if let Answer::Check = self.answer(id, cx) {
                    reject(cx, id, &kind, RejectReason::Unsupported, message);
                }
                return Delivered::default();
            }
            Read::Unreadable(err) => {
                tracing::warn!(err = %err, "command without a readable id, dropped");
                return Delivered::default();
            }
        };
        if self.deferred.iter().any(|deferred| deferred.id == id) {
            return Delivered::default();
        }
        match self.answer(id, cx) {
            Answer::Check => self.check(id, body, command, facts, cx),
            Answer::Replay | Answer::Standing(_) | Answer::Settle(_) => Delivered::default(),
        }
    }

    /// What the journal says of a delivered command, already acted on unless it is for the checks.
    fn answer(&mut self, id: CommandId, cx: &mut Cx<'_>) -> Answer {
        let answer = rules::resolve(cx.journal.entry(id), cx.journal.incarnation(), cx.boot_id);
        match &answer {
            Answer::Check => {}
            Answer::Replay => cx.effects.push(Effect::Send(Outgoing::Result(id))),
            Answer::Standing(state) => cx.send(update::standing(id, *state, cx.boot_id)),
            Answer::Settle(settlement) => {
                let kind = cx.journal.entry(id).map(|head| head.kind.to_string()).unwrap_or_default();
                let update = rules::settled_update(id, &kind, settlement, cx.boot_id);
                settle(cx, id, &kind, update);
            }
        }
        answer
    }

    fn check(
        &mut self,
        id: CommandId,
        body: CommandBody,
        command: Command,
        facts: &Facts<'_>,
        cx: &mut Cx<'_>,
    ) -> Delivered {
        match acceptance::check(facts, &body, &command) {
            Verdict::Reject(reason, message) => {
                reject(cx, id, &body.kind, reason, message);
                Delivered::default()
            }
            Verdict::Early => {
                cx.send(update::busy(id, "early", cx.boot_id));
                Delivered::default()
            }
            Verdict::Defer if self.deferred.len() >= DEFERRED_MAX => {
                cx.send(update::busy(id, "deferred-queue-full", cx.boot_id));
                Delivered { wants_spec: true, ..Delivered::default() }
            }
            Verdict::Defer => {
                self.deferred.push_back(Deferred { id, body, command });
                Delivered { wants_spec: true, ..Delivered::default() }
            }
            Verdict::Admit(kind) => self.admit(id, kind, body, cx),
        }
    }

    /// Credit and room come last, and want of them is never journaled.
    fn admit(&mut self, id: CommandId, kind: CommandKind, body: CommandBody, cx: &mut Cx<'_>) -> Delivered {
        let lane = kind.policy().lane;
        if self.credit(lane) == 0 {
            cx.send(update::busy(id, "no-credit", cx.boot_id));
            return Delivered::default();
        }
        let Some(payload) = body.payload else {
            // `decode_body` gave a payload for every kind this build knows.
            reject(cx, id, &body.kind, RejectReason::Unsupported, "the command has no payload".into());
            return Delivered::default();
        };
        if cx.journal.accept(id, kind.name(), cx.at) == Err(Full) {
            cx.send(update::busy(id, "journal-full", cx.boot_id));
            return Delivered { journal_full: true, ..Delivered::default() };
        }
        if !mutant::on("agent.command-epoch-not-marked") {
            cx.journal.raise_marks(Marks { deployment_epoch: body.deployment_epoch, ..Marks::default() });
        }
        cx.send(update::standing(id, CommandState::Acked, cx.boot_id));
        let not_after =
            Timestamp::from_micros(i64::try_from(body.not_after_ms).unwrap_or(i64::MAX).saturating_mul(1000));
        let keys = body.resource_keys.into_iter().collect();
        let begun_before = cx.journal.entry(id).is_some_and(Head::is_running);
        self.jobs.insert(id, Job { kind, keys, not_after, phase: Phase::Queued(payload), begun_before });
        let state = self.lanes.entry(lane).or_default();
        state.admitted += 1;
        state.queue.push_back(id);
        Delivered::default()
    }

    /// Checks deferred commands again: after a newer spec, and when time has passed.
    pub fn recheck(&mut self, facts: &Facts<'_>, cx: &mut Cx<'_>) {
        for deferred in std::mem::take(&mut self.deferred) {
            let Deferred { id, body, command } = deferred;
            self.check(id, body, command, facts, cx);
        }
    }

    /// Nothing starts any more.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Starts what may start. `now` is server time: a deadline that passed in the queue is as final as one before it.
    pub fn pump(&mut self, now: Timestamp, cx: &mut Cx<'_>) {
        if self.paused {
            return;
        }
        for lane in Lane::ALL {
            // Keys of commands that must wait: later ones of the same resource may not overtake them.
            let mut waiting = BTreeSet::new();
            let mut at = 0;
            while let Some(id) = self.next_in(lane, at) {
                let job = &self.jobs[&id];
                let locked = job.keys.iter().any(|key| self.locks.contains(key) || waiting.contains(key));
                if locked && !mutant::on("agent.locks-ignored") {
                    if !mutant::on("agent.waiting-is-overtaken") {
                        waiting.extend(job.keys.iter().cloned());
                    }
                    at += 1;
                    continue;
                }
                self.lanes.entry(lane).or_default().queue.remove(at);
                if now > job.not_after && !mutant::on("agent.queued-past-deadline") {
                    let kind = job.kind;
                    self.release(id);
                    reject(
                        cx,
                        id,
                        kind.name(),
                        RejectReason::Expired,
                        "its deadline passed in the queue".into(),
                    );
                } else {
                    self.start(lane, id, cx);
                }
            }
        }
    }

    fn next_in(&self, lane: Lane, at: usize) -> Option<CommandId> {
        let state = self.lanes.get(&lane)?;
        let full = state.running >= lane.workers() && !mutant::on("agent.workers-unbounded");
        if full { None } else { state.queue.get(at).copied() }
    }

    fn start(&mut self, lane: Lane, id: CommandId, cx: &mut Cx<'_>) {
        let job = self.jobs.get_mut(&id).expect("what is queued is a job");
        let Phase::Queued(payload) = std::mem::replace(&mut job.phase, Phase::Running) else { return };
        self.locks.extend(job.keys.iter().cloned());
        self.lanes.entry(lane).or_default().running += 1;
        if !mutant::on("agent.running-not-journaled") {
            cx.journal.running(id, job.kind.name(), cx.boot_id, cx.at);
        }
        cx.effects.push(Effect::Run { id, payload, not_after: job.not_after, kind: job.kind });
        cx.send(update::standing(id, CommandState::Running, cx.boot_id));
    }

    /// A worker is done.
    pub fn finished(&mut self, id: CommandId, outcome: Outcome, cx: &mut Cx<'_>) {
        let Some(job) = self.jobs.get(&id).filter(|job| matches!(job.phase, Phase::Running)) else { return };
        let (kind, begun_before) = (job.kind, job.begun_before);
        let outcome = match outcome {
            // It holds its credit and its locks until this process is gone.
            Outcome::Ending if kind.policy().self_terminating => return,
            Outcome::Ending => Outcome::failed("internal", "the command ended without an outcome"),
            other => other,
        };
        let update = match outcome {
            // This process did nothing; what the one before it had done is not known.
            Outcome::Cancelled if begun_before => {
                rules::settled_update(id, kind.name(), &rules::Settlement::Interrupted, cx.boot_id)
            }
            outcome => update::outcome(id, outcome, cx.boot_id),
        };
        self.release(id);
        settle(cx, id, kind.name(), update);
    }

    /// Gives back the credit, and the worker and locks of a running command.
    fn release(&mut self, id: CommandId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let state = self.lanes.entry(job.kind.policy().lane).or_default();
        if !mutant::on("agent.credit-kept") {
            state.admitted = state.admitted.saturating_sub(1);
        }
        if matches!(job.phase, Phase::Running) {
            state.running = state.running.saturating_sub(1);
            for key in &job.keys {
                self.locks.remove(key);
            }
        } else {
            state.queue.retain(|queued| *queued != id);
        }
    }

    /// A cancel: what has not begun is cancelled; what has is asked to stop and reports what really happened.
    pub fn cancel(&mut self, id: CommandId, cx: &mut Cx<'_>) {
        if let Some(at) = self.deferred.iter().position(|deferred| deferred.id == id) {
            let kind = self.deferred.remove(at).map(|deferred| deferred.body.kind).unwrap_or_default();
            not_begun(cx, id, &kind, update::outcome(id, Outcome::Cancelled, cx.boot_id));
            return;
        }
        match self.jobs.get(&id) {
            Some(Job { phase: Phase::Running, .. }) => cx.effects.push(Effect::Cancel(id)),
            Some(job) => {
                let kind = job.kind;
                self.release(id);
                not_begun(cx, id, kind.name(), update::outcome(id, Outcome::Cancelled, cx.boot_id));
            }
            None => self.cancel_left(id, cx),
        }
    }

    /// A cancel of something this process does not run. If an earlier one had begun and the kind is safe to repeat, nobody will
    /// repeat it now, so what it came to is not known.
    fn cancel_left(&mut self, id: CommandId, cx: &mut Cx<'_>) {
        let kind = match cx.journal.entry(id) {
            // Never heard of: the command itself may still be on its way and is what decides.
            None => return,
            Some(Head { stage: HeadStage::Done { .. }, .. }) => {
                cx.effects.push(Effect::Send(Outgoing::Result(id)));
                return;
            }
            Some(head) => head.kind.to_string(),
        };
        not_begun(cx, id, &kind, update::outcome(id, Outcome::Cancelled, cx.boot_id));
    }
}

impl Cx<'_> {
    fn send(&mut self, update: CommandUpdate) {
        self.effects.push(Effect::Send(Outgoing::update(update)));
    }
}

/// Journals a terminal update, signed where its kind is attested, and reports it once that is durable.
pub fn settle(cx: &mut Cx<'_>, id: CommandId, kind: &str, mut update: CommandUpdate) {
    if CommandKind::parse(kind).is_some_and(|kind| kind.policy().attested) {
        update.signature = Some(update::attest(&update, cx.node_id, cx.signer));
    }
    if !mutant::on("agent.result-not-journaled") {
        cx.journal.done(id, kind, update.clone(), cx.at);
    }
    cx.send(update);
}

fn reject(cx: &mut Cx<'_>, id: CommandId, kind: &str, reason: RejectReason, message: String) {
    let update = update::rejected(id, reason, message, cx.boot_id);
    not_begun(cx, id, kind, update);
}

/// Settles what this process has not begun. Where an earlier one had, to say that nothing was done would not be known to be true.
fn not_begun(cx: &mut Cx<'_>, id: CommandId, kind: &str, update: CommandUpdate) {
    let begun = cx.journal.entry(id).is_some_and(Head::is_running) && !mutant::on("agent.begun-said-undone");
    let interrupted = || rules::settled_update(id, kind, &rules::Settlement::Interrupted, cx.boot_id);
    let update = if begun { interrupted() } else { update };
    settle(cx, id, kind, update);
}

enum Read {
    Body(CommandId, CommandBody),
    /// It has an id to answer to, and is not a command this build can read.
    Unfit(CommandId, String, String),
    Unreadable(wire::DecodeError),
}

fn read(command: &Command, node_id: &str) -> Read {
    const WHAT: &str = "command body";
    const INVALID_ID: wire::DecodeError = wire::DecodeError::Invalid { what: WHAT, field: "command_id" };
    let plain: CommandBody = match wire::decode(WHAT, &command.body, wire::limits::COMMAND_BODY_BYTES_MAX) {
        Ok(body) => body,
        Err(err) => return Read::Unreadable(err),
    };
    let Ok(id) = plain.command_id.parse() else { return Read::Unreadable(INVALID_ID) };
    match wire::command::decode_body(&command.body) {
        Ok(body) if body.resource_keys.len() > RESOURCE_KEYS_MAX => {
            Read::Unfit(id, body.kind, format!("it locks more than {RESOURCE_KEYS_MAX} resources"))
        }
        Ok(body) => Read::Body(id, body),
        Err(err) if plain.node_id == node_id => Read::Unfit(id, plain.kind, err.to_string()),
        Err(err) => Read::Unreadable(err),
    }
}
