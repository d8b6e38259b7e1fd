//! A session as the hub and its stream share it: the core behind a lock that is never held across an await, and what it wants sent.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::{GatewayFrame, gateway_frame};

use crate::session::{Effect, End, Input, Now, Request, Session, Terms};

/// Frames on their way out of one session. Commands are bounded by credits, acknowledgements by what is read; a queue this long
/// means that the node does not read.
const OUT_FRAMES_MAX: usize = 4096;

pub(crate) struct Live {
    pub(crate) id: u64,
    inner: Mutex<Inner>,
    waker: AtomicWaker,
    /// Ends the connection at once, for a node that does not read what ends its session.
    pub(crate) kill: CancellationToken,
}

pub(crate) struct Inner {
    pub(crate) core: Session,
    out: VecDeque<GatewayFrame>,
    requests: VecDeque<Request>,
    end: Option<End>,
    pub(crate) over_since: Option<Duration>,
}

/// What a stream does next.
pub(crate) enum Next {
    Send(GatewayFrame),
    End(End),
    Wait { request: Option<Request>, reads: bool },
}

impl Live {
    pub(crate) fn new(id: u64, core: Session, kill: CancellationToken) -> Self {
        let inner =
            Inner { core, out: VecDeque::new(), requests: VecDeque::new(), end: None, over_since: None };
        Self { id, inner: Mutex::new(inner), waker: AtomicWaker::new(), kill }
    }

    /// Should the core ever panic on what a node sent, that node's connection is cut, and nobody else's.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| {
            self.kill.cancel();
            poisoned.into_inner()
        })
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Gives the core an input and keeps what it wants.
    pub(crate) fn feed(&self, terms: &Terms, input: Input, now: Now) {
        self.lock().feed(terms, input, now);
        self.waker.wake();
    }

    /// Takes what is to be done next. A request is handed out only when none of this session is under way.
    pub(crate) fn next(&self, idle: bool) -> Next {
        let mut inner = self.lock();
        if let Some(frame) = inner.out.pop_front() {
            if inner.out.is_empty() {
                // A burst is over: there is one of these per session.
                inner.out = VecDeque::new();
            }
            return Next::Send(frame);
        }
        if let Some(end) = inner.end {
            return Next::End(end);
        }
        let request = if idle { inner.requests.pop_front() } else { None };
        Next::Wait { request, reads: inner.core.reads() }
    }
}

impl Inner {
    pub(crate) fn feed(&mut self, terms: &Terms, input: Input, now: Now) {
        let mut effects = Vec::new();
        self.core.handle(terms, input, now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(frame) => self.send(frame),
                Effect::Store(request) => self.requests.push_back(request),
                Effect::End(end) => self.end = Some(end),
            }
        }
    }

    fn send(&mut self, frame: GatewayFrame) {
        // An unsent spec is replaced by a newer one: they are large.
        if let Some(gateway_frame::Frame::DesiredState(_)) = &frame.frame {
            self.out.retain(|waiting| !matches!(waiting.frame, Some(gateway_frame::Frame::DesiredState(_))));
        }
        if self.out.len() >= OUT_FRAMES_MAX {
            self.end.get_or_insert(End::Silent);
            self.out.clear();
            return;
        }
        self.out.push_back(frame);
    }
}
