//! Parts that several answers share.

use std::fmt;

use model::condition::Severity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Id, Time, Word};

/// A resource by id, with its name for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound(serialize = "T: fmt::Display", deserialize = "T: model::Id"))]
pub struct Named<T> {
    pub id: Id<T>,
    pub name: String,
}

impl<T> Named<T> {
    pub fn new(id: T, name: impl Into<String>) -> Self {
        Self { id: Id(id), name: name.into() }
    }
}

impl<T: model::Id> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Named{}", T::PREFIX).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "properties": { "id": generator.subschema_for::<Id<T>>(), "name": { "type": "string" } },
            "required": ["id", "name"],
        })
    }
}

/// A fact about a resource that a person or the placer must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// CamelCase, like `Xid`, `SectionUnsupported`, `RestoreSuspected`.
    pub kind: String,
    pub severity: Word<Severity>,
    /// A GPU's UUID when the fact is about one, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// One stable word for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    pub since: Time,
    pub since_seconds: u64,
}

/// GPUs of a node or a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuTotals {
    pub total: u32,
    /// Healthy and not booked.
    pub free: u32,
    pub unhealthy: u32,
    /// As the inventory names it; absent when there is none or they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What is offered and what of it is free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amount {
    pub total: u64,
    pub free: u64,
}
