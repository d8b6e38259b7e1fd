//! A gateway's machine: the process on it, when there is one, with its passes and its sessions.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use gateway::GatewayConfig;
use gateway::drive::{Beats, Driven, DrivenParts, DrivenSession, DrivenWakes, Due, Refused};
use gateway::session::Peer;
use kernel::ports::delivery::GatewayLease;
use kit::{Clock, Wake};
use model::GatewayId;
use tonic::Status;
use wire::proto::agent::{GatewayFrame, NodeFrame};

use super::action::Release;
use super::clock::{Micros, SimClock, Time, micros_up};
use super::draw::Bytes;
use super::store::Store;

pub struct Gateway {
    pub slot: usize,
    pub clock: Arc<SimClock>,
    pub skew: i64,
    pub release: Release,
    pub running: Option<Running>,
    /// Stopped by its host, with everything open, until then.
    pub paused_until: Option<Micros>,
    /// When it was last stopped no more.
    pub resumed_at: Micros,
    pub starts_at: Option<Micros>,
    /// Processes so far.
    pub processes: u64,
    pub id: Option<GatewayId>,
}

pub struct Running {
    driven: Driven,
    wakes: DrivenWakes,
    events: Wake,
    passes: Passes,
    pub sessions: BTreeMap<u64, (DrivenSession<Inbox>, Inbox)>,
    /// Connections that may have something to say.
    stirred: Vec<u64>,
}

struct Passes {
    lease: Pass<()>,
    opens: Pass<()>,
    events: Pass<()>,
    beats: Pass<Beats>,
    writer: Pass<()>,
    dispatch: Pass<()>,
    specs: Pass<Due>,
}

/// One of a gateway's loops: what it keeps from pass to pass, or the pass under way.
struct Pass<T> {
    kept: Option<T>,
    due: Duration,
    running: Option<BoxFuture<'static, (T, Duration)>>,
}

impl<T> Pass<T> {
    fn due_at(kept: T, due: Duration) -> Self {
        Self { kept: Some(kept), due, running: None }
    }

    /// Moves on; true when a pass came to its end.
    fn turn(
        &mut self,
        now: Duration,
        woken: impl FnOnce() -> bool,
        start: impl FnOnce(T) -> BoxFuture<'static, (T, Duration)>,
    ) -> bool {
        if self.running.is_none() {
            if now < self.due && !woken() {
                return false;
            }
            let Some(kept) = self.kept.take() else { return false };
            self.running = Some(start(kept));
        }
        let Some(running) = &mut self.running else { return false };
        let Poll::Ready((kept, pause)) = running.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            return false;
        };
        self.running = None;
        self.kept = Some(kept);
        self.due = now + pause;
        true
    }

    fn deadline(&self) -> Duration {
        if self.running.is_none() { self.due } else { Duration::MAX }
    }
}

/// What has come from a node and is not read yet.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    waiting: VecDeque<Result<NodeFrame, Status>>,
    closed: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock().expect("no holder of this lock panics")
    }

    pub fn receive(&self, frame: NodeFrame) {
        self.lock().waiting.push_back(Ok(frame));
    }

    pub fn break_off(&self) {
        self.lock().waiting.push_back(Err(Status::unknown("the connection broke")));
    }

    pub fn close(&self) {
        self.lock().closed = true;
    }
}

impl Stream for Inbox {
    type Item = Result<NodeFrame, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut received = self.lock();
        match received.waiting.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if received.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// What a session said.
pub enum Said {
    Frame(u64, GatewayFrame),
    Over(u64),
}

impl Gateway {
    pub fn new(slot: usize, time: Arc<Time>) -> Self {
        Self {
            slot,
            clock: Arc::new(SimClock::new(time)),
            skew: 0,
            release: Release::Current,
            running: None,
            paused_until: None,
            resumed_at: 0,
            starts_at: Some(0),
            processes: 0,
            id: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some() && self.paused_until.is_none()
    }

    /// Registers. False when the database did not answer.
    pub fn start(&mut self, store: &Arc<Store>, new_process: bool) -> bool {
        if new_process || self.id.is_none() {
            self.processes += 1;
            let number = ((self.slot as u128 + 1) << 32) | u128::from(self.processes);
            self.id = Some(agent::testing::nth(number));
        }
        let Some(id) = self.id else { return false };
        let mut config = GatewayConfig::new(id, "simulated");
        config.versions = self.release.versions();
        let parts = DrivenParts {
            config,
            store: store.clone(),
            clock: self.clock.clone(),
            rng: Arc::new(Bytes::new(self.processes)),
        };
        let registered = Driven::register(parts).boxed().now_or_never();
        let Some(Ok((driven, wakes))) = registered else { return false };
        let (now, timing) = (self.clock.monotonic(), driven.timing());
        driven.poke();
        let events = driven.events_apart();
        self.running = Some(Running {
            passes: Passes {
                lease: Pass::due_at((), now + timing.renew),
                opens: Pass::due_at((), now + timing.dispatch),
                events: Pass::due_at((), now + timing.dispatch),
                beats: Pass::due_at(Beats::default(), now + timing.beat),
                writer: Pass::due_at((), now + timing.beat),
                dispatch: Pass::due_at((), now),
                specs: Pass::due_at(Due::default(), now),
            },
            driven,
            wakes,
            events,
            sessions: BTreeMap::new(),
            stirred: Vec::new(),
        });
        true
    }

    /// When it next has something to do by itself.
    pub fn deadline(&self) -> Micros {
        if let Some(until) = self.paused_until {
            return until;
        }
        match (&self.running, self.starts_at) {
            (Some(running), _) => self.clock.world_time(running.deadline()),
            (None, Some(at)) => at,
            (None, None) => Micros::MAX,
        }
    }
}

impl Running {
    fn deadline(&self) -> Micros {
        let Passes { lease, opens, events, beats, writer, dispatch, specs } = &self.passes;
        let due = [
            lease.deadline(),
            opens.deadline(),
            events.deadline(),
            beats.deadline(),
            writer.deadline(),
            dispatch.deadline(),
            specs.deadline(),
        ];
        micros_up(due.into_iter().min().unwrap_or(Duration::MAX))
    }

