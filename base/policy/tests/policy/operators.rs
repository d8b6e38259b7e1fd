//! Every operator, with and without its prefixes and suffix, on present, absent and mistyped attributes.

use std::net::IpAddr;

use policy::{Attributes, Comparison, Effect, Number, Operator, Over, Truth, Unknown, Value};
use serde_json::{Value as Json, json};

use super::{bind, decide, document, on_everything};

const MISSING: Truth = Truth::Unknown(Unknown::Missing);
const MISTYPED: Truth = Truth::Unknown(Unknown::WrongType);

/// One comparison with values, an attribute value that matches one of the values and one that matches none. For a
/// negated operator the first must fail and the second must hold.
struct Row {
    comparison: Comparison,
    values: Json,
    matching: Vec<Value<'static>>,
    other: Vec<Value<'static>>,
    mistyped: Vec<Value<'static>>,
}

fn time(text: &str) -> Value<'static> {
    Value::Time(text.parse::<jiff::Timestamp>().expect(text).as_microsecond())
}

fn ip(text: &str) -> Value<'static> {
    text.parse::<IpAddr>().expect(text).into()
}

fn texts(equal: Comparison, values: Json, matching: &[&'static str], other: &[&'static str]) -> Row {
    Row {
        comparison: equal,
        values,
        matching: matching.iter().map(|text| Value::from(*text)).collect(),
        other: other.iter().map(|text| Value::from(*text)).collect(),
        mistyped: vec![8.into(), true.into(), Value::Time(0), ip("10.0.0.1")],
    }
}

fn numbers(comparison: Comparison, values: Json, matching: &[&str], other: &[&str]) -> Row {
    let number = |text: &&str| Value::from(text.parse::<Number>().expect(text));
    Row {
        comparison,
        values,
        matching: matching.iter().map(number).collect(),
        other: other.iter().map(number).collect(),
        mistyped: vec!["8".into(), true.into(), Value::Time(8), ip("10.0.0.1")],
    }
}

