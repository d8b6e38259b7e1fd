//! Crashes, full disks, and files that others made.

use super::*;

#[tokio::test]
async fn a_crash_anywhere_in_a_bind_is_made_good_and_reported() {
    // Two changes: the env file and the hold's file.
    for at in 0..2 {
        for trap in [Trap::CrashBefore(at), Trap::CrashAfter(at)] {
            let host = Host::new().await;
            let spec = [limited(1, &[&host.gpus[0], &host.gpus[1]], 1 << 30)];
            let report = host.process(trap).pass(1, &spec).await;
            assert_eq!((report.state, told(&report)), (SectionState::Progressing, Vec::new()), "{trap:?}");
            let mut next = host.process(Trap::Never);
            let report = next.pass(1, &spec).await;
            assert_eq!(
                (report.state, told(&report)),
                (SectionState::Converged, vec!["bound 1".into()]),
                "{trap:?}"
            );
            assert!(told(&next.pass(1, &spec).await).is_empty());
        }
    }
}

#[tokio::test]
async fn a_crash_anywhere_in_a_release_is_made_good_and_reported() {
    for at in 0..2 {
        for trap in [Trap::CrashBefore(at), Trap::CrashAfter(at)] {
            let host = Host::new().await;
            host.process(Trap::Never).pass(1, &[limited(1, &[&host.gpus[0]], 1 << 30)]).await;
            let next_hold = held(2, &[&host.gpus[0]]);
            let report = host.process(trap).pass(2, &[released(1), next_hold.clone()]).await;
            assert_eq!(report.state, SectionState::Progressing, "{trap:?}");
            assert!(!told(&report).contains(&"released 1".to_owned()), "{trap:?}");
            let mut next = host.process(Trap::Never);
            let report = next.pass(2, &[released(1), next_hold.clone()]).await;
            assert_eq!(report.state, SectionState::Converged, "{trap:?}: {report:?}");
            assert_eq!(told(&report), ["released 1", "bound 2"], "{trap:?}");
            assert!(told(&next.pass(2, &[released(1), next_hold]).await).is_empty());
        }
    }
}

#[tokio::test]
async fn a_full_disk_holds_nothing_half_and_still_releases() {
    let host = Host::new().await;
    host.process(Trap::Never).pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let mut full = host.process(Trap::DiskFull);
    let report = full.pass(2, &[released(1), held(2, &[&host.gpus[1]])]).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "BindFailed"));
    assert_eq!(told(&report), ["released 1"]);
    assert_eq!(host.text(&HostFile::Cdi(allocation(2))), None);
}

#[tokio::test]
async fn a_failure_that_cannot_be_recorded_is_not_reported() {
    let host = Host::new().await;
    std::fs::write(host.root.path().join("data"), "a file where the folder should be").unwrap();
    let report = host.process(Trap::Never).pass(1, &[held(1, &[])]).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "RecordUnwritable"));
    assert!(told(&report).is_empty());
}

fn plant(host: &Host, name: &str, content: &[u8]) {
    let path = host.root.path().join("etc/cdi").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

#[tokio::test]
async fn an_unreadable_hold_is_kept_reported_and_blocks_new_ones() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    daemon.pass(1, &[held(1, &[&host.gpus[0]])]).await;
    let rotten = HostFile::Cdi(allocation(9)).name();
    let nodes: [&[u8]; 3] = [b"{\"cdiVersion\":\"0.6.0\",\"kind\":\"bcd.dev/gpu\",\"dev", b"", b"\xff\xfe"];
    for content in nodes {
        plant(&host, &rotten, content);
        let report = daemon.pass(2, &[held(1, &[&host.gpus[0]]), held(2, &[&host.gpus[1]])]).await;
        assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "HoldUnreadable"));
        assert_eq!(kinds(&report), ["HoldUnreadable"]);
        assert_eq!(std::fs::read(host.root.path().join("etc/cdi").join(&rotten)).unwrap(), content);
    }
    // An entry about it is a signed intent: one that holds makes it again, one that releases takes it away.
    let entries = [held(1, &[&host.gpus[0]]), held(2, &[&host.gpus[1]]), held(9, &[&host.gpus[2]])];
    let report = daemon.pass(3, &entries).await;
    assert_eq!(report.state, SectionState::Progressing, "the second waits for what the ninth may hold");
    let report = daemon.pass(3, &entries).await;
    assert_eq!((report.state, told(&report)), (SectionState::Converged, vec!["bound 2".into()]));
    plant(&host, &rotten, b"rotten again");
    assert_eq!(told(&daemon.pass(4, &[released(9)]).await), ["released 9"]);
    assert!(!host.root.path().join("etc/cdi").join(&rotten).exists());
}

#[tokio::test]
async fn a_link_in_a_holds_place_is_never_followed() {
    let host = Host::new().await;
    let victim = host.root.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let place = host.path(&HostFile::Cdi(allocation(1)));
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&victim, &place).unwrap();
    let mut daemon = host.process(Trap::Never);
    let report = daemon.pass(1, &[]).await;
    assert_eq!(kinds(&report), ["HoldUnreadable"]);
    assert!(std::fs::symlink_metadata(&place).unwrap().is_symlink());
    assert_eq!(told(&daemon.pass(2, &[held(1, &[&host.gpus[0]])]).await), ["bound 1"]);
    assert!(!std::fs::symlink_metadata(&place).unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[tokio::test]
async fn other_tools_files_are_nobodys_holds() {
    let host = Host::new().await;
    plant(&host, "nvidia.yaml", b"cdiVersion: 0.6.0");
    plant(&host, "k8s.json", b"{}");
    let report = host.process(Trap::Never).pass(1, &[held(1, &[&host.gpus[0]])]).await;
    assert_eq!((report.state, report.conditions.len()), (SectionState::Converged, 0));
}

#[tokio::test]
async fn a_stopping_daemon_leaves_the_rest_for_the_next_process() {
    let host = Host::new().await;
    let mut daemon = host.process(Trap::Never);
    let spec = NodeSpec {
        devices: Some(DevicesSection { assignments: vec![held(1, &[&host.gpus[0]])] }),
        ..NodeSpec::default()
    };
    let cancel = CancellationToken::new();
    cancel.cancel();
    let context = ConvergeContext {
        node_id: NodeId::from_uuid(uuid::Uuid::nil()),
        generation: 1,
        boot_id: "boot".into(),
        first_pass: true,
        cancel,
        secrets: Default::default(),
    };
    let report = daemon.devices.converge(&spec, &context).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "Stopping"));
    assert!(!host.path(&HostFile::Cdi(allocation(1))).exists());
}
