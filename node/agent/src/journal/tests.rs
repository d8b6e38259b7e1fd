use super::rules::{Answer, Settlement, resolve};
use super::*;
use crate::testing::{at, command_id, incarnation, journal_id};
use futures::FutureExt;
use model::CommandKind;
use std::collections::BTreeMap;
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::CommandState;

fn update(id: CommandId, state: CommandState) -> CommandUpdate {
    CommandUpdate { command_id: id.to_string(), state: state.into(), ..CommandUpdate::default() }
}

fn entry(id: CommandId, kind: CommandKind, process: u128, stage: Stage) -> Entry {
    Entry { command_id: id, kind: kind.name().into(), incarnation: incarnation(process), at: at(0), stage }
}

fn running(boot: &str) -> Stage {
    Stage::Running { boot_id: boot.into() }
}

fn done(id: CommandId) -> Stage {
    Stage::Done { update: Box::new(update(id, CommandState::Succeeded)) }
}

/// The index over exactly these entries, in process 1.
fn journal_of(entries: Vec<Entry>) -> Journal {
    let entries = entries.into_iter().map(|entry| LoadedEntry { entry, acked: false }).collect();
    let loaded = Loaded { entries, ..Loaded::default() };
    Journal::new(journal_id(1), incarnation(1), Limits::default(), &loaded)
}

fn metric(bytes: usize) -> NewEvent {
    event(EventClass::Metric, bytes)
}

fn event(class: EventClass, bytes: usize) -> NewEvent {
    NewEvent { class, report: vec![7; bytes].into(), signature: Bytes::new(), key_sha256: Bytes::new() }
}

#[test]
fn a_delivered_command_is_answered_by_the_table_of_duplicates() {
    let id = command_id(1);
    let (reboot, diag, reset) = (CommandKind::NodeReboot, CommandKind::DiagNvml, CommandKind::GpuReset);
    let rebooted = Settlement::Rebooted { previous_boot_id: "old".into() };
    let table: Vec<(&str, Option<Entry>, Answer)> = vec![
        ("nothing", None, Answer::Check),
        ("done by us", Some(entry(id, reset, 1, done(id))), Answer::Replay),
        ("done earlier", Some(entry(id, reset, 2, done(id))), Answer::Replay),
        ("accepted by us", Some(entry(id, reset, 1, Stage::Accepted)), Answer::Standing(CommandState::Acked)),
        ("running in us", Some(entry(id, diag, 1, running("now"))), Answer::Standing(CommandState::Running)),
        ("accepted earlier", Some(entry(id, reset, 2, Stage::Accepted)), Answer::Check),
        ("reboot, new boot", Some(entry(id, reboot, 2, running("old"))), Answer::Settle(rebooted)),
        ("reboot, same boot", Some(entry(id, reboot, 2, running("now"))), Answer::Check),
        ("retry-safe", Some(entry(id, diag, 2, running("now"))), Answer::Check),
        ("retry-safe, new boot", Some(entry(id, diag, 2, running("old"))), Answer::Check),
        (
            "not retry-safe",
            Some(entry(id, reset, 2, running("old"))),
            Answer::Settle(Settlement::Interrupted),
        ),
    ];
    for (name, left, expected) in table {
        let journal = journal_of(left.into_iter().collect());
        assert_eq!(resolve(journal.entry(id), incarnation(1), "now"), expected, "{name}");
    }
}

#[test]
fn a_kind_of_a_newer_build_is_never_run_again() {
    let mut left = entry(command_id(1), CommandKind::DiagNvml, 2, running("old"));
    left.kind = "disk.wipe".into();
    let journal = journal_of(vec![left]);
    let answer = resolve(journal.entry(command_id(1)), incarnation(1), "now");
    assert_eq!(answer, Answer::Settle(Settlement::Interrupted));
}

#[test]
fn a_start_settles_what_needs_no_one_and_leaves_the_rest() {
    let mut journal = journal_of(vec![
        entry(command_id(1), CommandKind::NodeReboot, 2, running("old")),
        entry(command_id(2), CommandKind::GpuReset, 2, running("now")),
        entry(command_id(3), CommandKind::DiagNvml, 2, running("now")),
        entry(command_id(4), CommandKind::GpuReset, 2, Stage::Accepted),
    ]);
    let settled: BTreeMap<_, _> =
        journal.recover("now").into_iter().map(|(id, _, settlement)| (id, settlement)).collect();
    assert_eq!(settled.len(), 2, "{settled:?}");
    assert_eq!(settled[&command_id(1)], Settlement::Rebooted { previous_boot_id: "old".into() });
    assert_eq!(settled[&command_id(2)], Settlement::Interrupted);
}

