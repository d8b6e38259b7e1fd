use super::capped::CappedFile;
use super::tables::{KEY_MARKS, META, write};
use super::*;
use crate::journal::index::{Journal, Limits, NewEvent};
use crate::journal::tests::{Reopen, commit, conformance};
use crate::journal::{EVENTS_MAX, FILE_BYTES_MAX, FILE_BYTES_MIN, Marks, Stage};
use crate::testing::{at, command_id, incarnation};
use bytes::Bytes;
use kit::SeededRng;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::{CommandState, CommandUpdate, EventClass};

mod logged;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

fn open(path: &Path) -> RedbJournal {
    RedbJournal::open(path, FILE_BYTES_MAX, &SeededRng::new(1), at(0)).unwrap()
}

struct OnDisk {
    dir: tempfile::TempDir,
    journal: Option<RedbJournal>,
}

impl OnDisk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Some(open(&dir.path().join("journal.db")));
        Self { dir, journal }
    }
}

impl Reopen for OnDisk {
    fn store(&self) -> &dyn JournalStore {
        self.journal.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.journal = None;
        self.journal = Some(open(&self.dir.path().join("journal.db")));
    }
}

fn marks(n: u64) -> Vec<Write> {
    vec![Write::Marks(Marks { server_time_ms: n, generation: n, deployment_epoch: n })]
}

#[test]
fn the_disk_store_conforms() {
    conformance(|| Box::new(OnDisk::new()));
}

#[test]
fn a_second_daemon_does_not_get_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let _first = open(&path);
    let second = RedbJournal::open(&path, FILE_BYTES_MAX, &SeededRng::new(2), at(0));
    assert!(matches!(second.err(), Some(JournalError::Open { .. })));
    assert!(path.exists(), "it was not moved aside");
}

#[test]
fn the_file_is_the_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let _journal = open(&path);
    assert!(kit::fs::check_private(&path).is_ok());
}

#[test]
fn a_copy_taken_between_commits_holds_the_last_of_them() {
    // What a power cut leaves: the file as it is, without a clean close.
    let dir = tempfile::tempdir().unwrap();
    let journal = open(&dir.path().join("journal.db"));
    for n in 1..=20 {
        commit(&journal, marks(n));
        let copy = dir.path().join("copy.db");
        std::fs::copy(dir.path().join("journal.db"), &copy).unwrap();
        let restored = open(&copy);
        assert_eq!(restored.load().unwrap().marks.generation, n);
        assert_eq!(restored.id(), journal.id());
    }
}

/// Every length a torn or truncated file could have must be found out, never panic, and give a working journal.
#[test]
fn a_truncated_file_is_moved_aside_and_a_new_journal_made() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.db");
    let id = {
        let journal = open(&whole);
        for n in 1..=5 {
            commit(&journal, marks(n));
        }
        journal.id()
    };
    let bytes = std::fs::read(&whole).unwrap();
    for (n, cut) in [1, 100, 4096, 5000, bytes.len() / 2, bytes.len() - 4096].into_iter().enumerate() {
        let path = dir.path().join(format!("cut-{n}.db"));
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let journal =
            RedbJournal::open(&path, FILE_BYTES_MAX, &SeededRng::new(100 + n as u64), at(0)).unwrap();
        assert_ne!(journal.id(), id, "cut at {cut}");
        assert_eq!(journal.load().unwrap(), Loaded::default());
        assert!(dir.path().join(format!("cut-{n}.db.corrupt-1")).exists(), "cut at {cut}");
        commit(&journal, marks(1));
    }
}

#[test]
fn a_file_of_something_else_is_moved_aside_and_the_oldest_of_many_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    for n in 0..5u64 {
        std::fs::write(&path, vec![n as u8 + 1; 20_000]).unwrap();
        drop(RedbJournal::open(&path, FILE_BYTES_MAX, &SeededRng::new(n), at(0)).unwrap());
    }
    let aside = |n: u32| dir.path().join(format!("journal.db.corrupt-{n}"));
    let kept: Vec<u32> = (1..10).filter(|n| aside(*n).exists()).collect();
    assert_eq!(kept, [3, 4, 5]);
    assert_eq!(std::fs::read(aside(5)).unwrap()[0], 5, "the newest has the highest number");
}

#[test]
fn a_rotten_record_is_found_when_the_journal_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let id = open(&path).id();
    {
        let (file, _) = capped::open(&path, FILE_BYTES_MAX).unwrap();
        let database = Builder::new().create_with_backend(file).unwrap();
        write(&database, |txn| {
            txn.open_table(META)?.insert(KEY_MARKS, [1u8, 2, 3].as_slice())?;
            Ok(())
        })
        .unwrap();
    }
    let journal = RedbJournal::open(&path, FILE_BYTES_MAX, &SeededRng::new(9), at(0)).unwrap();
    assert_ne!(journal.id(), id);
    assert!(dir.path().join("journal.db.corrupt-1").exists());
}

