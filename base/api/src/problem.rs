//! The body of an error answer.

use model::ErrorCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `{"error": {…}}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: Problem,
}

/// What went wrong, for programs and for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// One of the catalogue, like `QUOTA_EXCEEDED`.
    pub code: String,
    /// What happened and what to do.
    pub message: String,
    /// Structured facts: `pointer` for the field that was refused, the resource, the limit.
    #[serde(default)]
    pub details: Map<String, Value>,
    /// Quote it when asking for help; the audit log and the server's log carry it.
    #[serde(default)]
    pub request_id: String,
    /// The page about the code, relative to the documentation.
    #[serde(default)]
    pub docs: String,
}

impl Problem {
    /// None for a code that is not in this build's catalogue.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::parse(&self.code)
    }
}

/// `docs/errors/QUOTA_EXCEEDED.md`.
pub fn docs_path(code: ErrorCode) -> String {
    format!("docs/errors/{}.md", code.name())
}
