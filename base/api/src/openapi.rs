//! The OpenAPI 3.1 document.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{ErrorBody, GROUPS, METHODS, MethodRow, events};

/// The document, made from the table.
pub fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<ErrorBody>().to_value();
    let event = generator.subschema_for::<events::Event>().to_value();
    let mut paths = Map::new();
    for row in METHODS {
        let request = (row.request_schema)(&mut generator).to_value();
        let response = (row.response_schema)(&mut generator).to_value();
        paths.insert(row.path(), json!({ "post": operation(row, request, response, &problem) }));
    }
    paths.insert(events::STREAM_PATH.to_owned(), json!({ "get": stream(&event, &problem) }));
    let mut schemas = Value::Object(generator.take_definitions(true));
    without_nulls(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Better Compute",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Every method is a POST with JSON in and out. Unknown fields are refused.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "tags": GROUPS.iter().map(|group| json!({ "name": group.name, "description": group.about })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token of `tokens.create`: `bct_…`." },
            },
        },
    })
}

fn operation(row: &MethodRow, request: Value, response: Value, problem: &Value) -> Value {
    json!({
        "operationId": row.name,
        "tags": [row.parts().0],
        "summary": row.summary,
        "x-action": row.action,
        "x-resource": row.resource,
        "x-idempotency": row.idempotency.name(),
        "x-since": row.since,
        "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
        "responses": responses(row, response, problem),
    })
}

fn responses(row: &MethodRow, response: Value, problem: &Value) -> Map<String, Value> {
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in row.errors_all() {
        by_status.entry(code.http_status()).or_default().push(code.name());
    }
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        json!({ "description": "Done.", "content": { "application/json": { "schema": response } } }),
    );
    for (status, codes) in by_status {
        responses.insert(
            status.to_string(),
            json!({
                "description": codes.join(", "),
                "content": { "application/json": { "schema": problem } },
            }),
        );
    }
    responses
}

fn stream(event: &Value, problem: &Value) -> Value {
    let parameter = |name: &str, place: &str, about: &str| json!({ "name": name, "in": place, "required": false, "description": about, "schema": { "type": "string" } });
    json!({
        "operationId": "events.stream",
        "tags": ["events"],
        "summary": "Streams events as they happen.",
        "description": format!(
            "Server-sent events. Each frame's id is the event's seq; Last-Event-ID goes on after it. A comment comes every {} s.",
            events::STREAM_HEARTBEAT_SECONDS
        ),
        "x-action": events::STREAM_ACTION,
        "parameters": [
            parameter("tenant", "query", "Only this tenant's: `tnt_…`."),
            parameter("type", "query", "A type, or the beginning of one up to a dot."),
            parameter("subject", "query", "`reservation/rsv_…`, exactly."),
            parameter("Last-Event-ID", "header", "The seq after which to go on."),
        ],
        "responses": {
            "200": {
                "description": "A stream; each frame's data is an event.",
                "content": { "text/event-stream": { "schema": event } },
            },
            "default": { "description": "Refused.", "content": { "application/json": { "schema": problem } } },
        },
    })
}

/// An optional field is left out, never null: takes the null that schemars allows out of optional properties.
fn without_nulls(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                for property in properties.values_mut() {
                    without_null(property);
                }
            }
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn without_null(property: &mut Value) {
    let Value::Object(map) = property else { return };
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            map.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(any)) = map.get_mut("anyOf") {
        any.retain(|one| one.get("type").and_then(Value::as_str) != Some("null"));
        if let [Value::Object(one)] = any.as_slice() {
            let one = one.clone();
            map.remove("anyOf");
            for (key, value) in one {
                map.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(words)) = map.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
}

#[cfg(test)]
mod tests;
