use proptest::prelude::*;

use super::*;

fn glob(pattern: &str, text: &str) -> bool {
    let template = Template::parse(pattern, Syntax::WildcardsAndVariables).expect(pattern);
    template.matches(text, &Attributes::new(), false) == Truth::True
}

/// The definition, by recursion over every way to split.
fn naive(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => (0..=text.len()).any(|from| naive(rest, &text[from..])),
        ['?', rest @ ..] => !text.is_empty() && naive(rest, &text[1..]),
        [literal, rest @ ..] => text.first() == Some(literal) && naive(rest, &text[1..]),
    }
}

#[test]
fn wildcards_match_runs_and_single_characters() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("*", "compute:x/y", true),
        ("compute:instances:*", "compute:instances:create", true),
        ("compute:instances:*", "compute:instances:", true),
        ("compute:instances:*", "compute:instances", false),
        ("compute:*:get", "compute:a:b:get", true),
        ("compute:*:get", "compute:get", false),
        ("Compute:*", "compute:x", false),
        ("a?c", "abc", true),
        ("a?c", "aéc", true),
        ("a?c", "ac", false),
        ("*?", "é", true),
        ("??", "é", false),
        ("*ab*ab", "abab", true),
        ("*ab*ab", "abxab", true),
        ("*ab*ab", "ab", false),
        ("*.example.com", "a.example.com.example.com", true),
    ] {
        assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn a_hostile_pattern_on_a_hostile_text_finishes() {
    let pattern = format!("{}b", "*a".repeat(255));
    assert!(!glob(&pattern, &"a".repeat(20_000)));
    let pattern = format!("{}b", "?*a*".repeat(100));
    assert!(!glob(&pattern, &"é".repeat(20_000)));
}

#[test]
fn a_variable_is_literal_text() {
    let template =
        Template::parse("t/${principal.tenantId}/*", Syntax::WildcardsAndVariables).expect("well formed");
    let matches = |tenant: Value<'_>, text| {
        template.matches(text, &Attributes::new().with("principal.tenantId", tenant), false)
    };
    assert_eq!(matches("acme".into(), "t/acme/x"), Truth::True);
    assert_eq!(matches("acme".into(), "t/other/x"), Truth::False);
    assert_eq!(matches("*".into(), "t/other/x"), Truth::False);
    assert_eq!(matches("*".into(), "t/*/x"), Truth::True);
    assert_eq!(matches("${principal.tenantId}".into(), "t/${principal.tenantId}/x"), Truth::True);
}

#[test]
fn a_variable_without_text_is_unknown_where_some_text_would_match() {
    let template =
        Template::parse("t/${principal.tenantId}/*", Syntax::WildcardsAndVariables).expect("well formed");
    let unknown = Truth::Unknown(Unknown::Variable);
    for value in [Value::Null, "".into(), 5.into(), true.into(), ["acme"].into_iter().collect()] {
        let attributes = Attributes::new().with("principal.tenantId", value);
        assert_eq!(template.matches("t/acme/x", &attributes, false), unknown);
        assert_eq!(template.matches("u/acme/x", &attributes, false), Truth::False);
        assert_eq!(template.matches("t/acme", &attributes, false), Truth::False);
    }
    assert_eq!(template.matches("t/acme/x", &Attributes::new(), false), unknown);
}

#[test]
fn an_escaped_wildcard_is_the_character() {
    assert!(glob("a${*}b", "a*b"));
    assert!(!glob("a${*}b", "axb"));
    assert!(glob("a${?}${$}{b", "a?${b"));
    assert!(glob("a$b$", "a$b$"));
}

#[test]
fn a_malformed_variable_is_refused() {
    for text in [
        "${",
        "a${principal.x",
        "${}",
        "${principal}",
        "${nobody.x}",
        "${principal.x, 'y'}",
        "${ principal.x}",
    ] {
        assert!(Template::parse(text, Syntax::Variables).is_err(), "{text}");
    }
    assert_eq!(Template::parse("${x}", Syntax::Wildcards), Ok(Template::Exact("${x}".into())));
}

proptest! {
    #[test]
    fn the_matcher_equals_its_definition(pattern in "[ab?*é]{0,10}", text in "[abé]{0,10}") {
        let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
        prop_assert_eq!(glob(&pattern, &text), naive(&p, &t), "{} {}", pattern, text);
    }

    #[test]
    fn a_variable_equals_its_escaped_text(value in "[ab*?]{1,3}", text in "[ab*?]{0,6}") {
        let escaped: String =
            value.chars().map(|c| if c == '*' || c == '?' { format!("${{{c}}}") } else { c.to_string() }).collect();
        let template = Template::parse("*a${principal.x}?*", Syntax::WildcardsAndVariables).expect("well formed");
        let attributes = Attributes::new().with("principal.x", value.as_str());
        let found = template.matches(&text, &attributes, false) == Truth::True;
        prop_assert_eq!(found, glob(&format!("*a{escaped}?*"), &text), "{} {}", value, text);
    }

    #[test]
    fn an_unresolved_variable_is_false_only_if_no_text_would_match(text in "[ab]{0,6}") {
        let template = Template::parse("a${principal.x}b?*", Syntax::WildcardsAndVariables).expect("well formed");
        let found = template.matches(&text, &Attributes::new(), false);
        prop_assert_eq!(found != Truth::False, glob("a*b?*", &text), "{}", text);
    }

    #[test]
    fn parsing_and_matching_never_panic(pattern: String, text: String) {
        for syntax in [Syntax::Wildcards, Syntax::WildcardsAndVariables, Syntax::Variables] {
            if let Ok(template) = Template::parse(&pattern, syntax) {
                template.matches(&text, &Attributes::new(), true);
            }
        }
    }
}