/// The file, with errors on demand.
#[derive(Debug)]
struct Faulty {
    file: CappedFile,
    fail: std::sync::Arc<AtomicBool>,
}

impl Faulty {
    fn check(&self) -> io::Result<()> {
        if self.fail.load(Ordering::SeqCst) { Err(io::Error::other("the disk says no")) } else { Ok(()) }
    }
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

struct FaultyLog {
    log: File,
    fail: Arc<AtomicBool>,
}

impl Area for FaultyLog {
    fn read(&self) -> io::Result<Vec<u8>> {
        Area::read(&self.log)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.fail.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk says no"));
        }
        Area::write(&self.log, at, bytes)
    }
}

/// A journal whose disk fails while the flag is up, counting how often it is opened. With `heals`, opening lowers it.
fn faulty(path: &Path, heals: bool) -> (RedbJournal, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (fail, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let opener: Opener = Box::new({
        let (fail, opened, path) = (fail.clone(), opened.clone(), path.to_owned());
        move || {
            opened.fetch_add(1, Ordering::SeqCst);
            if heals {
                fail.store(false, Ordering::SeqCst);
            }
            let (file, log) = capped::open(&path, FILE_BYTES_MAX).unwrap();
            let log: Box<dyn Area> = Box::new(FaultyLog { log, fail: fail.clone() });
            Ok((open_database(Faulty { file, fail: fail.clone() })?, log))
        }
    });
    let journal = RedbJournal::open_with(path, opener, &SeededRng::new(1), at(0)).unwrap();
    (journal, fail, opened)
}

#[test]
fn an_io_error_is_answered_by_opening_the_file_again() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let (journal, fail, opened) = faulty(&dir.path().join("journal.db"), true);
    runtime.block_on(journal.commit(marks(1))).unwrap();
    fail.store(true, Ordering::SeqCst);
    runtime.block_on(journal.commit(marks(2))).unwrap();
    assert_eq!(opened.load(Ordering::SeqCst), 2);
    assert_eq!(journal.load().unwrap().marks.generation, 2);
}

#[test]
fn a_disk_that_stays_broken_is_an_error_and_what_was_committed_stays() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let (journal, fail, _) = faulty(&dir.path().join("journal.db"), false);
    runtime.block_on(journal.commit(marks(1))).unwrap();
    fail.store(true, Ordering::SeqCst);
    assert!(runtime.block_on(journal.commit(marks(2))).is_err());
    fail.store(false, Ordering::SeqCst);
    let held = journal.load().unwrap().marks.generation;
    assert!(held == 1 || held == 2, "it is one of the two whole: {held}");
    runtime.block_on(journal.commit(marks(3))).unwrap();
    assert_eq!(journal.load().unwrap().marks.generation, 3);
}

/// A journal whose commits to the log are counted, and wait at the gate while it is shut.
fn counted(path: &Path, gate: &Arc<Mutex<()>>) -> (RedbJournal, Arc<AtomicU32>) {
    let syncs = Arc::new(AtomicU32::new(0));
    let opener: Opener = Box::new({
        let (syncs, gate, path) = (syncs.clone(), gate.clone(), path.to_owned());
        move || {
            let (file, log) = capped::open(&path, FILE_BYTES_MAX).unwrap();
            let log: Box<dyn Area> = Box::new(Gated { log, syncs: syncs.clone(), gate: gate.clone() });
            Ok((open_database(file)?, log))
        }
    });
    (RedbJournal::open_with(path, opener, &SeededRng::new(1), at(0)).unwrap(), syncs)
}

struct Gated {
    log: File,
    syncs: Arc<AtomicU32>,
    gate: Arc<Mutex<()>>,
}

impl Area for Gated {
    fn read(&self) -> io::Result<Vec<u8>> {
        Area::read(&self.log)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        drop(self.gate.lock().unwrap());
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Area::write(&self.log, at, bytes)
    }
}

fn accepted(n: u128) -> Vec<Write> {
    let kind = "inventory.refresh".to_owned();
    let entry = Entry {
        command_id: command_id(n),
        kind,
        incarnation: incarnation(1),
        at: at(0),
        stage: Stage::Accepted,
    };
    vec![Write::Entry(entry)]
}

