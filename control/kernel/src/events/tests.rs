use std::collections::BTreeSet;
use std::path::Path;

use super::{EventKind, kind_matches, reference};

#[test]
fn the_reference_page_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    if std::env::var_os("BC_BLESS").is_some() {
        std::fs::write(&path, reference()).expect("the page can be written");
    }
    let page = std::fs::read_to_string(&path).expect("docs/events.md is there");
    assert_eq!(page, reference(), "docs/events.md is old: run this test with BC_BLESS=1");
}

#[test]
fn names_are_unique_and_well_formed() {
    let mut seen = BTreeSet::new();
    for kind in EventKind::ALL {
        let name = kind.name();
        assert!(seen.insert(name), "{name} twice");
        assert!(
            name.contains('.') && name.bytes().all(|b| b.is_ascii_lowercase() || b".-".contains(&b)),
            "{name}"
        );
        assert!(kind.doc().ends_with('.'), "{name} is described by sentences");
        assert_eq!(EventKind::parse(name), Some(*kind));
    }
    assert_eq!(EventKind::parse("reservation"), None);
}

#[test]
fn a_group_of_kinds_ends_at_a_dot() {
    assert!(kind_matches("reservation.placed", "reservation.placed"));
    assert!(kind_matches("iam.user.created", "iam.user"));
    assert!(kind_matches("iam.user.created", "iam."));
    assert!(!kind_matches("node.report-failed", "node.report"));
    assert!(!kind_matches("node.ready", "node.ready.x"));
}
