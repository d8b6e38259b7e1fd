//! The tables of the file, and how records lie in them.

use model::{CommandId, JournalId, Timestamp};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::journal::{JournalError, Loaded, LoadedEntry, LoadedEvent, PIECE_BYTES, Write, record};

pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const ACKED: TableDefinition<'_, u128, ()> = TableDefinition::new("acked");
/// Every record, in pieces of at most [`PIECE_BYTES`]: which space, which key in it, which piece. redb gives a large value
/// a page of the next power of two, which would cost a result of 512 KiB a whole MiB.
const RECORDS: TableDefinition<'_, (u8, u128, u32), &[u8]> = TableDefinition::new("records");
const TICKETS: TableDefinition<'_, &str, i64> = TableDefinition::new("tickets");

const KEY_ID: &str = "journal_id";
pub(super) const KEY_MARKS: &str = "marks";
const KEY_ACKED: &str = "acked_seq";
const KEY_LAST: &str = "last_seq";
/// How often the log was brought into the database.
const KEY_CHECKPOINT: &str = "checkpoint";

pub(super) const ENTRIES: u8 = 1;
pub(super) const EVENTS: u8 = 2;
pub(super) const SPEC: u8 = 3;

pub(super) fn failed(doing: &'static str) -> impl Fn(redb::Error) -> JournalError {
    move |source| JournalError::Io { doing, source: Box::new(source) }
}

pub(super) fn initialise(database: &Database, id: JournalId) -> Result<JournalId, JournalError> {
    write(database, |txn| {
        txn.open_table(META)?.insert(KEY_ID, id.to_string().as_bytes())?;
        txn.open_table(RECORDS)?;
        txn.open_table(ACKED)?;
        txn.open_table(TICKETS)?;
        Ok(())
    })
    .map_err(failed("create"))?;
    Ok(id)
}

pub(super) fn write(
    database: &Database,
    change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::Immediate).expect("a transaction without savepoints takes any durability");
    change(&txn)?;
    txn.commit()?;
    Ok(())
}

