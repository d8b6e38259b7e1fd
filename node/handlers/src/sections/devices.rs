//! Holds: which allocation has which GPUs of this machine, or CPU and memory of it alone.
//!
//! ```text
//!   HELD entry ──▶ slice with limits ──▶ env file ──▶ CDI spec file ──▶ AllocationBound
//!   RELEASED entry ──▶ CDI spec gone ──▶ env file gone ──▶ AllocationReleased      (slice: once it is empty)
//!   no entry ──▶ kept, condition UnlistedHold
//! ```
//!
//! The CDI spec file is the hold: it is written last and removed first, and every pass reads the holds back from the
//! files. So a crash at any point leaves either no hold, or one whose report is still owed; the first pass of a process
//! reports again all that holds.

mod admission;
pub mod cdi;
pub(crate) mod desired;
pub mod observe;
mod plan;
mod record;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use agent::converge::{ConvergeContext, Converger, Fact, Report, SectionReport};
use futures::future::BoxFuture;
use model::condition::Severity;
use model::{AllocationId, Section, SectionState};
use wire::proto::agent::node_report::Report as Body;
use wire::proto::agent::{AllocationBound, AllocationFailed, AllocationReleased, EventClass, NodeSpec};

use crate::files::{Files, HostFile};
use crate::slices::{Removal, Slices};
use desired::Desired;
use observe::Observed;
use plan::{Plan, Step, Verdict};
use record::{Failures, Reason};

pub use observe::{Holds, HoldsError, LiveHolds};

/// Advertised: a hold may be a Kubernetes node's.
pub const CAPABILITY_KUBERNETES: &str = "binding.kubernetes";
/// Advertised where limits can be kept: a hold may be of CPU and memory alone.
pub const CAPABILITY_HOST_ONLY: &str = "devices.host-only";

/// What is told that GPUs came free.
pub type Freed = Box<dyn Fn() + Send + Sync>;

pub struct Devices {
    files: Arc<dyn Files>,
    slices: Arc<dyn Slices>,
    hardware: Arc<dyn hw::Hardware>,
    holds: Holds,
    failures: Failures,
    /// Called when GPUs came free: whoever used them may have left them broken.
    freed: Freed,
    /// What this process reported. The agent journals a report after the pass that makes it, so a new process starts
    /// with nothing reported and says everything that holds again.
    reported: BTreeSet<(AllocationId, Told)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Bound,
    Released,
    Failed(Reason),
}

impl Devices {
    /// `record` is a file of the daemon's own, for what failed at which generation.
    pub fn new(
        files: Arc<dyn Files>,
        slices: Arc<dyn Slices>,
        hardware: Arc<dyn hw::Hardware>,
        holds: Holds,
        record: PathBuf,
        freed: Freed,
    ) -> Self {
        let failures = Failures::at(record);
        Self { files, slices, hardware, holds, failures, freed, reported: BTreeSet::new() }
    }

    async fn pass(&mut self, spec: &NodeSpec, context: &ConvergeContext) -> SectionReport {
        // Held through the pass: a GPU reset must not fall between two of its steps.
        let holds = self.holds.clone();
        let _held = holds.lock().await;
        let section = spec.devices.clone().unwrap_or_default();
        let desired = desired::parse(&section);
        // Taken for the pass: one that does not come to its end has reported nothing.
        let mut reported = std::mem::take(&mut self.reported);
        reported.retain(|(allocation, _)| !context.first_pass && desired.names(*allocation));
        let mut pass = Pass::new(context, reported);
        let files = match observe::hold_files(&*self.files).await {
            Ok(files) => files,
            Err(err) => {
                pass.wait("HoldsUnreadable", kit::chain(&err));
                self.reported = std::mem::take(&mut pass.reported);
                return pass.finish(&desired, &[]);
            }
        };
        let mut observed =
            observe::everything(files, &desired, &*self.files, &*self.slices, &*self.hardware).await;
        if let Err(err) = self.failures.keep(|allocation| desired.names(allocation)) {
            pass.wait("RecordUnwritable", kit::chain(&err));
        }
        self.release(&desired, &mut observed, &mut pass).await;
        self.hold(&desired, &mut observed, &mut pass).await;
        self.sweep_slices(&desired, &observed).await;
        self.reported = std::mem::take(&mut pass.reported);
        pass.finish(&desired, &observed.unlisted(&desired))
    }

