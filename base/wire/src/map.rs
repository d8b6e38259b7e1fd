//! Between the model's closed sets and their wire numbers and names.

use model::lifecycle::CommandEvent;
use model::{Condition, SectionState, Timestamp, condition::Severity};

use crate::DecodeError;
use crate::limits::TEXT_BYTES_MAX;
use crate::proto::{agent, common};

/// What a reported command state does to the stored one. `None` for a number this build does not know.
pub fn command_event(state: i32) -> Option<CommandEvent> {
    match agent::CommandState::try_from(state).ok()? {
        agent::CommandState::Unspecified => None,
        agent::CommandState::Acked => Some(CommandEvent::Acked),
        agent::CommandState::Running => Some(CommandEvent::Running),
        agent::CommandState::Succeeded => Some(CommandEvent::Succeeded),
        agent::CommandState::Failed => Some(CommandEvent::Failed),
        agent::CommandState::Rejected => Some(CommandEvent::Rejected),
        agent::CommandState::Cancelled => Some(CommandEvent::Cancelled),
        agent::CommandState::Busy => Some(CommandEvent::Busy),
    }
}

pub fn section_state(state: i32) -> Option<SectionState> {
    match agent::SectionState::try_from(state).ok()? {
        agent::SectionState::Unspecified => None,
        agent::SectionState::Converged => Some(SectionState::Converged),
        agent::SectionState::Progressing => Some(SectionState::Progressing),
        agent::SectionState::Failed => Some(SectionState::Failed),
        agent::SectionState::Unsupported => Some(SectionState::Unsupported),
    }
}

pub fn section_state_to_wire(state: SectionState) -> agent::SectionState {
    match state {
        SectionState::Converged => agent::SectionState::Converged,
        SectionState::Progressing => agent::SectionState::Progressing,
        SectionState::Failed => agent::SectionState::Failed,
        SectionState::Unsupported => agent::SectionState::Unsupported,
    }
}

/// A reported condition, dated on the receiver's clock: `now` less the reported age.
pub fn condition(reported: &common::Condition, now: Timestamp) -> Result<Condition, DecodeError> {
    const WHAT: &str = "condition";
    let texts = [&reported.kind, &reported.device, &reported.reason, &reported.message];
    if texts.iter().any(|text| text.len() > TEXT_BYTES_MAX) {
        return Err(DecodeError::Invalid { what: WHAT, field: "text" });
    }
    if reported.kind.is_empty() || !reported.kind.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(DecodeError::Invalid { what: WHAT, field: "kind" });
    }
    let severity =
        Severity::parse(&reported.severity).ok_or(DecodeError::Invalid { what: WHAT, field: "severity" })?;
    Ok(Condition {
        kind: reported.kind.clone(),
        severity,
        device: reported.device.clone(),
        reason: reported.reason.clone(),
        message: reported.message.clone(),
        since: now.saturating_sub(std::time::Duration::from_millis(reported.age_ms)),
    })
}
