//! The journal on disk: one redb file, every commit fsynced.
//!
//! redb refuses everything after an I/O error, even reads. A failed commit therefore closes the file, opens it again and
//! tries once more: writes are absolute, so it does not matter whether the failed one had reached the disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use kit::Rng;
use model::{CommandId, JournalId, Timestamp};
use redb::backends::FileBackend;
use redb::{
    BackendError, Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition,
};

use super::record;
use super::{
    Entry, JournalError, JournalStore, Loaded, LoadedEntry, LoadedEvent, StoredEvent, StoredSpec, Write,
};

/// Pages kept in memory. Everything that is asked often is in the index; a process may hold thousands of journals.
const CACHE_BYTES: usize = 512 * 1024;
/// Corrupt files kept for a person to look at; older ones make room.
const CORRUPT_FILES_MAX: u32 = 3;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const ENTRIES: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("entries");
const ACKED: TableDefinition<'_, u128, ()> = TableDefinition::new("acked");
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const TICKETS: TableDefinition<'_, &str, i64> = TableDefinition::new("tickets");

const KEY_ID: &str = "journal_id";
const KEY_MARKS: &str = "marks";
const KEY_ACKED: &str = "acked_seq";
const KEY_LAST: &str = "last_seq";
const KEY_SPEC: &str = "spec";

/// Opens the database: over the file itself, or over a faulty one in tests.
type Opener = Box<dyn Fn() -> Result<Database, Unopened> + Send + Sync>;

pub struct RedbJournal {
    id: JournalId,
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    opener: Opener,
    /// `None` between a failed commit and the next successful opening.
    database: Mutex<Option<Database>>,
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
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&file)
                .and_then(|file| CappedFile::new(file, file_bytes_max))
                .map_err(|err| Unopened::Io(Box::new(err)))?;
            open_database(file)
        };
        Self::open_with(path, Box::new(opener), rng, now)
    }

    fn open_with(path: &Path, opener: Opener, rng: &dyn Rng, now: Timestamp) -> Result<Self, JournalError> {
        match Self::try_open(&opener, rng, now) {
            Ok((id, database)) => {
                let shared = Shared { path: path.to_owned(), opener, database: Mutex::new(Some(database)) };
                Ok(Self { id, shared: Arc::new(shared) })
            }
            Err(Unopened::Corrupt(reason)) => {
                let aside = move_aside(path)?;
                tracing::error!(?path, ?aside, reason, "journal is corrupt, starting a new one");
                let (id, database) = Self::try_open(&opener, rng, now)
                    .map_err(|err| JournalError::Open { path: path.to_owned(), source: err.into_source() })?;
                let shared = Shared { path: path.to_owned(), opener, database: Mutex::new(Some(database)) };
                Ok(Self { id, shared: Arc::new(shared) })
            }
            Err(err @ Unopened::Io(_)) => {
                Err(JournalError::Open { path: path.to_owned(), source: err.into_source() })
            }
        }
    }

    fn try_open(opener: &Opener, rng: &dyn Rng, now: Timestamp) -> Result<(JournalId, Database), Unopened> {
        let database = opener()?;
        let id = match stored_id(&database).map_err(Unopened::from_journal)? {
            Some(id) => {
                // Every record is read once here, so that a rotten one is found now and not when it is needed.
                load(&database).map_err(Unopened::from_journal)?;
                id
            }
            None => initialise(&database, rng.id(now)).map_err(|err| Unopened::Io(Box::new(err)))?,
        };
        Ok((id, database))
    }
}

enum Unopened {
    Corrupt(String),
    Io(Box<dyn std::error::Error + Send + Sync>),
}

impl Unopened {
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
            redb::Error::Io(err) if rotten(&err) => Unopened::Corrupt(err.to_string()),
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

fn initialise(database: &Database, id: JournalId) -> Result<JournalId, JournalError> {
    write(database, |txn| {
        txn.open_table(META)?.insert(KEY_ID, id.to_string().as_bytes())?;
        txn.open_table(ENTRIES)?;
        txn.open_table(ACKED)?;
        txn.open_table(EVENTS)?;
        txn.open_table(TICKETS)?;
        Ok(())
    })
    .map_err(failed("create"))?;
    Ok(id)
}

/// `<path>.corrupt-<n>`, with n counting up. The oldest goes when there are too many.
fn move_aside(path: &Path) -> Result<PathBuf, JournalError> {
    let name = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".corrupt-{n}"));
        PathBuf::from(name)
    };
    let last = (1..10_000).take_while(|n| name(*n).exists()).last();
    let first = (1..10_000).find(|n| name(*n).exists());
    let next = (1..10_000).rev().find(|n| name(*n).exists()).or(last).unwrap_or(0) + 1;
    let moved = (|| {
        if let Some(first) = first.filter(|first| next - first >= CORRUPT_FILES_MAX) {
            std::fs::remove_file(name(first))?;
        }
        std::fs::rename(path, name(next))
    })();
    moved.map_err(|source| JournalError::Io { doing: "move aside", source: Box::new(source) })?;
    Ok(name(next))
}

