use super::*;

const MISSING: Truth = Truth::Unknown(Unknown::Missing);

#[test]
fn true_settles_any_and_false_settles_all_wherever_they_stand() {
    let cases: &[(&[Truth], Truth, Truth)] = &[
        (&[], Truth::False, Truth::True),
        (&[Truth::True], Truth::True, Truth::True),
        (&[Truth::False], Truth::False, Truth::False),
        (&[MISSING], MISSING, MISSING),
        (&[MISSING, Truth::True], Truth::True, MISSING),
        (&[Truth::True, MISSING], Truth::True, MISSING),
        (&[MISSING, Truth::False], MISSING, Truth::False),
        (&[Truth::False, MISSING], MISSING, Truth::False),
        (&[Truth::False, MISSING, Truth::True], Truth::True, Truth::False),
    ];
    for (given, any, all) in cases {
        assert_eq!(Truth::any(given.iter().copied()), *any, "any of {given:?}");
        assert_eq!(Truth::all(given.iter().copied()), *all, "all of {given:?}");
    }
}

#[test]
fn the_first_reason_for_not_knowing_is_kept() {
    let given = [Truth::Unknown(Unknown::Variable), MISSING];
    assert_eq!(Truth::any(given), Truth::Unknown(Unknown::Variable));
}
