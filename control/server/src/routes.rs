//! Which request goes where.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use axum::routing::{any, get, post, put};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kernel::pipeline::{BODY_BYTES_MAX, Opened, too_large};
use kernel::{Answer, ApiError};
use kit::TaskKind;
use model::{ErrorCode, RequestId};
use tokio::sync::oneshot;
use tracing::Instrument;
use zeroize::Zeroizing;

use crate::answer::{REQUEST_ID, json, refuse, refuse_as, respond};
use crate::bodies::Room;
use crate::vitals::{healthy, may_read};
use crate::{Shared, address, content, stream};

const CALL: TaskKind = TaskKind::isolated("api_call");

/// A client that sends its body slower than this is holding a connection for nothing.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Who is at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(api::events::STREAM_PATH, get(stream::handle))
        .route("/api/compute/{group}/{method}", post(call).fallback(wrong_method))
        .route("/api/compute/{group}/{id}/content", put(content::put).fallback(wrong_content_method))
        .route("/healthz", get(|| async { healthy() }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route("/.well-known/better-compute", get(discovery))
        .fallback(any(unknown))
        .with_state(shared)
}

/// What is known of a request before it is understood.
pub(crate) struct Origin {
    pub(crate) source_ip: std::net::IpAddr,
    pub(crate) request_id: RequestId,
}

pub(crate) fn origin(shared: &Shared, peer: Peer, headers: &HeaderMap) -> Origin {
    let forwarded: Vec<&str> =
        headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()?.parse().ok());
    Origin {
        source_ip: address::client(peer.0.ip(), &forwarded, &shared.config.trusted_proxies),
        request_id: given.unwrap_or_else(|| shared.pipeline.request_id()),
    }
}

/// The token of `Authorization: Bearer …`. The scheme's name is matched without regard to case (RFC 9110).
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

async fn call(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    Path((group, method)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let origin = origin(&shared, peer, &headers);
    let request_id = origin.request_id;
    let span = tracing::info_span!("call", %request_id, trace_id = trace_id(&headers));
    // A task of its own: a client that goes away after its request takes nothing back, least of all the audit entry of what
    // it tried.
    let (told, answer) = oneshot::channel();
    let serving = shared.clone();
    shared.running.supervisor.spawn(CALL, move |_| {
        let serve = async move {
            let method = format!("{group}.{method}");
            let response = match open(&serving, &origin, &method, &headers, body).await {
                Ok((opened, body, room)) => {
                    let answer = serving.pipeline.finish(opened, body, serving.config.deadline).await;
                    drop(room);
                    serving.vitals.metrics.called(&answer);
                    respond(answer)
                }
                Err(response) => *response,
            };
            let _ = told.send(response);
            Ok::<(), Infallible>(())
        };
        serve.instrument(span)
    });
    match answer.await {
        Ok(response) => response,
        Err(_) => {
            let error = ApiError::new(
                ErrorCode::Unavailable,
                "the server is stopping; whether the call took effect is not known",
            );
            refuse(request_id, error)
        }
    }
}

/// The caller first, then room for its body, then the body: who is not known fills no memory here.
async fn open(
    shared: &Shared,
    origin: &Origin,
    method: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Opened, Bytes, Option<Room>), Box<Response>> {
    let request_id = origin.request_id;
    let refused = |answer: Answer| {
        shared.vitals.metrics.called(&answer);
        Box::new(respond(answer))
    };
    let refused_as = |(status, error)| Box::new(refuse_as(status, request_id, error));
    let bytes = announced(headers, &body).map_err(refused_as)?;
    let token = bearer(headers).map(|token| Zeroizing::new(token.to_owned()));
    let token = token.as_deref().map(String::as_str);
    let opened = shared.pipeline.open(method, token, origin.source_ip, request_id).await.map_err(refused)?;
    let room = shared.bodies.room(opened.user_id(), bytes);
    let room = room.map_err(|error| Box::new(refuse(request_id, error)))?;
    let body = read(headers, body).await.map_err(refused_as)?;
    let opened = shared.pipeline.reopen(opened, token).await.map_err(refused)?;
    Ok((opened, body, room))
}

/// Bytes that the body may come to.
fn announced(headers: &HeaderMap, body: &Body) -> Result<usize, (StatusCode, ApiError)> {
    if hyper::body::Body::is_end_stream(body) {
        return Ok(0);
    }
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    match length.unwrap_or(BODY_BYTES_MAX) {
        length if length > BODY_BYTES_MAX => Err((StatusCode::PAYLOAD_TOO_LARGE, too_large())),
        length => Ok(length),
    }
}

/// Reads the body, up to the size and the time it may take.
async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, (StatusCode, ApiError)> {
    let collected = tokio::time::timeout(BODY_WITHIN, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(err)) if err.is::<LengthLimitError>() => {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, too_large()));
        }
        Ok(Err(_)) => return Err((StatusCode::BAD_REQUEST, ApiError::invalid("", "the body broke off"))),
        Err(_) => {
            let error = ApiError::invalid("", format!("the body did not arrive within {BODY_WITHIN:?}"));
            return Err((StatusCode::REQUEST_TIMEOUT, error));
        }
    };
    if !body.is_empty() && !is_json(headers) {
        let error = ApiError::invalid("", "send JSON, with the header Content-Type: application/json");
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    Ok(body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}

/// The trace of a W3C `traceparent`: 32 hexadecimal digits that are not all zero, so that our log lines can be found from
/// the caller's trace.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = value.split('-');
    let (version, trace_id) = (parts.next()?, parts.next()?);
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let valid = version.len() == 2
        && hex(version)
        && version != "ff"
        && trace_id.len() == 32
        && hex(trace_id)
        && trace_id.bytes().any(|byte| byte != b'0');
    valid.then(|| trace_id.to_owned())
}

