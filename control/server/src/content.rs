//! Bodies that are too large for a request of the table: `PUT /api/compute/<group>/<id>/content?offset=N`.
//!
//! What has come stays when a body breaks off, and the next one goes on behind it. The answer says where that is.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use kernel::ApiError;
use kernel::module::ContentBytes;
use model::ErrorCode;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Shared;
use crate::answer::{refuse, respond};
use crate::routes::{Peer, bearer, origin};

/// At once, of all callers: each holds one piece of its body.
pub(crate) const BODIES_MAX: usize = 32;
/// A sender from whom nothing comes for this long holds its place for nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct From {
    #[serde(default)]
    offset: u64,
}

pub(crate) async fn put(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    Path((group, id)): Path<(String, String)>,
    from: Result<Query<From>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let origin = origin(&shared, peer, &headers);
    let request_id = origin.request_id;
    let Some(content) = shared.pipeline.content(&group) else {
        let group: String = group.chars().take(64).collect();
        let error = ApiError::new(ErrorCode::NotFound, format!("nothing of group {group:?} takes a content"));
        return refuse(request_id, error);
    };
    let begun = shared.pipeline.begin(content.method(), bearer(&headers), origin.source_ip, request_id).await;
    let call = match begun {
        Ok(call) => call,
        Err(error) => return refuse(request_id, error),
    };
    let offset = match from {
        Ok(Query(from)) => from.offset,
        Err(err) => {
            let message = format!("the query is not understood: {}", err.body_text());
            return refuse(request_id, ApiError::invalid("", message));
        }
    };
    let Ok(place) = shared.contents.clone().try_acquire_owned() else {
        let error =
            ApiError::new(ErrorCode::Unavailable, "too many contents are sent at once: try again in 1 s");
        return refuse(request_id, ApiError { retry_after: Some(1), ..error });
    };
    let answer = shared.pipeline.put(&call, &*content, &id, offset, pieces(body, place)).await;
    shared.vitals.metrics.called(&answer);
    respond(answer)
}

/// The body as it comes, which ends with an error when nothing comes any more. It has its place until it is dropped.
fn pieces(body: Body, place: OwnedSemaphorePermit) -> ContentBytes {
    let body = body.into_data_stream();
    futures::stream::try_unfold((body, place), |(mut body, place)| async move {
        let next = tokio::time::timeout(SILENCE_MAX, body.next()).await.map_err(std::io::Error::other)?;
        let bytes: Option<Bytes> = next.transpose().map_err(std::io::Error::other)?;
        Ok(bytes.map(|bytes| (bytes, (body, place))))
    })
    .boxed()
}

pub(crate) fn places() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(BODIES_MAX))
}
