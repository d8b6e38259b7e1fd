use model::AllocationId;

use super::*;
use crate::sections::devices::desired::Binding;

const GIB: u64 = 1 << 30;

fn bound(memory_bytes: u64, hugepages_1gi: u64) -> Hold {
    Hold {
        allocation: AllocationId::from_uuid(uuid::Uuid::nil()),
        atoms: vec!["GPU-1".into()],
        binding: Binding::Hold,
        memory_bytes,
        hugepages_1gi,
    }
}

fn host() -> Memory {
    Memory { total_bytes: 64 * GIB, hugetlb_bytes: 16 * GIB, pages_1gi: Some(16) }
}

fn asks(memory_bytes: u64, hugepages_1gi: u64) -> SliceLimits {
    SliceLimits { memory_bytes, hugepages_1gi, ..SliceLimits::default() }
}

#[test]
fn a_hold_gets_what_is_left_after_the_pool_the_headroom_and_the_others() {
    let others = [bound(20 * GIB, 0), bound(7 * GIB, 10)];
    // 64 less 16 of the pool, 1 of headroom and 27 promised.
    let cases = [
        (asks(20 * GIB, 0), true),
        (asks(20 * GIB + 1, 0), false),
        (asks(0, 6), true),
        (asks(0, 7), false),
        (asks(20 * GIB, 6), true),
        (asks(u64::MAX, u64::MAX), false),
        (asks(0, 0), true),
    ];
    for (asks, fits) in cases {
        let admission = admit(Some(&host()), &asks, others.iter());
        assert_eq!(admission == Admission::Fits, fits, "{asks:?}: {admission:?}");
    }
}

#[test]
fn promises_beyond_what_there_is_leave_nothing_and_do_not_overflow() {
    let others = [bound(u64::MAX, u64::MAX), bound(u64::MAX, 1)];
    assert!(matches!(admit(Some(&host()), &asks(1, 0), others.iter()), Admission::Exhausted(_)));
    assert!(matches!(admit(Some(&host()), &asks(0, 1), others.iter()), Admission::Exhausted(_)));
}

#[test]
fn what_cannot_be_read_is_not_checked_and_said() {
    assert!(matches!(admit(None, &asks(1, 0), [].iter()), Admission::Unchecked(_)));
    assert_eq!(admit(None, &asks(0, 0), [].iter()), Admission::Fits);
    let memory = Memory { pages_1gi: None, ..host() };
    assert!(matches!(admit(Some(&memory), &asks(0, 1), [].iter()), Admission::Unchecked(_)));
    assert!(matches!(admit(Some(&memory), &asks(u64::MAX, 1), [].iter()), Admission::Exhausted(_)));
}