#[test]
fn a_reboot_that_happened_says_from_which_boot_to_which() {
    let settlement = Settlement::Rebooted { previous_boot_id: "old".into() };
    let update = rules::settled_update(command_id(1), "node.reboot", &settlement, "new");
    assert_eq!(update.state(), CommandState::Succeeded);
    let result: wire::proto::agent::CommandResult = wire::decode("result", &update.result, 1024).unwrap();
    let Some(wire::proto::agent::command_result::Result::NodeReboot(reboot)) = result.result else {
        panic!("{result:?}");
    };
    assert_eq!((reboot.previous_boot_id.as_str(), reboot.boot_id.as_str()), ("old", "new"));
}

#[test]
fn the_sweep_forgets_what_is_a_week_old_and_nobodys() {
    let mut journal = journal_of(vec![
        entry(command_id(1), CommandKind::DiagNvml, 2, done(command_id(1))),
        entry(command_id(2), CommandKind::DiagNvml, 1, done(command_id(2))),
        entry(command_id(3), CommandKind::DiagNvml, 2, running("old")),
        entry(command_id(4), CommandKind::DiagNvml, 1, running("now")),
        entry(command_id(5), CommandKind::DiagNvml, 1, Stage::Accepted),
    ]);
    journal.sweep(at(7 * 86_400));
    assert_eq!(journal.entries().count(), 5, "exactly seven days is not older than seven days");
    journal.sweep(at(7 * 86_400 + 1));
    let left: Vec<CommandId> = journal.entries().map(|(id, _)| *id).collect();
    assert_eq!(left, [command_id(4), command_id(5)], "what this process runs stays");
}

#[test]
fn the_oldest_metric_events_make_room_and_others_never_go() {
    let limits = Limits { events_max: 4, ..Limits::default() };
    let mut journal = Journal::new(journal_id(1), incarnation(1), limits, &Loaded::default());
    journal.append(event(EventClass::Transition, 10), at(0));
    journal.append(metric(10), at(0));
    journal.append(metric(10), at(0));
    journal.append(event(EventClass::Result, 10), at(0));
    assert_eq!(journal.append(event(EventClass::Transition, 10), at(0)), Some(5));
    assert!(journal.take_writes().contains(&Write::RemoveEvent(2)));
    assert_eq!(journal.append(event(EventClass::Transition, 10), at(0)), Some(6));
    assert_eq!(journal.append(metric(10), at(0)), None, "nothing is left to drop but the metric itself");
    assert_eq!(
        journal.append(event(EventClass::Transition, 10), at(0)),
        Some(7),
        "a transition is never dropped"
    );
    assert_eq!(journal.event_backlog(), 5);
}

#[test]
fn a_full_journal_takes_no_command_until_acks_drain_it() {
    let limits = Limits { events_max: 2, ..Limits::default() };
    let mut journal = Journal::new(journal_id(1), incarnation(1), limits, &Loaded::default());
    journal.append(event(EventClass::Transition, 10), at(0));
    journal.append(event(EventClass::Transition, 10), at(0));
    assert_eq!(journal.accept(command_id(1), "diag.nvml", at(0)), Err(Full));
    assert!(
        !journal.take_writes().iter().any(|write| matches!(write, Write::Entry(_))),
        "BUSY is never journaled"
    );
    journal.events_acked(1);
    assert_eq!(journal.accept(command_id(1), "diag.nvml", at(0)), Ok(()));
}

#[test]
fn every_command_under_way_has_room_for_the_largest_result() {
    let limits = Limits { bytes_max: 3 * cost(RESULT_BYTES_MAX), events_max: 100 };
    let mut journal = Journal::new(journal_id(1), incarnation(1), limits, &Loaded::default());
    assert_eq!(journal.accept(command_id(1), "diag.nvml", at(0)), Ok(()));
    assert_eq!(journal.accept(command_id(2), "diag.nvml", at(0)), Ok(()));
    assert_eq!(journal.accept(command_id(3), "diag.nvml", at(0)), Err(Full));
    journal.done(command_id(1), "diag.nvml", update(command_id(1), CommandState::Failed), at(0));
    assert_eq!(journal.accept(command_id(3), "diag.nvml", at(0)), Ok(()));
}

