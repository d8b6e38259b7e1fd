use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn statement_of(change: impl FnOnce(&mut Value)) -> Value {
    let mut statement = json!({
        "sid": "One", "effect": "allow", "actions": ["compute:instances:get"], "resources": ["compute-instance/*"]
    });
    change(&mut statement);
    json!({ "statements": [statement] })
}

fn with_conditions(conditions: Value) -> Value {
    statement_of(|statement| statement["conditions"] = conditions)
}

fn error(document: &Value) -> ParseError {
    match super::document(document.to_string().as_bytes()) {
        Ok(_) => panic!("parsed: {document}"),
        Err(error) => error,
    }
}

#[test]
fn a_document_of_every_part_parses() {
    let text = r#"{
        "version": "2026-01-01",
        "statements": [
            {"sid": "A", "effect": "allow", "actions": ["*", "compute:*:get"], "resources": ["*", "a/${principal.x}"],
             "conditions": {
                "StringLike": {"resource.name": ["a*", "${principal.x}-?"]},
                "ForAnyValue:StringEqualsIgnoreCaseIfExists": {"principal.groups": "Ops"},
                "NumericLessThanEquals": {"resource.vcpu": 8, "resource.price": [0.1, 18446744073709551615]},
                "DateGreaterThan": {"request.time": "2026-01-01T00:00:00Z"},
                "IpAddress": {"request.sourceIp": ["10.0.0.0/8", "::1"]},
                "Bool": {"request.delegated": false},
                "Null": {"request.sourceIp": false}}},
            {"sid": "B", "effect": "deny", "actions": ["iam:*"], "resources": ["*"], "conditions": {}}
        ]}"#;
    let document = super::document(text.as_bytes()).expect("well formed");
    let sids: Vec<_> = document.statements().map(|s| (s.sid(), s.effect(), s.conditions().len())).collect();
    assert_eq!(sids, [("A", Effect::Allow, 8), ("B", Effect::Deny, 0)]);
}

