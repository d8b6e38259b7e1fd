//! JSON as it was written: repeated keys are kept, so that they can be refused, and numbers are exact.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::number::Number;

#[derive(Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// None: a number that [`Number`] cannot hold.
    Number(Option<Number>),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::Text(_) => "text",
            Json::List(_) => "list",
            Json::Object(_) => "object",
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Json, E> {
        Ok(Json::Bool(bool))
    }

    fn visit_i64<E>(self, whole: i64) -> Result<Json, E> {
        Ok(Json::Number(Some(whole.into())))
    }

    fn visit_u64<E>(self, whole: u64) -> Result<Json, E> {
        Ok(Json::Number(Some(whole.into())))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Json, E> {
        Ok(Json::Number(Number::try_from(float).ok()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Json::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }
}
