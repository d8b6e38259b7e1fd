//! A node's connection to a gateway: frames take a while, keep their order, and are lost when the line is cut.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::Stream;
use tonic::Status;
use wire::proto::agent::NodeFrame;

use super::event::{Event, ToNode};
use super::time::{Core, micros};

const LATENCY_MIN: Duration = Duration::from_micros(200);
const LATENCY_MAX: Duration = Duration::from_millis(2);
/// What a slow line adds.
const SLOW: Duration = Duration::from_millis(800);

pub struct Line {
    core: Arc<Core>,
    pub node: usize,
    pub life: u64,
    /// Nothing gets through either way any more. For good: a connection does not outlive what cuts it.
    cut: AtomicBool,
    slow: AtomicBool,
    /// When the last frame of each direction arrives.
    to_gateway: AtomicI64,
    to_node: AtomicI64,
    arrived: Mutex<Arrived>,
}

#[derive(Default)]
struct Arrived {
    frames: VecDeque<NodeFrame>,
    closed: bool,
    waker: Option<Waker>,
}

impl Line {
    pub fn new(core: &Arc<Core>, node: usize, life: u64, slow: bool) -> Arc<Self> {
        Arc::new(Self {
            core: core.clone(),
            node,
            life,
            cut: AtomicBool::new(false),
            slow: AtomicBool::new(slow),
            to_gateway: AtomicI64::new(0),
            to_node: AtomicI64::new(0),
            arrived: Mutex::default(),
        })
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().expect("no holder of this lock panics")
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    pub fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// When what is sent now arrives: after what was sent before.
    fn arrival(&self, last: &AtomicI64) -> i64 {
        let mut latency = self.core.between(LATENCY_MIN, LATENCY_MAX);
        if self.slow.load(Ordering::Relaxed) {
            latency += SLOW;
        }
        let at = self.core.now().micros() + micros(latency);
        last.fetch_max(at, Ordering::Relaxed).max(at)
    }

    /// From the node; `None` closes.
    pub fn send(self: &Arc<Self>, frame: Option<NodeFrame>) {
        if !self.is_cut() {
            let at = self.arrival(&self.to_gateway);
            self.core.post_at(at, Event::ToGateway(self.clone(), frame.map(Box::new)));
        }
    }

    /// From the gateway.
    pub fn answer(self: &Arc<Self>, what: ToNode) {
        if !self.is_cut() {
            let at = self.arrival(&self.to_node);
            self.core.post_at(at, Event::ToNode(self.clone(), what));
        }
    }

    /// A frame is at the gateway, or the end of the stream.
    pub fn arrive(&self, frame: Option<Box<NodeFrame>>) {
        if self.is_cut() {
            return;
        }
        let waker = {
            let mut arrived = self.arrived();
            match frame {
                Some(frame) => arrived.frames.push_back(*frame),
                None => arrived.closed = true,
            }
            arrived.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The gateway's end.
pub struct Incoming(pub Arc<Line>);

impl Stream for Incoming {
    type Item = Result<NodeFrame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut arrived = self.0.arrived();
        match arrived.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if arrived.closed => Poll::Ready(None),
            None => {
                arrived.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
