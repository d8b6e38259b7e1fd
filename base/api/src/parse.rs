//! Strict parsing of requests, with errors that name the place.

use serde_json::Value;

use crate::Method;

/// A request that is not what the method takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// JSON pointer (RFC 6901) of the offending place; empty for the whole body.
    pub pointer: String,
    pub message: String,
}

/// Parses a request body that is JSON already.
pub fn parse_request<M: Method>(body: Value) -> Result<M::Request, InvalidRequest> {
    serde_path_to_error::deserialize(body).map_err(|err| {
        let mut pointer = String::new();
        for segment in err.path().iter() {
            let text = segment.to_string();
            pointer.push('/');
            pointer.push_str(text.trim_matches(['[', ']']));
        }
        InvalidRequest { pointer, message: err.inner().to_string() }
    })
}
