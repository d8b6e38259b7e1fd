//! HTTP around an answer.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode, header};
use kernel::{Answer, ApiError};
use model::{ErrorCode, RequestId};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub(crate) fn respond(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).expect("the catalogue's statuses are valid");
    let mut response = json(status, answer.body);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, text(&answer.request_id.to_string()));
    if let Some(seconds) = answer.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if answer.code == Some(ErrorCode::Unauthenticated) {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// A refusal that no method gave.
pub(crate) fn refuse(request_id: RequestId, error: ApiError) -> Response {
    respond(Answer::refused(request_id, error))
}

/// The same with a status of HTTP's own where the catalogue has none that says it.
pub(crate) fn refuse_as(status: StatusCode, request_id: RequestId, error: ApiError) -> Response {
    let mut response = refuse(request_id, error);
    *response.status_mut() = status;
    response
}

pub(crate) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub(crate) fn plain(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = json(status, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Ids and names of ours are ASCII.
fn text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("an id is visible ASCII")
}
