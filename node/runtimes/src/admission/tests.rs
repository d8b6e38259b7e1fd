use model::unit::GIB;
use proptest::prelude::*;

use super::*;

const HOST: HostMemory = HostMemory { total_bytes: 16 * GIB, hugetlb_bytes: 2 * GIB, free_pages: Vec::new() };
const ANY: &MemoryPlace = &MemoryPlace { mems: Vec::new(), hugepage_bytes: 0 };

#[test]
fn a_guest_takes_more_than_its_memory() {
    assert_eq!(committed_bytes(0), 256 * MIB);
    assert_eq!(committed_bytes(4 * GIB), 4 * GIB + 128 * MIB + 256 * MIB);
    assert_eq!(committed_bytes(u64::MAX), u64::MAX);
}

#[test]
fn the_last_byte_can_be_had_and_no_more() {
    // 13 GiB are to be had: 16, less 2 in huge pages, less 1 of headroom.
    let promised = Promised::default().instance(4 * GIB, ANY).hold(4 * GIB);
    let left = 13 * GIB - committed_bytes(4 * GIB) - 4 * GIB;
    let fitting = (left - 256 * MIB) / 33 * 32;
    assert_eq!(admit(Some(&HOST), promised, fitting, ANY), Admission::Fits);
    let over = admit(Some(&HOST), promised, fitting + MIB, ANY);
    assert!(
        matches!(over, Admission::Exhausted(Exhausted { left_bytes, .. }) if left_bytes == left),
        "{over:?}"
    );
}

#[test]
fn holds_count_and_so_do_starts_of_the_same_pass() {
    let empty = Promised::default();
    assert_eq!(admit(Some(&HOST), empty, 8 * GIB, ANY), Admission::Fits);
    let Admission::Exhausted(why) = admit(Some(&HOST), empty.hold(5 * GIB), 8 * GIB, ANY) else {
        panic!("a hold counts")
    };
    assert_eq!(why.to_string(), "ResourcesExhausted: 8704 MiB of memory needed, 8192 MiB left on this host");
    let Admission::Exhausted(_) = admit(Some(&HOST), empty.instance(8 * GIB, ANY), 8 * GIB, ANY) else {
        panic!("an admitted start counts")
    };
}

#[test]
fn a_host_that_cannot_be_read_is_not_checked() {
    assert_eq!(admit(None, Promised::default(), u64::MAX, ANY), Admission::Unchecked);
}

#[test]
fn a_host_smaller_than_what_is_kept_has_nothing() {
    let tiny = HostMemory { total_bytes: GIB / 2, hugetlb_bytes: 0, free_pages: Vec::new() };
    let Admission::Exhausted(why) = admit(Some(&tiny), Promised::default(), 64 * MIB, ANY) else {
        panic!("no room")
    };
    assert_eq!(why.left_bytes, 0);
}

#[test]
fn memory_in_huge_pages_is_of_those_and_only_the_hypervisors_of_normal_ones() {
    let pool = |node, page_bytes, pages| FreePages { numa_node: Some(node), page_bytes, pages };
    let free_pages = vec![pool(0, GIB, 2), pool(1, GIB, 3), pool(0, 2 * MIB, 512)];
    let host = HostMemory { free_pages, ..HOST };
    let of = |mems: &[u32], hugepage_bytes| MemoryPlace { mems: mems.to_vec(), hugepage_bytes };
    let promised = Promised::default().instance(10 * GIB, ANY);
    assert_eq!(admit(Some(&host), promised, 5 * GIB, &of(&[], GIB)), Admission::Fits);
    assert_eq!(admit(Some(&host), promised, 3 * GIB, &of(&[1], GIB)), Admission::Fits);
    assert_eq!(admit(Some(&host), promised, GIB, &of(&[], 2 * MIB)), Admission::Fits);
    for (gib, place) in [(6, of(&[], GIB)), (3, of(&[0], GIB)), (2, of(&[], 2 * MIB)), (1, of(&[7], GIB))] {
        let Admission::Exhausted(why) = admit(Some(&host), promised, gib * GIB, &place) else {
            panic!("{gib} GiB of {place:?}")
        };
        assert_eq!(why.what, "memory in huge pages");
    }
    let paged = Promised::default().instance(64 * GIB, &of(&[], GIB));
    let rest = 13 * GIB - 2 * GIB - 256 * MIB;
    assert_eq!(admit(Some(&host), paged, rest / 33 * 32 - 256 * MIB, ANY), Admission::Fits);
}

#[test]
fn a_disk_has_what_is_left_when_all_others_are_full() {
    let space = Space { total_bytes: 100 * GIB, free_bytes: 40 * GIB };
    assert_eq!(admit_disk(space, KEPT_BYTES_MIN, 20 * GIB, 15 * GIB), Ok(()));
    let why = admit_disk(space, KEPT_BYTES_MIN, 20 * GIB, 15 * GIB + 1).unwrap_err();
    assert_eq!(why.to_string(), "ResourcesExhausted: 15361 MiB of disk needed, 15360 MiB left on this host");
    let small = Space { total_bytes: 10 * GIB, free_bytes: 3 * GIB };
    assert_eq!(small.left(KEPT_BYTES_MIN), GIB);
    assert!(admit_disk(small, KEPT_BYTES_MIN, u64::MAX, 1).is_err());
    assert_eq!(admit_disk(small, KEPT_BYTES_MIN, u64::MAX, 0), Ok(()), "it takes nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_admitted_never_exceeds_the_host(
        total in 0u64..1 << 42,
        huge in 0u64..1 << 40,
        guests in prop::collection::vec(0u64..1 << 40, 0..20),
    ) {
        let host = HostMemory { total_bytes: total, hugetlb_bytes: huge, free_pages: Vec::new() };
        let (mut promised, mut taken) = (Promised::default(), 0u64);
        for guest in guests {
            if admit(Some(&host), promised, guest, ANY) == Admission::Fits {
                promised = promised.instance(guest, ANY);
                taken += committed_bytes(guest);
            }
        }
        prop_assert!(taken == 0 || taken + huge + HEADROOM_BYTES <= total);
    }
}
