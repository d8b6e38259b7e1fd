use agent::hardware::Hardware as _;
use hw::FakeHardware;
use hw::fake::Fault;
use kit::ManualClock;
use model::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::conditions::presence;

struct Rig {
    _dir: TempDir,
    hardware: Arc<FakeHardware>,
    clock: Arc<ManualClock>,
    machine: Arc<Machine>,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let hardware = Arc::new(FakeHardware::new(3));
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    let faults = Faults::at(dir.path().join("faults.json"));
    let presence = Presence::at(dir.path().join(presence::FILE));
    let (machine, _) = Machine::new(hardware.clone(), clock.clone(), vec!["x".into()], faults, presence);
    Rig { _dir: dir, hardware, clock, machine }
}

#[tokio::test]
async fn the_first_pass_tells_what_the_machine_is() {
    let rig = rig();
    assert!(rig.machine.inventory_hashes().is_empty());
    assert!(rig.machine.pass().await.0);
    let hashes = rig.machine.inventory_hashes();
    assert_eq!(hashes.len(), SectionName::ALL.len());
    let section = rig.machine.inventory_section("gpus").unwrap();
    assert_eq!(section.hash, hashes["gpus"]);
    assert!(wire::inventory::decode(SectionName::Gpus, &section.json).is_ok());
    assert!(rig.machine.inventory_section("nonsense").is_none());
    assert!(agent::hardware::Hardware::pressure(&*rig.machine).is_some());
    assert!(!rig.machine.pass().await.0, "a second look has nothing new to tell");
}

#[tokio::test]
async fn an_error_line_is_a_condition_that_ages_until_a_reset_helps() {
    let rig = rig();
    rig.machine.pass().await;
    rig.hardware.inject(Fault::Xid { gpu: 1, code: 63 });
    assert!(rig.machine.pass().await.0);
    rig.clock.advance(Duration::from_secs(20));
    let facts = rig.machine.conditions();
    assert_eq!(
        (facts.len(), facts[0].reason.as_str(), facts[0].age),
        (1, "63", Some(Duration::from_secs(20)))
    );
    let gpu = facts[0].device.clone();
    assert!(gpu.starts_with("GPU-"));
    // Another line comes before the health is read back: it is of before the reset too.
    rig.hardware.inject(Fault::Xid { gpu: 1, code: 154 });
    rig.machine.clear_faults(&gpu).await;
    assert!(rig.machine.conditions().is_empty());
    assert!(!rig.machine.pass().await.0);
}

#[tokio::test]
async fn a_reboot_clears_what_the_last_boot_said() {
    let rig = rig();
    rig.machine.pass().await;
    rig.hardware.inject(Fault::Xid { gpu: 0, code: 79 });
    rig.machine.pass().await;
    assert_eq!(rig.machine.conditions().len(), 1);
    rig.hardware.power_cycle();
    assert!(rig.machine.pass().await.0);
    assert!(rig.machine.conditions().is_empty());
}

#[tokio::test]
async fn the_inventory_is_collected_again_when_its_time_has_come() {
    let rig = rig();
    rig.machine.pass().await;
    let before = rig.machine.inventory_hashes();
    rig.hardware.inject(Fault::RowRemapPending { gpu: 0 });
    rig.machine.pass().await;
    assert_eq!(rig.machine.inventory_hashes(), before);
    rig.clock.advance(INVENTORY_PERIOD);
    assert!(rig.machine.pass().await.0);
    assert_ne!(rig.machine.inventory_hashes(), before);
}

#[tokio::test]
async fn a_look_that_was_asked_for_is_a_whole_one() {
    let rig = rig();
    rig.machine.pass().await;
    rig.hardware.inject(Fault::RowRemapFailure { gpu: 0 });
    rig.machine.pass().await;
    assert!(rig.machine.conditions().is_empty());
    rig.machine.look_soon();
    assert!(rig.machine.is_asked_to_look() && rig.machine.pass().await.0);
    assert_eq!(rig.machine.conditions()[0].kind, "GpuUnhealthy");
    assert!(!rig.machine.is_asked_to_look());
}
