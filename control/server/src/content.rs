//! Bodies that are too large for a request of the table: `PUT /api/compute/<group>/<id>/content?offset=N`.
//!
//! What has come stays when a body breaks off, and the next one goes on behind it. The answer says where that is.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use kernel::ApiError;
use kernel::module::ContentBytes;
use kit::Clock;
use model::{ErrorCode, UserId};
use serde::Deserialize;

use crate::Shared;
use crate::answer::{refuse, respond};
use crate::routes::{Peer, bearer, origin};

/// At once, of all callers: each holds one piece of its body.
pub(crate) const BODIES_MAX: usize = 32;
/// A fourth of them for one user, so that none keeps the others out.
const BODIES_OF_USER_MAX: usize = BODIES_MAX / 4;
/// A sender from whom nothing comes for this long holds its place for nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// And so does one from whom less than this comes within the time.
const SLOW_BYTES: u64 = 1 << 20;
const SLOW_WITHIN: Duration = Duration::from_secs(120);
/// Whoever is not done by then goes on in a body of its own: what may be sent, and to whom, is asked again for that.
const BODY_WITHIN: Duration = Duration::from_secs(6 * 3600);

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
    let Some(place) = shared.contents.place(call.principal.user_id) else {
        let error =
            ApiError::new(ErrorCode::Unavailable, "too many contents are sent at once: try again in 1 s");
        return refuse(request_id, ApiError { retry_after: Some(1), ..error });
    };
    let answer = shared
        .pipeline
        .put(&call, &*content, &id, offset, pieces(body, place, shared.running.clock.clone()))
        .await;
    shared.vitals.metrics.called(&answer);
    respond(answer)
}

/// The body as it comes, which ends with an error when nothing comes any more, or too little. It has its place until it is dropped.
fn pieces(body: Body, place: Place, clock: Arc<dyn Clock>) -> ContentBytes {
    let begun = clock.monotonic();
    let coming = (body.into_data_stream(), Pace::default(), clock, place);
    futures::stream::try_unfold(coming, move |(mut body, mut pace, clock, place)| async move {
        let lasted = || clock.monotonic().saturating_sub(begun);
        let patience = SILENCE_MAX.min(pace.left(lasted()));
        // Both arms are cancel-safe: a body that is not read on keeps what it has.
        let next = tokio::select! {
            next = body.next() => next,
            () = clock.sleep(patience) => return Err(ErrorKind::TimedOut.into()),
        };
        let bytes: Option<Bytes> = next.transpose().map_err(std::io::Error::other)?;
        let Some(bytes) = bytes else { return Ok(None) };
        if !pace.took(lasted(), bytes.len() as u64) {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Some((bytes, (body, pace, clock, place))))
    })
    .boxed()
}

/// How fast a body comes.
#[derive(Debug, Default)]
struct Pace {
    /// Since when, after the body's begin, the bytes are counted.
    since: Duration,
    bytes: u64,
}

impl Pace {
    /// How long the next piece may take.
    fn left(&self, now: Duration) -> Duration {
        (self.since + SLOW_WITHIN).min(BODY_WITHIN).saturating_sub(now)
    }

    /// Whether it may go on, when so many bytes have come by now.
    fn took(&mut self, now: Duration, bytes: u64) -> bool {
        self.bytes += bytes;
        if self.bytes >= SLOW_BYTES {
            *self = Self { since: now, bytes: 0 };
        }
        !self.left(now).is_zero()
    }
}

/// Places for bodies.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<Mutex<HashMap<UserId, usize>>>);

/// A place that is taken until this is dropped.
pub(crate) struct Place {
    places: Arc<Mutex<HashMap<UserId, usize>>>,
    user_id: UserId,
}

impl Places {
    fn place(&self, user_id: UserId) -> Option<Place> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.get(&user_id).copied().unwrap_or(0);
        if all >= BODIES_MAX || own >= BODIES_OF_USER_MAX {
            return None;
        }
        taken.insert(user_id, own + 1);
        Some(Place { places: self.0.clone(), user_id })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.user_id) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.user_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kit::{OsRng, Rng};

    use super::*;

    fn user() -> UserId {
        (&OsRng as &dyn Rng).id(kernel::testing::now())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_body_that_trickles_is_ended_and_one_that_comes_is_not() {
        let mut trickles = Pace::default();
        let lasted = (1..).find(|second| !trickles.took(SECOND * *second, 1000));
        assert_eq!(lasted, Some(120));
        let mut comes = Pace::default();
        let lasted = (1..).find(|minute| !comes.took(60 * SECOND * *minute, SLOW_BYTES));
        assert_eq!(lasted, Some(360), "six hours are the end of any");
        assert_eq!(Pace::default().left(100 * SECOND), 20 * SECOND);
    }

    #[test]
    fn a_user_leaves_places_for_others() {
        let (places, one) = (Places::default(), user());
        let held: Vec<Place> = std::iter::from_fn(|| places.place(one)).collect();
        assert_eq!(held.len(), BODIES_OF_USER_MAX);
        let others: Vec<Place> = (0..100).filter_map(|_| places.place(user())).collect();
        assert_eq!(others.len(), BODIES_MAX - BODIES_OF_USER_MAX);
        assert!(places.place(one).is_none());
        drop(held);
        assert!(places.place(one).is_some());
    }
}
