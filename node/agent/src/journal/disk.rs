//! The journal on disk: one file, a log and behind it a redb database. A commit is appended to the log; when that is full, all it says
//! goes into the database in one transaction, and it begins again. What starts afresh does the same first.
//!
//! redb refuses everything after an I/O error, even reads. A failed commit therefore closes the file, opens it again and
//! tries once more: writes are absolute, so it does not matter whether the failed one had reached the disk.

mod capped;
mod codec;
mod group;
mod log;
mod pending;
mod tables;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use kit::Rng;
use model::{CommandId, JournalId, Timestamp};
use redb::{Builder, Database, ReadableDatabase, StorageBackend};

use group::Queue;
use log::{Area, Log};
use pending::Pending;
use tables::{ENTRIES, EVENTS, SPEC, apply, failed, initialise, load, stored_checkpoint, stored_id};

use super::record;
use super::{Entry, JournalError, JournalStore, Loaded, StoredEvent, StoredSpec, Write};

/// Pages kept in memory. Everything that is asked often is in the index; a process may hold thousands of journals.
const CACHE_BYTES: usize = 512 * 1024;
/// Corrupt files kept for a person to look at; older ones make room.
const CORRUPT_FILES_MAX: usize = 3;
/// Their numbers end here; a disk that rots this often has been replaced before.
const CORRUPT_NUMBER_MAX: u32 = 10_000;

/// Writes of one transaction that brings the log into the database of a file that is opened.
const RECOVERED_AT_ONCE: usize = 128;

/// Opens the database and the log: of the file itself, or of a faulty one in tests.
type Opener = Box<dyn Fn() -> Result<(Database, Box<dyn Area>), Unopened> + Send + Sync>;

pub struct RedbJournal {
    id: JournalId,
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    opener: Opener,
    /// `None` between a failed commit and the next successful opening.
    opened: Mutex<Option<Opened>>,
    queue: Arc<Queue>,
}

struct Opened {
    database: Database,
    log: Log,
    pending: Pending,
}

impl RedbJournal {
    /// Opens or makes `path`, whose file never grows over `file_bytes_max`. A file that cannot be read is moved aside to
    /// `<path>.corrupt-<n>` and a new journal is made: the node goes on, and the control plane sees a new journal id.
    pub fn open(
        path: &Path,
        file_bytes_max: u64,
        rng: &dyn Rng,
        now: Timestamp,
    ) -> Result<Self, JournalError> {
        let file = path.to_owned();
        let opener = move || {
            let (file, log) = capped::open(&file, file_bytes_max).map_err(Unopened::from_io)?;
            Ok((open_database(file)?, Box::new(log) as Box<dyn Area>))
        };
        Self::open_with(path, Box::new(opener), rng, now)
    }

    fn open_with(path: &Path, opener: Opener, rng: &dyn Rng, now: Timestamp) -> Result<Self, JournalError> {
        match Self::try_open(&opener, rng, now) {
            Ok((id, opened)) => Ok(Self { id, shared: Arc::new(Shared::new(path, opener, opened)) }),
            Err(Unopened::Corrupt(reason)) => {
                let aside = move_aside(path)?;
                tracing::error!(?path, ?aside, reason, "journal is corrupt, starting a new one");
                let (id, opened) = Self::try_open(&opener, rng, now)
                    .map_err(|err| JournalError::Open { path: path.to_owned(), source: err.into_source() })?;
                Ok(Self { id, shared: Arc::new(Shared::new(path, opener, opened)) })
            }
            Err(err @ Unopened::Io(_)) => {
                Err(JournalError::Open { path: path.to_owned(), source: err.into_source() })
            }
        }
    }

    fn try_open(opener: &Opener, rng: &dyn Rng, now: Timestamp) -> Result<(JournalId, Opened), Unopened> {
        let (database, area) = opener()?;
        let id = match stored_id(&database).map_err(Unopened::from_journal)? {
            Some(id) => {
                // Every record is read once here, so that a rotten one is found now and not when it is needed.
                load(&database).map_err(Unopened::from_journal)?;
                id
            }
            None => initialise(&database, rng.id(now)).map_err(|err| Unopened::Io(Box::new(err)))?,
        };
        Ok((id, Opened::recover(database, area)?))
    }
}

