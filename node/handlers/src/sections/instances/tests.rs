use hw::FakeHardware;
use model::NodeId;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::fake::FakeHypervisor;
use super::*;

mod user_data;

/// A machine whose daemon comes and goes.
struct Host {
    root: TempDir,
    hardware: Arc<FakeHardware>,
    hypervisor: Arc<FakeHypervisor>,
}

/// One process of the daemon.
struct Process {
    instances: Instances,
    first_pass: bool,
    desk: Desk,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let hardware = Arc::new(FakeHardware::new(3));
        let hypervisor = Arc::new(FakeHypervisor::at(root.path().join("hypervisor.json"), hardware.clone()));
        Self { root, hardware, hypervisor }
    }

    fn process(&self) -> Process {
        let record = self.root.path().join("instances.json");
        let hypervisor: Arc<dyn Hypervisor> = self.hypervisor.clone();
        Process {
            instances: Instances::new(Some(hypervisor), record),
            first_pass: true,
            desk: Desk::default(),
        }
    }

    async fn held(&self) -> Vec<(u128, Power)> {
        let held = self.hypervisor.list().await.unwrap();
        held.into_iter().map(|held| (held.id.uuid().as_u128(), held.power)).collect()
    }
}

impl Process {
    async fn pass(&mut self, generation: u64, entries: &[InstanceSpec]) -> SectionReport {
        let section = wire::instance::section(entries.to_vec());
        self.pass_over(generation, section).await
    }

    async fn pass_over(&mut self, generation: u64, section: InstancesSection) -> SectionReport {
        self.pass_of(generation, NodeSpec { instances: Some(section), ..NodeSpec::default() }).await
    }

    async fn pass_of(&mut self, generation: u64, spec: NodeSpec) -> SectionReport {
        let context = ConvergeContext {
            node_id: NodeId::from_uuid(uuid::Uuid::nil()),
            generation,
            boot_id: "boot".into(),
            first_pass: std::mem::take(&mut self.first_pass),
            cancel: CancellationToken::new(),
            secrets: self.desk.clone(),
        };
        self.instances.converge(&spec, &context).await
    }
}

fn id(number: u128) -> InstanceId {
    InstanceId::from_uuid(uuid::Uuid::from_u128(number))
}

fn entry(number: u128, desired: DesiredInstance, revision: u64, boot: u64) -> InstanceSpec {
    InstanceSpec {
        instance_id: id(number).to_string(),
        revision,
        desired: desired.into(),
        boot,
        runtime: "libvirt-kvm".into(),
        vcpus: 1,
        memory_bytes: 64 << 20,
        disk_bytes: 1 << 30,
        ..InstanceSpec::default()
    }
}

fn running(number: u128, revision: u64) -> InstanceSpec {
    entry(number, DesiredInstance::Running, revision, revision)
}

/// Statuses in short: `1@3 running`.
fn told(report: &SectionReport) -> Vec<String> {
    let one = |status: &InstanceStatus| {
        let number = status.instance_id.parse::<InstanceId>().unwrap().uuid().as_u128();
        let state =
            status.state().as_str_name().trim_start_matches("INSTANCE_OBSERVED_STATE_").to_lowercase();
        format!("{number}@{} {state} {}", status.revision, status.reason).trim_end().to_owned()
    };
    let observed = report.reports.iter().flat_map(|report| match &report.body {
        Body::InstancesObserved(observed) => observed.instances.clone(),
        other => panic!("{other:?}"),
    });
    observed.collect::<Vec<_>>().iter().map(one).collect()
}

#[tokio::test]
async fn an_instance_is_made_started_stopped_and_deleted_and_each_is_reported_once() {
    let host = Host::new();
    let mut daemon = host.process();
    let report = daemon.pass(1, &[running(1, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["1@1 running".into()]));
    assert_eq!(host.held().await, [(1, Power::Running)]);
    let report = daemon.pass(1, &[running(1, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, Vec::new()));

    let report = daemon.pass(2, &[entry(1, DesiredInstance::Stopped, 2, 1)]).await;
    assert_eq!(told(&report), ["1@2 stopped"]);
    let report = daemon.pass(3, &[entry(1, DesiredInstance::Deleted, 3, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["1@3 absent".into()]));
    assert_eq!(host.held().await, []);
    let report = daemon.pass(4, &[]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, Vec::new()));
}

#[tokio::test]
async fn what_is_wanted_anew_is_answered_though_nothing_changes() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[running(1, 1)]).await;
    // Stopped at revision 2 and started at 3, of which the host saw only the latter: its answer is to that one.
    let report = daemon.pass(3, &[entry(1, DesiredInstance::Running, 3, 3)]).await;
    assert_eq!(told(&report), ["1@3 running"]);
    assert_eq!(host.hypervisor.starts(id(1)).await, Some(2), "it was to start anew");
    let report = daemon.pass(4, &[entry(1, DesiredInstance::Running, 4, 3)]).await;
    assert_eq!(told(&report), ["1@4 running"]);
    assert_eq!(host.hypervisor.starts(id(1)).await, Some(2));
}

