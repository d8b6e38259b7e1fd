//! Bringing the machine to its spec: the sections in order, each by its converger, as one idempotent pass.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use model::condition::Severity;
use model::{NodeId, Section, SectionState};
use tokio_util::sync::CancellationToken;
use wire::proto::agent::{EventClass, NodeSpec, node_report};

use crate::desired::HeldSpec;
use crate::secrets::{Desk, SecretWanted};

/// How often the machine is compared with its spec though nothing says that it drifted.
pub const DRIFT_PERIOD: Duration = Duration::from_secs(10 * 60);
/// How soon a pass that left something PROGRESSING is made again.
pub const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// The reason of a section that something else manages: UNSUPPORTED without a condition.
pub const HOST_MANAGED_EXTERNALLY: &str = "HostManagedExternally";

/// A named fact about the machine that a person or a placer must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// CamelCase.
    pub kind: String,
    pub severity: Severity,
    /// A device, or empty for the node.
    pub device: String,
    pub reason: String,
    pub message: String,
    /// How long it has held, where the reporter knows; else it counts from when the agent first saw it.
    pub age: Option<Duration>,
}

/// Something that happened, to be journaled and delivered at least once.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub class: EventClass,
    pub body: node_report::Report,
}

/// What one section came to in one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct SectionReport {
    pub state: SectionState,
    /// One stable word, empty when converged.
    pub reason: String,
    pub message: String,
    /// The full set for this section: what is missing is gone.
    pub conditions: Vec<Fact>,
    /// Journaled before the state of this pass is reported.
    pub reports: Vec<Report>,
    /// What the section waits to be told.
    pub secrets: Vec<SecretWanted>,
}

impl SectionReport {
    pub fn of(state: SectionState) -> Self {
        Self {
            state,
            reason: String::new(),
            message: String::new(),
            conditions: Vec::new(),
            reports: Vec::new(),
            secrets: Vec::new(),
        }
    }

    pub fn converged() -> Self {
        Self::of(SectionState::Converged)
    }

    pub fn with_reason(mut self, reason: impl Into<String>, message: impl Into<String>) -> Self {
        self.reason = reason.into();
        self.message = message.into();
        self
    }
}

/// What a pass is about.
#[derive(Debug, Clone)]
pub struct ConvergeContext {
    pub node_id: NodeId,
    pub generation: u64,
    pub boot_id: String,
    /// True in the first pass of a process that got this far with the section.
    pub first_pass: bool,
    /// The agent is stopping: return at the next safe point, PROGRESSING.
    pub cancel: CancellationToken,
    /// What was told of the secrets that earlier passes asked for.
    pub secrets: Desk,
}

/// Declares a whole spec invalid, before any of it is taken. A plain function, so that it cannot look at the machine.
#[derive(Debug, Clone, Copy)]
pub struct Validator {
    pub section: Section,
    pub check: fn(&NodeSpec, NodeId) -> Result<(), String>,
}

/// Brings one section about. Adding one: implement this and hand it to the agent's parts.
pub trait Converger: Send {
    fn section(&self) -> Section;

    /// Looks at the machine, plans and applies, and says what it came to. Idempotent: a pass over a converged machine
    /// changes nothing. Called for an empty section too, whose lists ask for nothing.
    ///
    /// Reports are journaled after this returns, and a crash before that loses them. With `first_pass` a converger
    /// therefore reports again everything that holds; receivers take a repeated report for what it is.
    fn converge<'a>(
        &'a mut self,
        spec: &'a NodeSpec,
        context: &'a ConvergeContext,
    ) -> BoxFuture<'a, SectionReport>;

    /// What makes a whole spec unacceptable, if anything can.
    fn validator(&self) -> Option<Validator> {
        None
    }
}

/// What a pass came to.
#[derive(Debug, Clone, PartialEq)]
pub struct PassReport {
    pub generation: u64,
    /// In converge order, the unknown ones last. The key is the field number.
    pub sections: BTreeMap<u32, SectionReport>,
}

impl PassReport {
    /// Every section converged, or failed for good at this generation.
    pub fn settled(&self) -> bool {
        self.sections.values().all(|report| report.state.settled())
    }

    /// What its sections wait to be told.
    pub fn take_secrets(&mut self) -> Vec<SecretWanted> {
        self.sections.values_mut().flat_map(|report| std::mem::take(&mut report.secrets)).collect()
    }
}

/// One pass over every section. A section that fails never holds back the next.
pub async fn pass(
    convergers: &mut [Box<dyn Converger>],
    held: &HeldSpec,
    context: &ConvergeContext,
) -> PassReport {
    let mut sections = BTreeMap::new();
    for section in Section::ALL {
        let converger = convergers.iter_mut().find(|converger| converger.section() == section);
        let report = match converger {
            Some(converger) => guarded(converger.as_mut(), &held.spec, context).await,
            None if wire::spec::section_is_empty(&held.spec, section) => SectionReport::converged(),
            None => unsupported(section.number()),
        };
        sections.insert(section.number(), report);
    }
    for number in &held.unknown {
        sections.insert(*number, unsupported(*number));
    }
    PassReport { generation: held.generation, sections }
}

/// A converger that panics costs its section this pass, not the machine its daemon.
async fn guarded(converger: &mut dyn Converger, spec: &NodeSpec, context: &ConvergeContext) -> SectionReport {
    let section = converger.section();
    let converged = std::panic::AssertUnwindSafe(converger.converge(spec, context)).catch_unwind().await;
    converged.unwrap_or_else(|_| {
        tracing::error!(section = section.name(), "converger panicked");
        SectionReport::of(SectionState::Progressing)
            .with_reason("Internal", "the converger failed; see the log")
    })
}

fn unsupported(number: u32) -> SectionReport {
    let message = format!("this daemon has no converger for section {number}");
    let condition = Fact {
        kind: "SectionUnsupported".into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: number.to_string(),
        message: message.clone(),
        age: None,
    };
    SectionReport {
        state: SectionState::Unsupported,
        reason: number.to_string(),
        message,
        conditions: vec![condition],
        reports: Vec::new(),
        secrets: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
