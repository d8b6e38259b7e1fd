//! How journal values look on disk: a version byte, eight bytes of SHA-256 over the rest, and a protobuf message.

use bytes::Bytes;
use model::{CommandId, Timestamp};
use prost::Message;
use sha2::{Digest, Sha256};
use wire::proto::agent::{CommandUpdate, EventClass};

use super::{Entry, JournalError, Marks, Stage, StoredEvent, StoredSpec};

const VERSION: u8 = 1;
const CHECK_BYTES: usize = 8;

#[derive(Clone, PartialEq, Message)]
struct EntryRecord {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    incarnation: String,
    #[prost(int64, tag = "3")]
    at_micros: i64,
    /// 1 accepted, 2 running, 3 done.
    #[prost(uint32, tag = "4")]
    stage: u32,
    #[prost(string, tag = "5")]
    boot_id: String,
    #[prost(message, optional, tag = "6")]
    update: Option<CommandUpdate>,
}

#[derive(Clone, PartialEq, Message)]
struct EventRecord {
    #[prost(int32, tag = "1")]
    class: i32,
    #[prost(bytes = "bytes", tag = "2")]
    report: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    signature: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    key_sha256: Bytes,
    #[prost(int64, tag = "5")]
    at_micros: i64,
}

#[derive(Clone, PartialEq, Message)]
struct SpecRecord {
    #[prost(uint64, tag = "1")]
    generation: u64,
    #[prost(uint64, tag = "2")]
    deployment_epoch: u64,
    #[prost(string, tag = "3")]
    hash: String,
    #[prost(bytes = "bytes", tag = "4")]
    body: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    signature: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    merged: Bytes,
    #[prost(int64, tag = "7")]
    accepted_at_micros: i64,
}

#[derive(Clone, PartialEq, Message)]
struct MarksRecord {
    #[prost(uint64, tag = "1")]
    server_time_ms: u64,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    deployment_epoch: u64,
}

fn seal(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let mut record = Vec::with_capacity(1 + CHECK_BYTES + body.len());
    record.push(VERSION);
    record.extend_from_slice(&Sha256::digest(&body)[..CHECK_BYTES]);
    record.extend_from_slice(&body);
    record
}

fn open<M: Message + Default>(what: &'static str, record: &[u8]) -> Result<M, JournalError> {
    let corrupt = || JournalError::Corrupt { what };
    let [VERSION, rest @ ..] = record else { return Err(corrupt()) };
    let (check, body) = rest.split_at_checked(CHECK_BYTES).ok_or_else(corrupt)?;
    if Sha256::digest(body)[..CHECK_BYTES] != *check {
        return Err(corrupt());
    }
    M::decode(body).map_err(|_| corrupt())
}

pub(super) fn entry_to(entry: &Entry) -> Vec<u8> {
    let (stage, boot_id, update) = match &entry.stage {
        Stage::Accepted => (1, String::new(), None),
        Stage::Running { boot_id } => (2, boot_id.clone(), None),
        Stage::Done { update } => (3, String::new(), Some((**update).clone())),
    };
    seal(&EntryRecord {
        kind: entry.kind.clone(),
        incarnation: entry.incarnation.to_string(),
        at_micros: entry.at.micros(),
        stage,
        boot_id,
        update,
    })
}

pub(super) fn entry_from(command_id: CommandId, record: &[u8]) -> Result<Entry, JournalError> {
    const WHAT: &str = "command entry";
    let record: EntryRecord = open(WHAT, record)?;
    let corrupt = || JournalError::Corrupt { what: WHAT };
    let stage = match (record.stage, record.update) {
        (1, _) => Stage::Accepted,
        (2, _) => Stage::Running { boot_id: record.boot_id },
        (3, Some(update)) => Stage::Done { update: Box::new(update) },
        _ => return Err(corrupt()),
    };
    Ok(Entry {
        command_id,
        kind: record.kind,
        incarnation: record.incarnation.parse().map_err(|_| corrupt())?,
        at: Timestamp::from_micros(record.at_micros),
        stage,
    })
}

pub(super) fn event_to(event: &StoredEvent) -> Vec<u8> {
    seal(&EventRecord {
        class: event.class.into(),
        report: event.report.clone(),
        signature: event.signature.clone(),
        key_sha256: event.key_sha256.clone(),
        at_micros: event.at.micros(),
    })
}

pub(super) fn event_from(seq: u64, record: &[u8]) -> Result<StoredEvent, JournalError> {
    const WHAT: &str = "event";
    let record: EventRecord = open(WHAT, record)?;
    Ok(StoredEvent {
        seq,
        class: EventClass::try_from(record.class).map_err(|_| JournalError::Corrupt { what: WHAT })?,
        report: record.report,
        signature: record.signature,
        key_sha256: record.key_sha256,
        at: Timestamp::from_micros(record.at_micros),
    })
}

pub(super) fn spec_to(spec: &StoredSpec) -> Vec<u8> {
    seal(&SpecRecord {
        generation: spec.generation,
        deployment_epoch: spec.deployment_epoch,
        hash: spec.hash.clone(),
        body: spec.body.clone(),
        signature: spec.signature.clone(),
        merged: spec.merged.clone(),
        accepted_at_micros: spec.accepted_at.micros(),
    })
}

pub(super) fn spec_from(record: &[u8]) -> Result<StoredSpec, JournalError> {
    let record: SpecRecord = open("spec", record)?;
    Ok(StoredSpec {
        generation: record.generation,
        deployment_epoch: record.deployment_epoch,
        hash: record.hash,
        body: record.body,
        signature: record.signature,
        merged: record.merged,
        accepted_at: Timestamp::from_micros(record.accepted_at_micros),
    })
}

pub(super) fn marks_to(marks: Marks) -> Vec<u8> {
    seal(&MarksRecord {
        server_time_ms: marks.server_time_ms,
        generation: marks.generation,
        deployment_epoch: marks.deployment_epoch,
    })
}

pub(super) fn marks_from(record: &[u8]) -> Result<Marks, JournalError> {
    let record: MarksRecord = open("marks", record)?;
    Ok(Marks {
        server_time_ms: record.server_time_ms,
        generation: record.generation,
        deployment_epoch: record.deployment_epoch,
    })
}
