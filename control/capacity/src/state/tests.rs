use std::time::Duration;

use policy::Value;

use super::*;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(0).saturating_add(Duration::from_secs(seconds))
}

fn ask() -> Ask {
    Ask {
        gpus: 8,
        gpu_model: None,
        vcpu: 0,
        memory_mib: 0,
        hugepages_1gi: 0,
        whole_node: false,
        binding: Binding::Hold,
        selector: Default::default(),
    }
}

fn subject(expires_at: Option<Timestamp>) -> Subject {
    Subject {
        id: ReservationId::from_uuid(uuid::Uuid::from_u128(1)),
        tenant_id: TenantId::from_uuid(uuid::Uuid::from_u128(2)),
        pool_id: PoolId::from_uuid(uuid::Uuid::from_u128(3)),
        pool_name: "gpu".to_owned(),
        pool_class: "gpu".to_owned(),
        created_by: UserId::from_uuid(uuid::Uuid::from_u128(4)),
        ask: ask(),
        starts_at: at(0),
        expires_at,
    }
}

#[test]
fn a_begun_hour_counts_whole() {
    assert_eq!(hours_between(at(0), at(72 * 3600)), 72);
    assert_eq!(hours_between(at(0), at(72 * 3600 + 1)), 73);
    assert_eq!(hours_between(at(10), at(0)), 0);
}

#[test]
fn what_the_caller_left_out_is_absent_for_a_policy() {
    let resource = subject(None).resource();
    for name in ["resource.gpuModel", "resource.hours", "resource.totalHours"] {
        assert_eq!(resource.attributes.get(name), Some(&Value::Null), "{name}");
    }
    assert_eq!(resource.attributes.get("resource.gpus"), Some(&Value::from(8_u32)));
}

#[test]
fn an_extension_is_decided_on_the_hours_it_would_end_up_with() {
    let resource = subject(Some(at(72 * 3600))).resource_extended(at(73 * 3600));
    assert_eq!(resource.attributes.get("resource.totalHours"), Some(&Value::from(73_u64)));
    assert_eq!(resource.attributes.get("resource.extensionHours"), Some(&Value::from(1_u64)));
}

#[test]
fn only_a_hold_with_limits_needs_a_node_that_enforces_them() {
    assert!(ask().claim([]).capabilities.is_empty());
    let limited = Ask { vcpu: 4, ..ask() };
    assert!(limited.claim([]).capabilities.contains(CAPABILITY_LIMITS));
    let whole = Ask { vcpu: 4, whole_node: true, binding: Binding::Kubernetes, ..ask() };
    assert_eq!(whole.claim([]).capabilities.into_iter().collect::<Vec<_>>(), [CAPABILITY_KUBERNETES]);
}

#[test]
fn a_hold_without_devices_needs_a_node_that_knows_such_holds() {
    let claim = Ask { gpus: 0, vcpu: 4, ..ask() }.claim([]);
    assert_eq!(claim.capabilities.into_iter().collect::<Vec<_>>(), [CAPABILITY_HOST_ONLY, CAPABILITY_LIMITS]);
    let whole = Ask { gpus: 0, whole_node: true, ..ask() }.claim([]);
    assert_eq!((whole.gpus, whole.capabilities.len()), (1, 0), "a whole machine has a device to be held by");
}

#[test]
fn nothing_is_held_of_a_quota_that_nothing_was_asked_of() {
    assert_eq!(ask().quota_asked(), [("gpu", 8), ("reservations", 1)]);
}
