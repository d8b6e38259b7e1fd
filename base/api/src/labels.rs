//! Labels, selectors of labels, and changes of labels.

use std::collections::BTreeMap;

use model::label::{LabelError, check_label};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scalar::{check_count, shown};

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
