//! One thing, with everything about it: a line for each fact, ages for times.

use model::Timestamp;
use serde_json::{Map, Value};

use super::failure::group_line;
use super::text::{age, at, plain, printable, words};

/// Deeper parts are written as JSON.
const DEPTH_MAX: usize = 4;

/// The lines about an answer.
pub fn render(answer: &Value, now: Timestamp) -> String {
    let mut lines = Vec::new();
    if let Value::Object(map) = answer {
        object(map, now, 0, &mut lines);
    }
    if lines.is_empty() {
        lines.push("done".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn object(map: &Map<String, Value>, now: Timestamp, depth: usize, lines: &mut Vec<String>) {
    let facts: Vec<(&String, &Value)> =
        ordered(map).filter(|(name, value)| !says_nothing(map, name, value)).collect();
    let width = facts.iter().map(|(name, _)| words(name).chars().count()).max().unwrap_or(0).min(28);
    let indent = "  ".repeat(depth);
    for (name, value) in facts {
        let label = words(name);
        match value {
            Value::Object(inner) if named(inner).is_none() && !inner.is_empty() && depth < DEPTH_MAX => {
                lines.push(format!("{indent}{label}"));
                object(inner, now, depth + 1, lines);
            }
            Value::Array(items) if items.iter().any(Value::is_object) && depth < DEPTH_MAX => {
                lines.push(format!("{indent}{label}"));
                for item in items {
                    lines.push(format!("{indent}  {}", one_line(item, now)));
                }
            }
            _ => lines.push(format!("{indent}{label:<width$}  {}", scalar(name, value, now))),
        }
    }
}

/// What names a thing first, then the rest in the order of the answer.
fn ordered(map: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    const FIRST: [&str; 4] = ["id", "name", "state", "kind"];
    let first = FIRST.iter().filter_map(|name| map.get_key_value(*name));
    first.chain(map.iter().filter(|(name, _)| !FIRST.contains(&name.as_str())))
}

/// Empty, or said by another field already.
fn says_nothing(map: &Map<String, Value>, name: &str, value: &Value) -> bool {
    let empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(inner) => inner.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    // `expiresAt` tells what `expiresInSeconds` does, `since` what `sinceSeconds` does.
    let twin = name.strip_suffix("Seconds").is_some_and(|stem| {
        let at = format!("{}At", stem.trim_end_matches("In"));
        map.contains_key(stem) || map.contains_key(&at) || (stem == "age" && map.contains_key("createdAt"))
    });
    empty || twin || (name == "dryRun" && value == false)
}

/// An id with its name.
fn named(map: &Map<String, Value>) -> Option<String> {
    match (map.len(), map.get("id")?.as_str(), map.get("name")?.as_str()) {
        (2, Some(id), Some(name)) => Some(format!("{} ({id})", printable(name))),
        _ => None,
    }
}

fn scalar(name: &str, value: &Value, now: Timestamp) -> String {
    match value {
        Value::String(text) => match text.parse::<Timestamp>() {
            Ok(time) => format!("{} ({text})", relative(time, now)),
            Err(_) => printable(text),
        },
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(seconds) if name.ends_with("Seconds") => {
            seconds.as_u64().map_or_else(|| seconds.to_string(), age)
        }
        Value::Object(map) => named(map).unwrap_or_else(|| plain(value)),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            items.iter().map(plain).collect::<Vec<_>>().join(", ")
        }
        _ => plain(value),
    }
}

fn relative(time: Timestamp, now: Timestamp) -> String {
    match time > now {
        true => format!("in {}", age(time.since(now).as_secs())),
        false => format!("{} ago", age(now.since(time).as_secs())),
    }
}

fn one_line(item: &Value, now: Timestamp) -> String {
    match item {
        Value::Object(map) => ordered(map)
            .filter(|(name, value)| !says_nothing(map, name, value))
            .map(|(name, value)| match name.as_str() {
                "id" | "name" | "uuid" | "kind" | "message" => scalar(name, value, now),
                _ => format!("{} {}", words(name), scalar(name, value, now)),
            })
            .collect::<Vec<_>>()
            .join("  "),
        _ => plain(item),
    }
}

/// The answer of `reservations.explain`.
pub fn explanation(answer: &Value) -> String {
    let mut lines = vec![at(answer, "summary")];
    lines.extend(list(answer, "groups").map(group_line));
    let hints: Vec<String> = list(answer, "hints").map(plain).collect();
    if !hints.is_empty() {
        lines.push(format!("  {:<9} {}", "try", hints.join(", or ")));
    }
    let nodes: Vec<&Value> = list(answer, "nodes").collect();
    if !nodes.is_empty() {
        lines.push(String::new());
    }
    let width = nodes.iter().map(|node| at(node, "node.name").chars().count()).max().unwrap_or(0);
    for node in nodes {
        let reasons: Vec<String> = list(node, "reasons").map(plain).collect();
        let line =
            format!("{:<width$}  {:<6}  {}", at(node, "node.name"), at(node, "verdict"), reasons.join("; "));
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}