#[test]
fn a_fault_is_found_where_it_stands() {
    let cases = [
        (json!([]), ""),
        (json!({}), ""),
        (json!({"statements": {}}), "/statements"),
        (json!({"statements": []}), "/statements"),
        (json!({"statements": [1]}), "/statements/0"),
        (json!({"statement": []}), ""),
        (json!({"version": "2012-10-17", "statements": []}), "/version"),
        (json!({"version": 1, "statements": []}), "/version"),
        (statement_of(|s| s["effect"] = json!("Allow")), "/statements/0/effect"),
        (statement_of(|s| s["effect"] = json!(null)), "/statements/0/effect"),
        (statement_of(|s| s["sid"] = json!("")), "/statements/0/sid"),
        (statement_of(|s| s["sid"] = json!("a b")), "/statements/0/sid"),
        (statement_of(|s| s["sid"] = json!("a".repeat(65))), "/statements/0/sid"),
        (statement_of(|s| s["action"] = json!(["*"])), "/statements/0"),
        (statement_of(|s| s["notActions"] = json!(["*"])), "/statements/0"),
        (statement_of(|s| s["actions"] = json!("*")), "/statements/0/actions"),
        (statement_of(|s| s["actions"] = json!([])), "/statements/0/actions"),
        (statement_of(|s| s["actions"] = json!(["*", "compute"])), "/statements/0/actions/1"),
        (statement_of(|s| s["actions"] = json!(["a:${principal.x}"])), "/statements/0/actions/0"),
        (statement_of(|s| s["actions"] = json!(["a: b"])), "/statements/0/actions/0"),
        (statement_of(|s| s["resources"] = json!(["compute-instance"])), "/statements/0/resources/0"),
        (statement_of(|s| s["resources"] = json!(["a/ b"])), "/statements/0/resources/0"),
        (statement_of(|s| s["resources"] = json!(["a/${principal.x"])), "/statements/0/resources/0"),
        (statement_of(|s| s["resources"] = json!(["a/${env.x}"])), "/statements/0/resources/0"),
        (with_conditions(json!([])), "/statements/0/conditions"),
        (with_conditions(json!({"Eq": {"resource.x": 1}})), "/statements/0/conditions/Eq"),
        (with_conditions(json!({"Bool": {}})), "/statements/0/conditions/Bool"),
        (with_conditions(json!({"Bool": {"x": true}})), "/statements/0/conditions/Bool/x"),
        (
            with_conditions(json!({"Bool": {"resource.a/b": 1}})),
            "/statements/0/conditions/Bool/resource.a~1b",
        ),
        (
            with_conditions(json!({"Bool": {"resource.x": "true"}})),
            "/statements/0/conditions/Bool/resource.x",
        ),
        (
            with_conditions(json!({"Null": {"resource.x": [true, 1]}})),
            "/statements/0/conditions/Null/resource.x/1",
        ),
        (
            with_conditions(json!({"StringLike": {"resource.x": 1}})),
            "/statements/0/conditions/StringLike/resource.x",
        ),
        (
            with_conditions(json!({"StringLike": {"resource.x": []}})),
            "/statements/0/conditions/StringLike/resource.x",
        ),
        (
            with_conditions(json!({"StringEqualsIgnoreCase": {"resource.x": "ä"}})),
            "/statements/0/conditions/StringEqualsIgnoreCase/resource.x",
        ),
        (
            with_conditions(json!({"NumericEquals": {"resource.x": "1"}})),
            "/statements/0/conditions/NumericEquals/resource.x",
        ),
        (
            with_conditions(json!({"NumericEquals": {"resource.x": 1e-10}})),
            "/statements/0/conditions/NumericEquals/resource.x",
        ),
        (
            with_conditions(json!({"DateEquals": {"resource.x": "today"}})),
            "/statements/0/conditions/DateEquals/resource.x",
        ),
        (
            with_conditions(json!({"DateEquals": {"resource.x": 1}})),
            "/statements/0/conditions/DateEquals/resource.x",
        ),
        (
            with_conditions(json!({"IpAddress": {"resource.x": "10.0.0.1/8"}})),
            "/statements/0/conditions/IpAddress/resource.x",
        ),
        (
            with_conditions(json!({"Bool": {"request.time": true}})),
            "/statements/0/conditions/Bool/request.time",
        ),
        (
            with_conditions(json!({"StringEquals": {"request.sourceIp": "::1"}})),
            "/statements/0/conditions/StringEquals/request.sourceIp",
        ),
    ];
    for (document, pointer) in cases {
        let found = error(&document);
        assert_eq!(found.pointer, pointer, "{found} in {document}");
    }
}

#[test]
fn a_misspelling_is_answered_with_what_was_meant() {
    for (document, meant) in [
        (statement_of(|s| s["action"] = json!(["*"])), "\"actions\""),
        (statement_of(|s| s["effect"] = json!("Deny")), "\"deny\""),
        (with_conditions(json!({"NumericLessThanEqual": {"resource.x": 1}})), "\"NumericLessThanEquals\""),
        (with_conditions(json!({"Bool": {"request.delegate": true}})), "\"request.delegated\""),
        (with_conditions(json!({"Bool": {"principle.admin": true}})), "\"principal.admin\""),
        (json!({"version": "2026-01-02", "statements": []}), "\"2026-01-01\""),
    ] {
        let text = error(&document).to_string();
        assert!(text.ends_with(&format!("did you mean {meant}?")), "{text}");
    }
}

#[test]
fn repeated_keys_are_refused_at_every_level() {
    for (text, pointer) in [
        (r#"{"statements": [], "statements": []}"#, ""),
        (r#"{"statements": [{"effect": "deny", "effect": "allow"}]}"#, "/statements/0"),
        (
            r#"{"statements": [{"sid": "A", "effect": "allow", "actions": ["*"], "resources": ["*"],
                "conditions": {"Bool": {"resource.x": true}, "Bool": {"resource.y": true}}}]}"#,
            "/statements/0/conditions",
        ),
        (
            r#"{"statements": [{"sid": "A", "effect": "allow", "actions": ["*"], "resources": ["*"],
                "conditions": {"Bool": {"resource.x": true, "resource.x": false}}}]}"#,
            "/statements/0/conditions/Bool",
        ),
    ] {
        let error = super::document(text.as_bytes()).expect_err(text);
        assert!(matches!(error.problem, Problem::RepeatedField { .. }), "{error}");
        assert_eq!(error.pointer, pointer, "{error}");
    }
}