fn failed(doing: &'static str) -> impl Fn(redb::Error) -> JournalError {
    move |source| JournalError::Io { doing, source: Box::new(source) }
}

fn write(
    database: &Database,
    change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::Immediate).expect("a transaction without savepoints takes any durability");
    change(&txn)?;
    txn.commit()?;
    Ok(())
}

fn apply(database: &Database, writes: &[Write]) -> Result<(), redb::Error> {
    write(database, |txn| {
        let mut meta = txn.open_table(META)?;
        let mut entries = txn.open_table(ENTRIES)?;
        let mut acked = txn.open_table(ACKED)?;
        let mut events = txn.open_table(EVENTS)?;
        let mut tickets = txn.open_table(TICKETS)?;
        for write in writes {
            match write {
                Write::Entry(entry) => {
                    let key = entry.command_id.uuid().as_u128();
                    entries.insert(key, record::entry_to(entry).as_slice())?;
                    acked.remove(key)?;
                }
                Write::ResultAcked(id) => {
                    acked.insert(id.uuid().as_u128(), ())?;
                }
                Write::RemoveEntry(id) => {
                    entries.remove(id.uuid().as_u128())?;
                    acked.remove(id.uuid().as_u128())?;
                }
                Write::Event(event) => {
                    events.insert(event.seq, record::event_to(event).as_slice())?;
                    meta.insert(KEY_LAST, event.seq.to_be_bytes().as_slice())?;
                }
                Write::RemoveEvent(seq) => {
                    events.remove(seq)?;
                }
                Write::EventsAcked(seq) => {
                    meta.insert(KEY_ACKED, seq.to_be_bytes().as_slice())?;
                    events.retain_in(..=*seq, |_, _| false)?;
                }
                Write::LastSeq(seq) => {
                    meta.insert(KEY_LAST, seq.to_be_bytes().as_slice())?;
                }
                Write::Spec(spec) => {
                    meta.insert(KEY_SPEC, record::spec_to(spec).as_slice())?;
                }
                Write::Marks(marks) => {
                    meta.insert(KEY_MARKS, record::marks_to(*marks).as_slice())?;
                }
                Write::Ticket { id, until } => {
                    tickets.insert(id.as_str(), until.micros())?;
                }
                Write::RemoveTicket(id) => {
                    tickets.remove(id.as_str())?;
                }
            }
        }
        Ok(())
    })
}

fn stored_id(database: &Database) -> Result<Option<JournalId>, JournalError> {
    let read = || -> Result<Option<Vec<u8>>, redb::Error> {
        let txn = database.begin_read()?;
        let meta = match txn.open_table(META) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            other => other?,
        };
        Ok(meta.get(KEY_ID)?.map(|value| value.value().to_vec()))
    };
    let Some(bytes) = read().map_err(failed("read"))? else { return Ok(None) };
    let id = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or(JournalError::Corrupt { what: "journal id" })
}

fn number(bytes: Option<Vec<u8>>) -> Result<u64, JournalError> {
    let Some(bytes) = bytes else { return Ok(0) };
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| JournalError::Corrupt { what: "counter" })?;
    Ok(u64::from_be_bytes(bytes))
}

/// Rows as bytes, before anything is believed of them.
#[derive(Default)]
struct Raw {
    meta: std::collections::BTreeMap<String, Vec<u8>>,
    entries: Vec<(u128, Vec<u8>, bool)>,
    events: Vec<(u64, Vec<u8>)>,
    tickets: Vec<(String, i64)>,
}

fn read_all(database: &Database) -> Result<Raw, redb::Error> {
    let txn = database.begin_read()?;
    let mut raw = Raw::default();
    for row in txn.open_table(META)?.iter()? {
        let (key, value) = row?;
        raw.meta.insert(key.value().to_owned(), value.value().to_vec());
    }
    let acked = txn.open_table(ACKED)?;
    for row in txn.open_table(ENTRIES)?.iter()? {
        let (key, value) = row?;
        raw.entries.push((key.value(), value.value().to_vec(), acked.get(key.value())?.is_some()));
    }
    for row in txn.open_table(EVENTS)?.iter()? {
        let (key, value) = row?;
        raw.events.push((key.value(), value.value().to_vec()));
    }
    for row in txn.open_table(TICKETS)?.iter()? {
        let (key, value) = row?;
        raw.tickets.push((key.value().to_owned(), value.value()));
    }
    Ok(raw)
}

