use std::sync::atomic::{AtomicUsize, Ordering};

use hw::fake::Fault;
use hw::{FakeHardware, Hardware as _};
use model::NodeId;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::{Binding, DesiredHold, DeviceAssignment, DevicesSection, Limits};

use super::*;
use crate::files::HostPaths;
use crate::files::testing::{Trap, TrappedFiles};
use crate::slices::FakeSlices;

mod host;
mod trouble;

/// A machine whose daemon comes and goes.
struct Host {
    root: TempDir,
    hardware: Arc<FakeHardware>,
    slices: Arc<FakeSlices>,
    gpus: Vec<String>,
    /// How often GPUs came free.
    freed: Arc<AtomicUsize>,
}

/// One process of the daemon.
struct Process {
    devices: Devices,
    files: Arc<TrappedFiles>,
    first_pass: bool,
}

impl Host {
    async fn new() -> Self {
        let hardware = Arc::new(FakeHardware::new(7));
        let inventory = hardware.inventory().await;
        let gpus = inventory.gpus.gpus.into_iter().filter_map(|gpu| gpu.uuid).collect();
        Self {
            root: tempfile::tempdir().unwrap(),
            hardware,
            slices: Arc::new(FakeSlices::new()),
            gpus,
            freed: Arc::default(),
        }
    }

    fn process(&self, trap: Trap) -> Process {
        let files = Arc::new(TrappedFiles::new(HostPaths::simulated(self.root.path()), trap));
        let freed = self.freed.clone();
        let devices = Devices::new(
            files.clone(),
            self.slices.clone(),
            self.hardware.clone(),
            Holds::new(files.clone()),
            self.root.path().join("data/devices.json"),
            Box::new(move || {
                freed.fetch_add(1, Ordering::SeqCst);
            }),
        );
        Process { devices, files, first_pass: true }
    }

    fn path(&self, file: &HostFile) -> std::path::PathBuf {
        self.root.path().join(file.dir().path()).join(file.name())
    }

    fn text(&self, file: &HostFile) -> Option<String> {
        std::fs::read_to_string(self.path(file)).ok()
    }
}

impl Process {
    async fn pass(&mut self, generation: u64, entries: &[DeviceAssignment]) -> SectionReport {
        let spec = NodeSpec {
            devices: Some(DevicesSection { assignments: entries.to_vec() }),
            ..NodeSpec::default()
        };
        let context = ConvergeContext {
            node_id: NodeId::from_uuid(uuid::Uuid::nil()),
            generation,
            boot_id: "boot".into(),
            first_pass: std::mem::take(&mut self.first_pass),
            cancel: CancellationToken::new(),
            secrets: Default::default(),
        };
        self.devices.converge(&spec, &context).await
    }
}

fn allocation(number: u128) -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(number))
}

fn held(number: u128, atoms: &[&String]) -> DeviceAssignment {
    DeviceAssignment {
        allocation_id: allocation(number).to_string(),
        atoms: atoms.iter().map(|atom| (*atom).clone()).collect(),
        device_class: "gpu".into(),
        binding: Binding::Hold.into(),
        limits: None,
        desired: DesiredHold::Held.into(),
    }
}

fn limited(number: u128, atoms: &[&String], memory_bytes: u64) -> DeviceAssignment {
    let limits = Limits { cpu_millis: 4000, memory_bytes, ..Limits::default() };
    DeviceAssignment { limits: Some(limits), ..held(number, atoms) }
}

fn released(number: u128) -> DeviceAssignment {
    DeviceAssignment { desired: DesiredHold::Released.into(), ..held(number, &[]) }
}

/// Reports in short: `bound 1`, `failed 2 overlap`.
fn told(report: &SectionReport) -> Vec<String> {
    let number = |id: &str| id.parse::<AllocationId>().unwrap().uuid().as_u128();
    let one = |report: &Report| match &report.body {
        Body::AllocationBound(bound) => format!("bound {}", number(&bound.allocation_id)),
        Body::AllocationReleased(released) => format!("released {}", number(&released.allocation_id)),
        Body::AllocationFailed(failed) => {
            format!("failed {} {}", number(&failed.allocation_id), failed.reason)
        }
        Body::ConditionChanged(_) => "condition".into(),
        Body::InstancesObserved(_) => "instances".into(),
    };
    report.reports.iter().map(one).collect()
}

