//! The host's port over canned programs and a made-up file tree.

use std::sync::Arc;

use crate::commands::{CannedCommands, CommandOutput};
use crate::hardware::{Hardware, HardwareError, ResetError};
use crate::host::HostHardware;
use crate::root::Root;

const UUID: &str = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001";

fn host(commands: CannedCommands) -> (HostHardware, Arc<CannedCommands>) {
    let commands = Arc::new(commands);
    (HostHardware::new(Root::at("/nonexistent"), commands.clone()), commands)
}

fn listed() -> CannedCommands {
    let list = format!("GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})\n");
    CannedCommands::new().answer("nvidia-smi -L", CommandOutput::ok(list))
}

#[tokio::test]
async fn a_known_gpu_is_reset_by_its_uuid() {
    let line = format!("nvidia-smi --gpu-reset -i {UUID}");
    let (host, commands) = host(listed().answer(&line, CommandOutput::ok("GPU was successfully reset.\n")));
    host.reset_gpu(UUID).await.unwrap();
    assert_eq!(commands.ran(), ["nvidia-smi -L", &line]);
}

#[tokio::test]
async fn what_the_driver_says_against_a_reset_is_kept() {
    let line = format!("nvidia-smi --gpu-reset -i {UUID}");
    let said = "The following GPUs could not be reset:\n  GPU 00000000:53:00.0: In use by another client\n";
    let (host, _) = host(listed().answer(&line, CommandOutput::failed(19, said)));
    let error = host.reset_gpu(UUID).await.unwrap_err();
    assert!(
        matches!(&error, ResetError::Refused { why, .. } if why.contains("In use by another client")),
        "{error}"
    );
}

#[tokio::test]
async fn nothing_but_a_listed_uuid_reaches_the_program() {
    let (host, commands) = host(listed());
    for odd in ["-h", "GPU-0", "", "GPU-00000000-0000-4000-8000-00000000dead"] {
        assert!(matches!(host.reset_gpu(odd).await, Err(ResetError::Unknown { .. })), "{odd}");
    }
    assert!(commands.ran().iter().all(|line| line == "nvidia-smi -L"));
}

#[tokio::test]
async fn a_reboot_says_why_and_falls_back_without_systemd() {
    let line = "systemctl reboot --message=kernel update; rm -rf /";
    let (systemd, commands) = host(CannedCommands::new().answer(line, CommandOutput::ok("")));
    systemd.reboot("kernel\nupdate; rm -rf /").await.unwrap();
    assert_eq!(commands.ran(), [line]);
    let (bare, commands) = host(CannedCommands::new().answer("reboot", CommandOutput::ok("")));
    bare.reboot("").await.unwrap();
    assert_eq!(commands.ran(), ["systemctl reboot --message=", "reboot"]);
    let (neither, _) = host(CannedCommands::new());
    assert!(matches!(neither.reboot("x").await, Err(HardwareError::Reboot { .. })));
}

#[tokio::test]
async fn a_machine_that_cannot_be_read_says_so_and_is_not_invented() {
    let (host, _) = host(CannedCommands::new());
    assert!(host.boot_id().await.is_err());
    assert!(host.memory_info().await.is_err());
    assert!(host.xids(0).await.is_err());
    assert_eq!(host.pressure().await, Default::default());
    let inventory = host.inventory().await;
    assert_eq!(inventory.cpu.threads, None);
    assert_eq!(inventory.memory.total_bytes, None);
    assert_eq!((inventory.os.kvm, inventory.os.iommu_units, inventory.system.uefi), (None, None, None));
}

#[tokio::test]
async fn pressure_and_steal_are_read_from_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/pressure/memory", "some avg10=10.50 avg60=0.00 avg300=0.00 total=5\n");
    write("proc/stat", "cpu  100 0 0 900 0 0 0 0 0 0\n");
    let host = HostHardware::new(Root::at(folder.path()), Arc::new(CannedCommands::new()));
    let first = host.pressure().await;
    assert_eq!(first.memory.unwrap().some.unwrap().avg10_centi_percent, 1_050);
    assert_eq!((first.cpu, first.steal_centi_percent), (None, None), "one reading is no share");
    write("proc/stat", "cpu  150 0 0 940 0 0 0 10 0 0\n");
    assert_eq!(host.pressure().await.steal_centi_percent, Some(1_000));
}
