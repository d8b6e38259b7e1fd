use proptest::prelude::*;
use serde_json::{Value, json};

use super::{DEPTH_MAX, canonical, parse};

#[test]
fn what_is_json_parses_as_serde_json_parses_it() {
    let text = r#" {"a": [1, -2, 3.5, 18446744073709551615], "b": {"c": null, "d": "\u00e9"}, "e": true} "#;
    let ours = parse(text.as_bytes()).expect("valid JSON");
    assert_eq!(ours, serde_json::from_str::<Value>(text).expect("valid JSON"));
    assert_eq!(parse(b""), Ok(json!({})));
}

#[test]
fn a_field_given_twice_is_refused_at_any_depth() {
    for text in [r#"{"a":1,"a":1}"#, r#"{"x":[{"b":1,"c":2,"b":3}]}"#, r#"{"a":1,"\u0061":2}"#] {
        let err = parse(text.as_bytes()).expect_err(text).to_string();
        assert!(err.contains("given twice"), "{text}: {err}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
    for depth in [DEPTH_MAX + 1, 100_000] {
        assert!(parse(nested(depth).as_bytes()).is_err(), "{depth} levels");
    }
}

#[test]
fn what_is_not_one_json_value_is_refused() {
    for text in ["{", "{} {}", "{'a':1}", "nul", "{\"a\":1,}", "\u{feff}{}", "1e999", "\"\\ud800\""] {
        assert!(parse(text.as_bytes()).is_err(), "{text}");
    }
    assert!(parse(b"\"\xff\"").is_err(), "not UTF-8");
}

#[test]
fn canonical_text_does_not_depend_on_the_order_of_fields() {
    let one = parse(br#"{"b":1,"a":{"d":[1,2],"c":"x\n"}}"#).expect("valid JSON");
    assert_eq!(canonical(&one), r#"{"a":{"c":"x\n","d":[1,2]},"b":1}"#);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_parsed_or_refused_and_never_panic(body in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(value) = parse(&body) {
            prop_assert_eq!(parse(canonical(&value).as_bytes()), Ok(value));
        }
    }

    #[test]
    fn json_like_text_agrees_with_serde_json(text in r#"[\[\]{}:,"a-c0-9. \\]{0,40}"#) {
        if let Ok(ours) = parse(text.as_bytes()) {
            let theirs: Value = if text.is_empty() { json!({}) } else { serde_json::from_str(&text).unwrap() };
            prop_assert_eq!(ours, theirs);
        }
    }
}
