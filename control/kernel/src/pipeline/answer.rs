//! What goes back to the caller.

use std::time::Duration;

use bytes::Bytes;
use model::{ErrorCode, RequestId};
use serde_json::{Value, json};

use crate::fault::ApiError;

/// The answer to one call: an HTTP status and a JSON body, and what the server measures.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
    /// Seconds, for `Retry-After`.
    pub retry_after: Option<u64>,
    pub request_id: RequestId,
    /// Set for a refusal or a failure.
    pub code: Option<ErrorCode>,
    /// The method's name from the table, so a bounded label; `None` when no method was meant.
    pub method: Option<&'static str>,
    pub took: Duration,
}

impl Answer {
    pub(crate) fn new(
        request_id: RequestId,
        method: Option<&'static str>,
        took: Duration,
        result: Result<Value, ApiError>,
    ) -> Self {
        let (status, code, retry_after, body) = match result {
            Ok(value) => (200, None, None, value),
            Err(error) => {
                let body = error_body(&error, request_id);
                (error.code.http_status(), Some(error.code), error.retry_after, body)
            }
        };
        let body = Bytes::from(body.to_string());
        Self { status, body, retry_after, request_id, code, method, took }
    }

    /// An answer that no method gave: an unknown route, a body that was never read.
    pub fn refused(request_id: RequestId, error: ApiError) -> Self {
        Self::new(request_id, None, Duration::ZERO, Err(error))
    }
}

/// `{"error":{code,message,details,requestId,docs}}`.
pub fn error_body(error: &ApiError, request_id: RequestId) -> Value {
    let code = error.code.name();
    json!({
        "error": {
            "code": code,
            "message": error.message,
            "details": error.details,
            "requestId": request_id.to_string(),
            "docs": api::docs_path(error.code),
        }
    })
}
