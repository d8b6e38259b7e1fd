//! What nodes say, and what stores answer, in words that both have.

use std::collections::BTreeMap;

use kernel::ports::delivery::{
    HelloFacts, ReportedEvent, ReportedEvents, ReportedUpdate, SessionKey, SessionOpened,
};
use model::lifecycle::CommandEvent;
use model::{CommandId, IncarnationId, Timestamp};
use uuid::Uuid;
use wire::proto::agent::CommandState as Wire;

use super::side::{journal_id, node_id, serial};
use super::step::{Batch, Hello, Update};

pub fn facts(hello: &Hello, newest: &BTreeMap<u8, u64>) -> HelloFacts {
    let (node, newest) = (node_id(hello.node), newest.get(&hello.node).copied().unwrap_or(0));
    HelloFacts {
        node_id: node,
        cert_serial: serial(hello.node, hello.cert),
        journal_id: journal_id(node, hello.journal),
        incarnation_id: IncarnationId::from_uuid(Uuid::from_u128(9)),
        boot_id: format!("boot-{}", hello.boot),
        agent_version: "1.2.3".to_owned(),
        protocol: 1,
        capabilities: vec!["devices.limits".to_owned()],
        trust_version: u64::from(hello.trust),
        applied_generation: newest.saturating_add_signed(-i64::from(hello.behind)),
        observed_generation: u64::from(hello.observed),
        applied_spec_hash: String::new(),
        deployment_epoch: 1 + u64::from(hello.ahead_of_epoch),
        applied_spec: None,
        inventory_hashes: hello
            .inventory
            .iter()
            .map(|(section, hash)| (name(*section), name(*hash)))
            .collect(),
        in_flight: Vec::new(),
    }
}

pub fn name(number: u8) -> String {
    format!("n{number}")
}

/// All but the epoch, which only its own store knows.
pub fn told_opened(opened: &SessionOpened) -> String {
    let SessionOpened {
        session_epoch: _,
        deployment_epoch,
        server_time,
        generation,
        acked_event_seq,
        inventory_sections,
        trust_bundle,
        replay,
    } = opened;
    format!(
        "epoch {deployment_epoch} at {server_time}, spec {generation}, events {acked_event_seq}, wants {inventory_sections:?}, \
         trust {trust_bundle:?}, again {replay:?}"
    )
}

pub fn reported(session: SessionKey, command_id: CommandId, update: &Update) -> ReportedUpdate {
    let (state, event) = [
        (Wire::Acked, CommandEvent::Acked),
        (Wire::Running, CommandEvent::Running),
        (Wire::Succeeded, CommandEvent::Succeeded),
        (Wire::Failed, CommandEvent::Failed),
        (Wire::Rejected, CommandEvent::Rejected),
        (Wire::Cancelled, CommandEvent::Cancelled),
        (Wire::Busy, CommandEvent::Busy),
    ][usize::from(update.state)];
    ReportedUpdate {
        session,
        command_id,
        wire_state: state.into(),
        event,
        result: Some(vec![update.state, update.boot]),
        signature: Some(vec![7; 64]),
        key_sha256: Some(vec![8; 32]),
        reason: format!("reason {}", update.state),
        message: "a message".to_owned(),
        boot_id: format!("boot-{}", update.boot),
    }
}

/// Each node once, since its events come one batch after the other.
pub fn events_of(batches: &[Batch], session: impl Fn(u8) -> SessionKey) -> Vec<ReportedEvents> {
    let mut each: Vec<ReportedEvents> = Vec::new();
    for batch in batches {
        let session = session(batch.session);
        if !each.iter().any(|other| other.session.node_id == session.node_id) {
            let events = (0..batch.count).map(|at| event(u64::from(batch.from + 1 + at))).collect();
            each.push(ReportedEvents {
                session,
                journal_id: journal_id(session.node_id, batch.journal),
                events,
            });
        }
    }
    each
}

pub fn event(seq: u64) -> ReportedEvent {
    ReportedEvent {
        seq,
        class: 2,
        report: vec![1],
        signature: None,
        key_sha256: None,
        observed_at: Timestamp::from_millis(1_772_323_200_000),
    }
}
