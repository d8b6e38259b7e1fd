//! The language's definition written down once more, naively: it interprets the JSON of the documents on every request,
//! expands patterns by recursion and shares no code with the crate.

use serde_json::Value as Json;
use std::collections::BTreeMap;

/// An attribute of the reference. JSON has the same types but for the absent ones, which properties draw as text.
pub type Facts = BTreeMap<String, Json>;

/// `None` is unknown.
type Tri = Option<bool>;

/// Whether the documents allow the request.
pub fn allows(documents: &[Json], action: &str, resource: &str, facts: &Facts) -> bool {
    let mut allowed = false;
    for statement in documents.iter().flat_map(|document| list(&document["statements"])) {
        let deny = statement["effect"] == "deny";
        let counts = |tri: Tri| tri.unwrap_or(deny);
        let acts = list(&statement["actions"]).any(|pattern| like(&chars(text(pattern)), &chars(action)));
        let resources = list(&statement["resources"])
            .map(|pattern| pattern_matches(text(pattern), true, resource, facts));
        let mut applies = acts && counts(or(resources));
        for (operator, entries) in statement["conditions"].as_object().into_iter().flatten() {
            for (attribute, values) in entries.as_object().into_iter().flatten() {
                applies &= counts(condition(operator, attribute, values, facts));
            }
        }
        if applies && deny {
            return false;
        }
        allowed |= applies;
    }
    allowed
}

fn condition(operator: &str, attribute: &str, values: &Json, facts: &Facts) -> Tri {
    let fact = facts.get(attribute).filter(|fact| !fact.is_null());
    if operator == "Null" {
        return Some(list(values).any(|value| value.as_bool() == Some(fact.is_none())));
    }
    let bare = operator.strip_suffix("IfExists").unwrap_or(operator);
    let Some(fact) = fact else {
        return if bare == operator { None } else { Some(true) };
    };
    if let Some(bare) = bare.strip_prefix("ForAnyValue:") {
        or(list(fact).map(|element| compare(bare, element, values, facts)))
    } else if let Some(bare) = bare.strip_prefix("ForAllValues:") {
        not(or(list(fact).map(|element| not(compare(bare, element, values, facts)))))
    } else {
        compare(bare, fact, values, facts)
    }
}

fn compare(operator: &str, fact: &Json, values: &Json, facts: &Facts) -> Tri {
    let each = |test: &dyn Fn(&Json) -> Tri| or(list(values).map(test));
    let string = |wild: bool| {
        let fact = fact.as_str()?;
        each(&|value| pattern_matches(text(value), wild, fact, facts))
    };
    let number = |test: &dyn Fn(f64, f64) -> bool| {
        let fact = fact.as_f64()?;
        each(&|value| value.as_f64().map(|value| test(fact, value)))
    };
    match operator {
        "StringEquals" => string(false),
        "StringNotEquals" => not(string(false)),
        "StringLike" => string(true),
        "StringNotLike" => not(string(true)),
        "NumericEquals" => number(&|fact, value| fact == value),
        "NumericNotEquals" => not(number(&|fact, value| fact == value)),
        "NumericLessThan" => number(&|fact, value| fact < value),
        "NumericLessThanEquals" => number(&|fact, value| fact <= value),
        "NumericGreaterThan" => number(&|fact, value| fact > value),
        "NumericGreaterThanEquals" => number(&|fact, value| fact >= value),
        "Bool" => {
            fact.as_bool()?;
            each(&|value| Some(value == fact))
        }
        _ => panic!("the reference does not know {operator}"),
    }
}

/// Unknown if a variable has no text and the pattern could match with some.
fn pattern_matches(pattern: &str, wild: bool, given: &str, facts: &Facts) -> Tri {
    // Literal characters that are wildcards are moved out of the way, into a private area of Unicode.
    let hide = |text: &str| text.replace('*', "\u{e000}").replace('?', "\u{e001}");
    let mut expanded = if wild { pattern.to_owned() } else { hide(pattern) };
    let mut known = true;
    while let Some(start) = expanded.find("${") {
        let end = start + expanded[start..].find('}').expect("well formed");
        let value = match facts.get(&expanded[start + 2..end]) {
            Some(Json::String(text)) if !text.is_empty() => hide(text),
            _ => {
                known = false;
                "*".to_owned()
            }
        };
        expanded.replace_range(start..=end, &value);
    }
    match like(&chars(&expanded), &chars(&hide(given))) {
        false => Some(false),
        true => known.then_some(true),
    }
}

fn like(pattern: &[char], given: &[char]) -> bool {
    match pattern {
        [] => given.is_empty(),
        ['*', rest @ ..] => (0..=given.len()).any(|from| like(rest, &given[from..])),
        ['?', rest @ ..] => !given.is_empty() && like(rest, &given[1..]),
        [literal, rest @ ..] => given.first() == Some(literal) && like(rest, &given[1..]),
    }
}

fn or(all: impl Iterator<Item = Tri>) -> Tri {
    let all: Vec<Tri> = all.collect();
    if all.contains(&Some(true)) {
        Some(true)
    } else if all.contains(&None) {
        None
    } else {
        Some(false)
    }
}

fn not(tri: Tri) -> Tri {
    tri.map(|holds| !holds)
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn text(json: &Json) -> &str {
    json.as_str().expect("a text")
}

/// A list's elements, or a single value as a list of one.
fn list(json: &Json) -> impl Iterator<Item = &Json> {
    match json {
        Json::Array(elements) => elements.as_slice(),
        single => std::slice::from_ref(single),
    }
    .iter()
}