#[tokio::test]
async fn the_next_process_says_all_again_and_changes_nothing() {
    let host = Host::new();
    let spec = [running(1, 1), entry(2, DesiredInstance::Stopped, 1, 1)];
    host.process().pass(1, &spec).await;
    let mut next = host.process();
    assert_eq!(told(&next.pass(1, &spec).await), ["1@1 running", "2@1 stopped"]);
    assert_eq!(host.hypervisor.starts(id(1)).await, Some(1));
}

#[tokio::test]
async fn after_the_host_booted_anew_what_should_run_runs_again() {
    let host = Host::new();
    let spec = [running(1, 1), entry(2, DesiredInstance::Stopped, 1, 1)];
    host.process().pass(1, &spec).await;
    host.hardware.power_cycle();
    assert_eq!(host.held().await, [(1, Power::Stopped), (2, Power::Stopped)]);
    assert_eq!(told(&host.process().pass(1, &spec).await), ["1@1 running", "2@1 stopped"]);
}

#[tokio::test]
async fn what_no_entry_names_is_left_as_it_is_and_told() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[running(1, 1), running(2, 1)]).await;
    let report = daemon.pass(2, &[running(2, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["1@0 running".into()]));
    assert_eq!(host.held().await, [(1, Power::Running), (2, Power::Running)]);
    assert_eq!(
        (report.conditions[0].kind.as_str(), &report.conditions[0].reason),
        ("UnlistedInstance", &id(1).to_string())
    );
}

#[tokio::test]
async fn one_that_is_refused_costs_no_other() {
    let host = Host::new();
    let mut daemon = host.process();
    let refused = Trouble { reason: "BadImage", message: "the digest differs".into(), retryable: false };
    host.hypervisor.refuse(id(1), Some(refused));
    let report = daemon.pass(1, &[running(1, 1), running(2, 1)]).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "BadImage"));
    assert_eq!(told(&report), ["1@1 error BadImage", "2@1 running"]);

    let waits = Trouble { reason: "ResourcesExhausted", message: "no memory".into(), retryable: true };
    host.hypervisor.refuse(id(1), Some(waits));
    let report = daemon.pass(1, &[running(1, 1), running(2, 1)]).await;
    assert_eq!(
        (report.state, told(&report)),
        (SectionState::Progressing, vec!["1@1 pending ResourcesExhausted".into()])
    );
    host.hypervisor.refuse(id(1), None);
    assert_eq!(told(&daemon.pass(1, &[running(1, 1), running(2, 1)]).await), ["1@1 running"]);
}

#[tokio::test]
async fn what_only_some_may_reach_runs_only_where_that_is_seen_to() {
    let host = Host::new();
    let mut daemon = host.process();
    let closed =
        |number| InstanceSpec { network_policy: NetworkPolicy::Private.into(), ..running(number, 1) };
    daemon.pass(1, &[running(1, 1), closed(2)]).await;
    let trouble = Trouble { reason: "NetworkRules", message: "nft is not installed".into(), retryable: true };
    host.hypervisor.set_unguarded(Some(trouble));
    let report = daemon.pass(1, &[running(1, 1), closed(2), closed(3)]).await;
    assert_eq!(told(&report), ["2@1 pending NetworkRules", "3@1 pending NetworkRules"]);
    assert_eq!(host.held().await, [(1, Power::Running), (2, Power::Stopped)]);
    assert_eq!(report.conditions[0].kind, "InstancesUnguarded");
    host.hypervisor.set_unguarded(None);
    let report = daemon.pass(1, &[running(1, 1), closed(2), closed(3)]).await;
    assert_eq!(told(&report), ["2@1 running", "3@1 running"]);
}

#[tokio::test]
async fn nothing_is_absent_while_the_hypervisor_cannot_say_what_it_holds() {
    let host = Host::new();
    let mut daemon = host.process();
    daemon.pass(1, &[running(1, 1)]).await;
    host.hypervisor.set_unreadable(true);
    let report = daemon.pass(2, &[entry(1, DesiredInstance::Deleted, 2, 1)]).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "RuntimeUnreadable"));
    assert_eq!(told(&report), Vec::<String>::new());
    host.hypervisor.set_unreadable(false);
    assert_eq!(told(&daemon.pass(2, &[entry(1, DesiredInstance::Deleted, 2, 1)]).await), ["1@2 absent"]);
}

