//! Finds the first field of a body that its schema does not have.

use serde_json::Value;

use super::{InvalidRequest, near, push};

/// Deeper than any request; a schema that refers to itself ends here.
const DEPTH_MAX: usize = 16;

pub fn find(body: &Value, schema: &Value) -> Option<InvalidRequest> {
    walk(body, schema, schema, &mut String::new(), 0)
}

fn walk(
    body: &Value,
    schema: &Value,
    root: &Value,
    pointer: &mut String,
    depth: usize,
) -> Option<InvalidRequest> {
    if depth > DEPTH_MAX {
        return None;
    }
    let schema = resolve(schema, root)?;
    match body {
        Value::Object(fields) => {
            let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
            // A closed object without fields has no `properties` at all.
            let none = serde_json::Map::new();
            let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
            for (name, value) in fields {
                let length = pointer.len();
                push(pointer, name);
                match known.get(name) {
                    Some(inner) => {
                        if let Some(found) = walk(value, inner, root, pointer, depth + 1) {
                            return Some(found);
                        }
                    }
                    None if closed => {
                        let message = say(name, known.keys().map(String::as_str));
                        return Some(InvalidRequest::new(pointer.clone(), message));
                    }
                    None => {}
                }
                pointer.truncate(length);
            }
            None
        }
        Value::Array(items) => {
            let inner = schema.get("items")?;
            for (index, item) in items.iter().enumerate() {
                let length = pointer.len();
                push(pointer, &index.to_string());
                if let Some(found) = walk(item, inner, root, pointer, depth + 1) {
                    return Some(found);
                }
                pointer.truncate(length);
            }
            None
        }
        _ => None,
    }
}

/// Follows references, and for an optional part takes the one that is not null.
fn resolve<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..DEPTH_MAX {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            schema = root.pointer(reference.strip_prefix('#')?)?;
        } else if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
            schema = any.iter().find(|one| one.get("type").and_then(Value::as_str) != Some("null"))?;
        } else {
            return Some(schema);
        }
    }
    None
}

fn say<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let shown: String = name.chars().take(64).collect();
    match near(name, known.clone()) {
        Some(near) => format!("unknown field `{shown}`, did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.collect();
            match known.is_empty() {
                true => format!("unknown field `{shown}`: this method takes none"),
                false => format!("unknown field `{shown}`: there is {}", known.join(", ")),
            }
        }
    }
}
