use super::*;

fn allocation(number: u128) -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(number))
}

#[test]
fn a_failure_outlives_its_process_and_holds_at_its_generation_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data/devices.json");
    let mut failures = Failures::at(path.clone());
    failures.record(allocation(1), 4, Reason::Overlap, "held by another").unwrap();
    let mut next = Failures::at(path.clone());
    assert_eq!(next.at_generation(allocation(1), 4).map(|failure| failure.reason), Some(Reason::Overlap));
    assert_eq!(next.at_generation(allocation(1), 5), None);
    next.keep(|_| false).unwrap();
    assert_eq!(Failures::at(path).at_generation(allocation(1), 4), None);
}

#[test]
fn what_could_not_be_stored_is_not_remembered_either() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), "in the way").unwrap();
    let mut failures = Failures::at(dir.path().join("data/devices.json"));
    assert!(failures.record(allocation(1), 4, Reason::Overlap, "held by another").is_err());
    assert_eq!(failures.at_generation(allocation(1), 4), None);
}

#[test]
fn a_record_that_rotted_is_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("devices.json");
    for content in [
        &b"{\"alloc_1\":"[..],
        b"[]",
        b"\xff",
        b"{\"x\":{\"generation\":1,\"reason\":\"overlap\",\"message\":\"\"}}",
    ] {
        std::fs::write(&path, content).unwrap();
        let mut failures = Failures::at(path.clone());
        failures.record(allocation(1), 1, Reason::DeviceMissing, "gone").unwrap();
    }
}

#[test]
fn a_reason_is_stored_by_the_name_it_is_reported_by() {
    for reason in [
        Reason::Overlap,
        Reason::DeviceMissing,
        Reason::UnsupportedBinding,
        Reason::UnsupportedDevice,
        Reason::UnsupportedLimits,
        Reason::ResourcesExhausted,
    ] {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
    }
}
