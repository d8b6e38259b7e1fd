use std::path::Path;

use tempfile::TempDir;

use super::*;

const GPU: &str = "GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001";

fn addresses() -> Addresses {
    BTreeMap::from([("00000000:c1:00.0".parse().expect("an address"), GPU.to_owned())])
}

fn batch(boot_id: &str, lines: &[(u64, &str)]) -> XidBatch {
    let event = |(sequence, line): &(u64, &str)| XidEvent {
        sequence: *sequence,
        since_boot_us: 0,
        xid: hw::xid::parse(line).expect("the line is as the driver writes it"),
    };
    let next = lines.iter().map(|(sequence, _)| sequence + 1).max().unwrap_or(0);
    XidBatch { boot_id: boot_id.into(), events: lines.iter().map(event).collect(), next, lost: false }
}

const FALLEN: &str = "NVRM: Xid (PCI:0000:c1:00): 79, pid=0, GPU has fallen off the bus.";
const RESET_WANTED: &str = "NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
const NOTHING_WANTED: &str = "NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn fresh() -> (TempDir, Faults) {
    let dir = tempfile::tempdir().unwrap();
    let faults = open(dir.path());
    (dir, faults)
}

fn open(dir: &Path) -> Faults {
    Faults::at(dir.join("faults.json"))
}

#[test]
fn a_line_becomes_a_condition_of_its_gpu_with_an_age() {
    let (_dir, mut faults) = fresh();
    assert!(faults.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(100)).unwrap());
    let facts = faults.facts(at(160));
    assert_eq!(facts.len(), 1);
    assert_eq!(
        (facts[0].kind.as_str(), facts[0].device.as_str(), facts[0].reason.as_str()),
        ("Xid", GPU, "79")
    );
    assert_eq!(facts[0].severity, Severity::Blocking);
    assert_eq!(facts[0].age, Some(std::time::Duration::from_secs(60)));
    assert!(facts[0].message.contains("reboot the machine"), "{}", facts[0].message);
}

#[test]
fn a_restart_in_the_same_boot_keeps_it_and_the_next_boot_does_not() {
    let (dir, mut faults) = fresh();
    faults.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(0)).unwrap();
    let mut next = open(dir.path());
    // The log is read from its beginning again.
    assert!(!next.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(9)).unwrap());
    assert_eq!(next.facts(at(9)).len(), 1);
    assert!(next.take(&batch("two", &[]), &addresses(), at(9)).unwrap());
    assert!(next.facts(at(9)).is_empty() && open(dir.path()).facts(at(9)).is_empty());
}

#[test]
fn a_cleared_gpu_stays_clear_of_old_lines_and_not_of_new_ones() {
    let (dir, mut faults) = fresh();
    faults.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(0)).unwrap();
    faults.clear(GPU).unwrap();
    for mut faults in [faults, open(dir.path())] {
        assert!(!faults.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(1)).unwrap());
        assert!(faults.facts(at(1)).is_empty());
        assert!(faults.take(&batch("one", &[(5, FALLEN), (6, FALLEN)]), &addresses(), at(1)).unwrap());
    }
}

#[test]
fn a_storm_is_one_condition_with_a_count() {
    let (_dir, mut faults) = fresh();
    let lines: Vec<(u64, &str)> = (0..5000).map(|sequence| (sequence, FALLEN)).collect();
    faults.take(&batch("one", &lines), &addresses(), at(0)).unwrap();
    let facts = faults.facts(at(0));
    assert_eq!(facts.len(), 1);
    assert!(facts[0].message.ends_with("5000 times since boot"), "{}", facts[0].message);
}

#[test]
fn many_devices_are_bounded() {
    let (_dir, mut faults) = fresh();
    let lines: Vec<String> =
        (0..2000).map(|code| format!("NVRM: Xid (PCI:0000:c1:00): {}, x", 10_000 + code)).collect();
    let lines: Vec<(u64, &str)> =
        lines.iter().enumerate().map(|(at, line)| (at as u64, line.as_str())).collect();
    faults.take(&batch("one", &lines), &addresses(), at(0)).unwrap();
    assert_eq!(faults.facts(at(0)).len(), FAULTS_MAX);
}

#[test]
fn the_last_recovery_action_is_the_one_that_holds() {
    let (_dir, mut faults) = fresh();
    faults.take(&batch("one", &[(1, RESET_WANTED)]), &addresses(), at(0)).unwrap();
    assert_eq!(faults.facts(at(0))[0].severity, Severity::Blocking);
    faults.take(&batch("one", &[(2, NOTHING_WANTED)]), &addresses(), at(0)).unwrap();
    assert_eq!(faults.facts(at(0))[0].severity, Severity::Info);
}

#[test]
fn an_address_is_named_by_its_gpu_once_that_is_known() {
    let (_dir, mut faults) = fresh();
    faults.take(&batch("one", &[(1, FALLEN)]), &Addresses::new(), at(0)).unwrap();
    assert!(faults.facts(at(0))[0].device.contains("c1:00"));
    faults.take(&batch("one", &[(1, FALLEN)]), &addresses(), at(0)).unwrap();
    assert_eq!(faults.facts(at(0))[0].device, GPU);
}

#[test]
fn a_file_that_rotted_costs_only_what_the_log_has_again() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b"{"[..], b"", b"\xff", b"{\"faults\":7}"] {
        std::fs::write(dir.path().join("faults.json"), content).unwrap();
        let mut faults = open(dir.path());
        assert!(faults.facts(at(0)).is_empty());
        faults.take(&batch("one", &[(5, FALLEN)]), &addresses(), at(0)).unwrap();
        assert_eq!(faults.facts(at(0)).len(), 1);
    }
}
