use std::time::Duration;

use kit::SystemClock;
use model::{CommandKind, Section};

use super::*;

struct NoLogs;

impl LogSource for NoLogs {
    fn recent(&self, _since: Duration) -> String {
        String::new()
    }
}

#[tokio::test]
async fn a_simulated_node_handles_every_kind_and_writes_only_below_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new());
    let data_dir = dir.path().join("data");
    let ports = NodePorts::simulated(Arc::new(FakeHardware::new(1)), &data_dir, clock, Arc::new(NoLogs));
    let parts = parts(ports).await.unwrap();
    let mut kinds: Vec<CommandKind> = parts.kinds.iter().map(|kind| kind.kind()).collect();
    kinds.sort();
    assert_eq!(kinds, CommandKind::ALL);
    let sections: Vec<Section> = parts.convergers.iter().map(|converger| converger.section()).collect();
    assert_eq!(sections, [Section::Devices, Section::Instances, Section::Access]);
    assert_eq!(
        parts.hardware.capabilities(),
        [
            "binding.kubernetes",
            "devices.host-only",
            "devices.limits",
            "runtime.libvirt-kvm",
            "instance.network-policy",
            "instance.placement",
            "instance.user-data",
            "instance.gpus"
        ]
    );
    assert_eq!(parts.hardware.inventory_hashes().len(), 7, "the first Hello tells what the machine is");
    assert!(!parts.boot_id.is_empty());
    let written: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(written, ["data"]);
}

#[tokio::test]
async fn this_host_is_put_together_and_says_whether_it_keeps_limits() {
    let dir = tempfile::tempdir().unwrap();
    let ports = NodePorts::host(dir.path(), Arc::new(SystemClock::new()), Arc::new(NoLogs));
    let supported = ports.slices.support().is_ok();
    let parts = parts(ports).await.unwrap();
    for name in ["devices.limits", "devices.host-only"] {
        assert_eq!(parts.hardware.capabilities().contains(&name.to_owned()), supported, "{name}");
    }
}