#[test]
fn the_byte_count_follows_every_change() {
    let mut journal = Journal::new(journal_id(1), incarnation(1), Limits::default(), &Loaded::default());
    journal.accept(command_id(1), "diag.nvml", at(0)).unwrap();
    journal.running(command_id(1), "diag.nvml", "boot", at(0));
    journal.done(command_id(1), "diag.nvml", update(command_id(1), CommandState::Succeeded), at(0));
    journal.append(metric(100), at(0));
    journal.spend_ticket("ticket", at(10), at(0));
    assert!(journal.bytes_used() > 100);
    journal.events_acked(1);
    journal.sweep(at(8 * 86_400));
    assert_eq!(journal.bytes_used(), 0);
}

#[test]
fn a_ticket_is_spent_once_until_it_may_be_forgotten() {
    let mut journal = Journal::new(journal_id(1), incarnation(1), Limits::default(), &Loaded::default());
    assert_eq!(journal.spend_ticket("t", at(300), at(0)), Spent::Now);
    assert_eq!(journal.spend_ticket("t", at(300), at(0)), Spent::Before);
    journal.sweep(at(300));
    assert_eq!(journal.spend_ticket("t", at(300), at(300)), Spent::Before);
    journal.sweep(at(301));
    assert_eq!(journal.spend_ticket("t", at(600), at(301)), Spent::Now);
}

#[test]
fn tickets_that_cannot_be_remembered_are_not_used() {
    let mut journal = Journal::new(journal_id(1), incarnation(1), Limits::default(), &Loaded::default());
    let mut n = 0;
    while journal.spend_ticket(&format!("t{n}"), at(60), at(0)) == Spent::Now {
        n += 1;
        assert!(n < 100_000, "there is a bound");
    }
    assert_eq!(journal.spend_ticket("late", at(60), at(0)), Spent::TooMany);
    // Once the others are over there is room again, without waiting for a sweep.
    assert_eq!(journal.spend_ticket("late", at(200), at(61)), Spent::Now);
}

#[test]
fn an_ack_above_what_was_sent_lifts_the_numbers_of_an_older_copy() {
    let mut journal = Journal::new(journal_id(1), incarnation(1), Limits::default(), &Loaded::default());
    journal.append(metric(1), at(0));
    journal.events_acked(40);
    assert_eq!(journal.append(metric(1), at(0)), Some(41));
    for absurd in [u64::MAX, u64::MAX - 1, 1 << 40] {
        journal.events_acked(absurd);
    }
    assert_eq!(journal.append(metric(1), at(0)), Some(42), "an absurd one says nothing");
}

/// What every store must do. Each case gets a new one, and a way to look at the same one again as after a restart.
pub(super) fn conformance(mut store: impl FnMut() -> Box<dyn Reopen>) {
    durable_writes_are_all_there(store());
    a_batch_may_come_twice(store());
    events_read_in_order_and_bounds(store());
    an_entry_written_again_is_unacked_again(store());
}

/// A store that can be closed and opened.
pub(super) trait Reopen {
    fn store(&self) -> &dyn JournalStore;
    fn reopen(&mut self);
}

pub(super) fn commit(store: &dyn JournalStore, writes: Vec<Write>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
    runtime.block_on(store.commit(writes)).expect("the store commits");
}

fn everything() -> Vec<Write> {
    let spec = StoredSpec {
        generation: 4,
        deployment_epoch: 2,
        hash: "hash".into(),
        body: vec![1; 5000].into(),
        signature: vec![2; 70].into(),
        merged: Bytes::new(),
        accepted_at: at(9),
    };
    let stored = |seq| StoredEvent {
        seq,
        class: EventClass::Transition,
        report: vec![seq as u8; 10].into(),
        signature: vec![3; 64].into(),
        key_sha256: vec![4; 32].into(),
        at: at(seq),
    };
    vec![
        Write::Entry(entry(command_id(1), CommandKind::DiagNvml, 1, Stage::Accepted)),
        Write::Entry(entry(command_id(2), CommandKind::GpuReset, 1, running("boot"))),
        Write::Entry(entry(command_id(3), CommandKind::GpuReset, 1, done(command_id(3)))),
        Write::ResultAcked(command_id(3)),
        Write::Entry(entry(command_id(4), CommandKind::GpuReset, 1, done(command_id(4)))),
        Write::RemoveEntry(command_id(4)),
        Write::Event(stored(1)),
        Write::Event(stored(2)),
        Write::Event(stored(3)),
        Write::Event(stored(4)),
        Write::EventsAcked(1),
        Write::RemoveEvent(3),
        Write::Spec(spec),
        Write::Marks(Marks { server_time_ms: 5, generation: 4, deployment_epoch: 2 }),
        Write::Ticket { id: "t1".into(), until: at(5) },
        Write::Ticket { id: "t2".into(), until: at(6) },
        Write::RemoveTicket("t1".into()),
    ]
}

