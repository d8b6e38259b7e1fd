//! The journal on disk: one redb file, every commit fsynced.
//!
//! redb refuses everything after an I/O error, even reads. A failed commit therefore closes the file, opens it again and
//! tries once more: writes are absolute, so it does not matter whether the failed one had reached the disk.

mod capped;
mod group;
mod tables;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use kit::Rng;
use model::{CommandId, JournalId, Timestamp};
use redb::{Builder, Database, ReadableDatabase, StorageBackend};

use capped::CappedFile;
use group::Queue;
use tables::{ENTRIES, EVENTS, SPEC, apply, failed, initialise, load, stored_id};

use super::record;
use super::{Entry, JournalError, JournalStore, Loaded, StoredEvent, StoredSpec, Write};

/// Pages kept in memory. Everything that is asked often is in the index; a process may hold thousands of journals.
const CACHE_BYTES: usize = 512 * 1024;
/// Corrupt files kept for a person to look at; older ones make room.
const CORRUPT_FILES_MAX: usize = 3;
/// Their numbers end here; a disk that rots this often has been replaced before.
const CORRUPT_NUMBER_MAX: u32 = 10_000;

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
    queue: Arc<Queue>,
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
            Ok((id, database)) => Ok(Self { id, shared: Arc::new(Shared::new(path, opener, database)) }),
            Err(Unopened::Corrupt(reason)) => {
                let aside = move_aside(path)?;
                tracing::error!(?path, ?aside, reason, "journal is corrupt, starting a new one");
                let (id, database) = Self::try_open(&opener, rng, now)
                    .map_err(|err| JournalError::Open { path: path.to_owned(), source: err.into_source() })?;
                Ok(Self { id, shared: Arc::new(Shared::new(path, opener, database)) })
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
    fn new(path: &Path, opener: Opener, database: Database) -> Self {
        let database = Mutex::new(Some(database));
        Self { path: path.to_owned(), opener, database, queue: Arc::default() }
    }

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
        let bytes = self.shared.read(|txn| tables::record_at(txn, ENTRIES, key))?;
        bytes.map(|bytes| record::entry_from(id, &bytes)).transpose()
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        let keys = u128::from(seq) + 1..=u128::from(u64::MAX);
        let rows = self.shared.read(|txn| {
            tables::records(txn, EVENTS, keys.clone(), |found| {
                let bytes: usize = found.iter().map(|(_, record)| record.len()).sum();
                found.len() >= limit || (bytes >= bytes_max && !found.is_empty())
            })
        })?;
        rows.into_iter()
            .take(limit)
            .map(|(key, bytes)| record::event_from(tables::sequence(key)?, &bytes))
            .collect()
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        let bytes = self.shared.read(|txn| tables::record_at(txn, SPEC, 0))?;
        bytes.map(|bytes| record::spec_from(&bytes)).transpose()
    }
}

#[cfg(test)]
mod tests;
