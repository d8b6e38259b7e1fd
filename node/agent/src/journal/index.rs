//! The journal's rules over an index in memory: no body of a result, report or spec is kept here.

use std::collections::BTreeMap;

use bytes::Bytes;
use kit::mutant;
use model::{CommandId, IncarnationId, JournalId, Timestamp};
use prost::Message;
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::{CommandUpdate, EventClass};

use super::rules::{self, Settlement};
use super::{Entry, Loaded, Marks, Stage, StoredEvent, StoredSpec, Write, cost};

/// How far an acknowledgement may lift the sequence numbers. No journal loses more events to an older copy of itself, and a
/// gateway must not be able to use the numbers up.
const LIFT_MAX: u64 = 1 << 32;

/// Bounds of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Counted before anything is written.
    pub bytes_max: usize,
    pub events_max: usize,
}

impl Limits {
    /// The store doubles its file when it grows, so half of the limit is all it is sure to get, and a quarter of that is
    /// for the copies that a commit makes of what it replaces.
    pub fn for_file(file_bytes_max: u64, events_max: usize) -> Self {
        Self { bytes_max: usize::try_from(file_bytes_max / 8 * 3).unwrap_or(usize::MAX), events_max }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::for_file(super::FILE_BYTES_MAX, super::EVENTS_MAX)
    }
}

/// There is no room for a new command and its result. It is answered BUSY, and nothing is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// An entry without its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    pub kind: Box<str>,
    pub incarnation: IncarnationId,
    pub at: Timestamp,
    pub stage: HeadStage,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadStage {
    Accepted,
    Running {
        boot_id: Box<str>,
    },
    /// `acked`: the control plane has it.
    Done {
        acked: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct EventHead {
    class: EventClass,
    bytes: usize,
}

impl Head {
    /// What the entry costs, its result included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_running(&self) -> bool {
        matches!(self.stage, HeadStage::Running { .. })
    }
}

/// A report about to be journaled.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub class: EventClass,
    pub report: Bytes,
    pub signature: Bytes,
    pub key_sha256: Bytes,
}

/// Tickets remembered at once: each lasts a minute, and each took a gateway and a worker to come here.
const TICKETS_MAX: usize = 1024;

/// What became of a ticket that was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    Now,
    Before,
    /// Not used, since it could not be remembered.
    TooMany,
}

/// What the journal holds, and the writes that are not durable yet.
#[derive(Debug)]
pub struct Journal {
    id: JournalId,
    incarnation: IncarnationId,
    limits: Limits,
    marks: Marks,
    acked_seq: u64,
    last_seq: u64,
    entries: BTreeMap<CommandId, Head>,
    events: BTreeMap<u64, EventHead>,
    tickets: BTreeMap<String, Timestamp>,
    spec_bytes: usize,
    bytes_used: usize,
    /// Commands under way in this process; each may yet write a result of the largest size.
    under_way: usize,
    writes: Vec<Write>,
}

impl Journal {
    /// The index of what `loaded` holds. `incarnation` is fresh for every start of the process.
    pub fn new(id: JournalId, incarnation: IncarnationId, limits: Limits, loaded: &Loaded) -> Self {
        let mut journal = Self {
            id,
            incarnation,
            limits,
            marks: loaded.marks,
            acked_seq: loaded.acked_seq,
            // Events that are there were given out, whatever the counter says.
            last_seq: loaded.last_seq.max(loaded.acked_seq),
            entries: BTreeMap::new(),
            events: BTreeMap::new(),
            tickets: loaded.tickets.iter().cloned().collect(),
            spec_bytes: loaded.spec.as_ref().map_or(0, spec_bytes),
            bytes_used: 0,
            under_way: 0,
            writes: Vec::new(),
        };
        journal.bytes_used = journal.spec_bytes + journal.tickets.len() * cost(0);
        for held in &loaded.entries {
            let head = head(&held.entry, held.acked);
            journal.bytes_used += head.bytes;
            journal.entries.insert(held.entry.command_id, head);
        }
        for event in &loaded.events {
            journal.last_seq = journal.last_seq.max(event.seq);
            let bytes = cost(event.bytes);
            journal.bytes_used += bytes;
            journal.events.insert(event.seq, EventHead { class: event.class, bytes });
        }
        if mutant::on("journal.sequence-reused") {
            journal.last_seq = journal.acked_seq;
        }
        journal
    }

    pub fn id(&self) -> JournalId {
        self.id
    }

    pub fn incarnation(&self) -> IncarnationId {
        self.incarnation
    }

    pub fn marks(&self) -> Marks {
        self.marks
    }

