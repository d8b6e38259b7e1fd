use super::*;

#[test]
fn an_error_says_where_what_and_what_was_meant() {
    let error = ParseError {
        pointer: "/statements/0".to_owned(),
        problem: Problem::UnknownField { given: "action".to_owned(), meant: Some("actions".to_owned()) },
    };
    assert_eq!(
        error.to_string(),
        "read \"/statements/0\": unknown field \"action\"; did you mean \"actions\"?"
    );
    let error = ParseError { pointer: String::new(), problem: Problem::MissingField { field: "statements" } };
    assert_eq!(error.to_string(), "read the document: the field \"statements\" is missing");
}

#[test]
fn a_near_miss_finds_its_name_and_a_far_one_finds_none() {
    let names = ["sid", "effect", "actions", "resources", "conditions"];
    assert_eq!(nearest("Action", names).as_deref(), Some("actions"));
    assert_eq!(nearest("condition", names).as_deref(), Some("conditions"));
    assert_eq!(nearest("principal", names), None);
    assert_eq!(nearest(&"a".repeat(10_000), names), None);
}