fn kinds(report: &SectionReport) -> Vec<&str> {
    report.conditions.iter().map(|fact| fact.kind.as_str()).collect()
}

#[tokio::test]
async fn a_hold_is_bound_reported_once_and_released() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let spec = [held(1, &[&host.gpus[0], &host.gpus[1]])];
    let report = daemon.pass(5, &spec).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["bound 1".into()]));
    let Body::AllocationBound(bound) = &report.reports[0].body else { panic!("not bound") };
    assert_eq!(bound.generation, 5);
    assert_eq!(bound.atoms, host.gpus[..2]);
    assert_eq!(bound.cdi_devices[0], format!("bcd.dev/gpu={}", host.gpus[0]));
    let env = host.text(&HostFile::AllocationEnv(allocation(1))).unwrap();
    let expected = format!(
        "NVIDIA_VISIBLE_DEVICES={},{}\nBCD_ALLOCATION_ID={}\n",
        host.gpus[0],
        host.gpus[1],
        allocation(1)
    );
    assert_eq!(env, expected);

    let changes = daemon.files.changes().len();
    let report = daemon.pass(6, &spec).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, Vec::new()));
    assert_eq!(daemon.files.changes().len(), changes, "a converged pass changes nothing");

    let report = daemon.pass(7, &[released(1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["released 1".into()]));
    assert_eq!(host.text(&HostFile::Cdi(allocation(1))), None);
    assert_eq!(host.text(&HostFile::AllocationEnv(allocation(1))), None);
    assert_eq!(host.freed.load(Ordering::SeqCst), 1, "a freed GPU is looked at");
    assert_eq!(told(&daemon.pass(8, &[released(1)]).await), Vec::<String>::new());
    assert_eq!(told(&daemon.pass(9, &spec).await), ["bound 1"], "a later hold is a transition again");
}

#[tokio::test]
async fn a_hold_no_entry_lists_is_kept_and_reported() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0], &host.gpus[1]])]).await;
    let report = daemon.pass(2, &[]).await;
    assert_eq!(report.state, SectionState::Converged);
    assert_eq!(kinds(&report), ["UnlistedHold", "UnlistedHold"]);
    assert_eq!(report.conditions[0].device, host.gpus[0]);
    assert!(host.text(&HostFile::Cdi(allocation(1))).is_some());
    // And nobody else gets its GPUs.
    let report = daemon.pass(3, &[held(2, &[&host.gpus[1]])]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Failed, vec!["failed 2 overlap".into()]));
}

#[tokio::test]
async fn a_restart_reports_again_what_holds_and_what_is_gone() {
    let host = Host::new().await;
    let spec = [held(1, &[&host.gpus[0]]), held(2, &[&host.gpus[0]]), released(3)];
    let first = told(&host.process(Trap::Never).pass(1, &spec).await);
    assert_eq!(first, ["released 3", "bound 1", "failed 2 overlap"]);
    assert_eq!(told(&host.process(Trap::Never).pass(1, &spec).await), first);
}

#[tokio::test]
async fn a_failure_is_terminal_at_its_generation_also_for_the_next_process() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let both = [held(1, &[&host.gpus[0]]), held(2, &[&host.gpus[0]])];
    assert_eq!(told(&daemon.pass(2, &both).await), ["failed 2 overlap"]);
    // The reason goes away, the generation stays.
    let free = [released(1), held(2, &[&host.gpus[0]])];
    for mut daemon in [daemon, host.process(Trap::Never)] {
        let report = daemon.pass(2, &free).await;
        assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "overlap"));
        assert_eq!(host.text(&HostFile::Cdi(allocation(2))), None);
    }
    let report = host.process(Trap::Never).pass(3, &free).await;
    assert_eq!(
        (report.state, told(&report)),
        (SectionState::Converged, vec!["released 1".into(), "bound 2".into()])
    );
}

