//! What is in the log and not in the database yet.

use super::*;
use crate::journal::MemoryJournal;
use crate::journal::disk::log::LOG_BYTES;
use crate::testing::journal_id;
use std::os::unix::fs::FileExt;

/// Without what the store would do if it were closed.
fn copied(from: &Path, to: &Path) -> RedbJournal {
    std::fs::copy(from, to).unwrap();
    open(to)
}

#[test]
fn a_commit_is_one_write_to_the_log_and_none_to_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let journal = open(&path);
    let database = |path: &Path| std::fs::read(path).unwrap()[LOG_BYTES as usize..].to_vec();
    let before = database(&path);
    for n in 0..300 {
        commit(&journal, accepted(n));
    }
    assert_eq!(database(&path), before);
    assert_eq!(copied(&path, &dir.path().join("copy.db")).load().unwrap().entries.len(), 300);
}

#[test]
fn a_log_that_is_full_goes_into_the_database_and_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("journal.db"), dir.path().join("copy.db"));
    let journal = open(&path);
    for n in 0..5000 {
        commit(&journal, accepted(n));
        if n % 700 == 0 {
            let held = copied(&path, &copy).load().unwrap().entries.len();
            assert_eq!(held as u128, n + 1);
        }
    }
    assert!(journal.entry(command_id(4999)).unwrap().is_some());
    drop(journal);
    assert_eq!(open(&path).load().unwrap().entries.len(), 5000);
}

#[test]
fn a_commit_larger_than_the_log_is_as_durable_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let journal = open(&path);
    commit(&journal, accepted(1));
    let spec = StoredSpec {
        generation: 1,
        deployment_epoch: 1,
        hash: "hash".into(),
        body: vec![7; 2 * LOG_BYTES as usize].into(),
        signature: Bytes::new(),
        merged: Bytes::new(),
        accepted_at: at(0),
    };
    commit(&journal, vec![Write::Spec(spec.clone())]);
    commit(&journal, accepted(2));
    let restored = copied(&path, &dir.path().join("copy.db"));
    assert_eq!(restored.spec().unwrap(), Some(spec));
    assert_eq!(restored.load().unwrap().entries.len(), 2);
}

#[test]
fn a_damaged_commit_in_the_log_is_a_corrupt_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    let id = {
        let journal = open(&path);
        (0..3).for_each(|n| commit(&journal, accepted(n)));
        journal.id()
    };
    File::options().write(true).open(&path).unwrap().write_all_at(&[0xff], 40).unwrap();
    let journal = RedbJournal::open(&path, FILE_BYTES_MAX, &SeededRng::new(9), at(0)).unwrap();
    assert_ne!(journal.id(), id);
    assert!(dir.path().join("journal.db.corrupt-1").exists());
}

#[test]
fn what_the_log_took_survives_a_database_that_fails() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let (journal, fail, _) = faulty(&dir.path().join("journal.db"), false);
    (0..10).for_each(|n| runtime.block_on(journal.commit(accepted(n))).unwrap());
    fail.store(true, Ordering::SeqCst);
    assert!(runtime.block_on(journal.commit(accepted(10))).is_err());
    fail.store(false, Ordering::SeqCst);
    runtime.block_on(journal.commit(accepted(11))).unwrap();
    let held = journal.load().unwrap().entries.len();
    assert!((11..=12).contains(&held), "{held} entries");
}

/// A write of any kind about few things, so that they meet.
fn any_write() -> impl proptest::strategy::Strategy<Value = Write> {
    use proptest::prelude::*;
    let entry = |n: u128, done: bool| {
        let [Write::Entry(entry)] = &accepted(n)[..] else { panic!("it is an entry") };
        let stage = match done {
            true => Stage::Done { update: Box::new(CommandUpdate::default()) },
            false => Stage::Accepted,
        };
        Write::Entry(Entry { stage, ..entry.clone() })
    };
    let spec = |generation: u64, bytes: usize| {
        Write::Spec(StoredSpec {
            generation,
            deployment_epoch: 1,
            hash: "hash".into(),
            body: vec![1; bytes].into(),
            signature: Bytes::new(),
            merged: Bytes::new(),
            accepted_at: at(0),
        })
    };
    prop_oneof![
        (0u128..8, any::<bool>()).prop_map(move |(n, done)| entry(n, done)),
        (0u128..8).prop_map(|n| Write::RemoveEntry(command_id(n))),
        (1u64..3, prop_oneof![Just(10), Just(70_000)]).prop_map(move |(n, bytes)| spec(n, bytes)),
        (0u64..9).prop_map(|n| Write::Marks(Marks { server_time_ms: n, generation: n, deployment_epoch: n })),
    ]
}

/// What happens to a journal.
#[derive(Debug, Clone)]
enum Happens {
    Commit(Vec<Write>),
    /// Numbered as they come.
    Events(u8),
    RemoveEvent(u64),
    Acked(u64),
    Reopen,
}

fn anything() -> impl proptest::strategy::Strategy<Value = Happens> {
    use proptest::prelude::*;
    prop_oneof![
        4 => proptest::collection::vec(any_write(), 1..6).prop_map(Happens::Commit),
        4 => (1u8..20).prop_map(Happens::Events),
        1 => (1u64..40).prop_map(Happens::RemoveEvent),
        1 => (1u64..40).prop_map(Happens::Acked),
        1 => Just(Happens::Reopen),
    ]
}

fn same(one: &dyn JournalStore, other: &dyn JournalStore, acked: u64) {
    for n in 0..8 {
        assert_eq!(one.entry(command_id(n)).unwrap(), other.entry(command_id(n)).unwrap());
    }
    assert_eq!(one.spec().unwrap(), other.spec().unwrap());
    for (after, limit) in [(acked, 1000), (acked + 3, 5), (acked, 1)] {
        let seqs = |store: &dyn JournalStore| -> Vec<StoredEvent> {
            store.events_after(after, limit, 1 << 20).unwrap()
        };
        assert_eq!(seqs(one), seqs(other));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(16))]

    #[test]
    fn the_disk_says_what_memory_says_whatever_happens(history in proptest::collection::vec(anything(), 1..60)) {
        let mut disk = OnDisk::new();
        let memory = MemoryJournal::new(journal_id(1));
        let (mut last, mut acked) = (0u64, 0u64);
        for happens in history {
            let writes = match happens {
                Happens::Commit(writes) => writes,
                Happens::Events(count) => (0..count).map(|_| {
                    last += 1;
                    Write::Event(StoredEvent {
                        seq: last,
                        class: EventClass::Metric,
                        report: vec![last as u8; 50].into(),
                        signature: Bytes::new(),
                        key_sha256: Bytes::new(),
                        at: at(last),
                    })
                }).collect(),
                Happens::RemoveEvent(seq) => vec![Write::RemoveEvent(seq.min(last))],
                Happens::Acked(seq) => {
                    acked = acked.max(seq.min(last));
                    vec![Write::EventsAcked(acked)]
                }
                Happens::Reopen => {
                    disk.reopen();
                    same(disk.store(), &memory, acked);
                    continue;
                }
            };
            commit(disk.store(), writes.clone());
            commit(&memory, writes);
            same(disk.store(), &memory, acked);
        }
        disk.reopen();
        let (held, wanted) = (disk.store().load().unwrap(), memory.load().unwrap());
        proptest::prop_assert_eq!(held.entries, wanted.entries);
        proptest::prop_assert_eq!(held.events, wanted.events);
        proptest::prop_assert_eq!((held.marks, held.spec, held.acked_seq), (wanted.marks, wanted.spec, wanted.acked_seq));
    }
}
