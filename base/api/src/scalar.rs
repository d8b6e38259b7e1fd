//! Values that are parsed once, at the edge: behind these types nothing is checked again.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Texts in messages are cut to this many characters, so that a long input does not come back whole.
const SHOWN_MAX: usize = 64;

pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

/// A time as RFC 3339; written in UTC with `Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub model::Timestamp);

impl From<model::Timestamp> for Time {
    fn from(time: model::Timestamp) -> Self {
        Self(time)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Int<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Int<MIN, MAX> {
    /// None outside the bounds.
    pub const fn new(value: u64) -> Option<Self> {
        if value >= MIN && value <= MAX { Some(Self(value)) } else { None }
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// For bounds that fit.
    pub const fn get_u32(self) -> u32 {
        const { assert!(MAX <= u32::MAX as u64, "these bounds do not fit 32 bits") };
        self.0 as u32
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Int<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        value.as_u64().and_then(Self::new).ok_or_else(|| {
            D::Error::custom(format!(
                "expected a whole number from {MIN} to {MAX}, found {}",
                shown(&value.to_string())
            ))
        })
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Int<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Int{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// Text of `MIN` to `MAX` characters without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    pub fn parse(text: &str) -> Result<Self, String> {
        let length = text.chars().count();
        if length < MIN || length > MAX {
            return Err(format!("expected {MIN} to {MAX} characters, found {length}"));
        }
        if text.chars().any(char::is_control) {
            return Err("expected text without control characters".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

impl<const MIN: usize, const MAX: usize> fmt::Debug for Text<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const MIN: usize, const MAX: usize> Serialize for Text<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for Text<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Text{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": MIN, "maxLength": MAX })
    }
}

/// Tells a repeated create from a new one, for its tenant and caller.
pub type IdempotencyKey = Text<1, 128>;
/// Where a list goes on. Opaque: what one answer gave, the next request returns.
pub type Cursor = Text<1, 200>;

pub(crate) fn check_count<E: serde::de::Error>(count: usize, max: usize) -> Result<(), E> {
    if count > max {
        Err(E::custom(format!("expected at most {max} entries, found {count}")))
    } else {
        Ok(())
    }
}

/// A list of at most `MAX` entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Many<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for Many<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Many<T, MAX> {
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T: Serialize, const MAX: usize> Serialize for Many<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned, const MAX: usize> Deserialize<'de> for Many<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items = Vec::<T>::deserialize(deserializer)?;
        check_count(items.len(), MAX)?;
        Ok(Self(items))
    }
}

impl<T: JsonSchema, const MAX: usize> JsonSchema for Many<T, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}UpTo{MAX}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "maxItems": MAX, "items": generator.subschema_for::<T>() })
    }
}

/// A JSON object of at most `BYTES` when written out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Object<const BYTES: usize>(Map<String, Value>);

impl<const BYTES: usize> Object<BYTES> {
    pub fn get(&self) -> &Map<String, Value> {
        &self.0
    }

    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }
}

impl<const BYTES: usize> Serialize for Object<BYTES> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, const BYTES: usize> Deserialize<'de> for Object<BYTES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Map::<String, Value>::deserialize(deserializer)?;
        let length = serde_json::to_vec(&map).map_err(D::Error::custom)?.len();
        if length > BYTES {
            return Err(D::Error::custom(format!("expected at most {BYTES} bytes of JSON, found {length}")));
        }
        Ok(Self(map))
    }
}

impl<const BYTES: usize> JsonSchema for Object<BYTES> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Object".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object", "additionalProperties": true,
            "description": format!("At most {BYTES} bytes of JSON."),
        })
    }
}

/// A secret that is told once. Its `Debug` says nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "Told once, and kept nowhere." })
    }
}

#[cfg(test)]
mod tests;
