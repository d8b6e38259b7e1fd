//! Instances of this host, brought to what the section says of each.
//!
//! ```text
//!   DELETED ──▶ destroyed ──▶ absent       STOPPED ──▶ made, or stopped ──▶ stopped
//!   RUNNING ──▶ made, started (anew, for a later `boot`) ──▶ running
//!   no entry ──▶ kept, condition UnlistedInstance
//! ```
//!
//! All that is to go or to stop does so before anything is made or started. What the hypervisor lists afterwards is what is
//! reported, by the revision of each entry; that nothing is left of one is said only of what was to go and is in no list.
//! The first pass of a process reports everything again.

mod boots;
pub mod fake;
pub mod gpus;
pub mod hosted;
pub mod plan;
pub mod port;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use agent::converge::{ConvergeContext, Converger, Fact, Report, SectionReport};
use agent::secrets::Desk;
use futures::future::BoxFuture;
use model::condition::Severity;
use model::{InstanceId, Section, SectionState};
use wire::limits::INSTANCES_PER_REPORT_MAX;
use wire::proto::agent::node_report::Report as Body;
use wire::proto::agent::{
    DesiredInstance, EventClass, InstanceObservedState as Seen, InstanceSpec, InstanceStatus,
    InstancesObserved, InstancesSection, NetworkPolicy, NodeSpec,
};

use super::devices::{cdi, desired};
use boots::Boots;
use plan::{Step, plan, seen, stop};
use port::{Held, Hypervisor, NO_USER_DATA, Power, Stopping, Told, Trouble, Unguarded};
use told::Telling;

/// What a host advertises for its hypervisor: the control plane puts instances of a driver where there is one.
fn capability(hypervisor: &dyn Hypervisor) -> String {
    format!("runtime.{}", hypervisor.id())
}

/// It sees to whom its instances speak with, or does not run them.
const NETWORK_POLICY: &str = "instance.network-policy";

/// It gives them the CPUs, memory and pages that their entries say, or does not run them.
const PLACEMENT: &str = "instance.placement";

/// It tells them their user data. A daemon of before makes them without.
const USER_DATA: &str = "instance.user-data";

/// It can hand them GPUs.
const GPUS: &str = "instance.gpus";

/// What a host advertises that runs instances.
pub fn capabilities(hypervisor: &dyn Hypervisor) -> Vec<String> {
    let gpus = hypervisor.hands_gpus().then(|| GPUS.to_owned());
    let all = [NETWORK_POLICY, PLACEMENT, USER_DATA].map(str::to_owned);
    [capability(hypervisor)].into_iter().chain(all).chain(gpus).collect()
}

pub struct Instances {
    hypervisor: Option<Arc<dyn Hypervisor>>,
    boots: Boots,
    /// What this process reported.
    reported: BTreeMap<InstanceId, InstanceStatus>,
    telling: Telling,
}

/// What the section asks for.
#[derive(Default)]
struct Wanted {
    entries: BTreeMap<InstanceId, InstanceSpec>,
    /// Entries that are none, and why.
    invalid: Vec<(String, String)>,
}

impl Wanted {
    fn of(section: &InstancesSection) -> Self {
        let mut wanted = Self::default();
        for (place, entry) in wire::instance::instances(section).into_iter().enumerate() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(err) => {
                    wanted.invalid.push((format!("entry {place}"), err.to_string()));
                    continue;
                }
            };
            match entry.instance_id.parse::<InstanceId>() {
                Ok(id) if !wanted.entries.contains_key(&id) => {
                    wanted.entries.insert(id, entry);
                }
                Ok(id) => wanted.invalid.push((id.to_string(), "it is there twice".into())),
                Err(_) => wanted.invalid.push((format!("entry {place}"), "it names no instance".into())),
            }
        }
        wanted
    }
}

impl Instances {
    /// `record` is a file of the daemon's own, for which start each instance was started.
    pub fn new(hypervisor: Option<Arc<dyn Hypervisor>>, record: PathBuf) -> Self {
        Self { hypervisor, boots: Boots::at(record), reported: BTreeMap::new(), telling: Telling::default() }
    }

