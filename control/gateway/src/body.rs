//! Bodies of requests, with bounds that HTTP/2 does not have.

use std::pin::Pin;
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