#[tokio::test]
async fn what_cannot_be_held_fails_with_its_reason() {
    let host = Host::new().await;
    let gpu = &host.gpus[0];
    let missing = "GPU-00000000-0000-4000-8000-000000000000".to_owned();
    let slot = format!("{gpu}/slot-0");
    host.hardware.inject(Fault::GpuLost { gpu: 7 });
    let tib = 1u64 << 40;
    let limits = |limits: Limits| DeviceAssignment { limits: Some(limits), ..held(1, &[gpu]) };
    let cases = [
        (held(1, &[&missing]), "device-missing"),
        (held(1, &[&host.gpus[7]]), "device-missing"),
        (held(1, &[&slot]), "unsupported-device"),
        (held(1, &[]), "unsupported-device"),
        (DeviceAssignment { device_class: "fpga".into(), ..held(1, &[gpu]) }, "unsupported-device"),
        (DeviceAssignment { binding: 9, ..held(1, &[gpu]) }, "unsupported-binding"),
        (limited(1, &[gpu], 4 * tib), "resources-exhausted"),
        (limits(Limits { hugepages_1gi: 10_000, ..Limits::default() }), "resources-exhausted"),
    ];
    for (at, (entry, reason)) in cases.into_iter().enumerate() {
        let report = host.process(Trap::Never).pass(at as u64 + 1, &[entry]).await;
        assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, reason));
        assert_eq!(told(&report), [format!("failed 1 {reason}")]);
        assert!(host.text(&HostFile::Cdi(allocation(1))).is_none());
    }
}

#[tokio::test]
async fn promises_add_up_until_the_host_has_no_more() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let memory = host.hardware.memory_info().await.unwrap();
    let room = memory.total_bytes - memory.hugetlb_bytes.unwrap_or(0) - (1 << 30);
    let one = limited(1, &[&host.gpus[0]], room / 2);
    let kubernetes =
        DeviceAssignment { binding: Binding::Kubernetes.into(), ..limited(2, &[&host.gpus[1]], room / 2) };
    let third = limited(3, &[&host.gpus[2]], 2);
    let report = daemon.pass(1, &[one.clone(), kubernetes.clone(), third]).await;
    assert_eq!(told(&report), ["bound 1", "bound 2", "failed 3 resources-exhausted"]);
    // What an unlisted hold was promised counts from its file.
    let report = daemon.pass(2, &[kubernetes, limited(4, &[&host.gpus[3]], room / 2)]).await;
    assert_eq!(told(&report), ["failed 4 resources-exhausted"]);
}

#[tokio::test]
async fn a_host_without_limits_refuses_them_and_serves_the_rest() {
    let mut host = Host::new().await;
    host.slices = Arc::new(FakeSlices::unsupported("systemd does not run here"));
    let mut daemon = host.process(Trap::Never);
    let report = daemon.pass(1, &[limited(1, &[&host.gpus[0]], 1 << 30), held(2, &[&host.gpus[1]])]).await;
    assert_eq!(told(&report), ["failed 1 unsupported-limits", "bound 2"]);
}

#[tokio::test]
async fn a_driver_that_does_not_answer_is_no_missing_device() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let spec = [held(1, &[&host.gpus[0]])];
    host.hardware.inject(Fault::SmiFails(hw::smi::SmiError::TimedOut));
    let report = daemon.pass(1, &spec).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "InventoryUnreadable"));
    assert!(told(&report).is_empty());
    host.hardware.clear(|_| true);
    assert_eq!(told(&daemon.pass(1, &spec).await), ["bound 1"]);
    // And one that stops answering takes nothing from a hold.
    let before = host.text(&HostFile::Cdi(allocation(1)));
    host.hardware.inject(Fault::GpuLost { gpu: 0 });
    let report = daemon.pass(1, &spec).await;
    assert_eq!((report.state, host.text(&HostFile::Cdi(allocation(1)))), (SectionState::Converged, before));
}