fn load(database: &Database) -> Result<Loaded, JournalError> {
    let mut raw = read_all(database).map_err(failed("read"))?;
    let mut loaded = Loaded {
        marks: raw
            .meta
            .get(KEY_MARKS)
            .map(|bytes| record::marks_from(bytes))
            .transpose()?
            .unwrap_or_default(),
        acked_seq: number(raw.meta.remove(KEY_ACKED))?,
        last_seq: number(raw.meta.remove(KEY_LAST))?,
        spec: raw.meta.get(KEY_SPEC).map(|bytes| record::spec_from(bytes)).transpose()?,
        tickets: raw.tickets.into_iter().map(|(id, until)| (id, Timestamp::from_micros(until))).collect(),
        ..Loaded::default()
    };
    for (id, bytes, acked) in raw.entries {
        let entry = record::entry_from(command_id(id), &bytes)?;
        loaded.entries.push(LoadedEntry { entry, acked });
    }
    for (seq, bytes) in raw.events {
        let event = record::event_from(seq, &bytes)?;
        loaded.events.push(LoadedEvent { seq, class: event.class, bytes: event.report.len() });
    }
    Ok(loaded)
}

fn command_id(key: u128) -> CommandId {
    CommandId::from_uuid(uuid::Uuid::from_u128(key))
}

impl Shared {
    fn database(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().expect("no holder of this lock panics")
    }

    /// The open database, opened again when an error closed it. A file that turns out rotten now is an error and not a new
    /// journal: this process has told others what is in it.
    fn opened<'a>(&self, slot: &'a mut Option<Database>) -> Result<&'a Database, JournalError> {
        if slot.is_none() {
            let database = (self.opener)()
                .map_err(|err| JournalError::Open { path: self.path.clone(), source: err.into_source() })?;
            *slot = Some(database);
        }
        Ok(slot.as_ref().expect("it was just filled"))
    }

    fn commit(&self, writes: &[Write]) -> Result<(), JournalError> {
        let mut slot = self.database();
        match apply(self.opened(&mut slot)?, writes) {
            Ok(()) => Ok(()),
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "journal write failed, opening it again");
                *slot = None;
                let again = apply(self.opened(&mut slot)?, writes);
                if again.is_err() {
                    *slot = None;
                }
                again.map_err(failed("write"))
            }
        }
    }

    fn read<T>(
        &self,
        read: impl Fn(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, JournalError> {
        let mut slot = self.database();
        let result =
            self.opened(&mut slot)?.begin_read().map_err(redb::Error::from).and_then(|txn| read(&txn));
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
        let mut slot = self.shared.database();
        load(self.shared.opened(&mut slot)?)
    }

    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            // The fsync takes up to some tens of milliseconds: not on a thread that other nodes' sessions share.
            let committed = tokio::task::spawn_blocking(move || shared.commit(&writes)).await;
            committed.unwrap_or_else(|err| Err(JournalError::Io { doing: "write", source: Box::new(err) }))
        })
    }

    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError> {
        let key = id.uuid().as_u128();
        let bytes = self
            .shared
            .read(|txn| Ok(txn.open_table(ENTRIES)?.get(key)?.map(|value| value.value().to_vec())))?;
        bytes.map(|bytes| record::entry_from(id, &bytes)).transpose()
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        let rows = self.shared.read(|txn| {
            let mut rows: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut bytes = 0;
            for row in txn.open_table(EVENTS)?.range(seq + 1..)?.take(limit) {
                let (key, value) = row?;
                bytes += value.value().len();
                if bytes > bytes_max && !rows.is_empty() {
                    break;
                }
                rows.push((key.value(), value.value().to_vec()));
            }
            Ok(rows)
        })?;
        rows.into_iter().map(|(seq, bytes)| record::event_from(seq, &bytes)).collect()
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        let bytes = self
            .shared
            .read(|txn| Ok(txn.open_table(META)?.get(KEY_SPEC)?.map(|value| value.value().to_vec())))?;
        bytes.map(|bytes| record::spec_from(&bytes)).transpose()
    }
}

/// A file with a last guard against growing without bound; bytes are counted before, in the index.
#[derive(Debug)]
struct CappedFile {
    file: FileBackend,
    bytes_max: u64,
}

impl CappedFile {
    fn new(file: File, bytes_max: u64) -> io::Result<Self> {
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Self { file, bytes_max })
    }
}

impl StorageBackend for CappedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal reached its size limit"));
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    // The lock is what keeps a second daemon out of the same data directory.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}

#[cfg(test)]
mod tests;