fn durable_writes_are_all_there(mut held: Box<dyn Reopen>) {
    let id = held.store().id();
    assert_eq!(held.store().load().unwrap(), Loaded::default(), "a new store is empty");
    commit(held.store(), everything());
    let before = held.store().load().unwrap();
    held.reopen();
    assert_eq!(held.store().id(), id, "the id is the store's, not the process's");
    let after = held.store().load().unwrap();
    assert_eq!(after, before);
    let ids: Vec<_> = after.entries.iter().map(|held| (held.entry.command_id, held.acked)).collect();
    assert_eq!(ids, [(command_id(1), false), (command_id(2), false), (command_id(3), true)]);
    assert_eq!(after.entries[1].entry.stage, running("boot"));
    assert_eq!(after.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 4]);
    assert_eq!((after.acked_seq, after.last_seq), (1, 4));
    assert_eq!(after.marks, Marks { server_time_ms: 5, generation: 4, deployment_epoch: 2 });
    assert_eq!(after.tickets, [("t2".to_owned(), at(6))]);
    assert_eq!(held.store().spec().unwrap(), after.spec);
    assert_eq!(after.spec.unwrap().body.len(), 5000);
    assert_eq!(held.store().entry(command_id(3)).unwrap().unwrap().stage, done(command_id(3)));
    assert_eq!(held.store().entry(command_id(9)).unwrap(), None);
}

fn a_batch_may_come_twice(held: Box<dyn Reopen>) {
    commit(held.store(), everything());
    let once = held.store().load().unwrap();
    commit(held.store(), everything());
    assert_eq!(held.store().load().unwrap(), once);
}

fn events_read_in_order_and_bounds(held: Box<dyn Reopen>) {
    let events = (1..=20).map(|seq| {
        Write::Event(StoredEvent {
            seq,
            class: EventClass::Metric,
            report: vec![0; 100].into(),
            signature: Bytes::new(),
            key_sha256: Bytes::new(),
            at: at(0),
        })
    });
    commit(held.store(), events.collect());
    let seqs = |after, limit, bytes| -> Vec<u64> {
        held.store().events_after(after, limit, bytes).unwrap().iter().map(|event| event.seq).collect()
    };
    assert_eq!(seqs(0, 3, 1 << 20), [1, 2, 3]);
    assert_eq!(seqs(18, 100, 1 << 20), [19, 20]);
    assert_eq!(seqs(20, 100, 1 << 20), [] as [u64; 0]);
    assert_eq!(seqs(5, 100, 1), [6], "one event goes however small the room");
    assert!(seqs(0, 100, 1000).len() < 11);
}

fn an_entry_written_again_is_unacked_again(held: Box<dyn Reopen>) {
    let id = command_id(1);
    commit(
        held.store(),
        vec![Write::Entry(entry(id, CommandKind::DiagNvml, 1, done(id))), Write::ResultAcked(id)],
    );
    commit(held.store(), vec![Write::Entry(entry(id, CommandKind::DiagNvml, 2, done(id)))]);
    assert!(!held.store().load().unwrap().entries[0].acked);
}

struct Memory(MemoryJournal);

impl Reopen for Memory {
    fn store(&self) -> &dyn JournalStore {
        &self.0
    }

    fn reopen(&mut self) {}
}

#[test]
fn the_memory_store_conforms() {
    conformance(|| Box::new(Memory(MemoryJournal::new(journal_id(1)))));
}

#[test]
fn the_memory_store_commits_at_once() {
    let store = MemoryJournal::new(journal_id(1));
    assert!(store.commit(everything()).now_or_never().is_some(), "a simulator drives it without a runtime");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn rotten_records_are_errors_and_never_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = record::entry_from(command_id(1), &bytes);
        let _ = record::event_from(1, &bytes);
        let _ = record::spec_from(&bytes);
        let _ = record::marks_from(&bytes);
    }

    #[test]
    fn a_flipped_bit_in_a_record_is_found(at_byte in 0usize..1000, bit in 0u8..8) {
        let whole = record::entry_to(&entry(command_id(1), CommandKind::DiagNvml, 1, done(command_id(1))));
        let mut broken = whole.clone();
        let index = at_byte % broken.len();
        broken[index] ^= 1 << bit;
        proptest::prop_assert!(record::entry_from(command_id(1), &broken).is_err());
        proptest::prop_assert!(record::entry_from(command_id(1), &whole).is_ok());
    }
}
