//! What a node reports, from frames to what the store takes. Every list and text is bounded, and no text carries a control
//! character: these end up in databases, terminals and logs.

use std::time::Duration;

use kernel::ports::delivery::{ReportedEvent, ReportedSection, ReportedStatus, ReportedUpdate, SessionKey};
use model::{Section, Timestamp};
use prost::Message;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wire::inventory::{self, SectionHash, SectionName};
use wire::limits::{
    CONDITIONS_MAX, EVENTS_PER_BATCH_MAX, INVENTORY_SECTION_BYTES_MAX, REPORT_BYTES_MAX, RESULT_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use wire::map;
use wire::proto::agent::{
    CommandUpdate, EventBatch, EventClass, InventoryReport, NodeEvent, Pressure, SectionStatus, StatusReport,
};
use wire::proto::common::NodeSignature;

/// An intent signature with its worker certificate.
pub(super) const SIGNATURE_BYTES_MAX: usize = 4096;
/// Sections of a spec, those of newer daemons included.
const SECTIONS_MAX: usize = 64;
/// Inventory sections of one report.
const INVENTORY_SECTIONS_MAX: usize = 16;
const KEY_SHA256_BYTES: usize = 32;
/// No fact is older than a machine; what is said to be says nothing.
const AGE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A frame that no honest daemon sends. The session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node's {frame} has an invalid {field}")]
pub struct Violation {
    pub frame: &'static str,
    pub field: &'static str,
}

fn bound(holds: bool, frame: &'static str, field: &'static str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { frame, field }) }
}