    async fn pass(&mut self, spec: &NodeSpec, context: &ConvergeContext) -> SectionReport {
        let wanted = Wanted::of(&spec.instances.clone().unwrap_or_default());
        let mut pass = Pass::new(context);
        if context.first_pass {
            self.reported.clear();
        }
        match self.hypervisor.clone() {
            Some(hypervisor) => {
                let held = Promised::of(spec);
                self.converge_on(&*hypervisor, &wanted, &held, &mut pass).await;
            }
            None => pass.without_hypervisor(&wanted),
        }
        self.tell(&mut pass);
        let secrets = self.telling.end(&context.secrets, |id| wanted.entries.contains_key(&id));
        SectionReport { secrets, ..pass.finish(&wanted) }
    }

    async fn converge_on(
        &mut self,
        hypervisor: &dyn Hypervisor,
        wanted: &Wanted,
        promised: &Promised,
        pass: &mut Pass<'_>,
    ) {
        let before = match list(hypervisor).await {
            Ok(held) => held,
            Err(trouble) => return pass.wait("RuntimeUnreadable", trouble.message),
        };
        // What is to go is guarded until it is gone.
        let there = wanted.entries.iter().filter(|(id, entry)| !is_to_go(entry) || before.contains_key(*id));
        let guarded: Vec<&InstanceSpec> = there.map(|(_, entry)| entry).collect();
        let mut must_stop = BTreeSet::new();
        let unguarded = match hypervisor.guard(&guarded).await {
            Ok(unguarded) => unguarded,
            Err(trouble) => {
                tracing::warn!(reason = trouble.reason, err = trouble.message, "instances are not guarded");
                pass.facts.push(unguarded_fact(&trouble));
                // Nobody guards them, so they must not run.
                let closed = wanted.entries.iter().filter(|(_, entry)| is_closed(entry));
                must_stop.extend(closed.clone().map(|(id, _)| *id));
                closed.map(|(id, _)| (*id, trouble.clone())).collect()
            }
        };
        must_stop.extend(unguarded.iter().filter(|(_, trouble)| !trouble.retryable).map(|(id, _)| *id));
        // Those that are to run, and cannot.
        let unguarded: Unguarded = unguarded
            .into_iter()
            .filter(|(id, _)| {
                wanted.entries.get(id).is_some_and(|entry| entry.desired() == DesiredInstance::Running)
            })
            .collect();
        if kit::mutant::on("instances.unlisted-is-destroyed") {
            for id in before.keys().filter(|id| !wanted.entries.contains_key(id)) {
                let _ = hypervisor.destroy(*id).await;
            }
        }
        let mut plans: Vec<(InstanceId, &InstanceSpec, Vec<Step>)> = Vec::new();
        for (id, entry) in &wanted.entries {
            if entry.runtime != hypervisor.id() && entry.desired() != DesiredInstance::Deleted {
                let message = format!("runtime {} is not installed on this host", entry.runtime);
                pass.failed(*id, Trouble { reason: "NoRuntime", message, retryable: false });
                continue;
            }
            let held = before.get(id).copied();
            let runs = matches!(held, Some(Power::Running | Power::Paused));
            let steps = match unguarded.contains_key(id) {
                true if must_stop.contains(id) => stop(held),
                true if !runs => Vec::new(),
                true | false => plan(entry.desired(), entry.boot, held, self.boots.of(*id)),
            };
            if steps.contains(&Step::Start)
                && let Some(gpu) = promised.held_of(entry)
            {
                let message = format!("GPU {gpu} is held by an allocation that is no instance's");
                pass.failed(*id, Trouble { reason: "GpuHeld", message, retryable: true });
                continue;
            }
            plans.push((*id, entry, steps));
        }
        for takes_away in [true, false] {
            for (id, entry, steps) in &plans {
                for step in steps.iter().filter(|step| step.takes_away() == takes_away) {
                    if pass.stopped() || pass.troubles.contains_key(id) {
                        break;
                    }
                    let desk = &pass.context.secrets;
                    let reserved_bytes = promised.memory_bytes;
                    if let Err(trouble) =
                        self.apply(hypervisor, *id, entry, *step, reserved_bytes, desk).await
                    {
                        pass.failed(*id, trouble);
                    }
                }
            }
        }
        for (id, trouble) in unguarded {
            if !pass.troubles.contains_key(&id) {
                pass.failed(id, trouble);
            }
        }
        let idle = plans.iter().all(|(_, _, steps)| steps.is_empty());
        let after = match if idle { Ok(before) } else { list(hypervisor).await } {
            Ok(held) => held,
            Err(trouble) => return pass.wait("RuntimeUnreadable", trouble.message),
        };
        let entries: Vec<&InstanceSpec> = wanted.entries.values().filter(|entry| !is_to_go(entry)).collect();
        if let Err(trouble) = hypervisor.tidy(&entries).await {
            pass.wait(trouble.reason, trouble.message);
        }
        if let Err(err) = self.boots.keep(|id| after.contains_key(&id)) {
            pass.wait("RecordUnwritable", kit::chain(&err));
        }
        pass.look(wanted, &after);
    }