    pub fn is_over(&self) -> bool {
        self.driven.is_over()
    }

    pub fn lease(&self) -> GatewayLease {
        self.driven.lease()
    }

    pub fn poke(&self) {
        self.driven.poke();
    }

    /// An answer may be there for any of its sessions.
    pub fn stir(&mut self) {
        self.stirred.extend(self.sessions.keys());
    }

    pub fn drain(&self) {
        self.driven.drain();
    }

    pub fn connect(&mut self, connection: u64, peer: Peer) -> Result<(), Refused> {
        let inbox = Inbox::default();
        let opened = self.driven.open(peer, inbox.clone()).boxed().now_or_never();
        let session = opened.unwrap_or(Err(Refused::Busy(None)))?;
        self.sessions.insert(connection, (session, inbox));
        self.stirred.push(connection);
        Ok(())
    }

    /// The inbox of a connection that is about to receive something.
    pub fn inbox(&mut self, connection: u64) -> Option<&Inbox> {
        self.stirred.push(connection);
        self.sessions.get(&connection).map(|(_, inbox)| inbox)
    }

    /// Lets every session say what it has to say and every pass run that is due, until nothing moves.
    pub fn run(&mut self, clock: &dyn Clock, said: &mut Vec<Said>) {
        if self.driven.is_over() {
            self.driven.end_all();
            self.stirred.extend(self.sessions.keys());
        }
        loop {
            let moved = self.passes(clock.monotonic());
            if moved {
                self.stirred.extend(self.sessions.keys());
            }
            if self.stirred.is_empty() {
                return;
            }
            let mut stirred = std::mem::take(&mut self.stirred);
            stirred.sort_unstable();
            stirred.dedup();
            for connection in stirred {
                self.listen(connection, said);
            }
        }
    }

    /// Everything a session says now.
    fn listen(&mut self, connection: u64, said: &mut Vec<Said>) {
        let Some((session, _)) = self.sessions.get_mut(&connection) else { return };
        loop {
            match Pin::new(&mut *session).poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(frame))) => said.push(Said::Frame(connection, frame)),
                Poll::Ready(Some(Err(_)) | None) => {
                    self.sessions.remove(&connection);
                    said.push(Said::Over(connection));
                    return;
                }
                Poll::Pending => return,
            }
        }
    }

    fn passes(&mut self, now: Duration) -> bool {
        let Self { driven, wakes, events, passes, .. } = self;
        let timing = driven.timing();
        let mut moved = passes.lease.turn(
            now,
            || false,
            |()| {
                let driven = driven.clone();
                Box::pin(async move { ((), driven.renew().await) })
            },
        );
        moved |= passes.opens.turn(
            now,
            || wakes.opens.take(),
            |()| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.open_sessions().await;
                    ((), timing.dispatch)
                })
            },
        );
        moved |= passes.events.turn(
            now,
            || events.take(),
            |()| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.store_events().await;
                    ((), timing.dispatch)
                })
            },
        );
        moved |= passes.beats.turn(
            now,
            || false,
            |mut beats| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.beat(&mut beats).await;
                    (beats, timing.beat)
                })
            },
        );
        moved |= passes.writer.turn(
            now,
            || wakes.writer.take(),
            |()| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.write().await;
                    ((), timing.beat)
                })
            },
        );
        moved |= passes.dispatch.turn(
            now,
            || wakes.dispatch.take(),
            |()| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.dispatch().await;
                    ((), timing.dispatch)
                })
            },
        );
        moved |= passes.specs.turn(
            now,
            || wakes.specs.take(),
            |mut due| {
                let driven = driven.clone();
                Box::pin(async move {
                    driven.specs(&mut due).await;
                    (due, timing.ended.min(timing.specs))
                })
            },
        );
        moved
    }
}
