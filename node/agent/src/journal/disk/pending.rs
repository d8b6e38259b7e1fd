//! Commits that are in the log and not in the database yet, and what they say to those who read.

use std::collections::{BTreeMap, HashMap};

use model::CommandId;

use crate::journal::{Entry, StoredEvent, StoredSpec, Write};

/// Bounded by the log, which holds the same.
#[derive(Default)]
pub(super) struct Pending {
    writes: Vec<Write>,
    /// Where the newest entry of a command is among the writes; none for one that was removed. So for events.
    entries: HashMap<CommandId, Option<usize>>,
    events: BTreeMap<u64, Option<usize>>,
    events_acked: u64,
    spec: Option<usize>,
}

impl Pending {
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    pub fn add(&mut self, writes: Vec<Write>) {
        for write in writes {
            let at = self.writes.len();
            match &write {
                Write::Entry(entry) => drop(self.entries.insert(entry.command_id, Some(at))),
                Write::RemoveEntry(id) => drop(self.entries.insert(*id, None)),
                Write::Event(event) => drop(self.events.insert(event.seq, Some(at))),
                Write::RemoveEvent(seq) => drop(self.events.insert(*seq, None)),
                Write::EventsAcked(seq) => self.events_acked = self.events_acked.max(*seq),
                Write::Spec(_) => self.spec = Some(at),
                Write::ResultAcked(_)
                | Write::LastSeq(_)
                | Write::Marks(_)
                | Write::Ticket { .. }
                | Write::RemoveTicket(_) => {}
            }
            self.writes.push(write);
        }
    }

    /// Outer none: the database knows.
    pub fn entry(&self, id: CommandId) -> Option<Option<&Entry>> {
        let at = *self.entries.get(&id)?;
        Some(at.and_then(|at| match &self.writes[at] {
            Write::Entry(entry) => Some(entry),
            _ => None,
        }))
    }

    pub fn spec(&self) -> Option<&StoredSpec> {
        match &self.writes[self.spec?] {
            Write::Spec(spec) => Some(spec),
            _ => None,
        }
    }

    /// Whether what the database says of this event no longer counts.
    pub fn covers_event(&self, seq: u64) -> bool {
        seq <= self.events_acked || self.events.contains_key(&seq)
    }

    /// Events after `seq` that are still there, ascending.
    pub fn events_after(&self, seq: u64) -> impl Iterator<Item = &StoredEvent> {
        let from = seq.max(self.events_acked).saturating_add(1);
        self.events.range(from..).filter_map(|(_, at)| match &self.writes[(*at)?] {
            Write::Event(event) => Some(event),
            _ => None,
        })
    }
}