fn dates(comparison: Comparison, values: Json, matching: &[&'static str], other: &[&'static str]) -> Row {
    // Both as a time and as the text of one.
    let both = |texts: &[&'static str]| texts.iter().flat_map(|text| [time(text), (*text).into()]).collect();
    Row {
        comparison,
        values,
        matching: both(matching),
        other: both(other),
        mistyped: vec!["yesterday".into(), 0.into(), true.into(), ip("10.0.0.1")],
    }
}

fn addresses(comparison: Comparison, values: Json, matching: &[&'static str], other: &[&'static str]) -> Row {
    let both = |texts: &[&'static str]| texts.iter().flat_map(|text| [ip(text), (*text).into()]).collect();
    Row {
        comparison,
        values,
        matching: both(matching),
        other: both(other),
        mistyped: vec!["here".into(), "10.0.0.0/8".into(), 0.into(), true.into(), Value::Time(0)],
    }
}

fn table() -> Vec<Row> {
    use Comparison::*;
    let mut rows = Vec::new();
    for comparison in [StringEquals, StringNotEquals] {
        rows.push(texts(comparison, json!(["H100", "a*"]), &["H100", "a*"], &["h100", "H1000", "", "ab"]));
    }
    for comparison in [StringEqualsIgnoreCase, StringNotEqualsIgnoreCase] {
        // The Kelvin sign folds to k in Unicode, not here.
        rows.push(texts(
            comparison,
            json!(["Ops-k", "x"]),
            &["ops-K", "OPS-K", "X"],
            &["ops", "ops-\u{212a}"],
        ));
    }
    for comparison in [StringLike, StringNotLike] {
        rows.push(texts(
            comparison,
            json!(["eu-*", "us-?"]),
            &["eu-", "eu-west", "us-1"],
            &["EU-west", "us-", "us-12"],
        ));
    }
    for comparison in [NumericEquals, NumericNotEquals] {
        rows.push(numbers(comparison, json!([8, 0.1]), &["8", "0.1"], &["7", "8.000000001", "-8", "0.2"]));
    }
    rows.push(numbers(NumericLessThan, json!(8), &["7", "7.999999999", "-9"], &["8", "9"]));
    rows.push(numbers(NumericLessThanEquals, json!([8, 2]), &["8", "7"], &["8.000000001", "9"]));
    rows.push(numbers(NumericGreaterThan, json!(-1), &["0", "-0.5"], &["-1", "-2"]));
    rows.push(numbers(NumericGreaterThanEquals, json!([16, 8]), &["8", "9"], &["7.999999999", "-8"]));
    let new_year = "2026-01-01T00:00:00Z";
    let (same, before, after) =
        ("2026-01-01T01:00:00+01:00", "2025-12-31T23:59:59.999999Z", "2026-01-01T00:00:00.000001Z");
    for comparison in [DateEquals, DateNotEquals] {
        rows.push(dates(comparison, json!([new_year]), &[new_year, same], &[before, after]));
    }
    rows.push(dates(DateLessThan, json!(new_year), &[before], &[same, after]));
    rows.push(dates(DateLessThanEquals, json!(new_year), &[before, same], &[after]));
    rows.push(dates(DateGreaterThan, json!(new_year), &[after], &[same, before]));
    rows.push(dates(DateGreaterThanEquals, json!(new_year), &[after, same], &[before]));
    rows.push(Row {
        comparison: Bool,
        values: json!(true),
        matching: vec![true.into()],
        other: vec![false.into()],
        mistyped: vec!["true".into(), 1.into()],
    });
    for comparison in [IpAddress, NotIpAddress] {
        let (nets, inside) =
            (json!(["10.0.0.0/8", "2001:db8::/32"]), ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"]);
        rows.push(addresses(comparison, nets, &inside, &["11.0.0.1", "2001:db9::1", "::1"]));
    }
    rows
}

fn truth(operator: Operator, values: &Json, attribute: Option<Value<'static>>) -> Truth {
    let conditions = json!({ operator.to_string(): { "resource.x": values } });
    let mut attributes = Attributes::new();
    if let Some(value) = attribute {
        attributes.set("resource.x", value);
    }
    let allow = document(&on_everything("allow", &conditions));
    let truth = allow.statements().next().expect("one statement").conditions()[0].evaluate(&attributes);
    // What the truth of a condition means for an allow and for a deny: unknown denies in both.
    let allowed = decide(&bind(&on_everything("allow", &conditions)), &attributes);
    let mut denying = on_everything("deny", &conditions);
    let all = json!({ "sid": "All", "effect": "allow", "actions": ["*"], "resources": ["*"] });
    denying["statements"].as_array_mut().expect("a list").push(all);
    let denied = decide(&bind(&denying), &attributes);
    let expected = match truth {
        Truth::True => (Effect::Allow, Effect::Deny),
        Truth::False => (Effect::Deny, Effect::Allow),
        Truth::Unknown(_) => (Effect::Deny, Effect::Deny),
    };
    assert_eq!((allowed, denied), expected, "{operator} {values} on {attributes:?}");
    truth
}

#[test]
fn the_table_has_every_operator_but_null() {
    let missing: Vec<_> = Comparison::ALL
        .into_iter()
        .filter(|comparison| !table().iter().any(|row| row.comparison == *comparison))
        .collect();
    assert_eq!(missing, [Comparison::Null]);
}

#[test]
fn a_single_value_is_compared_the_same_with_every_prefix_and_suffix() {
    for row in table() {
        let negated = row.comparison.negated();
        for operator in Operator::all().filter(|operator| operator.comparison == row.comparison) {
            let check = |values: &[Value<'static>], expected: Truth| {
                for value in values {
                    let found = truth(operator, &row.values, Some(value.clone()));
                    assert_eq!(found, expected, "{operator} {} on {value:?}", row.values);
                }
            };
            check(&row.matching, if negated { Truth::False } else { Truth::True });
            check(&row.other, if negated { Truth::True } else { Truth::False });
            check(&row.mistyped, MISTYPED);
        }
    }
}

#[test]
fn an_absent_or_null_attribute_is_unknown_unless_if_exists() {
    for row in table() {
        for operator in Operator::all().filter(|operator| operator.comparison == row.comparison) {
            let expected = if operator.if_exists { Truth::True } else { MISSING };
            assert_eq!(truth(operator, &row.values, None), expected, "{operator}");
            assert_eq!(truth(operator, &row.values, Some(Value::Null)), expected, "{operator}");
        }
    }
}

#[test]
fn a_list_is_compared_by_any_or_by_all_of_its_elements() {
    for row in table() {
        let negated = row.comparison.negated();
        // An element that passes and one that fails.
        let (pass, fail) =
            if negated { (&row.other[0], &row.matching[0]) } else { (&row.matching[0], &row.other[0]) };
        let wrong = &row.mistyped[0];
        let null = &Value::Null;
        let cases: &[(&[&Value<'static>], Truth, Truth)] = &[
            (&[], Truth::False, Truth::True),
            (&[pass], Truth::True, Truth::True),
            (&[fail], Truth::False, Truth::False),
            (&[pass, pass], Truth::True, Truth::True),
            (&[pass, fail], Truth::True, Truth::False),
            (&[fail, pass], Truth::True, Truth::False),
            (&[wrong, pass], Truth::True, MISTYPED),
            (&[wrong, fail], MISTYPED, Truth::False),
            (&[null, pass], Truth::True, MISTYPED),
            (&[null, fail], MISTYPED, Truth::False),
        ];
        for operator in Operator::all().filter(|operator| operator.comparison == row.comparison) {
            for (elements, any, all) in cases {
                let list = Value::List(elements.iter().map(|element| (*element).clone()).collect());
                let expected = match operator.over {
                    Over::One => MISTYPED,
                    Over::Any => *any,
                    Over::All => *all,
                };
                assert_eq!(truth(operator, &row.values, Some(list)), expected, "{operator} on {elements:?}");
            }
        }
    }
}

#[test]
fn null_asks_only_whether_the_attribute_is_there() {
    let null = Operator { comparison: Comparison::Null, over: Over::One, if_exists: false };
    let here: [Value<'static>; 6] =
        ["".into(), 0.into(), false.into(), Value::Time(0), ip("::"), Value::List(vec![])];
    for (values, absent, present) in [
        (json!(true), Truth::True, Truth::False),
        (json!(false), Truth::False, Truth::True),
        (json!([true, false]), Truth::True, Truth::True),
    ] {
        assert_eq!(truth(null, &values, None), absent);
        assert_eq!(truth(null, &values, Some(Value::Null)), absent);
        for value in &here {
            assert_eq!(truth(null, &values, Some(value.clone())), present, "{value:?}");
        }
    }
}

#[test]
fn a_variable_in_a_value_stands_for_the_attribute() {
    for (operator, value, own, matches) in [
        ("StringEquals", "${principal.name}", "ann", Truth::True),
        ("StringEquals", "${principal.name}x", "ann", Truth::False),
        ("StringNotEquals", "${principal.name}", "ann", Truth::False),
        ("StringEqualsIgnoreCase", "${principal.name}", "ANN", Truth::True),
        ("StringLike", "${principal.name}*", "ann", Truth::True),
        ("StringLike", "${principal.name}", "*", Truth::False),
        ("StringEquals", "${principal.name}", "", Truth::Unknown(Unknown::Variable)),
        ("StringNotEquals", "${principal.name}", "", Truth::Unknown(Unknown::Variable)),
        ("StringLike", "b${principal.name}", "", Truth::False),
    ] {
        let document = document(&on_everything("allow", &json!({ operator: { "resource.owner": value } })));
        let attributes = Attributes::new().with("principal.name", own).with("resource.owner", "ann");
        let condition = &document.statements().next().expect("one statement").conditions()[0];
        assert_eq!(condition.evaluate(&attributes), matches, "{operator} {value} as {own:?}");
    }
}

#[test]
fn conditions_and_operators_must_all_hold() {
    let policy = bind(&on_everything(
        "allow",
        &json!({
            "StringEquals": { "resource.a": ["x", "y"], "resource.b": "z" },
            "NumericLessThanEquals": { "resource.c": 1 }
        }),
    ));
    for (a, b, c, effect) in [
        ("x", "z", 1, Effect::Allow),
        ("y", "z", 0, Effect::Allow),
        ("w", "z", 1, Effect::Deny),
        ("x", "w", 1, Effect::Deny),
        ("x", "z", 2, Effect::Deny),
    ] {
        let attributes = Attributes::new().with("resource.a", a).with("resource.b", b).with("resource.c", c);
        assert_eq!(decide(&policy, &attributes), effect, "{a} {b} {c}");
    }
}