    pub fn acked_seq(&self) -> u64 {
        self.acked_seq
    }

    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    pub fn bytes_used(&self) -> usize {
        self.bytes_used
    }

    /// What the held spec costs, its signature included.
    pub fn spec_bytes(&self) -> usize {
        self.spec_bytes
    }

    pub fn event_backlog(&self) -> usize {
        self.events.len()
    }

    pub fn entry(&self, id: CommandId) -> Option<&Head> {
        self.entries.get(&id)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&CommandId, &Head)> {
        self.entries.iter()
    }

    /// Results the control plane has not confirmed.
    pub fn unacked_results(&self) -> impl Iterator<Item = CommandId> {
        self.entries
            .iter()
            .filter(|(_, head)| head.stage == HeadStage::Done { acked: false })
            .map(|(id, _)| *id)
    }

    /// The changes since the last call, to be committed in this order.
    pub fn take_writes(&mut self) -> Vec<Write> {
        std::mem::take(&mut self.writes)
    }

    /// Journals a command as accepted. Refused when its result might not fit, or when the event backlog is at its bound
    /// with nothing left to drop.
    pub fn accept(&mut self, id: CommandId, kind: &str, at: Timestamp) -> Result<(), Full> {
        let reserved = (self.under_way + 1) * cost(RESULT_BYTES_MAX);
        self.make_room(reserved);
        if self.bytes_used + reserved > self.limits.bytes_max || self.events.len() >= self.limits.events_max {
            return Err(Full);
        }
        self.under_way += 1;
        // What an earlier process had begun stays begun, however long it waits now: it may have acted.
        let stage = match self.entries.get(&id).map(|head| &head.stage) {
            Some(HeadStage::Running { .. }) if mutant::on("journal.begun-is-forgotten") => Stage::Accepted,
            Some(HeadStage::Running { boot_id }) => Stage::Running { boot_id: boot_id.to_string() },
            Some(HeadStage::Accepted | HeadStage::Done { .. }) | None => Stage::Accepted,
        };
        self.put(id, kind, at, stage);
        Ok(())
    }

    /// Journals that a side effect is about to begin in boot `boot_id`.
    pub fn running(&mut self, id: CommandId, kind: &str, boot_id: &str, at: Timestamp) {
        self.put(id, kind, at, Stage::Running { boot_id: boot_id.to_owned() });
    }

    /// Journals an outcome. It is kept until the control plane has it, and some days longer for duplicates.
    pub fn done(&mut self, id: CommandId, kind: &str, update: CommandUpdate, at: Timestamp) {
        let ours = self.entries.get(&id).is_some_and(|head| {
            head.incarnation == self.incarnation && !matches!(head.stage, HeadStage::Done { .. })
        });
        if ours {
            self.under_way -= 1;
        }
        self.put(id, kind, at, Stage::Done { update: Box::new(update) });
    }

    fn put(&mut self, id: CommandId, kind: &str, at: Timestamp, stage: Stage) {
        let entry = Entry { command_id: id, kind: kind.to_owned(), incarnation: self.incarnation, at, stage };
        let head = head(&entry, false);
        self.bytes_used += head.bytes;
        if let Some(previous) = self.entries.insert(id, head) {
            self.bytes_used -= previous.bytes;
        }
        self.writes.push(Write::Entry(entry));
    }

    /// The control plane has this result. False when there is no such result.
    pub fn result_acked(&mut self, id: CommandId) -> bool {
        let Some(Head { stage: HeadStage::Done { acked }, .. }) = self.entries.get_mut(&id) else {
            return false;
        };
        if !std::mem::replace(acked, true) {
            self.writes.push(Write::ResultAcked(id));
        }
        if mutant::on("journal.acked-is-forgotten") {
            self.bytes_used -= self.entries.remove(&id).map_or(0, |head| head.bytes);
            self.writes.push(Write::RemoveEntry(id));
        }
        true
    }

    /// Settles what an earlier process left and no one needs to be asked about.
    pub fn recover(&mut self, boot_id: &str) -> Vec<(CommandId, Box<str>, Settlement)> {
        rules::recover(&self.entries, self.incarnation, boot_id)
            .into_iter()
            .map(|(id, settlement)| (id, self.entries[&id].kind.clone(), settlement))
            .collect()
    }

    /// Forgets entries past their time, and ticket ids that can no longer be used.
    pub fn sweep(&mut self, now: Timestamp) {
        for id in rules::sweep(&self.entries, self.incarnation, now) {
            if let Some(head) = self.entries.remove(&id) {
                self.bytes_used -= head.bytes;
            }
            self.writes.push(Write::RemoveEntry(id));
        }
        self.forget_tickets(now);
    }

