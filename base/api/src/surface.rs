//! What callers rely on, as it was served: kept in `surface.json`, so that no change breaks them unseen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{METHODS, MethodRow, Shape, events, request_shape, response_shape};

/// Everything of the API that a caller can depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    pub methods: BTreeMap<String, MethodSurface>,
    /// Routes beside the table.
    pub routes: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MethodSurface {
    pub action: String,
    pub resource: String,
    pub idempotency: String,
    pub since: String,
    pub errors: Vec<String>,
    /// Fields by path: `wait.timeoutMs`, `items[].id`.
    pub request: BTreeMap<String, FieldSurface>,
    pub response: BTreeMap<String, FieldSurface>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldSurface {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
}

/// A difference between two surfaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SurfaceChange {
    /// A caller that worked may not work any more.
    Breaks(String),
    /// Nothing that worked stops working.
    Adds(String),
}

/// The surface of this build.
pub fn surface() -> Surface {
    Surface {
        methods: METHODS.iter().map(|row| (row.name.to_owned(), method(row))).collect(),
        routes: BTreeMap::from([(
            format!("GET {}", events::STREAM_PATH),
            "text/event-stream; tenant, type, subject; Last-Event-ID".to_owned(),
        )]),
    }
}

fn method(row: &MethodRow) -> MethodSurface {
    let flat = |shape: &Shape| {
        let mut fields = BTreeMap::new();
        flatten(shape, "", true, &mut fields);
        fields
    };
    MethodSurface {
        action: row.action.to_owned(),
        resource: row.resource.to_owned(),
        idempotency: row.idempotency.name().to_owned(),
        since: row.since.to_owned(),
        errors: row.errors_all().into_iter().map(|code| code.name().to_owned()).collect(),
        request: flat(&request_shape(row)),
        response: flat(&response_shape(row)),
    }
}

fn flatten(shape: &Shape, at: &str, required: bool, into: &mut BTreeMap<String, FieldSurface>) {
    let mut leaf = FieldSurface { kind: shape.text(), required, min: None, max: None, words: Vec::new() };
    let bound = |count: &Option<u64>| count.and_then(|count| i64::try_from(count).ok());
    match shape {
        Shape::Object { fields, .. } => {
            // Names of types may change; what is on the wire may not.
            leaf.kind = "object".to_owned();
            for field in fields {
                let dot = if at.is_empty() { "" } else { "." };
                flatten(&field.shape, &format!("{at}{dot}{}", field.name), field.required, into);
            }
        }
        Shape::List { items, max } => {
            leaf.kind = "list".to_owned();
            leaf.max = bound(max);
            flatten(items, &format!("{at}[]"), true, into);
        }
        Shape::Map { values } => {
            leaf.kind = "map".to_owned();
            flatten(values, &format!("{at}{{}}"), true, into);
        }
        Shape::Integer { min, max } => (leaf.min, leaf.max) = (*min, *max),
        Shape::Text { min, max, .. } => (leaf.min, leaf.max) = (bound(min), bound(max)),
        Shape::Words(words) => leaf.words = words.clone(),
        Shape::Bool | Shape::Any => {}
    }
    if !at.is_empty() {
        into.insert(at.to_owned(), leaf);
    }
}

/// What lies between the recorded surface and another, in order.
pub fn compare(recorded: &Surface, now: &Surface) -> Vec<SurfaceChange> {
    use SurfaceChange::{Adds, Breaks};
    let mut changes = Vec::new();
    for (name, old) in &recorded.methods {
        match now.methods.get(name) {
            Some(new) => compare_method(name, old, new, &mut changes),
            None => changes.push(Breaks(format!("{name} is gone"))),
        }
    }
    for name in now.methods.keys().filter(|name| !recorded.methods.contains_key(*name)) {
        changes.push(Adds(format!("{name} is new")));
    }
    for (route, old) in &recorded.routes {
        if now.routes.get(route) != Some(old) {
            changes.push(Breaks(format!("{route} is gone or different")));
        }
    }
    for route in now.routes.keys().filter(|route| !recorded.routes.contains_key(*route)) {
        changes.push(Adds(format!("{route} is new")));
    }
    changes.sort();
    changes
}