#[test]
fn commits_that_wait_for_one_another_share_the_next_fsync() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let (journal, syncs) = counted(&dir.path().join("journal.db"), &gate);
    let before = syncs.load(Ordering::SeqCst);
    let shut = gate.lock().unwrap();
    let mut commits: Vec<_> = (0..64).map(|n| journal.commit(accepted(n))).collect();
    let runtime = runtime();
    // Each is polled once, so that all of them wait before the first fsync can end.
    runtime.block_on(async {
        for commit in &mut commits {
            assert!(futures::poll!(commit).is_pending());
        }
    });
    drop(shut);
    let results = runtime.block_on(futures::future::join_all(commits));
    assert!(results.iter().all(Result::is_ok));
    let taken = syncs.load(Ordering::SeqCst) - before;
    assert!((1..=2).contains(&taken), "{taken} fsyncs for 64 commits");
    assert_eq!(journal.load().unwrap().entries.len(), 64);
}

#[test]
fn in_a_group_a_commit_that_cannot_be_written_fails_alone() {
    let queue: Arc<group::Queue> = Arc::default();
    let (first, service) = queue.add(accepted(1));
    let (second, none) = queue.add(marks(2));
    let (third, _) = queue.add(accepted(3));
    assert!(none.is_none(), "one serves for all");
    let written = Mutex::new(Vec::new());
    service.unwrap().run(|writes| {
        if writes.iter().any(|write| matches!(write, Write::Marks(_))) {
            return Err(JournalError::Corrupt { what: "test" });
        }
        written.lock().unwrap().extend(writes.to_vec());
        Ok(())
    });
    let heard = [first, second, third].map(|answer| answer.blocking_recv().unwrap().is_ok());
    assert_eq!(heard, [true, false, true]);
    assert_eq!(written.into_inner().unwrap(), [accepted(1), accepted(3)].concat());
    assert!(queue.add(accepted(4)).1.is_some(), "the next one is served anew");
}

#[test]
fn a_service_that_never_runs_leaves_nobody_waiting() {
    let queue: Arc<group::Queue> = Arc::default();
    let (answer, service) = queue.add(marks(1));
    drop(service);
    assert!(answer.blocking_recv().is_err());
    assert!(queue.add(marks(2)).1.is_some());
}

/// The index's count must keep the file under its cap, whatever redb does with pages.
#[test]
fn a_journal_filled_to_its_limit_stays_under_the_size_of_its_file() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    for file_bytes_max in [FILE_BYTES_MIN, FILE_BYTES_MAX] {
        let path = dir.path().join(format!("{file_bytes_max}.db"));
        let store = RedbJournal::open(&path, file_bytes_max, &SeededRng::new(1), at(0)).unwrap();
        let limits = Limits::for_file(file_bytes_max, EVENTS_MAX);
        let mut journal = Journal::new(store.id(), incarnation(1), limits, &store.load().unwrap());
        let result = CommandUpdate {
            state: CommandState::Failed.into(),
            result: Bytes::from(vec![1; RESULT_BYTES_MAX - 1024]),
            ..CommandUpdate::default()
        };
        let spec = |generation| StoredSpec {
            generation,
            deployment_epoch: 1,
            hash: "hash".into(),
            body: Bytes::from(vec![2; wire::limits::SPEC_BODY_BYTES_MAX]),
            signature: Bytes::from(vec![3; 500]),
            merged: Bytes::new(),
            accepted_at: at(0),
        };
        journal.take_spec(spec(1));
        runtime.block_on(store.commit(journal.take_writes())).unwrap();
        let mut taken = 0;
        while journal.accept(command_id(taken), "logs.collect", at(0)).is_ok() {
            runtime.block_on(store.commit(journal.take_writes())).unwrap();
            journal.done(command_id(taken), "logs.collect", result.clone(), at(0));
            runtime.block_on(store.commit(journal.take_writes())).unwrap();
            taken += 1;
        }
        assert!(taken > 10, "it took {taken} results");
        // The held spec is replaced while everything is full, which needs both beside each other for a moment.
        journal.take_spec(spec(2));
        runtime.block_on(store.commit(journal.take_writes())).unwrap();
        // Events still go in beside them, the oldest metrics making room.
        for n in 0..200u64 {
            let class = if n % 2 == 0 { EventClass::Metric } else { EventClass::Transition };
            let event = NewEvent {
                class,
                report: vec![0; 1024].into(),
                signature: Bytes::new(),
                key_sha256: Bytes::new(),
            };
            journal.append(event, at(n));
            runtime.block_on(store.commit(journal.take_writes())).unwrap();
        }
        let length = std::fs::metadata(&path).unwrap().len();
        assert!(length <= file_bytes_max, "{length} of {file_bytes_max} after {taken} results");
        assert!(matches!(store.entry(command_id(0)).unwrap().unwrap().stage, Stage::Done { .. }));
    }
}
