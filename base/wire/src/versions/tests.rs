use proptest::prelude::*;

use super::Versions;

const fn of(min: u32, max: u32) -> Versions {
    Versions { min, max }
}

#[test]
fn the_newest_version_both_speak_is_the_common_one() {
    for (one, other, common) in [
        (of(1, 1), of(1, 1), Some(1)),
        (of(1, 3), of(2, 4), Some(3)),
        (of(3, 5), of(1, 3), Some(3)),
        (of(1, 9), of(4, 5), Some(5)),
        (of(4, 6), of(1, 3), None),
        // Who says nothing, or nonsense, has none.
        (of(1, 1), of(0, 0), None),
        (of(0, 0), of(0, 0), None),
        (of(1, 5), of(4, 2), None),
    ] {
        assert_eq!((one.common(other), other.common(one)), (common, common), "{one} and {other}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_common_version_is_one_that_each_speaks_and_there_is_no_newer_one(
        (a, b, c, d) in (0..6u32, 0..6u32, 0..6u32, 0..6u32),
    ) {
        let (one, other) = (of(a, b), of(c, d));
        let newest = (1..6).rev().find(|version| one.contain(*version) && other.contain(*version));
        prop_assert_eq!(one.common(other), newest);
    }
}

#[test]
fn versions_are_said_in_few_words() {
    assert_eq!((of(3, 3).to_string(), of(3, 5).to_string()), ("3".to_owned(), "3 to 5".to_owned()));
}
