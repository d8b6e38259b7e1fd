//! From what the engine wants said to the frames that say it. Bodies are read from the journal here, after the commit
//! that made them durable.

use bytes::Bytes;
use model::Timestamp;
use wire::limits::FRAME_BYTES_MAX;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{
    CommandUpdate, EventBatch, InventoryReport, InventorySection, NodeEvent, NodeFrame,
};
use wire::proto::common::{IntentSignature, NodeSignature};

use crate::effect::Outgoing;
use crate::hardware::Hardware;
use crate::journal::{JournalError, JournalStore, Stage, StoredEvent};

/// Event bodies in one batch: well under a frame.
const BATCH_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// The frames, in order. `now` is server time, for the ages of events.
pub fn render(
    outgoing: Outgoing,
    journal: &dyn JournalStore,
    hardware: &dyn Hardware,
    now: Timestamp,
) -> Result<Vec<NodeFrame>, JournalError> {
    match outgoing {
        Outgoing::Frame(frame) => Ok(vec![*frame]),
        Outgoing::Hello { mut hello, results } => {
            for id in results {
                hello.unacked_results.extend(result(journal, id)?);
            }
            if let Some(spec) = journal.spec()? {
                hello.applied_spec_body = spec.body;
                hello.applied_spec_signature = Some(IntentSignature { value: spec.signature });
            }
            Ok(vec![frame(Frame::Hello(*hello))])
        }
        Outgoing::Result(id) => {
            Ok(result(journal, id)?.map(|update| frame(Frame::CommandUpdate(update))).into_iter().collect())
        }
        Outgoing::Events { after, through } => events(journal, after, through, now),
        Outgoing::Inventory(names) => Ok(names.iter().filter_map(|name| inventory(hardware, name)).collect()),
    }
}

fn frame(frame: Frame) -> NodeFrame {
    NodeFrame { frame: Some(frame) }
}

fn result(journal: &dyn JournalStore, id: model::CommandId) -> Result<Option<CommandUpdate>, JournalError> {
    Ok(match journal.entry(id)?.map(|entry| entry.stage) {
        Some(Stage::Done { update }) => Some(*update),
        // Swept since it was asked for.
        Some(Stage::Accepted | Stage::Running { .. }) | None => None,
    })
}

/// Batches of events, as many as the bytes take.
fn events(
    journal: &dyn JournalStore,
    after: u64,
    through: u64,
    now: Timestamp,
) -> Result<Vec<NodeFrame>, JournalError> {
    let mut frames = Vec::new();
    let mut after = after;
    while after < through {
        let limit = usize::try_from(through - after).unwrap_or(usize::MAX);
        let mut stored = journal.events_after(after, limit, BATCH_BYTES_MAX)?;
        stored.retain(|event| event.seq <= through);
        let Some(last) = stored.last() else { break };
        after = last.seq;
        let events = stored.into_iter().map(|event| node_event(event, now)).collect();
        frames.push(frame(Frame::Events(EventBatch { journal_id: journal.id().to_string(), events })));
    }
    Ok(frames)
}

fn node_event(event: StoredEvent, now: Timestamp) -> NodeEvent {
    let signed = !event.signature.is_empty();
    NodeEvent {
        seq: event.seq,
        class: event.class.into(),
        report: event.report,
        signature: signed.then_some(NodeSignature { value: event.signature, key_sha256: event.key_sha256 }),
        age_ms: u64::try_from(now.since(event.at).as_millis()).unwrap_or(u64::MAX),
    }
}

/// One section a frame: two of the largest would not fit beside each other.
fn inventory(hardware: &dyn Hardware, name: &str) -> Option<NodeFrame> {
    let section = hardware.inventory_section(name)?;
    let json: Bytes = section.json;
    let section = InventorySection { name: name.to_owned(), hash: section.hash, json };
    Some(frame(Frame::Inventory(InventoryReport { sections: vec![section] })))
}
