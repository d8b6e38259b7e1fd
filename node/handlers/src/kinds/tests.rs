use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use agent::hardware::{Host, NoHost};
use agent::kinds::{CommandContext, KindHandler};
use bytes::Bytes;
use futures::future::BoxFuture;
use hw::fake::Fault;
use hw::{FakeHardware, Hardware as _};
use kit::ManualClock;
use model::{CommandId, NodeId, Timestamp};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as CommandResult;
use wire::proto::agent::{DiagNvml, GpuReset, GpuResetOutcome, InventoryRefresh, LogsCollect, NodeReboot};

use super::*;
use crate::conditions::faults::Faults;
use crate::conditions::presence::Presence;
use crate::files::{HostFiles, HostPaths};
use crate::logs::LogSource;
use crate::machine::{Machine, Reboot};
use crate::sections::devices::Holds;
use crate::upload::{Destination, Upload, UploadError};

struct Rig {
    dir: TempDir,
    hardware: Arc<FakeHardware>,
    machine: Arc<Machine>,
    holds: Holds,
    gpus: Vec<String>,
    cancel: CancellationToken,
}

impl Rig {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hardware = Arc::new(FakeHardware::new(11));
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
        let faults = Faults::at(dir.path().join("faults.json"));
        let presence = Presence::at(dir.path().join("gpus.json"));
        let (machine, _) = Machine::new(hardware.clone(), clock, Vec::new(), faults, presence);
        machine.pass().await;
        let gpus = hardware.inventory().await.gpus.gpus.into_iter().filter_map(|gpu| gpu.uuid).collect();
        let holds = Holds::new(Arc::new(HostFiles::new(HostPaths::simulated(dir.path()))));
        Self { dir, hardware, machine, holds, gpus, cancel: CancellationToken::new() }
    }

    fn context(&self, host: Arc<dyn Host>) -> CommandContext {
        CommandContext {
            command_id: CommandId::from_uuid(uuid::Uuid::nil()),
            node_id: NodeId::from_uuid(uuid::Uuid::nil()),
            boot_id: "boot".into(),
            not_after: Timestamp::from_micros(i64::MAX),
            cancel: self.cancel.clone(),
            host,
        }
    }

    async fn run(&self, handler: &dyn KindHandler, payload: Payload) -> Outcome {
        handler.run(self.context(Arc::new(NoHost)), payload).await
    }

    async fn reset(&self, gpu_uuids: &[&str]) -> Outcome {
        let handler = gpu_reset::Handler { machine: self.machine.clone(), holds: self.holds.clone() };
        let gpu_uuids = gpu_uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
        self.run(&handler, Payload::GpuReset(GpuReset { gpu_uuids })).await
    }

    /// Error lines that are conditions.
    fn errors(&self) -> usize {
        self.machine.conditions().iter().filter(|fact| fact.kind == "Xid").count()
    }

    fn plant_hold(&self, name: &str, content: &str) {
        let dir = self.dir.path().join("etc/cdi");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), content).unwrap();
    }
}

fn code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Failed { code, .. } => code,
        Outcome::Succeeded(_) => "succeeded",
        Outcome::Cancelled => "cancelled",
        Outcome::Ending => "ending",
    }
}