    async fn release(&mut self, desired: &Desired, observed: &mut Observed, pass: &mut Pass<'_>) {
        for allocation in &desired.released {
            if pass.stopped() {
                return;
            }
            let mut gone = true;
            for step in plan::release(*allocation, observed) {
                if let Err(problem) = self.apply(*allocation, &step, observed).await {
                    pass.wait("ReleaseFailed", format!("{allocation}: {problem}"));
                    gone = false;
                    break;
                }
            }
            if gone {
                pass.reported.remove(&(*allocation, Told::Bound));
                pass.tell(*allocation, Told::Released, |generation| {
                    Body::AllocationReleased(AllocationReleased {
                        allocation_id: allocation.to_string(),
                        generation,
                    })
                });
            }
        }
    }

    async fn hold(&mut self, desired: &Desired, observed: &mut Observed, pass: &mut Pass<'_>) {
        for (allocation, wanted) in &desired.held {
            if pass.stopped() {
                return;
            }
            let failed = self.failures.at_generation(*allocation, pass.context.generation);
            let Plan { steps, verdict, warning } = match failed {
                // Terminal at this generation: what changed since does not count until somebody asks again.
                Some(failure) => Plan::failed(failure.reason, failure.message.clone()),
                None => plan::hold(*allocation, wanted, desired, observed),
            };
            if let Some(warning) = warning {
                tracing::warn!(allocation_id = %allocation, reason = warning, "hold admitted unchecked");
            }
            match verdict {
                Verdict::Held => {}
                Verdict::Wait { reason, message } => {
                    pass.wait(reason, format!("{allocation}: {message}"));
                    continue;
                }
                Verdict::Differs(message) => {
                    pass.fail("HoldDiffers", format!("{allocation}: {message}"));
                    continue;
                }
                Verdict::Failed { reason, message } => {
                    self.failed(*allocation, reason, message, pass);
                    continue;
                }
            }
            let mut done = true;
            for step in &steps {
                if let Err(problem) = self.apply(*allocation, step, observed).await {
                    pass.wait("BindFailed", format!("{allocation}: {problem}"));
                    done = false;
                    break;
                }
            }
            if done {
                pass.reported.remove(&(*allocation, Told::Released));
                pass.tell(*allocation, Told::Bound, |generation| {
                    Body::AllocationBound(AllocationBound {
                        allocation_id: allocation.to_string(),
                        generation,
                        cdi_devices: cdi::devices(*allocation, &wanted.atoms),
                        atoms: wanted.atoms.clone(),
                    })
                });
            }
        }
    }

    /// Recorded before it is reported: the same process or the next one must not bind at this generation what the
    /// control plane heard has failed.
    fn failed(&mut self, allocation: AllocationId, reason: Reason, message: String, pass: &mut Pass<'_>) {
        if let Err(err) = self.failures.record(allocation, pass.context.generation, reason, &message) {
            pass.wait("RecordUnwritable", kit::chain(&err));
            return;
        }
        pass.fail(reason.name(), format!("{allocation}: {message}"));
        // Whatever was released before: the release of this attempt is news again.
        pass.reported.remove(&(allocation, Told::Released));
        pass.tell(allocation, Told::Failed(reason), |generation| {
            Body::AllocationFailed(AllocationFailed {
                allocation_id: allocation.to_string(),
                generation,
                reason: reason.name().into(),
                message,
            })
        });
    }

