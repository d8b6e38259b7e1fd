//! What the engine reports: the outcome of passes, events, and the coalesced status.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::mutant;
use pki::Purpose;
use prost::Message;
use wire::limits::{EVENTS_PER_BATCH_MAX, REPORT_BYTES_MAX};
use wire::map::section_state_to_wire;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{NodeReport, SectionStatus, StatusReport, node_report};

use super::Engine;
use crate::clock::Now;
use crate::conditions::Source;
use crate::converge::{PassReport, Report};
use crate::desired::HeldSpec;
use crate::dispatch::update::node_signature;
use crate::effect::Outgoing;
use crate::journal::NewEvent;

/// No two reports are closer than this; what changes in between goes with the next.
const STATUS_PERIOD_MIN: Duration = Duration::from_secs(1);
/// And none is further apart, so that gauges and ages stay current.
const STATUS_PERIOD_MAX: Duration = Duration::from_secs(30);

/// Where the node stands, and when it last said so.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub observed_generation: u64,
    pub last_tick: Duration,
    pub sections: BTreeMap<u32, SectionStatus>,
    dirty: bool,
    last_sent: Option<Duration>,
    /// A bundle taken and not yet told of.
    trust_version: u64,
}

impl Status {
    pub fn changed(&mut self) {
        self.dirty = true;
    }

    pub fn trust_taken(&mut self, version: u64) {
        self.trust_version = version;
        self.dirty = true;
    }

    /// A new generation has converged nothing yet.
    pub fn took_spec(&mut self, held: &HeldSpec) {
        for status in self.sections.values_mut().filter(|status| status.generation < held.generation) {
            status.set_state(wire::proto::agent::SectionState::Progressing);
        }
        self.dirty = true;
    }
}

impl Engine {
    /// Journals what a pass reported before its states are told, and moves the observed generation when all settled.
    pub(super) fn passed(&mut self, mut pass: PassReport, now: Now) {
        self.want_secrets(pass.take_secrets(), now);
        let Some(held) = self.held.as_ref().filter(|held| held.generation == pass.generation) else {
            // A newer spec was taken meanwhile, but what happened on the machine happened.
            self.journal_reports(pass, now);
            return;
        };
        let generation = held.generation;
        let settled = pass.settled() || mutant::on("agent.observed-unsettled");
        let mut sections = BTreeMap::new();
        for (number, report) in &pass.sections {
            let status = SectionStatus {
                section: *number,
                state: section_state_to_wire(report.state).into(),
                generation,
                reason: crate::conditions::cut(&report.reason),
                message: crate::conditions::cut(&report.message),
            };
            sections.insert(*number, status);
            if self.conditions.set(Source::Section(*number), report.conditions.clone(), now.monotonic) {
                self.status.dirty = true;
            }
        }
        self.conditions.keep_sections(|number| sections.contains_key(&number));
        if self.status.sections != sections {
            self.status.sections = sections;
            self.status.dirty = true;
        }
        if settled && self.status.observed_generation != generation {
            self.status.observed_generation = generation;
            self.status.dirty = true;
        }
        self.journal_reports(pass, now);
    }

    fn journal_reports(&mut self, pass: PassReport, now: Now) {
        for report in pass.sections.into_values().flat_map(|section| section.reports) {
            self.journal_report(report, now);
        }
    }

    fn journal_report(&mut self, report: Report, now: Now) {
        let attested = is_attested(&report.body);
        let body = NodeReport { node_id: self.node.node_id.to_string(), report: Some(report.body) };
        let bytes = body.encode_to_vec();
        if bytes.len() > REPORT_BYTES_MAX {
            tracing::error!(bytes = bytes.len(), "report is too large to send, dropped");
            return;
        }
        let signature = attested.then(|| node_signature(&self.key, Purpose::AttestedReport, &bytes));
        let signature = signature.unwrap_or_default();
        let event = NewEvent {
            class: report.class,
            report: bytes.into(),
            signature: signature.value,
            key_sha256: signature.key_sha256,
        };
        let at = self.clock.estimate(now, self.journal.marks().server_time_ms);
        self.journal.append(event, at);
    }

    pub(super) fn send_events(&mut self) {
        let batch = EVENTS_PER_BATCH_MAX as u64;
        while let Some((after, through)) =
            self.session.next_events(self.journal.acked_seq(), self.journal.last_seq(), batch)
        {
            self.send(Outgoing::Events { after, through });
        }
    }

    /// When a status is due.
    pub(super) fn status_deadline(&self) -> Option<Duration> {
        if !self.session.is_open() {
            return None;
        }
        let wait = if self.status.dirty { STATUS_PERIOD_MIN } else { STATUS_PERIOD_MAX };
        Some(self.status.last_sent.map_or(Duration::ZERO, |sent| sent + wait))
    }

    pub(super) fn send_status(&mut self, now: Now) {
        if self.status_deadline().is_none_or(|due| due > now.monotonic) {
            return;
        }
        self.status.dirty = false;
        self.status.last_sent = Some(now.monotonic);
        let report = StatusReport {
            node_id: self.node.node_id.to_string(),
            applied_generation: self.held.as_ref().map_or(0, |held| held.generation),
            observed_generation: self.status.observed_generation,
            applied_spec_hash: self.held.as_ref().map(|held| held.hash.clone()).unwrap_or_default(),
            sections: self.status.sections.values().cloned().collect(),
            conditions: self.conditions.render(now.monotonic),
            pressure: self.pressure,
            trust_version: std::mem::take(&mut self.status.trust_version),
        };
        self.send(Outgoing::frame(Frame::Status(report)));
    }
}

/// Reports that a worker believes only with the node's own signature.
fn is_attested(report: &node_report::Report) -> bool {
    match report {
        node_report::Report::AllocationBound(_)
        | node_report::Report::AllocationFailed(_)
        | node_report::Report::AllocationReleased(_)
        | node_report::Report::InstancesObserved(_) => true,
        node_report::Report::ConditionChanged(_) => false,
    }
}