fn resets(outcome: Outcome) -> Vec<GpuResetOutcome> {
    match outcome {
        Outcome::Succeeded(CommandResult::GpuReset(result)) => result.gpus,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_inventory_is_refreshed_whole_or_by_section() {
    let rig = Rig::new().await;
    let handler = inventory_refresh::Handler(rig.machine.clone());
    for (sections, count) in [(vec![], 7), (vec!["gpus".to_owned(), "os".to_owned()], 2)] {
        let outcome = rig.run(&handler, Payload::InventoryRefresh(InventoryRefresh { sections })).await;
        let Outcome::Succeeded(CommandResult::InventoryRefresh(result)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(result.hashes.len(), count);
    }
    let sections = vec!["nonsense".into()];
    let outcome = rig.run(&handler, Payload::InventoryRefresh(InventoryRefresh { sections })).await;
    assert_eq!(code(&outcome), "invalid-payload");
}

#[tokio::test]
async fn a_diagnosis_passes_a_whole_machine_and_not_one_with_too_few_gpus_or_an_error() {
    let rig = Rig::new().await;
    let handler = diag_nvml::Handler(rig.machine.clone());
    let diagnose = async |expected_gpus| {
        let outcome = rig.run(&handler, Payload::DiagNvml(DiagNvml { expected_gpus })).await;
        let Outcome::Succeeded(CommandResult::DiagNvml(result)) = outcome else { panic!("{outcome:?}") };
        result
    };
    let result = diagnose(8).await;
    assert!(result.passed && result.gpus == 8 && !result.driver_version.is_empty(), "{result:?}");
    assert!(result.checks.iter().any(|check| check.name == "gpu.count"));
    assert!(!diagnose(9).await.passed);
    rig.hardware.inject(Fault::Xid { gpu: 0, code: 79 });
    let result = diagnose(0).await;
    assert!(!result.passed && result.checks.iter().all(|check| check.name != "gpu.count"));
}

#[tokio::test]
async fn a_reset_of_nothing_is_an_invalid_payload() {
    let rig = Rig::new().await;
    assert_eq!(code(&rig.reset(&[]).await), "invalid-payload");
    assert_eq!(code(&rig.reset(&["GPU-1"; 65]).await), "invalid-payload");
}

#[tokio::test]
async fn a_reset_that_helps_clears_the_errors_and_an_unknown_gpu_is_told() {
    let rig = Rig::new().await;
    rig.hardware.inject(Fault::RowRemapPending { gpu: 0 });
    rig.hardware.inject(Fault::Xid { gpu: 0, code: 63 });
    rig.machine.pass().await;
    assert_eq!(rig.errors(), 1);
    let mut outcomes = resets(rig.reset(&[&rig.gpus[0], "GPU-elsewhere", &rig.gpus[0]]).await);
    outcomes.sort_by_key(|outcome| !outcome.reset);
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes[0].reset && outcomes[0].healthy && outcomes[0].message.is_empty(), "{outcomes:?}");
    assert_eq!((outcomes[1].reset, outcomes[1].message.as_str()), (false, "unknown GPU"));
    assert_eq!(rig.errors(), 0);
}

#[tokio::test]
async fn a_reset_that_does_not_help_says_so_and_keeps_the_errors() {
    let rig = Rig::new().await;
    rig.hardware.inject(Fault::RowRemapFailure { gpu: 0 });
    rig.hardware.inject(Fault::ResetRefused { gpu: 1 });
    rig.hardware.inject(Fault::Xid { gpu: 0, code: 64 });
    rig.machine.pass().await;
    let outcomes = resets(rig.reset(&[&rig.gpus[0], &rig.gpus[1]]).await);
    let of = |gpu: &str| outcomes.iter().find(|outcome| outcome.uuid == gpu).unwrap();
    let (broken, refused) = (of(&rig.gpus[0]), of(&rig.gpus[1]));
    assert!(broken.reset && !broken.healthy && broken.message.contains("remapped"), "{broken:?}");
    assert!(!refused.reset && !refused.healthy && !refused.message.is_empty(), "{refused:?}");
    assert_eq!(rig.errors(), 1);
}

#[tokio::test]
async fn a_held_gpu_fails_the_whole_reset_and_nothing_is_touched() {
    let rig = Rig::new().await;
    rig.hardware.inject(Fault::RowRemapPending { gpu: 1 });
    let hold = |atom: &str| {
        format!(
            r#"{{"cdiVersion":"0.6.0","kind":"bcd.dev/gpu","annotations":{{"bcd.dev/allocation-id":"alloc_00000000000000000000000001"}},
            "devices":[{{"name":"{}","annotations":{{"bcd.dev/device-id":"{atom}"}}}}]}}"#,
            atom.replace('/', "_")
        )
    };
    let name = "bcd-alloc_00000000000000000000000001.json";
    for atom in [rig.gpus[0].clone(), format!("{}/slot-3", rig.gpus[0])] {
        rig.plant_hold(name, &hold(&atom));
        let outcome = rig.reset(&[&rig.gpus[1], &rig.gpus[0]]).await;
        let Outcome::Failed { code, message, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(code, "gpu-busy");
        assert!(message.contains("alloc_00000000000000000000000001"), "{message}");
    }
    let pending = rig.hardware.inventory().await.gpus.gpus[1].row_remap.unwrap().pending;
    assert_eq!(pending, Some(true), "the other GPU was not reset");
    // A hold nobody can read may have any GPU.
    rig.plant_hold(name, "{");
    assert_eq!(code(&rig.reset(&[&rig.gpus[1]]).await), "gpu-busy");
}

#[tokio::test]
async fn a_reset_cancelled_before_it_began_does_nothing() {
    let rig = Rig::new().await;
    rig.cancel.cancel();
    assert_eq!(code(&rig.reset(&[&rig.gpus[0]]).await), "cancelled");
}

#[tokio::test]
async fn a_reboot_ends_with_the_machine_or_fails() {
    let rig = Rig::new().await;
    let host: Arc<dyn Host> = Arc::new(Reboot(rig.hardware.clone()));
    let payload = |reason: &str| Payload::NodeReboot(NodeReboot { reason: reason.into() });
    let long = format!("new\nkernel {}", "ä".repeat(200));
    assert_eq!(code(&node_reboot::Handler.run(rig.context(host.clone()), payload(&long)).await), "ending");
    let said = rig.hardware.reboots().pop().unwrap();
    assert!(said.starts_with("new kernel ä") && said.len() <= 200, "{said}");
    rig.hardware.inject(Fault::RebootRefused);
    let outcome = node_reboot::Handler.run(rig.context(host), payload("again")).await;
    assert_eq!(code(&outcome), "reboot-failed");
}

struct Text(String);

impl LogSource for Text {
    fn recent(&self, _since: Duration) -> String {
        self.0.clone()
    }
}

#[derive(Default)]
struct Kept {
    bodies: Mutex<Vec<Bytes>>,
    refuses: bool,
}

impl Upload for Kept {
    fn put<'a>(&'a self, _destination: Destination, body: Bytes) -> BoxFuture<'a, Result<(), UploadError>> {
        self.bodies.lock().unwrap().push(body);
        let answer = if self.refuses { Err(UploadError::Status { status: 403 }) } else { Ok(()) };
        Box::pin(futures::future::ready(answer))
    }
}

