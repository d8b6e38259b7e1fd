//! A journal that lives as long as whoever holds it: for simulations, where a crash keeps it and a lost disk drops it,
//! and for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use futures::future::BoxFuture;
use model::{CommandId, JournalId, Timestamp};

use super::{
    Entry, JournalError, JournalStore, Loaded, LoadedEntry, LoadedEvent, Marks, StoredEvent, StoredSpec,
    Write,
};

#[derive(Debug, Default)]
struct Content {
    marks: Marks,
    acked_seq: u64,
    last_seq: u64,
    entries: BTreeMap<CommandId, LoadedEntry>,
    events: BTreeMap<u64, StoredEvent>,
    spec: Option<StoredSpec>,
    tickets: BTreeMap<String, Timestamp>,
}

#[derive(Debug)]
pub struct MemoryJournal {
    id: JournalId,
    content: Mutex<Content>,
}

impl MemoryJournal {
    pub fn new(id: JournalId) -> Self {
        Self { id, content: Mutex::default() }
    }

    /// The marks, and the numbers of the last event and of the last that was acknowledged.
    pub fn position(&self) -> (Marks, u64, u64) {
        let content = self.content();
        (content.marks, content.last_seq, content.acked_seq)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().expect("no holder of this lock panics")
    }
}

impl Content {
    fn apply(&mut self, write: Write) {
        match write {
            Write::Entry(entry) => {
                self.entries.insert(entry.command_id, LoadedEntry { entry, acked: false });
            }
            Write::ResultAcked(id) => {
                if let Some(held) = self.entries.get_mut(&id) {
                    held.acked = true;
                }
            }
            Write::RemoveEntry(id) => {
                self.entries.remove(&id);
            }
            Write::Event(event) => {
                self.last_seq = self.last_seq.max(event.seq);
                self.events.insert(event.seq, event);
            }
            Write::RemoveEvent(seq) => {
                self.events.remove(&seq);
            }
            Write::EventsAcked(seq) => {
                self.acked_seq = seq;
                self.events = self.events.split_off(&(seq + 1));
            }
            Write::LastSeq(seq) => self.last_seq = seq,
            Write::Spec(spec) => self.spec = Some(spec),
            Write::Marks(marks) => self.marks = marks,
            Write::Ticket { id, until } => {
                self.tickets.insert(id, until);
            }
            Write::RemoveTicket(id) => {
                self.tickets.remove(&id);
            }
        }
    }
}

impl JournalStore for MemoryJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn load(&self) -> Result<Loaded, JournalError> {
        let content = self.content();
        Ok(Loaded {
            marks: content.marks,
            acked_seq: content.acked_seq,
            last_seq: content.last_seq,
            entries: content.entries.values().cloned().collect(),
            events: content
                .events
                .values()
                .map(|event| LoadedEvent { seq: event.seq, class: event.class, bytes: event.bytes() })
                .collect(),
            spec: content.spec.clone(),
            tickets: content.tickets.iter().map(|(id, until)| (id.clone(), *until)).collect(),
        })
    }

    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        let mut content = self.content();
        for write in writes {
            content.apply(write);
        }
        Box::pin(futures::future::ready(Ok(())))
    }

    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError> {
        Ok(self.content().entries.get(&id).map(|held| held.entry.clone()))
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        for event in self.content().events.range(seq + 1..).map(|(_, event)| event).take(limit) {
            bytes += event.report.len();
            if bytes > bytes_max && !taken.is_empty() {
                break;
            }
            taken.push(event.clone());
        }
        Ok(taken)
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        Ok(self.content().spec.clone())
    }
}
