use std::path::PathBuf;

use super::*;

fn gpu(code: u32, detail: &str) -> Xid {
    hw::xid::parse(&format!("NVRM: Xid (PCI:0000:c1:00): {code}, {detail}"))
        .expect("the line is as the driver writes it")
}

fn severity(code: u32, detail: &str) -> Severity {
    meaning(&gpu(code, detail)).0
}

#[test]
fn errors_of_the_device_take_it_out_of_work() {
    for code in [46, 48, 62, 63, 64, 74, 79, 94, 95, 110, 119, 120, 140, 143, 157, 158] {
        assert_eq!(severity(code, "pid='<unknown>', name=<unknown>"), Blocking, "Xid {code}");
    }
}

#[test]
fn errors_of_applications_are_worth_knowing_and_no_more() {
    for code in [13, 31, 43, 45, 68, 69, 109] {
        assert_eq!(severity(code, "pid=1942, name=train, Ch 00000008"), Info, "Xid {code}");
    }
}

#[test]
fn what_nobody_knows_is_a_warning() {
    assert_eq!(severity(92, ""), Warning);
    assert_eq!(severity(4_000_000, ""), Warning);
}

#[test]
fn an_nvlink_error_counts_when_it_was_fatal() {
    assert_eq!(severity(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6)"), Blocking);
    assert_eq!(severity(145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004)"), Warning);
}

#[test]
fn the_recovery_the_driver_asks_for_is_what_counts() {
    let changed = |to: &str| severity(154, &format!("GPU recovery action changed from 0x0 (None) to {to}"));
    assert_eq!(changed("0x1 (GPU Reset Required)"), Blocking);
    assert_eq!(changed("0x2 (Node Reboot Required)"), Blocking);
    assert_eq!(
        severity(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        Info
    );
}

#[test]
fn a_switch_says_itself_whether_it_was_fatal() {
    let switch = |text: &str| {
        let line = format!("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, {text}");
        meaning(&hw::xid::parse(&line).expect("the line is as the driver writes it")).0
    };
    assert_eq!(switch("Fatal, Link 30 LTSSM Fault Up"), Blocking);
    assert_eq!(switch("Non-fatal, Link 36 ingress invalid ACL (First)"), Warning);
}

#[test]
fn the_table_has_every_code_once_and_in_order() {
    assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for (code, _, text) in TABLE {
        assert!(!gpu(*code, "").is_application(), "Xid {code} is an application's");
        assert!(!text.ends_with('.'), "{text}");
    }
}

#[test]
fn captured_lines_are_judged() {
    let root = std::env::var_os("BC_SHARED_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let mut judged = 0;
    for name in ["xid-lines.txt", "xid-lines-constructed.txt", "sxid-lines.txt"] {
        let Ok(text) = std::fs::read_to_string(root.join("kmsg").join(name)) else {
            eprintln!("skipped: no captured kernel logs in {}", root.display());
            return;
        };
        for xid in text.lines().filter_map(hw::xid::find) {
            let (severity, text) = meaning(&xid);
            let fallen = xid.kind == XidKind::Gpu && [79, 119, 48, 95].contains(&xid.code);
            assert!(!fallen || severity == Blocking, "{xid:?}: {text}");
            judged += 1;
        }
    }
    assert!(judged > 100, "{judged} lines were read");
}
