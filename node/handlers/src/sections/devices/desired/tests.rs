use proptest::prelude::*;

use super::*;

fn entry(id: &str, desired: i32, atoms: Vec<String>, limits: Option<Limits>) -> DeviceAssignment {
    DeviceAssignment {
        allocation_id: id.into(),
        atoms,
        device_class: "gpu".into(),
        binding: proto::Binding::Hold.into(),
        limits,
        desired,
    }
}

const ID: &str = "alloc_00000000000000000000000001";

#[test]
fn an_entry_is_read_whole_with_each_atom_once() {
    let limits = Limits { cpu_millis: 1500, cpus: "0-3,8".into(), mems: "1".into(), ..Limits::default() };
    let held = entry(
        ID,
        DesiredHold::Held.into(),
        vec!["GPU-2".into(), "GPU-1".into(), "GPU-2".into()],
        Some(limits),
    );
    let desired = parse(&DevicesSection { assignments: vec![held] });
    let wanted = &desired.held[&ID.parse().unwrap()];
    assert_eq!(wanted.atoms, ["GPU-2", "GPU-1"]);
    assert_eq!(wanted.binding, Some(Binding::Hold));
    assert_eq!(
        (wanted.limits.cpu_millis, wanted.limits.cpus.count(), wanted.limits.mems.count()),
        (1500, 5, 1)
    );
}

#[test]
fn two_entries_about_one_allocation_cancel_each_other_out() {
    let held = entry(ID, DesiredHold::Held.into(), vec!["GPU-1".into()], None);
    let released = entry(ID, DesiredHold::Released.into(), Vec::new(), None);
    let desired = parse(&DevicesSection { assignments: vec![held, released] });
    assert!(desired.held.is_empty() && desired.released.is_empty());
    assert_eq!(desired.invalid, [(ID.to_owned(), "two entries are about it".to_owned())]);
    assert!(desired.names(ID.parse().unwrap()), "what is on the host for it is not unlisted");
}

fn entries() -> impl Strategy<Value = Vec<DeviceAssignment>> {
    let id = prop_oneof!["\\PC{0,40}", (1u8..4).prop_map(|number| format!("alloc_{number:026}"))];
    let atom = prop_oneof![".{0,20}", "GPU-[0-9]{1,2}(/[a-z]{0,3})?"];
    let list = prop_oneof!["", "[0-9,-]{0,6}"];
    let limits = (any::<u64>(), list.clone(), list).prop_map(|(cpu_millis, cpus, mems)| Limits {
        cpu_millis,
        cpus,
        mems,
        ..Limits::default()
    });
    let entry = (id, -1i32..5, proptest::collection::vec(atom, 0..4), proptest::option::of(limits))
        .prop_map(|(id, desired, atoms, limits)| entry(&id, desired, atoms, limits));
    proptest::collection::vec(entry, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever a spec says: nothing is both held and released, nothing is dropped without a word, and every atom is safe
    /// in a name, a list and a line.
    #[test]
    fn every_entry_is_understood_or_named(assignments in entries()) {
        let desired = parse(&DevicesSection { assignments: assignments.clone() });
        for allocation in desired.held.keys() {
            prop_assert!(!desired.released.contains(allocation) && !desired.unclear.contains(allocation));
        }
        prop_assert!(desired.released.intersection(&desired.unclear).next().is_none());
        for wanted in desired.held.values() {
            prop_assert!(wanted.atoms.iter().all(|atom| cdi::is_atom(atom)));
        }
        for entry in &assignments {
            let understood = entry.allocation_id.parse().is_ok_and(|allocation| desired.names(allocation));
            let shown: String = entry.allocation_id.chars().take(64).collect();
            prop_assert!(understood || desired.invalid.iter().any(|(entry, _)| *entry == shown));
        }
    }
}