    /// Does one step, and keeps what was observed true to it.
    async fn apply(
        &self,
        allocation: AllocationId,
        step: &Step,
        observed: &mut Observed,
    ) -> Result<(), String> {
        let failed = |err: &(dyn std::error::Error + 'static)| kit::chain(err);
        match step {
            Step::ApplySlice(limits) => {
                self.slices.apply(allocation, limits).await.map_err(|err| failed(&err))
            }
            Step::WriteEnv(text) => {
                let file = HostFile::AllocationEnv(allocation);
                self.files.write(&file, text.clone().into()).await.map_err(|err| failed(&err))
            }
            Step::WriteCdi(bytes) => {
                let file = HostFile::Cdi(allocation);
                self.files.write(&file, bytes.clone()).await.map_err(|err| failed(&err))?;
                observed.holds.insert(&file.name(), bytes);
                tracing::info!(allocation_id = %allocation, "hold written");
                Ok(())
            }
            Step::RemoveCdi => {
                let file = HostFile::Cdi(allocation);
                let hold = observed.holds.of(allocation).and_then(|file| file.hold.as_ref().ok());
                let had_gpus = hold.is_none_or(|hold| !hold.is_host());
                self.files.remove(&file).await.map_err(|err| failed(&err))?;
                observed.holds.remove(&file.name());
                if had_gpus {
                    (self.freed)();
                }
                tracing::info!(allocation_id = %allocation, "hold released");
                Ok(())
            }
            Step::RemoveEnv => {
                let file = HostFile::AllocationEnv(allocation);
                self.files.remove(&file).await.map_err(|err| failed(&err))
            }
        }
    }

    /// Tries to take away the slices nobody holds. One in use stays, and is tried again by every pass: a release never
    /// ends a workload.
    async fn sweep_slices(&self, desired: &Desired, observed: &Observed) {
        let Ok(slices) = &observed.slices else { return };
        for allocation in slices {
            let gone = !desired.names(*allocation) || desired.released.contains(allocation);
            if !gone || observed.holds.of(*allocation).is_some() {
                continue;
            }
            match self.slices.remove(*allocation).await {
                Ok(Removal::Gone) => tracing::info!(allocation_id = %allocation, "slice removed"),
                Ok(Removal::InUse) => {
                    tracing::debug!(allocation_id = %allocation, "slice kept, it is in use")
                }
                Err(err) => tracing::warn!(
                    allocation_id = %allocation, err = %kit::chain(&err), "slice not removed"
                ),
            }
        }
    }
}

impl Converger for Devices {
    fn section(&self) -> Section {
        Section::Devices
    }

    fn converge<'a>(
        &'a mut self,
        spec: &'a NodeSpec,
        context: &'a ConvergeContext,
    ) -> BoxFuture<'a, SectionReport> {
        Box::pin(self.pass(spec, context))
    }
}

/// What a pass has come to so far.
struct Pass<'a> {
    context: &'a ConvergeContext,
    waiting: Vec<(String, String)>,
    failed: Vec<(String, String)>,
    reported: BTreeSet<(AllocationId, Told)>,
    reports: Vec<Report>,
}

impl<'a> Pass<'a> {
    fn new(context: &'a ConvergeContext, reported: BTreeSet<(AllocationId, Told)>) -> Self {
        Self { context, waiting: Vec::new(), failed: Vec::new(), reported, reports: Vec::new() }
    }

    /// Reports a transition that this process has not reported yet.
    fn tell(&mut self, allocation: AllocationId, told: Told, body: impl FnOnce(u64) -> Body) {
        if self.reported.insert((allocation, told)) {
            self.reports.push(Report { class: EventClass::Transition, body: body(self.context.generation) });
        }
    }

    fn stopped(&mut self) -> bool {
        let stopped = self.context.cancel.is_cancelled();
        if stopped {
            self.wait("Stopping", "the daemon is stopping".into());
        }
        stopped
    }

    fn wait(&mut self, reason: &str, message: String) {
        self.waiting.push((reason.into(), message));
    }

    fn fail(&mut self, reason: &str, message: String) {
        self.failed.push((reason.into(), message));
    }

    /// What can still come right keeps the section PROGRESSING; what cannot fails it at this generation.
    fn finish(mut self, desired: &Desired, unlisted: &[Fact]) -> SectionReport {
        for (entry, problem) in &desired.invalid {
            self.fail("InvalidAssignment", format!("{entry}: {problem}"));
        }
        let (state, problems) = match (self.waiting.is_empty(), self.failed.is_empty()) {
            (false, _) => (SectionState::Progressing, self.waiting),
            (true, false) => (SectionState::Failed, self.failed.clone()),
            (true, true) => (SectionState::Converged, Vec::new()),
        };
        let reason = problems.first().map(|(reason, _)| reason.clone()).unwrap_or_default();
        let message: Vec<_> = problems.into_iter().map(|(_, message)| message).collect();
        let mut conditions = unlisted.to_vec();
        conditions.extend(desired.invalid.iter().map(|(entry, problem)| Fact {
            kind: "InvalidAssignment".into(),
            severity: Severity::Warning,
            device: String::new(),
            reason: entry.clone(),
            message: problem.clone(),
            age: None,
        }));
        SectionReport {
            conditions,
            reports: self.reports,
            ..SectionReport::of(state).with_reason(reason, message.join("; "))
        }
    }
}

#[cfg(test)]
mod tests;
