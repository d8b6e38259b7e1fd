use proptest::prelude::*;

use super::*;

#[test]
fn statements_end_at_their_own_semicolons() {
    let text = "-- no-transaction\nCREATE INDEX CONCURRENTLY a ON t (x);\n\
                DO $body$ BEGIN PERFORM 1; END $body$;\n\
                INSERT INTO t VALUES ('a;b''c', \"d;e\") /* ; */; -- last; words\n";
    let found: Vec<&str> = statements(text).into_iter().map(str::trim).collect();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[0].ends_with("a ON t (x)"));
    assert_eq!(found[1], "DO $body$ BEGIN PERFORM 1; END $body$");
    assert!(found[2].starts_with("INSERT"));
}

#[test]
fn a_parameter_is_not_a_dollar_quote() {
    assert_eq!(statements("SELECT $1; SELECT $2"), ["SELECT $1", " SELECT $2"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_breaks_the_splitter(text in "[-$;'\"/*a-z1 é\n]{0,60}") {
        for statement in statements(&text) {
            prop_assert!(text.contains(statement));
        }
    }
}