    /// Journals a report and gives it the next number. A metric event that does not fit is dropped; others never are.
    pub fn append(&mut self, event: NewEvent, at: Timestamp) -> Option<u64> {
        let bytes = cost(event.report.len() + event.signature.len() + event.key_sha256.len());
        self.make_room(bytes);
        let full =
            self.bytes_used + bytes > self.limits.bytes_max || self.events.len() >= self.limits.events_max;
        if full && event.class == EventClass::Metric {
            return None;
        }
        self.last_seq += 1;
        let seq = self.last_seq;
        let NewEvent { class, report, signature, key_sha256 } = event;
        self.bytes_used += bytes;
        self.events.insert(seq, EventHead { class, bytes });
        self.writes.push(Write::Event(StoredEvent { seq, class, report, signature, key_sha256, at }));
        Some(seq)
    }

    /// Drops the oldest metric events until `bytes` and one event more fit, or none is left.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes_used + bytes > self.limits.bytes_max || self.events.len() >= self.limits.events_max {
            let oldest = self.events.iter().find(|(_, head)| head.class == EventClass::Metric);
            let Some((seq, head)) = oldest.map(|(seq, head)| (*seq, *head)) else { break };
            self.events.remove(&seq);
            self.bytes_used -= head.bytes;
            self.writes.push(Write::RemoveEvent(seq));
        }
    }

    /// The control plane has every event up to `seq`. One beyond the last given out means that this journal is an older
    /// copy: its numbers go on above, since events under the ack would be taken for known.
    pub fn events_acked(&mut self, seq: u64) {
        if seq <= self.acked_seq || seq > self.last_seq.saturating_add(LIFT_MAX) {
            return;
        }
        self.acked_seq = seq;
        let left = self.events.split_off(&(seq + 1));
        for head in std::mem::replace(&mut self.events, left).values() {
            self.bytes_used -= head.bytes;
        }
        self.writes.push(Write::EventsAcked(seq));
        if seq > self.last_seq && !mutant::on("journal.older-copy-stays-below") {
            self.last_seq = seq;
            self.writes.push(Write::LastSeq(seq));
        }
    }

    /// Journals a spec and raises the marks with it.
    pub fn take_spec(&mut self, spec: StoredSpec) {
        self.bytes_used -= self.spec_bytes;
        self.spec_bytes = spec_bytes(&spec);
        self.bytes_used += self.spec_bytes;
        let marks = Marks {
            generation: spec.generation,
            deployment_epoch: spec.deployment_epoch,
            ..Marks::default()
        };
        self.writes.push(Write::Spec(spec));
        if !mutant::on("journal.spec-leaves-marks") {
            self.raise_marks(marks);
        }
    }

    /// Raises each mark that `seen` is above. True when one rose.
    pub fn raise_marks(&mut self, seen: Marks) -> bool {
        let raised = self.marks.max(seen);
        if raised == self.marks {
            return false;
        }
        self.marks = raised;
        self.writes.push(Write::Marks(raised));
        true
    }

    /// Remembers that a ticket was used, for as long as it could be used again.
    pub fn spend_ticket(&mut self, id: &str, until: Timestamp, now: Timestamp) -> Spent {
        if self.tickets.contains_key(id) {
            return Spent::Before;
        }
        if self.tickets.len() >= TICKETS_MAX {
            self.forget_tickets(now);
        }
        if self.tickets.len() >= TICKETS_MAX {
            return Spent::TooMany;
        }
        self.tickets.insert(id.to_owned(), until);
        self.bytes_used += cost(0);
        self.writes.push(Write::Ticket { id: id.to_owned(), until });
        Spent::Now
    }

    fn forget_tickets(&mut self, now: Timestamp) {
        let over: Vec<String> =
            self.tickets.iter().filter(|(_, until)| **until < now).map(|(id, _)| id.clone()).collect();
        for id in over {
            self.tickets.remove(&id);
            self.bytes_used -= cost(0);
            self.writes.push(Write::RemoveTicket(id));
        }
    }
}

fn head(entry: &Entry, acked: bool) -> Head {
    let (stage, body) = match &entry.stage {
        Stage::Accepted => (HeadStage::Accepted, 0),
        Stage::Running { boot_id } => {
            (HeadStage::Running { boot_id: boot_id.as_str().into() }, boot_id.len())
        }
        Stage::Done { update } => (HeadStage::Done { acked }, update.encoded_len()),
    };
    Head {
        kind: entry.kind.as_str().into(),
        incarnation: entry.incarnation,
        at: entry.at,
        stage,
        bytes: cost(body + entry.kind.len()),
    }
}

fn spec_bytes(spec: &StoredSpec) -> usize {
    cost(spec.body.len() + spec.merged.len() + spec.signature.len())
}
