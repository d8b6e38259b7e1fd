//! The actor's connection: coming up, up or down, and what it has to say.

use std::collections::VecDeque;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use wire::proto::agent::{GatewayFrame, NodeFrame};

use crate::link::{Connection, FrameSender, LinkError};

pub(super) enum Wire {
    Down,
    Dialing(BoxFuture<'static, Result<Connection, LinkError>>),
    Up { outgoing: FrameSender, incoming: BoxStream<'static, Result<GatewayFrame, LinkError>> },
}

/// What the connection had to say.
pub(super) enum WireEvent {
    Connected(Box<Connection>),
    Frame(Box<GatewayFrame>),
    Ended(Option<LinkError>),
}

impl WireEvent {
    pub(super) fn incoming(next: Option<Result<GatewayFrame, LinkError>>) -> Self {
        match next {
            Some(Ok(frame)) => WireEvent::Frame(Box::new(frame)),
            Some(Err(err)) => WireEvent::Ended(Some(err)),
            None => WireEvent::Ended(None),
        }
    }
}

impl Wire {
    /// The next thing of the connection. `None` when a frame of the outbox went out. Never returns while down.
    pub(super) async fn next(&mut self, outbox: &mut VecDeque<NodeFrame>) -> Option<WireEvent> {
        match self {
            Wire::Down => std::future::pending().await,
            Wire::Dialing(dial) => match dial.await {
                Ok(connection) => Some(WireEvent::Connected(Box::new(connection))),
                Err(err) => Some(WireEvent::Ended(Some(err))),
            },
            Wire::Up { outgoing, incoming } if outbox.is_empty() => {
                let _ = outgoing;
                Some(WireEvent::incoming(incoming.next().await))
            }
            Wire::Up { outgoing, incoming } => {
                // Cancel-safe: `next` and `reserve` take nothing before they return; a frame leaves the outbox only with room.
                tokio::select! {
                    next = incoming.next() => Some(WireEvent::incoming(next)),
                    sent = outgoing.send(|| outbox.pop_front()) => (!sent).then_some(WireEvent::Ended(None)),
                }
            }
        }
    }
}
