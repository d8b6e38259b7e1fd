//! Ids, names, and what may be either.

use std::fmt;
use std::str::FromStr;

use model::article;
use model::label::check_name;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scalar::shown;

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
            "format": format!("{}-id", T::KIND.replace(' ', "-")),
            "pattern": format!("^{}[0-7][0-9a-hjkmnp-tv-z]{{25}}$", T::PREFIX),
            "description": format!("The id of {} {}.", article(T::KIND), T::KIND),
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
                    "{:?} is the id of {} {kind}, not of {} {}: give one that starts with {:?}, or a name",
                    shown(text),
                    article(kind),
                    article(T::KIND),
                    T::KIND,
                    T::PREFIX
                ));
            }
        }
        if text.starts_with(T::PREFIX) {
            return Err(text.parse::<T>().expect_err("it was tried above").to_string());
        }
        Err(format!(
            "{:?} is neither {} {} id, which starts with {:?}, nor a name: 1 to 63 characters of a-z, 0-9 and '-'",
            shown(text),
            article(T::KIND),
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
            "format": format!("{}-ref", T::KIND.replace(' ', "-")),
            "pattern": format!("^({}[0-7][0-9a-hjkmnp-tv-z]{{25}}|[a-z0-9]([a-z0-9-]{{0,61}}[a-z0-9])?)$", T::PREFIX),
            "description": format!("The id or the name of {} {}.", article(T::KIND), T::KIND),
        })
    }
}

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
            "type": "string", "format": "name", "minLength": 1, "maxLength": 63,
            "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        })
    }
}
