//! What a caller is told, and what only the log is told: two types, so that one cannot become the other.

use model::ErrorCode;
use serde_json::{Map, Value};
use store::{IsRetryable, StoreError};

/// What a caller is told. The message says what happened and what to do; details are structured facts.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub code: ErrorCode,
    pub message: String,
    pub details: Map<String, Value>,
    /// Seconds, for `Retry-After`.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new(), retry_after: None }
    }

    /// Adds one fact, like the field, the resource or the limit that refused.
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    pub fn invalid(pointer: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidInput, message).detail("pointer", pointer)
    }

    /// Also the answer for what exists and may not be seen.
    pub fn not_found(kind: &str, id: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::NotFound, format!("no {kind} {id}"))
            .detail("kind", kind)
            .detail("id", id.to_string())
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    pub fn invalid_state(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidState, message)
    }
}

/// Why a handler did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The caller is told this.
    #[error("the call was refused")]
    Refused(ApiError),
    /// The caller is told UNAVAILABLE or INTERNAL; the log gets the cause.
    #[error("database error")]
    Store(#[from] StoreError),
    #[error("{doing}")]
    Internal {
        doing: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Fault {
    /// Tells the caller when a unique constraint refused, like a name that is taken.
    pub fn on_unique(self, constraint: &str, refusal: impl FnOnce() -> ApiError) -> Self {
        match &self {
            Fault::Store(err) if err.is_unique(constraint) => Fault::Refused(refusal()),
            Fault::Store(_) | Fault::Refused(_) | Fault::Internal { .. } => self,
        }
    }
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        Fault::Refused(error)
    }
}

impl IsRetryable for Fault {
    fn is_retryable(&self) -> bool {
        match self {
            Fault::Store(err) => err.is_retryable(),
            Fault::Refused(_) | Fault::Internal { .. } => false,
        }
    }
}

/// `result.doing("sign the spec")?` for errors a caller has no use for.
pub trait ResultExt<T> {
    fn doing(self, doing: &'static str) -> Result<T, Fault>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> ResultExt<T> for Result<T, E> {
    fn doing(self, doing: &'static str) -> Result<T, Fault> {
        self.map_err(|source| Fault::Internal { doing, source: Box::new(source) })
    }
}
