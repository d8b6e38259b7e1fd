//! A node's disk: a journal whose commits lie in the page cache until they are synced, and are lost with the power before that.
//!
//! A record that was half written when the power went is found out by its checksum and is as good as not there, so what a cut
//! leaves is always a whole number of commits.

use std::sync::{Mutex, MutexGuard};

use agent::journal::{
    Entry, JournalError, JournalStore, Loaded, Marks, MemoryJournal, StoredEvent, StoredSpec, Write,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use model::{CommandId, JournalId};

pub struct Disk {
    id: JournalId,
    state: Mutex<State>,
}

struct State {
    /// What the process reads: everything it wrote.
    seen: MemoryJournal,
    /// What outlives a power cut.
    durable: MemoryJournal,
    /// Commits between the two.
    unsynced: Vec<Vec<Write>>,
    /// Writes that will find the disk full.
    full: u32,
    /// Of what is durable.
    marks: Marks,
}

fn apply(journal: &MemoryJournal, writes: Vec<Write>) {
    journal.commit(writes).now_or_never().expect("memory commits at once").expect("memory always commits");
}

/// A journal with the same content.
fn copy(of: &MemoryJournal) -> MemoryJournal {
    let to = MemoryJournal::new(of.id());
    let loaded = of.load().expect("memory always loads");
    let mut writes = vec![
        Write::Marks(loaded.marks),
        Write::EventsAcked(loaded.acked_seq),
        Write::LastSeq(loaded.last_seq),
    ];
    for held in loaded.entries {
        let id = held.entry.command_id;
        writes.push(Write::Entry(held.entry));
        if held.acked {
            writes.push(Write::ResultAcked(id));
        }
    }
    let events = of.events_after(0, usize::MAX, usize::MAX).expect("memory always reads");
    writes.extend(events.into_iter().map(Write::Event));
    writes.extend(loaded.spec.map(Write::Spec));
    writes.extend(loaded.tickets.into_iter().map(|(id, until)| Write::Ticket { id, until }));
    apply(&to, writes);
    to
}

impl State {
    fn keep(&mut self, writes: &[Write]) {
        for write in writes {
            if let Write::Marks(marks) = write {
                self.marks = *marks;
            }
        }
        apply(&self.durable, writes.to_vec());
    }
}

impl Disk {
    pub fn new(id: JournalId) -> Self {
        let state = State {
            seen: MemoryJournal::new(id),
            durable: MemoryJournal::new(id),
            unsynced: Vec::new(),
            full: 0,
            marks: Marks::default(),
        };
        Self { id, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    pub fn fill(&self, writes: u32) {
        self.state().full = writes;
    }

    /// True when this write finds the disk full.
    pub fn is_full(&self) -> bool {
        let mut state = self.state();
        let full = state.full > 0;
        state.full = state.full.saturating_sub(1);
        full
    }

    /// Writes, into the page cache.
    pub fn append(&self, writes: Vec<Write>) {
        let mut state = self.state();
        apply(&state.seen, writes.clone());
        state.unsynced.push(writes);
    }

    /// Makes durable what was written. Gives back what that was.
    pub fn sync(&self) -> Vec<Write> {
        if kit::mutant::on("disk.skip-fsync") {
            return Vec::new();
        }
        let mut state = self.state();
        let unsynced: Vec<Write> = std::mem::take(&mut state.unsynced).into_iter().flatten().collect();
        state.keep(&unsynced);
        unsynced
    }

    /// The power goes: of what was not synced, the first `kept` commits had reached the disk. Gives back what they wrote, and how
    /// many were lost.
    pub fn power_cut(&self, kept: usize) -> (Vec<Write>, usize) {
        let mut state = self.state();
        let mut unsynced = std::mem::take(&mut state.unsynced);
        let lost = unsynced.split_off(kept.min(unsynced.len())).len();
        let kept: Vec<Write> = unsynced.into_iter().flatten().collect();
        state.keep(&kept);
        if lost > 0 {
            state.seen = copy(&state.durable);
        }
        (kept, lost)
    }

    pub fn durable_entry(&self, id: CommandId) -> Option<Entry> {
        self.state().durable.entry(id).expect("memory always reads")
    }

    pub fn durable_spec(&self) -> Option<StoredSpec> {
        self.state().durable.spec().expect("memory always reads")
    }

    pub fn durable_marks(&self) -> Marks {
        self.state().marks
    }

    pub fn durable_event(&self, seq: u64) -> Option<StoredEvent> {
        let events = self.state().durable.events_after(seq - 1, 1, 0).expect("memory always reads");
        events.into_iter().find(|event| event.seq == seq)
    }
}

impl JournalStore for Disk {
    fn id(&self) -> JournalId {
        self.id
    }

    fn load(&self) -> Result<Loaded, JournalError> {
        self.state().seen.load()
    }

    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        self.append(writes);
        self.sync();
        Box::pin(futures::future::ready(Ok(())))
    }

    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError> {
        self.state().seen.entry(id)
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        self.state().seen.events_after(seq, limit, bytes_max)
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        self.state().seen.spec()
    }
}
