//! A session as the response stream of its call: polled by the connection, so that there is no task, channel or timer of its own.
//!
//! When the node does not read, this is not polled, so nothing is read from it either: the network holds what it sends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::FuturesUnordered;
use kernel::BoxFuture;
use tonic::Status;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{GatewayFrame, NodeFrame};

use crate::Metrics;
use crate::body::Greeting;
use crate::hub::Hub;
use crate::live::{Live, Next};
use crate::session::{End, Input, Request};
use crate::tunnels::Tunnels;

/// `I` is tonic's stream of the node's frames, or whatever plays it.
pub(crate) struct SessionStream<I> {
    hub: Arc<Hub>,
    live: Arc<Live>,
    incoming: I,
    /// The one request to the store under way.
    asking: Option<BoxFuture<'static, Input>>,
    /// Questions for secrets under way: a few, which the core bounds, and of most sessions none. Nothing waits for them.
    secrets: Option<Box<FuturesUnordered<BoxFuture<'static, Input>>>>,
    /// Until the node is welcome.
    greeting: Option<Arc<Greeting>>,
    /// Who waits for tunnels; nobody in a gateway that has none.
    tunnels: Option<Arc<Tunnels>>,
    metrics: Metrics,
    ended: bool,
}

impl<I> SessionStream<I> {
    pub(crate) fn new(
        hub: Arc<Hub>,
        live: Arc<Live>,
        incoming: I,
        greeting: Arc<Greeting>,
        tunnels: Option<Arc<Tunnels>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            hub,
            live,
            incoming,
            asking: None,
            secrets: None,
            greeting: Some(greeting),
            tunnels,
            metrics,
            ended: false,
        }
    }

    fn finish(&mut self, end: End) -> Poll<Option<Result<GatewayFrame, Status>>> {
        self.ended = true;
        self.metrics.end(name(end));
        let node_id = self.live.lock().core.node_id();
        match end {
            End::Violation(violation) => {
                tracing::warn!(target: "security", %node_id, err = %violation, "session ended by a frame out of bounds");
            }
            _ => tracing::info!(%node_id, reason = name(end), "session ended"),
        }
        Poll::Ready(status(end).map(Err))
    }
}

impl<I: Stream<Item = Result<NodeFrame, Status>> + Unpin> Stream for SessionStream<I> {
    type Item = Result<GatewayFrame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        this.live.register(cx.waker());
        loop {
            if this.greeting.is_some()
                && this.live.lock().core.key().is_some()
                && let Some(greeting) = this.greeting.take()
            {
                greeting.over();
            }
            // A gateway that lost its lease, or slept through it, says nothing more.
            if this.hub.is_over() {
                return this.finish(End::Unavailable);
            }
            let (request, reads) = match this.live.next(this.asking.is_none()) {
                Next::Send(frame) => {
                    this.metrics.frame_out(&frame);
                    return Poll::Ready(Some(Ok(frame)));
                }
                Next::End(end) => return this.finish(end),
                Next::Wait { request, reads } => (request, reads),
            };
            match request {
                Some(Request::Updates(updates)) => {
                    this.hub.queue_updates(&this.live, updates);
                    continue;
                }
                Some(Request::Open(facts)) => this.asking = this.hub.queue_open(&this.live, *facts),
                Some(Request::Events { journal_id, events }) if this.hub.has_events_apart() => {
                    this.hub.queue_events(&this.live, journal_id, events);
                    continue;
                }
                Some(request @ Request::Secret(_)) => {
                    this.secrets.get_or_insert_default().push(this.hub.perform(&this.live, request));
                    continue;
                }
                Some(request) => this.asking = Some(this.hub.perform(&this.live, request)),
                None => {}
            }
            if let Some(asking) = &mut this.asking
                && let Poll::Ready(input) = asking.as_mut().poll(cx)
            {
                this.asking = None;
                this.hub.feed(&this.live, input);
                continue;
            }
            if let Some(secrets) = &mut this.secrets {
                match Pin::new(&mut **secrets).poll_next(cx) {
                    Poll::Ready(Some(input)) => {
                        this.hub.feed(&this.live, input);
                        continue;
                    }
                    Poll::Ready(None) => this.secrets = None,
                    Poll::Pending => {}
                }
            }
            if !reads || this.hub.is_behind(&this.live) {
                return Poll::Pending;
            }
            match std::task::ready!(Pin::new(&mut this.incoming).poll_next(cx)) {
                Some(Ok(frame)) => {
                    this.metrics.frame_in(&frame);
                    if let Some(Frame::TunnelRefused(refused)) = &frame.frame
                        && let Some(tunnels) = &this.tunnels
                    {
                        tunnels.refused(this.live.lock().core.node_id(), refused);
                    }
                    this.hub.feed(&this.live, Input::Frame(frame));
                }
                // The node is gone, or what it sends is no frame.
                Some(Err(status)) => {
                    this.ended = true;
                    this.metrics.end("stream");
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    this.ended = true;
                    this.metrics.end("closed");
                    return Poll::Ready(None);
                }
            }
        }
    }
}

impl<I> Drop for SessionStream<I> {
    fn drop(&mut self) {
        self.hub.leave(&self.live);
    }
}

/// A refusal and a revocation have been said in a frame; anything else is told by a status.
fn status(end: End) -> Option<Status> {
    match end {
        End::Said(_) => None,
        End::TakenOver => Some(Status::aborted("another session of this node took over")),
        End::Silent => Some(Status::deadline_exceeded("nothing was heard from the node")),
        End::Violation(violation) => Some(Status::invalid_argument(violation.to_string())),
        End::CertificateOver => Some(Status::unauthenticated("the certificate of this session is over")),
        End::Unavailable => Some(Status::unavailable("the gateway cannot serve this session now")),
        End::Stopping => Some(Status::unavailable("the gateway stops")),
    }
}

const fn name(end: End) -> &'static str {
    match end {
        End::Said(reason) => reason,
        End::TakenOver => "taken_over",
        End::Silent => "silent",
        End::Violation(_) => "violation",
        End::CertificateOver => "certificate_over",
        End::Unavailable => "unavailable",
        End::Stopping => "stopping",
    }
}