    async fn apply(
        &mut self,
        hypervisor: &dyn Hypervisor,
        id: InstanceId,
        entry: &InstanceSpec,
        step: Step,
        reserved_bytes: u64,
        desk: &Desk,
    ) -> Result<(), Trouble> {
        match step {
            Step::Destroy => hypervisor.destroy(id).await?,
            Step::Stop => match hypervisor.stop(id).await? {
                Stopping::Done => {}
                Stopping::Waits => {
                    let message = "the guest was asked to shut down".to_owned();
                    return Err(Trouble { reason: "ShuttingDown", message, retryable: true });
                }
            },
            Step::Define if entry.user_data.is_empty() => hypervisor.define(entry, Told::Nothing).await?,
            Step::Define => match hypervisor.define(entry, Told::Before).await {
                // Asked for only now, when nothing else is missing.
                Err(trouble) if trouble.reason == NO_USER_DATA => {
                    let user_data = self.telling.user_data(id, entry, desk)?;
                    hypervisor.define(entry, Told::Now(&user_data)).await?;
                }
                done => done?,
            },
            Step::Start => {
                hypervisor.start(id, reserved_bytes).await?;
                // After it: a crash in between has it started anew once more, and never not at all.
                self.boots.started(id, entry.boot).map_err(|err| Trouble {
                    reason: "RecordUnwritable",
                    message: kit::chain(&err),
                    retryable: true,
                })?;
            }
        }
        tracing::info!(instance_id = %id, step = ?step, "instance changed");
        Ok(())
    }

    /// Reports what is not what was reported last.
    fn tell(&mut self, pass: &mut Pass<'_>) {
        // What could not be looked at is as it was said to be.
        if pass.looked {
            self.reported.retain(|id, _| pass.statuses.contains_key(id));
        }
        let mut news = Vec::new();
        for (id, status) in std::mem::take(&mut pass.statuses) {
            if self.reported.get(&id) != Some(&status) {
                news.push(status.clone());
                self.reported.insert(id, status);
            }
        }
        for part in news.chunks(INSTANCES_PER_REPORT_MAX) {
            let observed =
                InstancesObserved { generation: pass.context.generation, instances: part.to_vec() };
            pass.reports
                .push(Report { class: EventClass::Transition, body: Body::InstancesObserved(observed) });
        }
    }
}

/// What is on its way out needs nothing new.
fn is_to_go(entry: &InstanceSpec) -> bool {
    entry.desired() == DesiredInstance::Deleted
}

/// It may run only where its rules are.
fn is_closed(entry: &InstanceSpec) -> bool {
    let open = matches!(entry.network_policy(), NetworkPolicy::Unspecified | NetworkPolicy::Egress);
    !open || entry.ssh_from_host_only
}

fn unguarded_fact(trouble: &Trouble) -> Fact {
    Fact {
        kind: "InstancesUnguarded".into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: trouble.reason.into(),
        message: trouble.message.clone(),
        age: None,
    }
}

/// What this host's holds have.
struct Promised {
    memory_bytes: u64,
    gpus: Vec<String>,
}

impl Promised {
    fn of(spec: &NodeSpec) -> Self {
        let devices = desired::parse(&spec.devices.clone().unwrap_or_default());
        Self {
            memory_bytes: devices.held.values().map(|hold| hold.limits.memory_bytes).sum(),
            gpus: devices.held.values().flat_map(|hold| hold.atoms.iter().cloned()).collect(),
        }
    }

    /// A GPU of the entry that a hold has, in whole or in part.
    fn held_of<'a>(&self, entry: &'a InstanceSpec) -> Option<&'a str> {
        let is_held = |gpu: &&String| self.gpus.iter().any(|held| cdi::overlap(held, gpu));
        entry.gpu_device_ids.iter().find(is_held).map(String::as_str)
    }
}

async fn list(hypervisor: &dyn Hypervisor) -> Result<BTreeMap<InstanceId, Power>, Trouble> {
    let held = match hypervisor.list().await {
        Err(_) if kit::mutant::on("instances.unread-list-is-empty") => Vec::new(),
        listed => listed?,
    };
    Ok(held.into_iter().map(|Held { id, power }| (id, power)).collect())
}

