//! A schema as what it says: the surface, the reference page and the command line read shapes, not JSON Schema.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::MethodRow;

/// Deeper than any type of the table.
const DEPTH_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Bool,
    Integer {
        min: Option<i64>,
        max: Option<i64>,
    },
    Text {
        min: Option<u64>,
        max: Option<u64>,
        pattern: Option<String>,
        /// `date-time`, `node-id`, `pool-ref`, `name`, …
        format: Option<String>,
    },
    /// One of these words.
    Words(Vec<String>),
    List {
        items: Box<Shape>,
        max: Option<u64>,
    },
    /// Any keys; each value has the shape.
    Map {
        values: Box<Shape>,
    },
    Object {
        /// The type's name; none for a part that has no name of its own.
        name: Option<String>,
        about: String,
        fields: Vec<Field>,
    },
    Any,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub name: String,
    pub required: bool,
    pub about: String,
    pub shape: Shape,
}

/// What a method takes: always an object.
pub fn request_shape(row: &MethodRow) -> Shape {
    shape_by(row.request_schema)
}

/// What a method answers.
pub fn response_shape(row: &MethodRow) -> Shape {
    shape_by(row.response_schema)
}

fn shape_by(schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema) -> Shape {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let schema = schema(&mut generator);
    let definitions = Value::Object(generator.take_definitions(true));
    shape(schema.as_value(), &definitions, None, 0)
}

fn shape(schema: &Value, definitions: &Value, name: Option<&str>, depth: usize) -> Shape {
    if depth > DEPTH_MAX {
        return Shape::Any;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return match definitions.get(name) {
            Some(target) => shape(target, definitions, Some(name), depth + 1),
            None => Shape::Any,
        };
    }
    // An optional part is written as one that may also be null.
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return match any.iter().find(|one| !is_null(one)) {
            Some(one) => shape(one, definitions, name, depth + 1),
            None => Shape::Any,
        };
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return Shape::Words(words.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    let text = |key: &str| schema.get(key).and_then(Value::as_str).map(str::to_owned);
    let count = |key: &str| schema.get(key).and_then(Value::as_u64);
    match type_of(schema) {
        Some("boolean") => Shape::Bool,
        Some("integer") => Shape::Integer {
            min: schema.get("minimum").and_then(Value::as_i64),
            max: schema.get("maximum").and_then(Value::as_i64),
        },
        Some("string") => Shape::Text {
            min: count("minLength"),
            max: count("maxLength"),
            pattern: text("pattern"),
            format: text("format"),
        },
        Some("array") => Shape::List {
            items: Box::new(
                schema.get("items").map_or(Shape::Any, |items| shape(items, definitions, None, depth + 1)),
            ),
            max: count("maxItems"),
        },
        Some("object") => object(schema, definitions, name, depth),
        _ => Shape::Any,
    }
}

fn object(schema: &Value, definitions: &Value, name: Option<&str>, depth: usize) -> Shape {
    let properties = schema.get("properties").and_then(Value::as_object);
    if properties.is_none()
        && let Some(values) =
            schema.get("additionalProperties").filter(|values| **values != Value::Bool(false))
    {
        return Shape::Map { values: Box::new(shape(values, definitions, None, depth + 1)) };
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let fields = properties
        .into_iter()
        .flatten()
        .map(|(field, inner)| Field {
            name: field.clone(),
            required: required.contains(&field.as_str()),
            about: about(inner, definitions),
            shape: shape(inner, definitions, None, depth + 1),
        })
        .collect();
    Shape::Object { name: name.map(str::to_owned), about: about(schema, definitions), fields }
}

/// The description of a part, or of the type it refers to.
fn about(schema: &Value, definitions: &Value) -> String {
    if let Some(text) = schema.get("description").and_then(Value::as_str) {
        return text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    let reference = schema.get("$ref").or_else(|| schema.pointer("/anyOf/0/$ref")).and_then(Value::as_str);
    reference
        .and_then(|reference| definitions.get(reference.rsplit('/').next()?))
        .map(|target| about(target, definitions))
        .unwrap_or_default()
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
}

/// The type, less `null`.
fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(one) => Some(one),
        Value::Array(several) => several.iter().filter_map(Value::as_str).find(|one| *one != "null"),
        _ => None,
    }
}

impl Shape {
    /// For people and for the recorded surface: `integer`, `string (node-id)`, `[string]`, `Reservation`.
    pub fn text(&self) -> String {
        match self {
            Shape::Bool => "boolean".to_owned(),
            Shape::Integer { .. } => "integer".to_owned(),
            Shape::Text { format: Some(format), .. } => format!("string ({format})"),
            Shape::Text { .. } | Shape::Words(_) => "string".to_owned(),
            Shape::List { items, .. } => format!("[{}]", items.text()),
            Shape::Map { values } => format!("map of {}", values.text()),
            Shape::Object { name: Some(name), .. } => name.clone(),
            Shape::Object { name: None, .. } => "object".to_owned(),
            Shape::Any => "any".to_owned(),
        }
    }
}
