//! Reading a request body as JSON, stricter than serde_json's own value: a name given twice is refused, since two readers
//! of such an object may see two different requests, and depth is bounded.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Levels of objects and arrays. Requests have fewer than ten; label selectors and policies included.
pub const DEPTH_MAX: usize = 32;

/// Why a body is not JSON that a method could take. Fit for the caller: it quotes no more than a field's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the body is not valid JSON: {0}")]
pub struct InvalidJson(String);

/// Parses a whole body. An empty one counts as `{}`: a method without parameters needs no body.
pub fn parse(body: &[u8]) -> Result<Value, InvalidJson> {
    if body.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed = Strict { depth: 0 }.deserialize(&mut deserializer).and_then(|value| {
        deserializer.end()?;
        Ok(value)
    });
    parsed.map_err(|err| InvalidJson(err.to_string()))
}

#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= DEPTH_MAX {
            return Err(E::custom(format_args!("it is nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Value, E> {
        Ok(Value::Bool(bool))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut array = Vec::new();
        while let Some(element) = elements.next_element_seed(inner)? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if object.contains_key(&name) {
                let name: String = name.chars().take(64).collect();
                return Err(A::Error::custom(format_args!("the field {name:?} is given twice")));
            }
            let value = fields.next_value_seed(inner)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

/// Writes a value so that equal values give equal bytes: no spaces, names in the order of their code points.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let mut fields: Vec<(&String, &Value)> = object.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(name, value)| format!("{}:{}", Value::String(name.clone()), canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(array) => {
            let elements: Vec<String> = array.iter().map(canonical).collect();
            format!("[{}]", elements.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests;
