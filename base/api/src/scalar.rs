//! Values that are parsed once, at the edge: behind these types nothing is checked again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use model::label::{LabelError, check_label, check_name};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Texts in messages are cut to this many characters, so that a long input does not come back whole.
const SHOWN_MAX: usize = 64;

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

/// An id of one kind, as its TypeID text. An id of another kind does not parse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id<T>(pub T);

impl<T: model::Id> Id<T> {
    pub fn get(self) -> T {
        self.0
    }
}

impl<T> From<T> for Id<T> {
    fn from(id: T) -> Self {
        Self(id)
    }
}

impl<T: fmt::Display> fmt::Display for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Display> Serialize for Id<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: model::Id> Deserialize<'de> for Id<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

impl<T: model::Id> JsonSchema for Id<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}Id", T::PREFIX.trim_end_matches('_')).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": format!("^{}[0-7][0-9a-hjkmnp-tv-z]{{25}}$", T::PREFIX),
            "description": format!("The id of a {}.", T::KIND),
        })
    }
}

/// A resource by its id or by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ref<T> {
    Id(T),
    Name(String),
}

impl<T: model::Id> FromStr for Ref<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse::<T>() {
            return Ok(Ref::Id(id));
        }
        if check_name(text).is_ok() {
            return Ok(Ref::Name(text.to_owned()));
        }
        // No name has a `_`, so whoever wrote one meant an id.
        for (kind, prefix) in model::ID_KINDS {
            if text.starts_with(prefix) && *prefix != T::PREFIX {
                return Err(format!(
                    "{:?} is the id of a {kind}, not of a {}: give one that starts with {:?}, or a name",
                    shown(text),
                    T::KIND,
                    T::PREFIX
                ));
            }
        }
        if text.starts_with(T::PREFIX) {
            return Err(text.parse::<T>().expect_err("it was tried above").to_string());
        }
        Err(format!(
            "{:?} is neither a {} id, which starts with {:?}, nor a name: 1 to 63 characters of a-z, 0-9 and '-'",
            shown(text),
            T::KIND,
            T::PREFIX
        ))
    }
}

impl<T: fmt::Display> fmt::Display for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ref::Id(id) => id.fmt(f),
            Ref::Name(name) => f.write_str(name),
        }
    }
}

impl<T: fmt::Display> Serialize for Ref<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: model::Id> Deserialize<'de> for Ref<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<T: model::Id> JsonSchema for Ref<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("{}Ref", T::PREFIX.trim_end_matches('_')).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": format!("^({}[0-7][0-9a-hjkmnp-tv-z]{{25}}|[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?)$", T::PREFIX),
            "description": format!("The id or the name of a {}.", T::KIND),
        })
    }
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

/// A resource's name: a DNS label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

impl FromStr for Name {
    type Err = model::label::LabelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        check_name(text).map(|()| Self(text.to_owned()))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Name {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "minLength": 1, "maxLength": 63,
            "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        })
    }
}

/// As many as a person reads at a glance; the placer compares each with every candidate.
pub const LABELS_MAX: usize = 64;

/// Labels as they are, the system's under `bc.dev/` included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(pub BTreeMap<String, String>);

impl JsonSchema for Labels {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Labels".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": { "type": "string" } })
    }
}

/// Labels a node must carry, with exactly these values. The system's own may be asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Selector(BTreeMap<String, String>);

impl Selector {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let labels = BTreeMap::<String, String>::deserialize(deserializer)?;
        check_count(labels.len(), LABELS_MAX)?;
        for (key, value) in &labels {
            // The prefix is reserved against setting, not against asking.
            match check_label(key, value) {
                Ok(()) => {}
                Err(LabelError::Reserved(_)) if check_label("any", value).is_ok() => {}
                Err(LabelError::Reserved(_)) => {
                    return Err(D::Error::custom(LabelError::Value(shown(value))));
                }
                Err(err) => return Err(D::Error::custom(err)),
            }
        }
        Ok(Self(labels))
    }
}

impl JsonSchema for Selector {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object", "maxProperties": LABELS_MAX,
            "additionalProperties": { "type": "string", "maxLength": 63 },
            "description": "Labels a node must carry, with exactly these values.",
        })
    }
}

/// What to set, and with `null` what to take away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelChanges(pub BTreeMap<String, Option<String>>);

impl Serialize for LabelChanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LabelChanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let labels = BTreeMap::<String, Option<String>>::deserialize(deserializer)?;
        check_count(labels.len(), LABELS_MAX)?;
        for (key, value) in &labels {
            check_label(key, value.as_deref().unwrap_or_default()).map_err(D::Error::custom)?;
        }
        Ok(Self(labels))
    }
}

impl JsonSchema for LabelChanges {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LabelChanges".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object", "maxProperties": LABELS_MAX,
            "additionalProperties": { "type": ["string", "null"], "maxLength": 63 },
            "description": "Labels to set; `null` takes one away.",
        })
    }
}

fn check_count<E: serde::de::Error>(count: usize, max: usize) -> Result<(), E> {
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
