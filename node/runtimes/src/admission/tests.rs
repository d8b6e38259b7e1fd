use model::unit::GIB;
use proptest::prelude::*;

use super::*;

const HOST: HostMemory = HostMemory { total_bytes: 16 * GIB, hugetlb_bytes: 2 * GIB };

#[test]
fn a_guest_takes_more_than_its_memory() {
    assert_eq!(committed_bytes(0), 256 * MIB);
    assert_eq!(committed_bytes(4 * GIB), 4 * GIB + 128 * MIB + 256 * MIB);
    assert_eq!(committed_bytes(u64::MAX), u64::MAX);
}

#[test]
fn the_last_byte_can_be_had_and_no_more() {
    // 13 GiB are to be had: 16, less 2 in huge pages, less 1 of headroom.
    let promised = Promised::default().instance(4 * GIB).hold(4 * GIB);
    let left = 13 * GIB - committed_bytes(4 * GIB) - 4 * GIB;
    let fitting = (left - 256 * MIB) / 33 * 32;
    assert_eq!(admit(Some(HOST), promised, fitting), Admission::Fits);
    let over = admit(Some(HOST), promised, fitting + MIB);
    assert!(
        matches!(over, Admission::Exhausted(Exhausted { left_bytes, .. }) if left_bytes == left),
        "{over:?}"
    );
}

#[test]
fn holds_count_and_so_do_starts_of_the_same_pass() {
    let empty = Promised::default();
    assert_eq!(admit(Some(HOST), empty, 8 * GIB), Admission::Fits);
    let Admission::Exhausted(why) = admit(Some(HOST), empty.hold(5 * GIB), 8 * GIB) else {
        panic!("a hold counts")
    };
    assert_eq!(why.to_string(), "ResourcesExhausted: 8704 MiB of memory needed, 8192 MiB left on this host");
    let Admission::Exhausted(_) = admit(Some(HOST), empty.instance(8 * GIB), 8 * GIB) else {
        panic!("an admitted start counts")
    };
}

#[test]
fn a_host_that_cannot_be_read_is_not_checked() {
    assert_eq!(admit(None, Promised::default(), u64::MAX), Admission::Unchecked);
}

#[test]
fn a_host_smaller_than_what_is_kept_has_nothing() {
    let tiny = HostMemory { total_bytes: GIB / 2, hugetlb_bytes: 0 };
    let Admission::Exhausted(why) = admit(Some(tiny), Promised::default(), 64 * MIB) else {
        panic!("no room")
    };
    assert_eq!(why.left_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_admitted_never_exceeds_the_host(
        total in 0u64..1 << 42,
        huge in 0u64..1 << 40,
        guests in prop::collection::vec(0u64..1 << 40, 0..20),
    ) {
        let host = HostMemory { total_bytes: total, hugetlb_bytes: huge };
        let (mut promised, mut taken) = (Promised::default(), 0u64);
        for guest in guests {
            if admit(Some(host), promised, guest) == Admission::Fits {
                promised = promised.instance(guest);
                taken += committed_bytes(guest);
            }
        }
        prop_assert!(taken == 0 || taken + huge + HEADROOM_BYTES <= total);
    }
}