#[tokio::test]
async fn a_host_without_a_hypervisor_fails_what_is_asked_of_it_and_confirms_no_deletion() {
    let host = Host::new();
    let mut bare = Process {
        instances: Instances::new(None, host.root.path().join("none.json")),
        first_pass: true,
        desk: Desk::default(),
    };
    let report = bare.pass(1, &[running(1, 1), entry(2, DesiredInstance::Deleted, 1, 1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Failed, vec!["1@1 error NoRuntime".into()]));
    let report = bare.pass(2, &[]).await;
    assert_eq!(report.state, SectionState::Converged);
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_or_is_there_twice_is_told_and_costs_no_other() {
    let host = Host::new();
    let mut daemon = host.process();
    let mut section = wire::instance::section(vec![running(1, 1), running(1, 1)]);
    section.instances.push(vec![0xff, 0xff].into());
    let report = daemon.pass_over(1, section).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "InvalidInstance"));
    assert_eq!(told(&report), ["1@1 running"]);
}

#[tokio::test]
async fn an_instance_of_another_runtime_is_refused_and_can_still_be_deleted() {
    let host = Host::new();
    let mut daemon = host.process();
    let other = |desired, revision| InstanceSpec { runtime: "kata".into(), ..entry(1, desired, revision, 1) };
    assert_eq!(told(&daemon.pass(1, &[other(DesiredInstance::Running, 1)]).await), ["1@1 error NoRuntime"]);
    assert_eq!(told(&daemon.pass(2, &[other(DesiredInstance::Deleted, 2)]).await), ["1@2 absent"]);
}

#[tokio::test]
async fn a_host_that_goes_down_stops_its_guests_and_knows_what_each_was_started_for() {
    let host = Host::new();
    let mut process = host.process();
    process.pass(1, &[running(1, 2)]).await;
    let domains = host.hypervisor.domains().await.unwrap();
    assert_eq!((domains[&id(1)].running, domains[&id(1)].boot), (true, 2));
    host.hypervisor.set_unreadable(true);
    host.hypervisor.power_off().await.unwrap();
    let domains = host.hypervisor.domains().await.unwrap();
    assert_eq!((domains[&id(1)].running, domains[&id(1)].boot), (false, 2));
}

#[tokio::test]
async fn a_pass_that_was_cut_short_is_finished_by_the_next_process() {
    let host = Host::new();
    host.hypervisor.cut_short(Some(3));
    let report = host.process().pass(1, &[running(1, 1), running(2, 1)]).await;
    assert_eq!(report.state, SectionState::Progressing);
    assert!(host.hypervisor.is_cut_short());
    host.hypervisor.cut_short(None);
    assert_eq!(host.held().await, [(1, Power::Running), (2, Power::Stopped)]);
    let report = host.process().pass(1, &[running(1, 1), running(2, 1)]).await;
    assert_eq!(report.state, SectionState::Converged);
    assert_eq!(host.held().await, [(1, Power::Running), (2, Power::Running)]);
    assert_eq!(host.hypervisor.starts(id(1)).await, Some(1));
}

#[tokio::test]
async fn a_gpu_that_a_hold_has_is_no_instances() {
    use wire::proto::agent::{DesiredHold, DeviceAssignment, DevicesSection};
    let host = Host::new();
    let mut daemon = host.process();
    let gpu = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001".to_owned();
    let wants = InstanceSpec { gpu_device_ids: vec![gpu.clone()], ..running(1, 1) };
    let hold = DeviceAssignment {
        allocation_id: model::AllocationId::from_uuid(uuid::Uuid::from_u128(9)).to_string(),
        atoms: vec![gpu],
        device_class: "gpu".into(),
        binding: wire::proto::agent::Binding::Hold.into(),
        desired: DesiredHold::Held.into(),
        ..DeviceAssignment::default()
    };
    let with = |assignments| NodeSpec {
        instances: Some(wire::instance::section(vec![wants.clone(), running(2, 1)])),
        devices: Some(DevicesSection { assignments }),
        ..NodeSpec::default()
    };
    let report = daemon.pass_of(1, with(vec![hold])).await;
    assert_eq!(told(&report), ["1@1 pending GpuHeld", "2@1 running"]);
    let report = daemon.pass_of(2, with(Vec::new())).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["1@1 running".into()]));
}
