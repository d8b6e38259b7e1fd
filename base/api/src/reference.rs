//! The reference page, `docs/api.md`: what the table says, for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Field, GROUPS, METHODS, MethodRow, Shape, events, request_shape, response_shape};

const INTRO: &str = "# API reference

<!-- Generated from the method table in base/api. A test compares; BETTER_COMPUTE_RECORD_DOCS=1 cargo test -p api reference writes it. -->

Every method is `POST /api/compute/<group>/<verb>` with a JSON object in and out and `Authorization: Bearer bct_…`.
Unknown fields are refused. Ids carry their kind (`node_…`); where a *ref* is taken, a name does too. Times are RFC 3339
in UTC; sizes and durations have their unit in the name.

- **Errors** are `{\"error\": {\"code\", \"message\", \"details\", \"requestId\", \"docs\"}}`; each code has a page under
  [errors](errors/). Any method may answer INVALID_INPUT, UNAUTHENTICATED, ACCESS_DENIED, RATE_LIMITED, UNAVAILABLE and
  INTERNAL; the others are listed with their method. What a caller may not see is NOT_FOUND.
- **Creates** take `idempotencyKey`: the same request under the same key is answered with what the first one made;
  another request under it is CONFLICT.
- **`wait`** holds the answer until the resource settles or `timeoutMs` is over; the answer then says where it stands.
- **Lists** answer `{items, cursor?}`, newest first. Give `cursor` back, with the same filters, for what follows.
";

/// The whole page.
pub fn reference() -> String {
    let mut page = INTRO.to_owned();
    let mut types: BTreeMap<String, Shape> = BTreeMap::new();
    for group in GROUPS {
        let (heading, about) = (group.name, group.about);
        let _ = writeln!(page, "\n## {heading}\n\n{about}.");
        for row in METHODS.iter().filter(|row| row.parts().0 == group.name) {
            method(&mut page, row, &mut types);
        }
        if group.name == "events" {
            stream(&mut page);
        }
    }
    page.push_str("\n## Types\n");
    for (name, shape) in &types {
        if let Shape::Object { about, fields, .. } = shape {
            let _ = writeln!(page, "\n### {name}\n");
            if !about.is_empty() {
                let _ = writeln!(page, "{about}\n");
            }
            table(&mut page, fields);
        }
    }
    page
}

fn method(page: &mut String, row: &MethodRow, types: &mut BTreeMap<String, Shape>) {
    let (group, verb) = row.cli();
    let _ = writeln!(page, "\n### {}\n\n{}\n", row.name, row.summary);
    let _ = writeln!(page, "- Command: `better-compute {group} {verb}`");
    let _ = writeln!(page, "- Action: `{}` on `{}`", row.action, row.resource);
    if !row.errors.is_empty() {
        let codes: Vec<String> =
            row.errors.iter().map(|code| format!("[{0}](errors/{0}.md)", code.name())).collect();
        let _ = writeln!(page, "- Errors: {}", codes.join(", "));
    }
    let response = response_shape(row);
    let _ = writeln!(page, "- Answers: {}\n", answer(&response));
    collect(&response, types);
    if let Shape::Object { fields, .. } = request_shape(row) {
        for field in &fields {
            collect(&field.shape, types);
        }
        match fields.is_empty() {
            true => page.push_str("Takes no fields.\n"),
            false => table(page, &fields),
        }
    }
}

fn answer(shape: &Shape) -> String {
    match shape {
        Shape::Object { fields, .. } => match fields.iter().find(|field| field.name == "items") {
            Some(Field { shape: Shape::List { items, .. }, .. }) => format!("a list of {}", link(items)),
            _ => link(shape),
        },
        _ => link(shape),
    }
}

fn stream(page: &mut String) {
    let _ = writeln!(
        page,
        "\n### events.stream\n\nStreams events as they happen.\n\n- Route: `GET {}` with `Accept: text/event-stream`\n\
         - Command: `better-compute events stream`\n- Action: `{}`, then each event is filtered like those of a list\n\
         - Query: `tenant`, `type`, `subject`, as for `events.list`\n\n\
         Each frame's `id` is the event's `seq`, its `event` the type and its `data` an [Event](#event). A reconnect with\n\
         `Last-Event-ID` goes on after that `seq`; without one the stream begins now. A comment line comes every {} seconds.",
        events::STREAM_PATH,
        events::STREAM_ACTION,
        events::STREAM_HEARTBEAT_SECONDS
    );
}

/// Gathers the named types; a list's own type is told by its items.
fn collect(shape: &Shape, types: &mut BTreeMap<String, Shape>) {
    match shape {
        Shape::Object { name, fields, .. } => {
            if let Some(name) = name.as_ref().filter(|name| !name.ends_with("List")) {
                types.insert(name.clone(), shape.clone());
            }
            for field in fields {
                collect(&field.shape, types);
            }
        }
        Shape::List { items, .. } => collect(items, types),
        Shape::Map { values } => collect(values, types),
        Shape::Bool | Shape::Integer { .. } | Shape::Text { .. } | Shape::Words(_) | Shape::Any => {}
    }
}

fn table(page: &mut String, fields: &[Field]) {
    page.push_str("| Field | Type | | About |\n|---|---|---|---|\n");
    let (required, optional): (Vec<_>, Vec<_>) = fields.iter().partition(|field| field.required);
    for field in required.into_iter().chain(optional) {
        let about = field.about.replace('|', "\\|");
        let need = if field.required { "required" } else { "" };
        let _ = writeln!(page, "| `{}` | {} | {need} | {about} |", field.name, kind(&field.shape));
    }
}

fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Words(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", "),
        Shape::Integer { min: Some(min), max: Some(max) } => format!("integer, {min} to {max}"),
        Shape::Text { format: None, min, max: Some(max), .. } => {
            format!("string, {} to {max} characters", min.unwrap_or(0))
        }
        Shape::List { items, max: Some(max) } => format!("list of {}, at most {max}", link(items)),
        Shape::List { items, max: None } => format!("list of {}", link(items)),
        Shape::Map { values } => format!("map of {}", link(values)),
        Shape::Bool | Shape::Integer { .. } | Shape::Text { .. } | Shape::Object { .. } | Shape::Any => {
            link(shape)
        }
    }
}

fn link(shape: &Shape) -> String {
    match shape {
        Shape::Object { name: Some(name), .. } => format!("[{name}](#{})", name.to_lowercase()),
        // A part without a name of its own is an id with its name.
        Shape::Object { name: None, fields, .. } => {
            format!("{{{}}}", fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", "))
        }
        _ => shape.text(),
    }
}

#[cfg(test)]
mod tests;