#[test]
fn two_statements_cannot_share_a_sid() {
    let mut document = statement_of(|_| {});
    let twin = document["statements"][0].clone();
    document["statements"].as_array_mut().expect("a list").push(twin);
    let error = error(&document);
    assert_eq!(error.problem, Problem::RepeatedSid { sid: "One".to_owned() });
    assert_eq!(error.pointer, "/statements/1/sid");
}

#[test]
fn every_dimension_is_bounded() {
    let many = |count: usize, item: &str| vec![item.to_owned(); count];
    let long = format!("a:{}/", "a".repeat(PATTERN_BYTES_MAX));
    let attributes: serde_json::Map<_, _> =
        (0..=CONDITIONS_MAX).map(|at| (format!("resource.a{at}"), json!(true))).collect();
    let too_many = [
        json!({"statements": vec![json!({}); STATEMENTS_MAX + 1]}),
        statement_of(|s| s["actions"] = json!(many(ACTIONS_MAX + 1, "a:b"))),
        statement_of(|s| s["resources"] = json!(many(RESOURCES_MAX + 1, "a/b"))),
        with_conditions(json!({"Bool": attributes})),
        with_conditions(json!({"Bool": {"resource.x": vec![true; VALUES_MAX + 1]}})),
    ];
    for document in too_many {
        assert!(matches!(error(&document).problem, Problem::TooMany { .. }));
    }
    let too_long = [
        statement_of(|s| s["actions"] = json!([long])),
        statement_of(|s| s["resources"] = json!([long])),
        with_conditions(json!({"StringLike": {"resource.x": long}})),
        json!(" ".repeat(DOCUMENT_BYTES_MAX)),
    ];
    for document in too_long {
        assert!(matches!(error(&document).problem, Problem::TooLong { .. }));
    }
}

#[test]
fn an_error_is_short_even_for_a_long_input() {
    let long = "x".repeat(50_000);
    for document in [
        json!({ &long: 1 }),
        with_conditions(json!({ &long: {} })),
        with_conditions(json!({"Bool": { &long: true }})),
        statement_of(|s| s["sid"] = json!(long)),
    ] {
        let text = error(&document).to_string();
        assert!(text.len() < 600, "{} bytes: {text}", text.len());
    }
}

#[test]
fn text_that_is_not_json_is_refused() {
    for text in ["", "{", "{} {}", "{\"statements\": [1e999]}", "\u{feff}{}", "{'statements': []}", "// {}"] {
        let error = super::document(text.as_bytes()).expect_err(text);
        assert!(matches!(error.problem, Problem::NotJson { .. }), "{error}");
    }
    assert!(matches!(
        super::document(&[b'"', 0xff, b'"']),
        Err(ParseError { problem: Problem::NotJson { .. }, .. })
    ));
    let deep = "[".repeat(10_000);
    assert!(matches!(
        super::document(deep.as_bytes()),
        Err(ParseError { problem: Problem::NotJson { .. }, .. })
    ));
}

fn any_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "version",
        "2026-01-01",
        "statements",
        "sid",
        "effect",
        "allow",
        "deny",
        "actions",
        "resources",
        "conditions",
        "*",
        "compute:*",
        "a/*",
        "a/${principal.x}",
        "Bool",
        "Null",
        "StringLikeIfExists",
        "ForAnyValue:DateEquals",
        "NumericEquals",
        "IpAddress",
        "resource.x",
        "request.time",
        "10.0.0.0/8",
        "2026-01-01T00:00:00Z",
        "${",
        "",
    ])
    .prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = super::document(&bytes);
    }

    #[test]
    fn any_json_is_parsed_or_refused_with_a_pointer_that_resolves(json in any_json()) {
        if let Err(error) = super::document(json.to_string().as_bytes()) {
            prop_assert!(json.pointer(&error.pointer).is_some(), "{} in {}", error, json);
        }
    }

    #[test]
    fn a_statement_with_one_strange_part_is_parsed_or_refused(
        part in any_json(), field in prop::sample::select(vec!["sid", "effect", "actions", "resources", "conditions"])
    ) {
        let _ = super::document(statement_of(|statement| statement[field] = part).to_string().as_bytes());
    }
}