fn logs(rig: &Rig, text: String, upload: Arc<Kept>) -> logs_collect::Handler {
    logs_collect::Handler { machine: rig.machine.clone(), logs: Arc::new(Text(text)), upload }
}

fn asked(upload_url: &str) -> Payload {
    Payload::LogsCollect(LogsCollect { since_seconds: 60, upload_url: upload_url.into() })
}

#[tokio::test]
async fn logs_without_a_url_come_redacted_in_the_result_with_the_newest_kept() {
    let rig = Rig::new().await;
    let mut text = "password=hunter2hunter2\n".repeat(100_000);
    text.push_str("Authorization: Bearer abcdefghijklmnopqrstuvwxyz\nlast line\n");
    let outcome = rig.run(&logs(&rig, text, Arc::default()), asked("")).await;
    let Outcome::Succeeded(CommandResult::LogsCollect(result)) = outcome else { panic!("{outcome:?}") };
    let bundle = String::from_utf8(result.bundle.to_vec()).unwrap();
    assert!(bundle.len() <= 256 * 1024 && result.size_bytes == bundle.len() as u64, "{}", bundle.len());
    assert_eq!(result.sha256.as_ref(), Sha256::digest(&bundle).as_slice());
    assert!(bundle.starts_with("node     node_") && bundle.ends_with("last line\n"));
    assert!(bundle.contains("8 GPUs") && bundle.contains("--- log\n"));
    assert!(!bundle.contains("hunter2") && !bundle.contains("abcdefghijkl"));
}

#[tokio::test]
async fn logs_with_a_url_are_uploaded_and_not_in_the_result() {
    let rig = Rig::new().await;
    let kept = Arc::new(Kept::default());
    let handler = logs(&rig, "a line\n".into(), kept.clone());
    let outcome = rig.run(&handler, asked("https://storage.example/key?sig=x")).await;
    let Outcome::Succeeded(CommandResult::LogsCollect(result)) = outcome else { panic!("{outcome:?}") };
    let bodies = kept.bodies.lock().unwrap();
    assert!(result.bundle.is_empty() && bodies.len() == 1);
    assert_eq!(result.sha256.as_ref(), Sha256::digest(&bodies[0]).as_slice());
}

#[tokio::test]
async fn logs_that_cannot_be_uploaded_or_asked_for_fail() {
    let rig = Rig::new().await;
    let kept = Arc::new(Kept { refuses: true, ..Kept::default() });
    let handler = logs(&rig, String::new(), kept.clone());
    assert_eq!(code(&rig.run(&handler, asked("http://storage.example/key")).await), "invalid-payload");
    assert!(kept.bodies.lock().unwrap().is_empty());
    assert_eq!(code(&rig.run(&handler, asked("https://storage.example/key")).await), "upload-failed");
    let forever = Payload::LogsCollect(LogsCollect { since_seconds: u32::MAX, upload_url: String::new() });
    assert_eq!(code(&rig.run(&handler, forever).await), "invalid-payload");
    rig.cancel.cancel();
    assert_eq!(code(&rig.run(&handler, asked("")).await), "cancelled");
}

#[test]
fn a_cut_bundle_begins_at_a_line_and_never_splits_a_character() {
    let log = "äöü\n".repeat(1000);
    for max in 40..60 {
        let text = logs_collect::join("facts\n", &log, max);
        assert!(text.len() <= max, "{max}");
        let kept = text.split_once("--- log\n").unwrap().1;
        assert!(kept.is_empty() || kept.starts_with("äöü\n"), "{kept:?}");
    }
}

#[tokio::test]
async fn a_payload_of_another_kind_fails() {
    let rig = Rig::new().await;
    let reboot = Payload::NodeReboot(NodeReboot::default());
    assert_eq!(code(&rig.run(&diag_nvml::Handler(rig.machine.clone()), reboot).await), "internal");
}