impl Converger for Instances {
    fn section(&self) -> Section {
        Section::Instances
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
    troubles: BTreeMap<InstanceId, Trouble>,
    /// Everything was looked at, so `statuses` is all there is to say.
    looked: bool,
    statuses: BTreeMap<InstanceId, InstanceStatus>,
    facts: Vec<Fact>,
    reports: Vec<Report>,
}

impl<'a> Pass<'a> {
    fn new(context: &'a ConvergeContext) -> Self {
        Self {
            context,
            waiting: Vec::new(),
            failed: Vec::new(),
            troubles: BTreeMap::new(),
            looked: false,
            statuses: BTreeMap::new(),
            facts: Vec::new(),
            reports: Vec::new(),
        }
    }

    fn stopped(&mut self) -> bool {
        let stopped = self.context.cancel.is_cancelled();
        if stopped && !self.waiting.iter().any(|(reason, _)| reason == "Stopping") {
            self.wait("Stopping", "the daemon is stopping".into());
        }
        stopped
    }

    fn wait(&mut self, reason: &str, message: String) {
        self.waiting.push((reason.into(), message));
    }

    fn failed(&mut self, id: InstanceId, trouble: Trouble) {
        let told = (trouble.reason.to_owned(), format!("{id}: {}", trouble.message));
        if trouble.retryable {
            self.waiting.push(told)
        } else {
            self.failed.push(told)
        }
        self.troubles.insert(id, trouble);
    }

    fn without_hypervisor(&mut self, wanted: &Wanted) {
        for (id, entry) in &wanted.entries {
            let message = "this host runs no instances".to_owned();
            self.failed(*id, Trouble { reason: "NoRuntime", message, retryable: false });
            // Nobody can tell that nothing is left of it.
            if entry.desired() != DesiredInstance::Deleted {
                self.say(*id, entry, Seen::Error);
            }
        }
    }

    /// Takes what the hypervisor holds now for what there is to say.
    fn look(&mut self, wanted: &Wanted, held: &BTreeMap<InstanceId, Power>) {
        self.looked = true;
        for (id, entry) in &wanted.entries {
            let state = match self.troubles.get(id) {
                Some(trouble) if trouble.retryable => Seen::Pending,
                Some(_) => Seen::Error,
                None => seen(entry.desired(), held.get(id).copied()),
            };
            self.say(*id, entry, state);
        }
        for (id, power) in held.iter().filter(|(id, _)| !wanted.entries.contains_key(id)) {
            let unlisted = InstanceSpec { instance_id: id.to_string(), ..InstanceSpec::default() };
            self.say(*id, &unlisted, seen(DesiredInstance::Unspecified, Some(*power)));
            self.facts.push(Fact {
                kind: "UnlistedInstance".into(),
                severity: Severity::Warning,
                device: String::new(),
                reason: id.to_string(),
                message: format!("the host holds instance {id}, which no entry names; it is left as it is"),
                age: None,
            });
        }
    }

    fn say(&mut self, id: InstanceId, entry: &InstanceSpec, state: Seen) {
        let trouble = self.troubles.get(&id);
        let status = InstanceStatus {
            instance_id: id.to_string(),
            revision: entry.revision,
            state: state.into(),
            reason: trouble.map(|trouble| trouble.reason.to_owned()).unwrap_or_default(),
            message: trouble.map(|trouble| trouble.message.clone()).unwrap_or_default(),
        };
        self.statuses.insert(id, wire::instance::bounded(status));
    }

    /// What can still come right keeps the section PROGRESSING; what cannot fails it at this generation.
    fn finish(mut self, wanted: &Wanted) -> SectionReport {
        for (entry, problem) in &wanted.invalid {
            self.failed.push(("InvalidInstance".into(), format!("{entry}: {problem}")));
        }
        let (state, problems) = match (self.waiting.is_empty(), self.failed.is_empty()) {
            (false, _) => (SectionState::Progressing, self.waiting),
            (true, false) => (SectionState::Failed, self.failed),
            (true, true) => (SectionState::Converged, Vec::new()),
        };
        let reason = problems.first().map(|(reason, _)| reason.clone()).unwrap_or_default();
        let message: Vec<_> = problems.into_iter().map(|(_, message)| message).collect();
        SectionReport {
            conditions: self.facts,
            reports: self.reports,
            ..SectionReport::of(state).with_reason(reason, message.join("; "))
        }
    }
}

#[cfg(test)]
mod tests;
