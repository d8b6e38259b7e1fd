use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[test]
fn lists_read_and_print_as_the_kernel_does() {
    for (given, printed, count) in [
        ("", "", 0),
        ("0", "0", 1),
        ("0-3,8", "0-3,8", 5),
        ("8,0-3", "0-3,8", 5),
        ("0-1,2-3", "0-3", 4),
        ("0-4,2", "0-4", 5),
        ("8191", "8191", 1),
    ] {
        let set = CpuSet::parse(given).expect(given);
        assert_eq!((set.to_string().as_str(), set.len()), (printed, count), "{given}");
    }
}

#[test]
fn what_is_not_a_list_is_refused() {
    for bad in
        [" ", "a", "0-", "-1", "3-1", "0,,1", "0,", "+1", "0-2:2", "8192", "99999999999999999999", "0x1"]
    {
        assert!(matches!(CpuSet::parse(bad), Err(CpuListError::Malformed(_))), "{bad}");
    }
    assert_eq!(CpuSet::parse(&"1,".repeat(20_000)), Err(CpuListError::TooLong(40_000)));
}

#[test]
fn holds_float_outside_the_hosts_the_isolated_and_the_pinned_cpus() {
    let numa = [CpuSet::parse("0-7").unwrap(), CpuSet::parse("8-15").unwrap()];
    let isolated = CpuSet::parse("0,12-13").unwrap();
    let left = floating(&numa, 2, &isolated, &CpuSet::parse("5").unwrap());
    // 0 is isolated, so the host's two are 1 and 2.
    assert_eq!(left.iter().map(ToString::to_string).collect::<Vec<_>>(), ["3-4,6-7", "8-11,14-15"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_set_survives_printing(cpus in proptest::collection::btree_set(0..200u16, 0..60)) {
        let set = CpuSet::from_cpus(cpus.iter().copied());
        prop_assert_eq!(&CpuSet::parse(&set.to_string()).unwrap(), &set);
        prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), cpus);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[0-9,\\-: a]{0,40}") {
        if let Ok(set) = CpuSet::parse(&text) {
            prop_assert!(set.len() <= usize::from(CPU_MAX));
        }
    }
}
