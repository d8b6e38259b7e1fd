//! The engine's state for people: what `bcd status` shows, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use wire::proto::agent::SectionStatus;

use super::Engine;
use crate::clock::Now;
use crate::session::Phase;

/// What `bcd status` shows, as JSON.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusView {
    pub node_id: String,
    pub site_id: String,
    pub role: String,
    pub boot_id: String,
    pub agent_version: String,
    pub session: SessionView,
    pub applied_generation: u64,
    pub observed_generation: u64,
    pub deployment_epoch: u64,
    pub sections: Vec<SectionView>,
    pub conditions: Vec<ConditionView>,
    pub running: Vec<RunningView>,
    pub deferred_commands: usize,
    pub lane_credits: BTreeMap<String, u32>,
    pub journal: JournalView,
    pub certificate_not_after: String,
    pub trust_version: u64,
    pub intent_enforced: bool,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// `open`, `greeting`, `dialing` or `waiting`.
    pub state: String,
    pub epoch: u64,
    /// Server time less this machine's wall clock, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    pub last_end: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SectionView {
    pub section: String,
    pub state: String,
    pub generation: u64,
    pub reason: String,
    pub message: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    pub kind: String,
    pub severity: String,
    pub device: String,
    pub reason: String,
    pub message: String,
    pub age_ms: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningView {
    pub command_id: String,
    pub kind: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalView {
    pub id: String,
    pub bytes_used: usize,
    pub event_backlog: usize,
    pub last_event_seq: u64,
    pub acked_event_seq: u64,
    pub unacked_results: usize,
}

impl Engine {
    /// For `bcd status`.
    pub fn view(&self, now: Now) -> StatusView {
        StatusView {
            node_id: self.node.node_id.to_string(),
            site_id: self.node.site_id.to_string(),
            role: self.node.role.name().to_owned(),
            boot_id: self.node.boot_id.clone(),
            agent_version: self.node.agent_version.clone(),
            session: self.session_view(now),
            applied_generation: self.held.as_ref().map_or(0, |held| held.generation),
            observed_generation: self.status.observed_generation,
            deployment_epoch: self.journal.marks().deployment_epoch,
            sections: self.status.sections.values().map(section_view).collect(),
            conditions: self.conditions.render(now.monotonic).into_iter().map(condition_view).collect(),
            running: self
                .dispatcher
                .running()
                .map(|(id, kind)| RunningView { command_id: id.to_string(), kind: kind.name().to_owned() })
                .collect(),
            deferred_commands: self.dispatcher.deferred(),
            lane_credits: self.dispatcher.credits(),
            journal: JournalView {
                id: self.journal.id().to_string(),
                bytes_used: self.journal.bytes_used(),
                event_backlog: self.journal.event_backlog(),
                last_event_seq: self.journal.last_seq(),
                acked_event_seq: self.journal.acked_seq(),
                unacked_results: self.journal.unacked_results().count(),
            },
            certificate_not_after: self.certificate.ends.to_string(),
            trust_version: self.trust.version,
            intent_enforced: true,
        }
    }

    fn session_view(&self, now: Now) -> SessionView {
        let state = match self.session.phase() {
            Phase::Open => "open",
            Phase::Greeting { .. } => "greeting",
            Phase::Dialing => "dialing",
            Phase::Waiting { .. } => "waiting",
        };
        SessionView {
            state: state.to_owned(),
            epoch: self.session.epoch(),
            clock_offset_ms: self.clock.now(now).map(|server| server.millis() - now.wall.millis()),
            last_end: self.session.last_end().to_owned(),
        }
    }
}

fn section_view(status: &SectionStatus) -> SectionView {
    let known = model::Section::ALL.into_iter().find(|section| section.number() == status.section);
    let state = wire::map::section_state(status.state).map_or("UNKNOWN", model::SectionState::name);
    SectionView {
        section: known.map_or_else(|| status.section.to_string(), |section| section.name().to_owned()),
        state: state.to_owned(),
        generation: status.generation,
        reason: status.reason.clone(),
        message: status.message.clone(),
    }
}

fn condition_view(condition: wire::proto::common::Condition) -> ConditionView {
    ConditionView {
        kind: condition.kind,
        severity: condition.severity,
        device: condition.device,
        reason: condition.reason,
        message: condition.message,
        age_ms: condition.age_ms,
    }
}
