//! Holds of CPU and memory alone.

use super::*;

fn host_hold(number: u128, memory_bytes: u64) -> DeviceAssignment {
    DeviceAssignment { device_class: "host".into(), ..limited(number, &[], memory_bytes) }
}

#[tokio::test]
async fn a_hold_without_devices_is_bound_reported_kept_and_released() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let spec = [host_hold(1, 8 << 30)];
    let report = daemon.pass(5, &spec).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["bound 1".into()]));
    let Body::AllocationBound(bound) = &report.reports[0].body else { panic!("not bound") };
    assert_eq!(bound.cdi_devices, [format!("bcd.dev/host={}", allocation(1))]);
    assert!(bound.atoms.is_empty());
    assert_eq!(host.slices.list().await.unwrap(), [allocation(1)]);
    let env = host.text(&HostFile::AllocationEnv(allocation(1))).unwrap();
    let slice = crate::slices::name(allocation(1));
    assert_eq!(env, format!("BCD_ALLOCATION_ID={}\nBCD_CGROUP_PARENT={slice}\n", allocation(1)));
    let cdi = host.text(&HostFile::Cdi(allocation(1))).unwrap();
    assert!(!cdi.contains("/dev/nvidia"), "{cdi}");

    // The next process reads it back, says so again and changes nothing.
    let mut next = host.process(Trap::Never);
    assert_eq!(told(&next.pass(5, &spec).await), ["bound 1"]);
    assert_eq!(next.files.changes().len(), 0);
    let report = next.pass(6, &[released(1)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["released 1".into()]));
    assert_eq!(host.text(&HostFile::Cdi(allocation(1))), None);
    assert_eq!(host.text(&HostFile::AllocationEnv(allocation(1))), None);
    assert_eq!(host.slices.list().await.unwrap(), []);
    assert_eq!(host.freed.load(Ordering::SeqCst), 0, "no GPU came free");
}

#[tokio::test]
async fn a_driver_that_does_not_answer_is_nothing_to_a_hold_without_devices() {
    let host = Host::new().await;
    host.hardware.inject(Fault::SmiFails(hw::smi::SmiError::TimedOut));
    let report = host.process(Trap::Never).pass(1, &[host_hold(1, 1 << 30)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["bound 1".into()]));
}

#[tokio::test]
async fn a_hold_without_devices_has_limits_and_nothing_else() {
    let host = Host::new().await;
    let limits = Some(Limits { cpu_millis: 1000, ..Limits::default() });
    let cases = [
        DeviceAssignment { limits: None, ..host_hold(1, 0) },
        DeviceAssignment { limits: Some(Limits::default()), ..host_hold(1, 0) },
        DeviceAssignment { atoms: vec![host.gpus[0].clone()], ..host_hold(1, 1 << 30) },
        DeviceAssignment { device_class: "gpu".into(), limits, ..host_hold(1, 0) },
    ];
    for (at, entry) in cases.into_iter().enumerate() {
        let report = host.process(Trap::Never).pass(at as u64 + 1, &[entry]).await;
        assert_eq!(told(&report), ["failed 1 unsupported-device"], "case {at}");
        assert!(host.text(&HostFile::Cdi(allocation(1))).is_none());
    }
}

#[tokio::test]
async fn what_a_hold_without_devices_was_promised_counts_for_all() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let memory = host.hardware.memory_info().await.unwrap();
    let room = memory.total_bytes - memory.hugetlb_bytes.unwrap_or(0) - (1 << 30);
    let report = daemon.pass(1, &[host_hold(1, room / 2), limited(2, &[&host.gpus[0]], room / 2)]).await;
    assert_eq!(told(&report), ["bound 1", "bound 2"]);
    // The first is listed no more and still counts.
    let report = daemon.pass(2, &[limited(2, &[&host.gpus[0]], room / 2), host_hold(3, 2)]).await;
    assert_eq!(told(&report), ["failed 3 resources-exhausted"]);
    assert_eq!(kinds(&report), ["UnlistedHold"]);
    assert_eq!(
        (report.conditions[0].device.as_str(), &report.conditions[0].reason),
        ("", &allocation(1).to_string())
    );
    assert!(host.text(&HostFile::Cdi(allocation(1))).is_some());
}

#[tokio::test]
async fn a_host_that_keeps_no_limits_takes_no_hold_without_devices() {
    let mut host = Host::new().await;
    host.slices = Arc::new(FakeSlices::unsupported("systemd does not run here"));
    let report = host.process(Trap::Never).pass(1, &[host_hold(1, 1 << 30)]).await;
    assert_eq!(told(&report), ["failed 1 unsupported-limits"]);
}

#[tokio::test]
async fn a_hold_never_changes_between_devices_and_none() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let gpu = limited(2, &[&host.gpus[0]], 1 << 30);
    daemon.pass(1, &[host_hold(1, 1 << 30), gpu.clone()]).await;
    let before = [1, 2].map(|number| host.text(&HostFile::Cdi(allocation(number))));
    for changed in [
        [DeviceAssignment { atoms: vec![host.gpus[1].clone()], ..host_hold(1, 1 << 30) }, gpu.clone()],
        [DeviceAssignment { device_class: "gpu".into(), ..host_hold(1, 1 << 30) }, gpu.clone()],
        [host_hold(1, 1 << 30), host_hold(2, 1 << 30)],
    ] {
        let report = daemon.pass(2, &changed).await;
        assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "HoldDiffers"));
        assert!(told(&report).is_empty());
    }
    assert_eq!([1, 2].map(|number| host.text(&HostFile::Cdi(allocation(number)))), before);
}

#[tokio::test]
async fn a_crash_anywhere_is_made_good_and_reported() {
    for at in 0..2 {
        for trap in [Trap::CrashBefore(at), Trap::CrashAfter(at)] {
            let host = Host::new().await;
            let spec = [host_hold(1, 1 << 30)];
            assert!(told(&host.process(trap).pass(1, &spec).await).is_empty(), "{trap:?}");
            assert_eq!(told(&host.process(Trap::Never).pass(1, &spec).await), ["bound 1"], "{trap:?}");
            assert!(told(&host.process(trap).pass(2, &[released(1)]).await).is_empty(), "{trap:?}");
            assert_eq!(
                told(&host.process(Trap::Never).pass(2, &[released(1)]).await),
                ["released 1"],
                "{trap:?}"
            );
            assert!(host.text(&HostFile::Cdi(allocation(1))).is_none());
        }
    }
}

#[tokio::test]
async fn what_failed_and_is_then_released_is_told_as_released() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let both = [held(1, &[&host.gpus[0]]), held(2, &[&host.gpus[0]])];
    assert_eq!(told(&daemon.pass(2, &both).await), ["failed 2 overlap"]);
    let report = daemon.pass(3, &[held(1, &[&host.gpus[0]]), released(2)]).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["released 2".into()]));
    // And the same after it had been bound meanwhile, at a generation the control plane did not mean.
    assert_eq!(
        told(&daemon.pass(4, &[released(1), held(2, &[&host.gpus[0]])]).await),
        ["released 1", "bound 2"]
    );
    assert_eq!(told(&daemon.pass(5, &[released(2)]).await), ["released 2"]);
    assert_eq!(host.text(&HostFile::Cdi(allocation(2))), None);
}