impl Opened {
    /// Brings into the database what only the log says.
    fn recover(database: Database, area: Box<dyn Area>) -> Result<Self, Unopened> {
        let checkpoint = stored_checkpoint(&database).map_err(Unopened::from_journal)?;
        let logged = Log::read(area.as_ref(), checkpoint).map_err(Unopened::from_io)?;
        let logged = logged.map_err(|rot| Unopened::Corrupt(rot.to_string()))?;
        let mut writes = Vec::new();
        for commit in &logged {
            writes.extend(codec::decode(commit).map_err(Unopened::from_journal)?);
        }
        // In parts, each with few copies of what it replaces: a database near its limit may have no room for all at once. Whatever ends
        // this in between, the log still says it all.
        for some in writes.chunks(RECOVERED_AT_ONCE) {
            apply(&database, some.iter(), checkpoint).map_err(Unopened::from_redb)?;
        }
        let mut opened = Self { database, log: Log::new(area, checkpoint), pending: Pending::default() };
        if !logged.is_empty() {
            opened.settle(&[]).map_err(Unopened::from_redb)?;
        }
        Ok(opened)
    }

    /// Commits to the log, if there is room in it and the disk takes it.
    fn append(&mut self, writes: &mut Vec<Write>) -> bool {
        let payload = codec::encode(writes);
        if !self.log.has_room(payload.len()) {
            return false;
        }
        match self.log.append(&payload) {
            Ok(()) => {
                self.pending.add(std::mem::take(writes));
                true
            }
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "journal log failed, writing to its database");
                false
            }
        }
    }

    /// Has the database hold all that the log says, and `writes`. The log begins anew.
    fn settle(&mut self, writes: &[Write]) -> Result<(), redb::Error> {
        let checkpoint = self.log.checkpoint() + 1;
        apply(&self.database, self.pending.writes().iter().chain(writes), checkpoint)?;
        self.log.begin(checkpoint);
        self.pending = Pending::default();
        Ok(())
    }
}

enum Unopened {
    Corrupt(String),
    Io(Box<dyn std::error::Error + Send + Sync>),
}

impl Unopened {
    fn from_io(err: io::Error) -> Self {
        if rotten(&err) { Unopened::Corrupt(err.to_string()) } else { Unopened::Io(Box::new(err)) }
    }

    fn into_source(self) -> Box<dyn std::error::Error + Send + Sync> {
        match self {
            Unopened::Corrupt(reason) => reason.into(),
            Unopened::Io(source) => source,
        }
    }

    fn from_journal(err: JournalError) -> Self {
        match err {
            JournalError::Corrupt { .. } => Unopened::Corrupt(err.to_string()),
            JournalError::Open { source, .. } | JournalError::Io { source, .. } => {
                match source.downcast::<redb::Error>() {
                    Ok(err) => Unopened::from_redb(*err),
                    Err(source) => Unopened::Io(source),
                }
            }
        }
    }

    fn from_redb(err: redb::Error) -> Self {
        match err {
            redb::Error::Corrupted(reason) => Unopened::Corrupt(reason),
            redb::Error::Io(err) => Unopened::from_io(err),
            redb::Error::UpgradeRequired(version) => {
                Unopened::Corrupt(format!("file format {version} is not one this build reads"))
            }
            redb::Error::TableTypeMismatch { .. } => Unopened::Corrupt("a table has another type".into()),
            other => Unopened::Io(Box::new(other)),
        }
    }
}

/// Not a redb file, or one that ends early.
fn rotten(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn open_database(backend: impl StorageBackend) -> Result<Database, Unopened> {
    let length = backend.len().map_err(|err| Unopened::Io(Box::new(err)))?;
    let mut builder = Builder::new();
    // The check reads the whole file, which is small, and turns rot into an error instead of a panic later.
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(length > 0);
    // A file that was cut in the middle can still trip an assertion inside; that is corruption too.
    let opened =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.create_with_backend(backend)));
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(err)) => Err(Unopened::from_redb(err.into())),
        Err(_) => Err(Unopened::Corrupt("reading it failed inside the store".into())),
    }
}

/// `<path>.corrupt-<n>`, with n counting up. The oldest goes when there are too many.
fn move_aside(path: &Path) -> Result<PathBuf, JournalError> {
    let name = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".corrupt-{n}"));
        PathBuf::from(name)
    };
    let held: Vec<u32> = (1..CORRUPT_NUMBER_MAX).filter(|n| name(*n).exists()).collect();
    let next = held.last().map_or(1, |last| last + 1);
    let moved = (|| {
        for old in held.iter().rev().skip(CORRUPT_FILES_MAX - 1) {
            std::fs::remove_file(name(*old))?;
        }
        std::fs::rename(path, name(next))
    })();
    moved.map_err(|source| JournalError::Io { doing: "move aside", source: Box::new(source) })?;
    Ok(name(next))
}

impl Shared {
    fn new(path: &Path, opener: Opener, opened: Opened) -> Self {
        let opened = Mutex::new(Some(opened));
        Self { path: path.to_owned(), opener, opened, queue: Arc::default() }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().expect("no holder of this lock panics")
    }