/// Cut to what a text may hold, with a blank for each control character.
pub(super) fn text(reported: &str) -> String {
    let mut end = reported.len().min(TEXT_BYTES_MAX);
    while !reported.is_char_boundary(end) {
        end -= 1;
    }
    reported[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A signature, and the hash of the key it is by.
type Signed = (Option<Vec<u8>>, Option<Vec<u8>>);

fn signature(signature: Option<NodeSignature>, frame: &'static str) -> Result<Signed, Violation> {
    let Some(signature) = signature else { return Ok((None, None)) };
    bound(signature.value.len() <= SIGNATURE_BYTES_MAX, frame, "signature")?;
    bound(signature.key_sha256.len() == KEY_SHA256_BYTES, frame, "signature")?;
    Ok((Some(signature.value.to_vec()), Some(signature.key_sha256.to_vec())))
}

pub(super) fn update(update: CommandUpdate, session: SessionKey) -> Result<ReportedUpdate, Violation> {
    const FRAME: &str = "command update";
    let command_id =
        update.command_id.parse().map_err(|_| Violation { frame: FRAME, field: "command_id" })?;
    let event = map::command_event(update.state).ok_or(Violation { frame: FRAME, field: "state" })?;
    bound(update.result.len() <= RESULT_BYTES_MAX, FRAME, "result")?;
    let (signature, key_sha256) = signature(update.signature, FRAME)?;
    Ok(ReportedUpdate {
        session,
        command_id,
        wire_state: update.state,
        event,
        result: (!update.result.is_empty()).then(|| update.result.to_vec()),
        signature,
        key_sha256,
        reason: text(&update.reason),
        message: text(&update.message),
        boot_id: text(&update.boot_id),
    })
}

/// The events of a batch, ascending and dated on the server's clock.
pub(super) fn events(batch: EventBatch, now: Timestamp) -> Result<Vec<ReportedEvent>, Violation> {
    const FRAME: &str = "event batch";
    bound(batch.events.len() <= EVENTS_PER_BATCH_MAX, FRAME, "events")?;
    let mut last = 0;
    let mut events = Vec::with_capacity(batch.events.len());
    for event in batch.events {
        bound(event.seq > last && i64::try_from(event.seq).is_ok(), FRAME, "seq")?;
        last = event.seq;
        events.push(one_event(event, now)?);
    }
    Ok(events)
}

fn one_event(event: NodeEvent, now: Timestamp) -> Result<ReportedEvent, Violation> {
    const FRAME: &str = "event";
    bound(event.report.len() <= REPORT_BYTES_MAX, FRAME, "report")?;
    let class = EventClass::try_from(event.class).map_err(|_| Violation { frame: FRAME, field: "class" })?;
    bound(class != EventClass::Unspecified, FRAME, "class")?;
    let (signature, key_sha256) = signature(event.signature, FRAME)?;
    let age = Duration::from_millis(event.age_ms).min(AGE_MAX);
    Ok(ReportedEvent {
        seq: event.seq,
        class: event.class,
        report: event.report.to_vec(),
        signature,
        key_sha256,
        observed_at: now.saturating_sub(age),
    })
}

pub(super) fn status(
    report: StatusReport,
    session: SessionKey,
    now: Timestamp,
) -> Result<ReportedStatus, Violation> {
    const FRAME: &str = "status report";
    bound(report.node_id == session.node_id.to_string(), FRAME, "node_id")?;
    bound(report.sections.len() <= SECTIONS_MAX, FRAME, "sections")?;
    bound(report.conditions.len() <= CONDITIONS_MAX, FRAME, "conditions")?;
    let status_key = status_key(&report);
    let sections = report.sections.iter().map(section).collect::<Result<Vec<_>, _>>()?;
    let mut conditions = Vec::with_capacity(report.conditions.len());
    for mut condition in report.conditions {
        condition.age_ms = condition.age_ms.min(u64::try_from(AGE_MAX.as_millis()).unwrap_or(u64::MAX));
        for words in [&mut condition.device, &mut condition.reason, &mut condition.message] {
            *words = text(words);
        }
        // One that cannot be read must not silence those beside it.
        match map::condition(&condition, now) {
            Ok(condition) => conditions.push(condition),
            Err(err) => tracing::debug!(node_id = %session.node_id, err = %err, "condition left out"),
        }
    }
    Ok(ReportedStatus {
        session,
        applied_generation: report.applied_generation,
        observed_generation: report.observed_generation,
        applied_spec_hash: text(&report.applied_spec_hash),
        sections: Value::Array(sections),
        conditions,
        pressure: report.pressure.map(pressure),
        trust_version: report.trust_version,
        status_key,
    })
}

/// A hash of what somebody has to look at: the conditions, without their ages. What was applied, of which there is another
/// with every reservation, is only kept.
fn status_key(report: &StatusReport) -> String {
    let mut bare = StatusReport { conditions: report.conditions.clone(), ..StatusReport::default() };
    bare.conditions.iter_mut().for_each(|condition| condition.age_ms = 0);
    hex::encode(&Sha256::digest(bare.encode_to_vec())[..16])
}

fn section(status: &SectionStatus) -> Result<Value, Violation> {
    let state = map::section_state(status.state)
        .ok_or(Violation { frame: "status report", field: "section state" })?;
    let known = Section::ALL.into_iter().find(|section| section.number() == status.section);
    let name = known.map_or_else(|| status.section.to_string(), |section| section.name().to_owned());
    Ok(json!({
        "section": name,
        "state": state.name(),
        "generation": status.generation,
        "reason": text(&status.reason),
        "message": text(&status.message),
    }))
}

fn pressure(pressure: Pressure) -> Value {
    json!({
        "cpuSomeAvg10": pressure.cpu_some_avg10,
        "memorySomeAvg10": pressure.memory_some_avg10,
        "memoryFullAvg10": pressure.memory_full_avg10,
        "ioSomeAvg10": pressure.io_some_avg10,
        "ioFullAvg10": pressure.io_full_avg10,
        "steal": pressure.steal,
    })
}

/// The sections of a report that hold what they say. One that does not is left out: it is asked for again when its hash is
/// next compared, and a daemon that cannot encode its inventory still takes commands.
pub(super) fn inventory(
    report: InventoryReport,
    session: SessionKey,
) -> Result<Vec<ReportedSection>, Violation> {
    const FRAME: &str = "inventory report";
    bound(report.sections.len() <= INVENTORY_SECTIONS_MAX, FRAME, "sections")?;
    let mut sections: Vec<ReportedSection> = Vec::with_capacity(report.sections.len());
    for section in report.sections {
        bound(section.json.len() <= INVENTORY_SECTION_BYTES_MAX, FRAME, "json")?;
        // A section of a newer daemon.
        let Ok(name) = section.name.parse::<SectionName>() else { continue };
        bound(sections.iter().all(|other| other.section != section.name), FRAME, "name")?;
        let hash = SectionHash::of(&section.json).to_string();
        if hash != section.hash {
            tracing::warn!(node_id = %session.node_id, section = %name, "inventory section is not what its hash says");
            continue;
        }
        let content = inventory::decode(name, &section.json)
            .map_err(|err| kit::chain(&err))
            .and_then(|_| serde_json::from_slice(&section.json).map_err(|err| err.to_string()));
        match content {
            Ok(content) => sections.push(ReportedSection { section: section.name, hash, content }),
            Err(err) => {
                tracing::warn!(node_id = %session.node_id, section = %name, err, "inventory section refused");
            }
        }
    }
    Ok(sections)
}
