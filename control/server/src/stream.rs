//! The event stream (Server-Sent Events, as the HTML standard has them).
//!
//! A stream is a number: all up to it was told, or is not for this caller. It pulls what comes after, from memory or from the
//! database, so nothing is lost and nothing comes twice whatever happens in between, and a client that resumes with
//! `Last-Event-ID` goes on from its number in any process. A heartbeat carries the number too, so that a client that sees
//! few events does not resume far behind.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::Method;
use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use kernel::events::{StoredEvent, kind_matches};
use kernel::{ApiError, Call};
use kit::TaskKind;
use model::{ErrorCode, TenantId, UserId};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::Shared;
use crate::answer::{REQUEST_ID, refuse};
use crate::routes::{Peer, bearer, origin};

const STREAM: TaskKind = TaskKind::isolated("event_stream");

/// Streams of one process: each is a task and a connection.
const STREAMS_MAX: usize = 2_048;
/// Frames on their way to a client: enough to keep the socket busy between two turns of its task.
const FRAMES_MAX: usize = 64;
/// Events looked at in one step.
const STEP_MAX: usize = 256;
/// Streams of one user at once: some per person and per program of theirs.
const STREAMS_OF_USER_MAX: usize = 64;
/// How long a revoked token may go on reading.
const CALLER_KEPT: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_secs(api::events::STREAM_HEARTBEAT_SECONDS);

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    tenant: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    subject: Option<String>,
}

/// A filter that was understood.
#[derive(Debug, Clone, Default)]
struct Wanted {
    tenant_id: Option<TenantId>,
    kind: Option<String>,
    subject: Option<String>,
}

impl Wanted {
    fn parse(filter: Filter) -> Result<Self, ApiError> {
        let tenant_id = filter.tenant.map(|text| text.parse()).transpose();
        let tenant_id =
            tenant_id.map_err(|err: model::id::IdError| ApiError::invalid("/tenant", err.to_string()))?;
        Ok(Self { tenant_id, kind: filter.kind, subject: filter.subject })
    }

    fn matches(&self, event: &StoredEvent) -> bool {
        self.tenant_id.is_none_or(|wanted| event.tenant_id == Some(wanted))
            && self.kind.as_deref().is_none_or(|wanted| kind_matches(&event.kind, wanted))
            && self.subject.as_deref().is_none_or(|wanted| event.subject == wanted)
    }
}

pub(crate) async fn handle(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    filter: Result<Query<Filter>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let origin = origin(&shared, peer, &headers);
    let request_id = origin.request_id;
    let begun = async {
        let token = bearer(&headers);
        let call =
            shared.pipeline.begin(api::events::List::NAME, token, origin.source_ip, request_id).await?;
        let Query(filter) = filter.map_err(|err| {
            ApiError::invalid("", format!("the query is not understood: {}", err.body_text()))
        })?;
        let wanted = Wanted::parse(filter)?;
        let told = |fault| shared.pipeline.told(fault, call.method, request_id);
        shared.reader.require(&call, wanted.tenant_id).await.map_err(told)?;
        let seq = start(&shared, &call, &headers).await?;
        let permit = shared.streams.open(call.principal.user_id)?;
        let token = zeroize::Zeroizing::new(token.expect("the call began with it").to_owned());
        Ok::<_, ApiError>((call, wanted, seq, permit, token))
    };
    let (call, wanted, seq, permit, token) = match begun.await {
        Ok(begun) => begun,
        Err(error) => return refuse(request_id, error),
    };

    let (frames, receiver) = mpsc::channel(FRAMES_MAX);
    let stream = Stream { shared: shared.clone(), call, token, wanted, seq, frames, _permit: permit };
    shared.running.supervisor.spawn(STREAM, move |cancel| async move {
        stream.shared.vitals.metrics.streams.inc();
        let shared = stream.shared.clone();
        cancel.run_until_cancelled(stream.run()).await;
        shared.vitals.metrics.streams.dec();
        Ok::<(), Infallible>(())
    });
    let body = Body::from_stream(ReceiverStream::new(receiver).map(Ok::<Bytes, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // For proxies that would hold the stream back until they have a full buffer.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    let id = HeaderValue::from_str(&request_id.to_string()).expect("an id is visible ASCII");
    headers.insert(REQUEST_ID, id);
    *response.status_mut() = StatusCode::OK;
    response
}

/// How many streams are open, in all and by user.
#[derive(Default)]
pub(crate) struct Streams(Arc<Mutex<BTreeMap<UserId, usize>>>);

/// One of them, until it is dropped.
struct OpenStream {
    user_id: UserId,
    open: Arc<Mutex<BTreeMap<UserId, usize>>>,
}

impl Streams {
    fn open(&self, user_id: UserId) -> Result<OpenStream, ApiError> {
        let mut open = self.0.lock().expect("no holder of this lock panics");
        if open.values().sum::<usize>() >= STREAMS_MAX {
            return Err(ApiError::new(ErrorCode::Unavailable, "too many event streams are open"));
        }
        let own = open.entry(user_id).or_default();
        if *own >= STREAMS_OF_USER_MAX {
            let message = format!("you have {own} event streams open: close some");
            return Err(ApiError::new(ErrorCode::RateLimited, message).detail("limit", STREAMS_OF_USER_MAX));
        }
        *own += 1;
        Ok(OpenStream { user_id, open: self.0.clone() })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        if let Some(own) = open.get_mut(&self.user_id) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.user_id);
            }
        }
    }
}