    /// What is open, opened again when an error closed it. A file that turns out rotten now is an error and not a new
    /// journal: this process has told others what is in it.
    fn opened<'a>(&self, slot: &'a mut Option<Opened>) -> Result<&'a mut Opened, JournalError> {
        if slot.is_none() {
            let again = (self.opener)().and_then(|(database, area)| Opened::recover(database, area));
            *slot =
                Some(again.map_err(|err| JournalError::Open {
                    path: self.path.clone(),
                    source: err.into_source(),
                })?);
        }
        Ok(slot.as_mut().expect("it was just filled"))
    }

    fn commit(&self, mut writes: Vec<Write>) -> Result<(), JournalError> {
        let mut slot = self.slot();
        if self.opened(&mut slot)?.append(&mut writes) {
            return Ok(());
        }
        self.settle(&mut slot, &writes)
    }

    fn settle(&self, slot: &mut Option<Opened>, writes: &[Write]) -> Result<(), JournalError> {
        let Err(err) = self.opened(slot)?.settle(writes) else { return Ok(()) };
        tracing::warn!(err = kit::chain(&err), "journal write failed, opening it again");
        *slot = None;
        let again = self.opened(slot)?.settle(writes);
        if again.is_err() {
            *slot = None;
        }
        again.map_err(failed("write"))
    }

    /// From what is pending, or from the database where that says nothing.
    fn read<T>(
        &self,
        pending: impl FnOnce(&Pending) -> Option<T>,
        read: impl FnOnce(&redb::ReadTransaction, &Pending) -> Result<T, redb::Error>,
    ) -> Result<T, JournalError> {
        let mut slot = self.slot();
        let opened = self.opened(&mut slot)?;
        if let Some(found) = pending(&opened.pending) {
            return Ok(found);
        }
        let txn = opened.database.begin_read().map_err(redb::Error::from);
        let result = txn.and_then(|txn| read(&txn, &opened.pending));
        if result.is_err() {
            *slot = None;
        }
        result.map_err(failed("read"))
    }
}

impl JournalStore for RedbJournal {
    fn id(&self) -> JournalId {
        self.id
    }

    fn load(&self) -> Result<Loaded, JournalError> {
        let mut slot = self.shared.slot();
        if !self.shared.opened(&mut slot)?.pending.writes().is_empty() {
            self.shared.settle(&mut slot, &[])?;
        }
        load(&self.shared.opened(&mut slot)?.database)
    }

    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(async move {
            let (answer, service) = self.shared.queue.add(writes);
            if let Some(service) = service {
                let shared = self.shared.clone();
                // The fsync takes up to some tens of milliseconds: not on a thread that other nodes' sessions share.
                tokio::task::spawn_blocking(move || service.run(|writes| shared.commit(writes)));
            }
            answer.await.unwrap_or_else(|err| Err(JournalError::Io { doing: "write", source: Box::new(err) }))
        })
    }

    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError> {
        let key = id.uuid().as_u128();
        self.shared.read(
            |pending| pending.entry(id).map(|entry| Ok(entry.cloned())),
            |txn, _| {
                Ok(tables::record_at(txn, ENTRIES, key)?
                    .map(|bytes| record::entry_from(id, &bytes))
                    .transpose())
            },
        )?
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        let keys = u128::from(seq) + 1..=u128::from(u64::MAX);
        let enough = |count: usize, bytes: usize| count >= limit || (bytes >= bytes_max && count > 0);
        let (rows, later) = self.shared.read(
            |_| None,
            |txn, pending| {
                let covered = |key: u128| u64::try_from(key).is_ok_and(|seq| pending.covers_event(seq));
                let size =
                    |found: &[(u128, Vec<u8>)]| found.iter().map(|(_, record)| record.len()).sum::<usize>();
                let rows = tables::records_but(txn, EVENTS, keys, covered, |found| {
                    enough(found.len(), size(found))
                })?;
                let (mut count, mut bytes) = (rows.len(), size(&rows));
                // Pending events are later than all that the database has.
                let later = pending.events_after(seq).take_while(|event| {
                    let fits = !enough(count, bytes);
                    (count, bytes) = (count + 1, bytes + event.bytes());
                    fits
                });
                let later: Vec<StoredEvent> = later.cloned().collect();
                Ok((rows, later))
            },
        )?;
        let stored = rows.into_iter().take(limit);
        let stored = stored.map(|(key, bytes)| record::event_from(tables::sequence(key)?, &bytes));
        stored.chain(later.into_iter().map(Ok)).take(limit).collect()
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        self.shared.read(
            |pending| pending.spec().cloned().map(|spec| Ok(Some(spec))),
            |txn, _| Ok(tables::record_at(txn, SPEC, 0)?.map(|bytes| record::spec_from(&bytes)).transpose()),
        )?
    }
}

#[cfg(test)]
mod tests;