fn compare_method(name: &str, old: &MethodSurface, new: &MethodSurface, changes: &mut Vec<SurfaceChange>) {
    use SurfaceChange::{Adds, Breaks};
    for (what, before, after) in [
        ("action", &old.action, &new.action),
        ("resource", &old.resource, &new.resource),
        ("idempotency", &old.idempotency, &new.idempotency),
        ("since", &old.since, &new.since),
    ] {
        if before != after {
            changes.push(Breaks(format!("{name}: {what} was {before}, is {after}")));
        }
    }
    for code in old.errors.iter().filter(|code| !new.errors.contains(code)) {
        changes.push(Breaks(format!("{name}: error {code} is gone")));
    }
    for code in new.errors.iter().filter(|code| !old.errors.contains(code)) {
        changes.push(Adds(format!("{name}: error {code} is new")));
    }
    compare_fields(&format!("{name} request"), Side::Request, &old.request, &new.request, changes);
    compare_fields(&format!("{name} response"), Side::Response, &old.response, &new.response, changes);
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// Callers write it: it may take more, never less.
    Request,
    /// Callers read it: it may say more, never less.
    Response,
}

fn compare_fields(
    at: &str,
    side: Side,
    old: &BTreeMap<String, FieldSurface>,
    new: &BTreeMap<String, FieldSurface>,
    changes: &mut Vec<SurfaceChange>,
) {
    use SurfaceChange::{Adds, Breaks};
    for (path, before) in old {
        let Some(after) = new.get(path) else {
            changes.push(Breaks(format!("{at}: {path} is gone")));
            continue;
        };
        if before.kind != after.kind {
            let text = format!("{at}: {path} was {}, is {}", before.kind, after.kind);
            let adds = side == Side::Request && takes_names_too(&before.kind, &after.kind);
            changes.push(if adds { Adds(text) } else { Breaks(text) });
        }
        if before.required != after.required {
            let breaks = after.required == (side == Side::Request);
            let text =
                format!("{at}: {path} is now {}", if after.required { "required" } else { "optional" });
            changes.push(if breaks { Breaks(text) } else { Adds(text) });
        }
        if (before.min, before.max) != (after.min, after.max) {
            let text = format!("{at}: the bounds of {path} changed");
            let breaks = side == Side::Request && narrower(before, after);
            changes.push(if breaks { Breaks(text) } else { Adds(text) });
        }
        for word in before.words.iter().filter(|word| !after.words.contains(word)) {
            changes.push(Breaks(format!("{at}: {path} lost the word {word}")));
        }
        for word in after.words.iter().filter(|word| !before.words.contains(word)) {
            changes.push(Adds(format!("{at}: {path} gained the word {word}")));
        }
    }
    for (path, after) in new.iter().filter(|(path, _)| !old.contains_key(*path)) {
        // A required part of a part that is itself new and optional asks nothing of those who leave it out.
        let parent_is_new =
            path.rsplit_once(['.', '[', '{']).is_some_and(|(parent, _)| !old.contains_key(parent));
        let breaks = side == Side::Request && after.required && !parent_is_new;
        let text = format!("{at}: {path} is new");
        changes.push(if breaks { Breaks(format!("{text} and required")) } else { Adds(text) });
    }
}

/// Where an id was taken, an id or a name is.
fn takes_names_too(before: &str, after: &str) -> bool {
    let ids = before.strip_suffix("-id)");
    ids.is_some() && ids == after.strip_suffix("-ref)")
}

fn narrower(before: &FieldSurface, after: &FieldSurface) -> bool {
    let raised = after.min.is_some_and(|new| before.min.is_none_or(|old| new > old));
    let lowered = after.max.is_some_and(|new| before.max.is_none_or(|old| new < old));
    raised || lowered
}

#[cfg(test)]
mod tests;