#[tokio::test]
async fn a_kubernetes_hold_names_no_devices_and_gets_no_slice() {
    let host = Host::new().await;
    let entry =
        DeviceAssignment { binding: Binding::Kubernetes.into(), ..limited(1, &[&host.gpus[0]], 1 << 30) };
    assert_eq!(told(&host.process(Trap::Never).pass(1, &[entry]).await), ["bound 1"]);
    let cdi = host.text(&HostFile::Cdi(allocation(1))).unwrap();
    assert!(cdi.contains(r#""bcd.dev/binding": "kubernetes""#), "{cdi}");
    assert!(!cdi.contains("NVIDIA_VISIBLE_DEVICES") && !cdi.contains("cgroup-parent"), "{cdi}");
    let env = host.text(&HostFile::AllocationEnv(allocation(1))).unwrap();
    assert_eq!(env, format!("BCD_ALLOCATION_ID={}\n", allocation(1)));
    assert!(host.slices.applied().is_empty());
}

#[tokio::test]
async fn a_slice_comes_before_the_hold_and_goes_once_it_is_empty() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let spec = [limited(1, &[&host.gpus[0]], 8 << 30)];
    host.slices.set_failing(true);
    let report = daemon.pass(1, &spec).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "BindFailed"));
    assert_eq!(host.text(&HostFile::Cdi(allocation(1))), None);
    host.slices.set_failing(false);
    assert_eq!(told(&daemon.pass(1, &spec).await), ["bound 1"]);
    let cdi = host.text(&HostFile::Cdi(allocation(1))).unwrap();
    let slice = crate::slices::name(allocation(1));
    assert!(cdi.contains(&format!(r#""bcd.dev/cgroup-parent": "{slice}""#)), "{cdi}");
    assert!(cdi.contains(&format!("BCD_CGROUP_PARENT={slice}")), "{cdi}");

    // A reboot drops the slice, and with /run the env file; the hold stays and makes them again.
    host.slices.reboot();
    std::fs::remove_dir_all(host.root.path().join("run")).unwrap();
    let report = daemon.pass(1, &spec).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, Vec::new()));
    assert_eq!(host.slices.list().await.unwrap(), [allocation(1)]);
    assert!(host.text(&HostFile::AllocationEnv(allocation(1))).is_some());

    host.slices.set_populated(allocation(1), true);
    assert_eq!(told(&daemon.pass(2, &[released(1)]).await), ["released 1"]);
    assert_eq!(host.slices.list().await.unwrap(), [allocation(1)], "a workload is never ended by a release");
    // The entry is gone, the workload too: the next pass takes the slice away.
    host.slices.set_populated(allocation(1), false);
    daemon.pass(3, &[]).await;
    assert_eq!(host.slices.list().await.unwrap(), []);
}

#[tokio::test]
async fn changed_limits_are_applied_to_a_hold_that_stays() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[limited(1, &[&host.gpus[0]], 8 << 30)]).await;
    let report = daemon.pass(2, &[limited(1, &[&host.gpus[0]], 16 << 30)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, Vec::new()));
    assert!(host.text(&HostFile::Cdi(allocation(1))).unwrap().contains("17179869184"));
}

#[tokio::test]
async fn a_hold_is_never_turned_into_another() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let before = host.text(&HostFile::Cdi(allocation(1)));
    let report = daemon.pass(2, &[held(1, &[&host.gpus[1]])]).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "HoldDiffers"));
    assert!(told(&report).is_empty());
    assert_eq!(host.text(&HostFile::Cdi(allocation(1))), before);
}

#[tokio::test]
async fn entries_that_say_nothing_clear_change_nothing() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let unclear = [
        vec![DeviceAssignment { desired: 0, ..held(1, &[&host.gpus[0]]) }],
        vec![held(1, &[&host.gpus[0]]), released(1)],
        vec![held(1, &[&"GPU-1\nX=1".to_owned()])],
        vec![DeviceAssignment { allocation_id: "../../etc/passwd".into(), ..held(1, &[]) }],
        vec![DeviceAssignment {
            limits: Some(Limits { cpus: "0-".into(), ..Limits::default() }),
            ..held(1, &[&host.gpus[0]])
        }],
    ];
    for entries in unclear {
        let report = daemon.pass(2, &entries).await;
        assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "InvalidAssignment"));
        assert!(kinds(&report).contains(&"InvalidAssignment") && told(&report).is_empty());
        assert!(host.text(&HostFile::Cdi(allocation(1))).is_some());
    }
}
