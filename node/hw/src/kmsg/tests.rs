use std::io::Write;

use proptest::prelude::*;

use super::*;

const LOG: &str = "\
6,339,5140900,-;NET: Registered PF_INET6
 SUBSYSTEM=pci
 DEVICE=+pci:0000:c1:00.0
4,340,5140950,-;NVRM: Xid (PCI:0000:c1:00): 79, pid=1173, GPU has fallen off the bus.
12,341,5141000,-;NVRM: Xid (PCI:0000:c1:00): 48, forged by a program
3,342,5141100,c;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up
";

fn log(text: &str) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dev")).unwrap();
    std::fs::write(folder.path().join("dev/kmsg"), text).unwrap();
    let root = Root::at(folder.path());
    (folder, root)
}

#[test]
fn records_are_parsed_and_continuations_are_not() {
    let record = parse("6,339,5140900,-;NET: Registered; twice").unwrap();
    assert_eq!((record.facility, record.level, record.sequence), (0, 6, 339));
    assert_eq!(record.since_boot_us, 5_140_900);
    assert_eq!(record.message, "NET: Registered; twice");
    assert_eq!(parse("12,1,2,-;x").unwrap().facility, 1);
    for bad in [" SUBSYSTEM=pci", "", "a,b,c,-;x", "6,339;x", "6,339,1;x", "-6,1,2,-;x", "no semicolon"] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}

#[test]
fn the_follower_reports_new_errors_once_a_cursor_and_only_the_kernels_own() {
    let (folder, root) = log(LOG);
    let mut follower = Follower::new();
    let batch = follower.poll(&root, "boot".into(), 0).unwrap();
    assert_eq!(batch.events.iter().map(|event| event.xid.code).collect::<Vec<_>>(), [79, 20034]);
    assert_eq!((batch.next, batch.lost), (343, false));

    let again = follower.poll(&root, "boot".into(), batch.next).unwrap();
    assert!(again.events.is_empty());
    let mut file = std::fs::OpenOptions::new().append(true).open(folder.path().join("dev/kmsg")).unwrap();
    write!(file, "4,343,6000000,-;NVRM: Xid (PCI:0000:c1:00): 63, Row Rem").unwrap();
    assert!(follower.poll(&root, "boot".into(), batch.next).unwrap().events.is_empty(), "half a line");
    writeln!(file, "apper: New row").unwrap();
    let later = follower.poll(&root, "boot".into(), batch.next).unwrap();
    assert_eq!(later.events[0].xid.detail, "Row Remapper: New row");

    let other = follower.poll(&root, "boot".into(), 0).unwrap();
    assert_eq!(other.events.len(), 3, "another reader with its own cursor sees all");
    let stale = follower.poll(&root, "boot".into(), 999_999).unwrap();
    assert_eq!(stale.events.len(), 3, "a cursor of an earlier boot starts over");
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error_and_not_silence() {
    let folder = tempfile::tempdir().unwrap();
    let error = Follower::new().poll(&Root::at(folder.path()), "boot".into(), 0).unwrap_err();
    assert!(matches!(error, HardwareError::Read { what: "the kernel log", .. }), "{error}");
}

#[test]
fn a_storm_is_bounded_and_says_that_it_lost_something() {
    let storm: String = (0..EVENTS_MAX + 10)
        .map(|n| format!("4,{n},{n},-;NVRM: Xid (PCI:0000:c1:00): 13, storm\n"))
        .collect();
    let (_folder, root) = log(&storm);
    let batch = Follower::new().poll(&root, "boot".into(), 0).unwrap();
    assert_eq!(batch.events.len(), EVENTS_MAX);
    assert!(batch.lost);
    let (_folder, root) = log(&"x".repeat(PENDING_BYTES_MAX * 3));
    let mut follower = Follower::new();
    assert!(follower.poll(&root, "boot".into(), 0).unwrap().lost);
    assert!(follower.pending.len() <= PENDING_BYTES_MAX + RECORD_BYTES_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_the_follower_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut follower = Follower::new();
        follower.take(&bytes);
        follower.take(b"\n4,7,8,-;NVRM: Xid (PCI:0000:c1:00): 79, end\n");
        prop_assert_eq!(follower.events.back().map(|event| event.sequence), Some(7));
    }
}
