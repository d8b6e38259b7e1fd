use super::*;

#[test]
fn every_operator_reads_back_from_its_name() {
    let mut count = 0;
    for operator in Operator::all() {
        assert_eq!(Operator::parse(&operator.to_string()), Ok(operator));
        count += 1;
    }
    assert_eq!(count, 21 * 6 + 1);
}

#[test]
fn an_unknown_operator_is_refused_with_the_one_that_was_meant() {
    for (given, meant) in [
        ("NumericLessThanEqual", Some("NumericLessThanEquals")),
        ("numericLessThanEquals", Some("NumericLessThanEquals")),
        ("NumericLessThanOrEquals", Some("NumericLessThanEquals")),
        ("StringEqualIfExist", Some("StringEqualsIfExists")),
        ("ForAnyValues:StringEquals", Some("ForAnyValue:StringEquals")),
        ("NullIfExists", Some("Null")),
        ("ForAnyValue:Null", Some("Null")),
        ("StringEqualsIfExistsIfExists", None),
        ("ForAllValues:ForAnyValue:StringEquals", None),
        ("BinaryEquals", None),
        ("", None),
    ] {
        let found = Operator::parse(given);
        let Err(Problem::UnknownName { what: "operator", given: quoted, meant: found }) = found else {
            panic!("{given}: {found:?}");
        };
        assert_eq!(quoted, given);
        if meant.is_some() {
            assert_eq!(found.as_deref(), meant, "{given}");
        }
    }
}
