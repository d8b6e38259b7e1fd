use wire::inventory::Unread;

use super::*;
use crate::fake::{FakeHardware, Fault};
use crate::hardware::Hardware;
use crate::smi::SmiError;

async fn judged(fake: &FakeHardware) -> Vec<DiagCheck> {
    let xids = fake.xids(0).await.unwrap();
    nvml(&fake.inventory().await.gpus, &xids.events)
}

fn failed(checks: &[DiagCheck]) -> Vec<(CheckName, bool)> {
    checks.iter().filter(|check| !check.passed).map(|check| (check.name, check.gpu.is_some())).collect()
}

#[tokio::test]
async fn a_healthy_node_passes_every_check_of_every_gpu() {
    let checks = judged(&FakeHardware::new(7)).await;
    assert!(passed(&checks), "{checks:?}");
    assert_eq!(checks.len(), 1 + 8 * 5);
    assert_eq!(checks[0].detail, "driver 580.105.08, 8 GPUs");
}

#[tokio::test]
async fn each_fault_fails_its_own_check_with_its_reason() {
    let cases = [
        (Fault::EccUncorrectable { gpu: 2, count: 3 }, CheckName::EccUncorrectable, "3 uncorrectable errors"),
        (Fault::RowRemapPending { gpu: 2 }, CheckName::RowRemapPending, "waits for a GPU reset"),
        (Fault::RowRemapFailure { gpu: 2 }, CheckName::RowRemapFailure, "needs replacing"),
        (Fault::PcieNarrow { gpu: 2, width: 8 }, CheckName::PcieLink, "x8 of x16"),
        (Fault::Xid { gpu: 2, code: 79 }, CheckName::XidRecent, "Xid 79"),
    ];
    for (fault, name, detail) in cases {
        let fake = FakeHardware::new(7);
        fake.inject(fault.clone());
        let checks = judged(&fake).await;
        assert_eq!(failed(&checks), [(name, true)], "{fault:?}");
        let check = checks.iter().find(|check| !check.passed).unwrap();
        assert!(check.detail.contains(detail), "{}", check.detail);
        assert_eq!(check.gpu, fake.inventory().await.gpus.gpus[2].uuid);
    }
}

#[tokio::test]
async fn a_lost_gpu_fails_what_it_can_no_longer_answer() {
    let fake = FakeHardware::new(7);
    fake.inject(Fault::GpuLost { gpu: 1 });
    let checks = judged(&fake).await;
    let names: Vec<CheckName> = failed(&checks).into_iter().map(|(name, _)| name).collect();
    // A GPU may fall off without a line in the log: that check stands on its own.
    assert_eq!(names, CheckName::ALL[..5]);
}

#[tokio::test]
async fn an_application_error_does_not_fail_a_gpu() {
    let fake = FakeHardware::new(7);
    fake.inject(Fault::Xid { gpu: 0, code: 31 });
    let checks = judged(&fake).await;
    assert!(passed(&checks));
    assert!(checks.iter().any(|check| check.detail.contains("Xid 31")));
}

#[test]
fn without_a_driver_the_reason_is_the_true_one() {
    let init = |section: GpuSection| nvml(&section, &[]);
    let none = init(GpuSection { problem: Some(GpuProblem::NotInstalled), ..Default::default() });
    assert_eq!(none.len(), 1);
    assert_eq!(
        (none[0].passed, none[0].detail.as_str()),
        (false, "nvidia-smi is not installed: this host has no NVIDIA driver")
    );
    let said = Unread { what: "nvidia-smi".into(), why: SmiError::TimedOut.to_string() };
    let hung =
        init(GpuSection { problem: Some(GpuProblem::TimedOut), unread: vec![said], ..Default::default() });
    assert_eq!(hung[0].detail, "nvidia-smi: no answer in time");
    assert!(!passed(&init(GpuSection::default())), "a driver without devices is no pass");
    assert!(!passed(&[]));
    let unseen = GpuSection { gpus: vec![Gpu::default()], ..Default::default() };
    assert_eq!(init(unseen)[0].detail, "nvidia-smi does not describe GPU unknown");
}

#[tokio::test]
async fn an_error_of_a_device_that_vanished_or_of_a_switch_fails_the_node() {
    let section = FakeHardware::new(7).inventory().await.gpus;
    for line in [
        "NVRM: Xid (PCI:0000:aa:00): 79, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up",
    ] {
        let event = XidEvent { sequence: 1, since_boot_us: 9_000_000, xid: crate::xid::find(line).unwrap() };
        assert_eq!(failed(&nvml(&section, &[event])), [(CheckName::XidRecent, false)], "{line}");
    }
    let line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11004, Non-fatal, Link 36 ingress invalid ACL";
    let event = XidEvent { sequence: 1, since_boot_us: 9_000_000, xid: crate::xid::find(line).unwrap() };
    assert!(passed(&nvml(&section, &[event])));
}
