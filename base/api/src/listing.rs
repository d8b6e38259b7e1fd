//! What lists and waits share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Cursor, Int};

/// How many entries of a list one answer holds; [`LIMIT_DEFAULT`] when not given.
pub type Limit = Int<1, 200>;
/// A screenful.
pub const LIMIT_DEFAULT: u32 = 50;

/// The limit to use.
pub fn limit_or_default(limit: Option<Limit>) -> u32 {
    limit.map_or(LIMIT_DEFAULT, Limit::get_u32)
}

/// One page of a list, newest first. A cursor says that there is more.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    pub items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

impl<T> List<T> {
    pub fn new(items: Vec<T>, cursor: Option<Cursor>) -> Self {
        Self { items, cursor }
    }
}

/// Holds the answer until the resource settles or the time is over; then the answer says where it stands.
/// Not part of what makes two requests the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wait {
    /// At most 30 seconds: longer waits are several.
    pub timeout_ms: Int<0, 30_000>,
}

/// The answer of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    /// What is gone, or would be.
    pub id: String,
    /// Nothing was changed; this is what would have been.
    pub dry_run: bool,
}

pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}
