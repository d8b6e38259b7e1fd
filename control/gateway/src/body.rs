//! Bodies of requests, with bounds that HTTP/2 does not have.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use kernel::BoxFuture;
use tonic::Status;

use crate::server::Shared;

/// A body that has to have come whole by a deadline: a request half sent must not hold its connection.
pub(crate) struct SoonBody {
    body: Incoming,
    late: BoxFuture<'static, ()>,
}

impl SoonBody {
    pub(crate) fn new(body: Incoming, shared: &Shared) -> Self {
        Self { body, late: shared.clock.sleep(shared.call_within()) }
    }
}

impl Body for SoonBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(|err| Status::from_error(err.into()))));
        }
        let late = self.late.as_mut().poll(cx);
        late.map(|()| Some(Err(Status::deadline_exceeded("the request did not come whole in time"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A Hello without a spec is smaller; what is larger is counted against the budget of all.
const HELLO_BYTES_FREE: usize = 64 * 1024;

/// What Hellos that are being received or looked at hold together.
pub(crate) struct HelloBudget {
    max: usize,
    held: AtomicUsize,
}

impl HelloBudget {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, held: AtomicUsize::new(0) })
    }
}

/// One session's greeting: what it received counts until the node is welcome or gone.
pub(crate) struct Greeting {
    budget: Arc<HelloBudget>,
    received: AtomicUsize,
    counted: AtomicUsize,
    over: AtomicBool,
}

impl Greeting {
    pub(crate) fn new(budget: Arc<HelloBudget>) -> Arc<Self> {
        let (received, counted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { budget, received, counted, over: AtomicBool::new(false) })
    }

    /// The node is welcome: its frames are bounded by what a session may have under way.
    pub(crate) fn over(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.give_back();
    }

    /// Whether `bytes` more may be held. One task receives and ends a greeting.
    fn receive(&self, bytes: usize) -> bool {
        if self.over.load(Ordering::SeqCst) {
            return true;
        }
        let received = self.received.fetch_add(bytes, Ordering::SeqCst) + bytes;
        let beyond = received.saturating_sub(HELLO_BYTES_FREE);
        let more = beyond - self.counted.swap(beyond, Ordering::SeqCst);
        self.budget.held.fetch_add(more, Ordering::SeqCst) + more <= self.budget.max
    }

    fn give_back(&self) {
        self.budget.held.fetch_sub(self.counted.swap(0, Ordering::SeqCst), Ordering::SeqCst);
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The body of a session, counted until the node is welcome.
pub(crate) struct HelloBody {
    body: Incoming,
    greeting: Arc<Greeting>,
}

impl HelloBody {
    pub(crate) fn new(body: Incoming, greeting: Arc<Greeting>) -> Self {
        Self { body, greeting }
    }
}

impl Body for HelloBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !self.greeting.receive(data.len())
        {
            return Poll::Ready(Some(Err(Status::unavailable("too many large Hellos at once"))));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|err| Status::from_error(err.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