async fn wrong_content_method(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    method: Method,
    uri: Uri,
) -> Response {
    let request_id = origin(&shared, peer, &headers).request_id;
    let message = format!("{} takes PUT with the bytes as its body, not {method}", uri.path());
    let error = ApiError::new(ErrorCode::InvalidInput, message);
    let mut response = refuse_as(StatusCode::METHOD_NOT_ALLOWED, request_id, error);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("PUT"));
    response
}

async fn wrong_method(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    method: Method,
    uri: Uri,
) -> Response {
    let request_id = origin(&shared, peer, &headers).request_id;
    let message = format!("{} takes POST with a JSON body, not {method}", uri.path());
    let mut response = refuse_as(
        StatusCode::METHOD_NOT_ALLOWED,
        request_id,
        ApiError::new(ErrorCode::InvalidInput, message),
    );
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

async fn unknown(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let request_id = origin(&shared, peer, &headers).request_id;
    let path: String = uri.path().chars().take(128).collect();
    let paths: Vec<String> = shared.pipeline.methods().map(api::path).collect();
    let meant = api::near(&path, paths.iter().map(String::as_str));
    let error = ApiError::new(
        ErrorCode::NotFound,
        match meant {
            Some(meant) => format!("nothing is at {path}; did you mean {meant}?"),
            None => format!(
                "nothing is at {path}: methods are at /api/compute/<group>/<method>, see /openapi.json"
            ),
        },
    );
    refuse(
        request_id,
        match meant {
            Some(meant) => error.detail("didYouMean", meant),
            None => error,
        },
    )
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    shared.vitals.readyz().await
}

async fn metrics(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let origin = origin(&shared, peer, &headers);
    if !may_read(origin.source_ip, &shared.config.metrics_from) {
        // As if it were not there: who may not read it learns nothing.
        return refuse(
            origin.request_id,
            ApiError::new(ErrorCode::NotFound, "nothing is at /metrics for this address"),
        );
    }
    shared.vitals.metrics()
}

async fn openapi(State(shared): State<Arc<Shared>>) -> Response {
    json(StatusCode::OK, shared.openapi.clone())
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Response {
    json(StatusCode::OK, shared.discovery.clone())
}

#[cfg(test)]
mod tests;