/// All of it under this checkpoint, or none.
pub(super) fn apply<'a>(
    database: &Database,
    writes: impl Iterator<Item = &'a Write>,
    checkpoint: u64,
) -> Result<(), redb::Error> {
    write(database, |txn| {
        let mut meta = txn.open_table(META)?;
        meta.insert(KEY_CHECKPOINT, checkpoint.to_be_bytes().as_slice())?;
        let mut records = txn.open_table(RECORDS)?;
        let mut acked = txn.open_table(ACKED)?;
        let mut tickets = txn.open_table(TICKETS)?;
        for write in writes {
            match write {
                Write::Entry(entry) => {
                    let key = entry.command_id.uuid().as_u128();
                    put(&mut records, ENTRIES, key, &record::entry_to(entry))?;
                    acked.remove(key)?;
                }
                Write::ResultAcked(id) => {
                    acked.insert(id.uuid().as_u128(), ())?;
                }
                Write::RemoveEntry(id) => {
                    put(&mut records, ENTRIES, id.uuid().as_u128(), &[])?;
                    acked.remove(id.uuid().as_u128())?;
                }
                Write::Event(event) => {
                    put(&mut records, EVENTS, event.seq.into(), &record::event_to(event))?;
                    meta.insert(KEY_LAST, event.seq.to_be_bytes().as_slice())?;
                }
                Write::RemoveEvent(seq) => {
                    put(&mut records, EVENTS, (*seq).into(), &[])?;
                }
                Write::EventsAcked(seq) => {
                    meta.insert(KEY_ACKED, seq.to_be_bytes().as_slice())?;
                    let acked = (EVENTS, 0, 0)..=(EVENTS, u128::from(*seq), u32::MAX);
                    records.retain_in(acked, |_, _| false)?;
                }
                Write::LastSeq(seq) => {
                    meta.insert(KEY_LAST, seq.to_be_bytes().as_slice())?;
                }
                Write::Spec(spec) => {
                    put(&mut records, SPEC, 0, &record::spec_to(spec))?;
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

/// Replaces a record, or removes it when `record` is empty: a record never is.
fn put(
    records: &mut redb::Table<'_, (u8, u128, u32), &'static [u8]>,
    space: u8,
    key: u128,
    record: &[u8],
) -> Result<(), redb::Error> {
    let mut pieces = 0u32;
    for piece in record.chunks(PIECE_BYTES) {
        records.insert((space, key, pieces), piece)?;
        pieces += 1;
    }
    // What is left of a longer record.
    while records.remove((space, key, pieces))?.is_some() {
        pieces += 1;
    }
    Ok(())
}

/// Records of `space` with these keys, put together, in order of their keys. Stops when `enough` says so.
fn records(
    txn: &redb::ReadTransaction,
    space: u8,
    keys: std::ops::RangeInclusive<u128>,
    enough: impl FnMut(&[(u128, Vec<u8>)]) -> bool,
) -> Result<Vec<(u128, Vec<u8>)>, redb::Error> {
    records_but(txn, space, keys, |_| false, enough)
}

/// The same without those that `skip` names.
pub(super) fn records_but(
    txn: &redb::ReadTransaction,
    space: u8,
    keys: std::ops::RangeInclusive<u128>,
    skip: impl Fn(u128) -> bool,
    mut enough: impl FnMut(&[(u128, Vec<u8>)]) -> bool,
) -> Result<Vec<(u128, Vec<u8>)>, redb::Error> {
    let mut found: Vec<(u128, Vec<u8>)> = Vec::new();
    let range = (space, *keys.start(), 0)..=(space, *keys.end(), u32::MAX);
    for row in txn.open_table(RECORDS)?.range(range)? {
        let (at, piece) = row?;
        let (_, key, _) = at.value();
        if skip(key) {
            continue;
        }
        match found.last_mut() {
            Some((last, record)) if *last == key => record.extend_from_slice(piece.value()),
            _ => {
                if enough(&found) {
                    break;
                }
                found.push((key, piece.value().to_vec()));
            }
        }
    }
    Ok(found)
}

pub(super) fn record_at(
    txn: &redb::ReadTransaction,
    space: u8,
    key: u128,
) -> Result<Option<Vec<u8>>, redb::Error> {
    Ok(records(txn, space, key..=key, |_| false)?.pop().map(|(_, record)| record))
}

pub(super) fn stored_id(database: &Database) -> Result<Option<JournalId>, JournalError> {
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

pub(super) fn stored_checkpoint(database: &Database) -> Result<u64, JournalError> {
    let read = || -> Result<Option<Vec<u8>>, redb::Error> {
        let meta = database.begin_read()?.open_table(META)?;
        Ok(meta.get(KEY_CHECKPOINT)?.map(|value| value.value().to_vec()))
    };
    number(read().map_err(failed("read"))?)
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
    events: Vec<(u128, Vec<u8>)>,
    spec: Option<Vec<u8>>,
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
    for (key, record) in records(&txn, ENTRIES, 0..=u128::MAX, |_| false)? {
        raw.entries.push((key, record, acked.get(key)?.is_some()));
    }
    raw.events = records(&txn, EVENTS, 0..=u128::MAX, |_| false)?;
    raw.spec = record_at(&txn, SPEC, 0)?;
    for row in txn.open_table(TICKETS)?.iter()? {
        let (key, value) = row?;
        raw.tickets.push((key.value().to_owned(), value.value()));
    }
    Ok(raw)
}

pub(super) fn load(database: &Database) -> Result<Loaded, JournalError> {
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
        spec: raw.spec.map(|bytes| record::spec_from(&bytes)).transpose()?,
        tickets: raw.tickets.into_iter().map(|(id, until)| (id, Timestamp::from_micros(until))).collect(),
        ..Loaded::default()
    };
    for (id, bytes, acked) in raw.entries {
        let entry = record::entry_from(command_id(id), &bytes)?;
        loaded.entries.push(LoadedEntry { entry, acked });
    }
    for (key, bytes) in raw.events {
        let event = record::event_from(sequence(key)?, &bytes)?;
        loaded.events.push(LoadedEvent { seq: event.seq, class: event.class, bytes: event.bytes() });
    }
    Ok(loaded)
}

pub(super) fn sequence(key: u128) -> Result<u64, JournalError> {
    u64::try_from(key).map_err(|_| JournalError::Corrupt { what: "event" })
}

fn command_id(key: u128) -> CommandId {
    CommandId::from_uuid(uuid::Uuid::from_u128(key))
}