/// The number to go on after: the client's, or the newest.
async fn start(shared: &Shared, call: &Call, headers: &HeaderMap) -> Result<i64, ApiError> {
    let told = |err: store::StoreError| shared.pipeline.told(err.into(), call.method, call.request_id);
    let range = shared.reader.range().await.map_err(told)?;
    let Some(given) = headers.get("last-event-id") else { return Ok(range.head) };
    let seq = given.to_str().ok().and_then(|text| text.trim().parse::<i64>().ok()).filter(|seq| *seq >= 0);
    let seq = seq.ok_or_else(|| ApiError::invalid("", "Last-Event-ID is not the number of an event"))?;
    let lost = |message: &str| {
        ApiError::invalid_state(message)
            .detail("first", range.first.unwrap_or(range.head + 1))
            .detail("head", range.head)
    };
    if seq > range.head {
        return Err(lost(
            "Last-Event-ID is above the newest event: the database is older than the stream you followed",
        ));
    }
    if seq < range.head && range.first.is_none_or(|first| seq + 1 < first) {
        return Err(lost(
            "events after Last-Event-ID are no longer kept: read the state anew and follow from the head",
        ));
    }
    Ok(seq)
}

struct Stream {
    shared: Arc<Shared>,
    call: Arc<Call>,
    token: zeroize::Zeroizing<String>,
    wanted: Wanted,
    seq: i64,
    frames: mpsc::Sender<Bytes>,
    _permit: OpenStream,
}

impl Stream {
    /// Until the client goes, is too slow, or may not read any more.
    async fn run(mut self) {
        let clock = self.shared.running.clock.clone();
        let mut head = self.shared.tail.head();
        let mut known_at = clock.monotonic();
        // At once, so that the client knows its number before the first event.
        let mut beat_at = known_at;
        loop {
            head.borrow_and_update();
            let now = clock.monotonic();
            if now.saturating_sub(known_at) >= CALLER_KEPT {
                match self.shared.pipeline.again(&self.call, &self.token).await {
                    Ok(call) => (self.call, known_at) = (call, now),
                    Err(_) => return,
                }
            }
            let Ok(more) = self.step().await else { return };
            if now >= beat_at {
                if self.send(format!(": heartbeat\nid: {}\n\n", self.seq)).await.is_err() {
                    return;
                }
                beat_at = now + HEARTBEAT;
            }
            if more {
                continue;
            }
            let pause = beat_at.saturating_sub(clock.monotonic());
            // All arms are cancel-safe: a change that is not looked at stays, and `closed` only tells.
            tokio::select! {
                _ = head.changed() => {}
                () = clock.sleep(pause) => {}
                () = self.frames.closed() => return,
            }
        }
    }

    /// Sends what comes next; true when there may be more. An error ends the stream.
    async fn step(&mut self) -> Result<bool, Ended> {
        let events = match self.shared.tail.after(self.seq, STEP_MAX) {
            Some(events) => events,
            None => {
                let limit = u32::try_from(STEP_MAX).expect("it is small");
                let read = self.shared.reader.after(self.seq, limit).await;
                let read = read.map_err(|err| self.failed(err.into()))?;
                read.into_iter().map(Arc::new).collect()
            }
        };
        let Some(last) = events.last().map(|event| event.seq) else { return Ok(false) };
        let wanted: Vec<Arc<StoredEvent>> =
            events.into_iter().filter(|event| self.wanted.matches(event)).collect();
        let visible = self.shared.reader.visible(&self.call, wanted, |event| event.tenant_id).await;
        for event in visible.map_err(|fault| self.failed(fault))? {
            let view = self.shared.reader.view(&event).await.map_err(|fault| self.failed(fault))?;
            let data = serde_json::to_string(&view).expect("an event holds nothing that JSON cannot");
            self.send(format!("id: {}\ndata: {data}\n\n", event.seq)).await?;
        }
        self.seq = last;
        Ok(true)
    }

    async fn send(&self, frame: String) -> Result<(), Ended> {
        match self.frames.send_timeout(Bytes::from(frame), self.shared.config.slow_after).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(Ended),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                self.shared.vitals.metrics.streams_cut.inc();
                tracing::info!(request_id = %self.call.request_id, "event stream cut: the client is slow");
                Err(Ended)
            }
        }
    }

    /// The client resumes; a failure is the log's.
    fn failed(&self, fault: kernel::Fault) -> Ended {
        let _ = self.shared.pipeline.told(fault, self.call.method, self.call.request_id);
        Ended
    }
}

/// The stream is over.
struct Ended;
