//! The sessions of one lease, and the passes that make one statement of what many of them have to say.
//!
//! A hub lives as long as its lease. When the lease is lost every session ends, and what comes next is a new hub under a new
//! epoch: nothing of the old one writes a row, since each write names the epoch it was made under.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use kernel::BoxFuture;
use kernel::ports::delivery::{
    DeliveryError, DeliveryStore, GatewayLease, InboxAnswer, InboxKind, InboxRequest, Poke, ReportedUpdate,
    SessionEnd, SessionKey,
};
use kit::{Clock, Wake, Waker, mutant};
use model::{CommandId, NodeId};
use tokio_util::sync::CancellationToken;
use wire::inventory::SectionName;

use crate::Metrics;
use crate::live::Live;
use crate::server::Timing;
use crate::session::{Answer, Input, Now, Request, Session, Terms};
use crate::time::ServerTime;

use check::Check;
use events::Reported;
use open::Opening;

pub(crate) mod beat;
mod check;
pub(crate) mod deliver;
mod events;
mod lease;
mod open;
mod secret;
mod writer;

/// What a reconnect storm leaves to close goes in statements of so many.
const CLOSES_AT_ONCE: usize = 1000;
/// Command updates waiting to be stored, of all sessions. Past it no session reads on until some are stored.
const UPDATE_BYTES_MAX: usize = 32 << 20;
/// A binding needs a worker; a node that waits for one has no spec yet and loses nothing by waiting.
const BINDING_PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Hub {
    pub(crate) store: Arc<dyn DeliveryStore>,
    pub(crate) lease: GatewayLease,
    pub(crate) terms: Terms,
    timing: Timing,
    clock: Arc<dyn Clock>,
    time: Arc<ServerTime>,
    metrics: Metrics,
    /// Cancelled when the lease is over. `ended` is the same for those who ask with every frame: the token has a lock in it.
    over: CancellationToken,
    ended: AtomicBool,
    /// Monotonic microseconds up to which the lease certainly holds.
    valid_until: AtomicU64,
    draining: AtomicBool,
    /// Of what there is news since the last pass over commands began, and since the last over specs.
    dispatch_news: Mutex<News>,
    spec_news: Mutex<News>,
    /// When all sessions are due for commands, whatever there is news of.
    dispatch_due: Mutex<Duration>,
    registry: Mutex<Registry>,
    openings: Mutex<VecDeque<Opening>>,
    /// Wakes whoever opens sessions; without one, a session's own stream does it.
    opener: OnceLock<Waker>,
    checks: Mutex<Vec<Check>>,
    /// Wakes whoever asks for certificates; without one, each call asks for its own.
    checker: OnceLock<Waker>,
    reported: Mutex<VecDeque<Reported>>,
    /// Wakes whoever stores events; without one, a session's own stream does it.
    eventer: OnceLock<Waker>,
    updates: Mutex<Vec<Queued>>,
    update_bytes: AtomicUsize,
    /// Sessions that stopped reading until updates are stored.
    held_back: Mutex<Vec<Arc<Live>>>,
    /// Questions for secrets that a worker is asked, of all sessions.
    asked_secrets: AtomicUsize,
    closing: Mutex<Vec<SessionKey>>,
    writer: Waker,
    dispatch: Waker,
    specs: Waker,
}

#[derive(Default)]
struct Registry {
    /// By age, so that passes go over them in one order.
    lives: BTreeMap<u64, Arc<Live>>,
    by_node: HashMap<NodeId, u64>,
    /// The one stream of each node that is not welcome yet.
    greeting: HashMap<NodeId, u64>,
    next: u64,
}

impl Registry {
    /// The stream is past its greeting, one way or the other.
    fn greeted(&mut self, node_id: NodeId, id: u64) {
        if self.greeting.get(&node_id) == Some(&id) {
            self.greeting.remove(&node_id);
        }
    }
}

/// Of what there is news.
#[derive(Debug, Default)]
pub(crate) struct News {
    all: bool,
    nodes: BTreeSet<NodeId>,
}

impl News {
    fn note(news: &Mutex<News>, poke: &Poke) {
        let mut news = news.lock().expect("no holder of this lock panics");
        match poke {
            Poke::Everything => *news = News { all: true, nodes: BTreeSet::new() },
            Poke::Nodes(_) if news.all => {}
            Poke::Nodes(nodes) => news.nodes.extend(nodes),
        }
    }

    fn take(news: &Mutex<News>) -> News {
        std::mem::take(&mut *news.lock().expect("no holder of this lock panics"))
    }
}

/// Updates of one session on their way to the store.
struct Queued {
    live: Arc<Live>,
    updates: Vec<ReportedUpdate>,
}

/// What the hub's tasks wait on.
pub(crate) struct Wakes {
    pub(crate) writer: Wake,
    pub(crate) dispatch: Wake,
    pub(crate) specs: Wake,
}

pub(crate) struct HubParts {
    pub(crate) store: Arc<dyn DeliveryStore>,
    pub(crate) lease: GatewayLease,
    pub(crate) terms: Terms,
    pub(crate) timing: Timing,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time: Arc<ServerTime>,
    pub(crate) metrics: Metrics,
    pub(crate) valid_until: Duration,
}

impl Hub {
    pub(crate) fn new(parts: HubParts) -> (Arc<Self>, Wakes) {
        let (writer_wake, writer) = Wake::new();
        let (dispatch_wake, dispatch) = Wake::new();
        let (specs_wake, specs) = Wake::new();
        let hub = Self {
            store: parts.store,
            lease: parts.lease,
            terms: parts.terms,
            timing: parts.timing,
            clock: parts.clock,
            time: parts.time,
            metrics: parts.metrics,
            over: CancellationToken::new(),
            ended: AtomicBool::new(false),
            valid_until: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            dispatch_news: Mutex::default(),
            spec_news: Mutex::default(),
            dispatch_due: Mutex::default(),
            registry: Mutex::default(),
            openings: Mutex::default(),
            opener: OnceLock::new(),
            checks: Mutex::default(),
            checker: OnceLock::new(),
            reported: Mutex::default(),
            eventer: OnceLock::new(),
            updates: Mutex::default(),
            update_bytes: AtomicUsize::new(0),
            held_back: Mutex::default(),
            asked_secrets: AtomicUsize::new(0),
            closing: Mutex::default(),
            writer,
            dispatch,
            specs,
        };
        hub.set_valid_until(parts.valid_until);
        (Arc::new(hub), Wakes { writer: writer_wake, dispatch: dispatch_wake, specs: specs_wake })
    }

    pub(crate) fn now(&self) -> Now {
        let monotonic = self.clock.monotonic();
        Now { monotonic, server: self.time.at(monotonic) }
    }

    fn set_valid_until(&self, until: Duration) {
        self.valid_until.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Whether the lease may have run out. A process that was paused finds out here before it says anything.
    pub(crate) fn is_over(&self) -> bool {
        let until = Duration::from_micros(self.valid_until.load(Ordering::SeqCst));
        self.ended.load(Ordering::SeqCst) || self.clock.monotonic() >= until
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.over.cancel();
    }

    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Something may have to go out.
    pub(crate) fn poke(&self) {
        self.poked(Poke::Everything);
    }

    /// The same of what the store named.
    pub(crate) fn poked(&self, poke: Poke) {
        News::note(&self.dispatch_news, &poke);
        News::note(&self.spec_news, &poke);
        self.dispatch.wake();
        self.specs.wake();
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no holder of this lock panics")
    }

    /// Takes up a stream that has not said its Hello yet. One before it that has not come further ends.
    pub(crate) fn enter(&self, session: impl FnOnce(Now) -> Session, kill: CancellationToken) -> Arc<Live> {
        let core = session(self.now());
        let mut registry = self.registry();
        registry.next += 1;
        let live = Arc::new(Live::new(registry.next, core, kill));
        registry.lives.insert(live.id, live.clone());
        let node_id = live.lock().core.node_id();
        let before = registry.greeting.insert(node_id, live.id);
        let before = before.and_then(|id| registry.lives.get(&id).cloned());
        drop(registry);
        if let Some(before) = before {
            self.feed(&before, Input::Ended(SessionEnd::TakenOver));
        }
        self.metrics.session(1);
        live
    }

    /// The stream of a session is gone, however it ended.
    pub(crate) fn leave(&self, live: &Arc<Live>) {
        let node_id = live.lock().core.node_id();
        let mut registry = self.registry();
        if registry.lives.remove(&live.id).is_none() {
            return;
        }
        if registry.by_node.get(&node_id) == Some(&live.id) {
            registry.by_node.remove(&node_id);
        }
        registry.greeted(node_id, live.id);
        drop(registry);
        self.metrics.session(-1);
        // Looked at last: one that is being opened now sees that it has left, or is seen here.
        self.close_later(live);
    }

    fn close_later(&self, live: &Live) {
        let key = live.lock().core.key();
        self.closing.lock().expect("no holder of this lock panics").extend(key);
    }

    pub(crate) fn lives(&self) -> Vec<Arc<Live>> {
        self.registry().lives.values().cloned().collect()
    }

    /// The sessions there is news of: none when that is of all.
    fn lives_of(&self, news: &News) -> Vec<Arc<Live>> {
        let registry = self.registry();
        let id = |node_id: &NodeId| registry.by_node.get(node_id).and_then(|id| registry.lives.get(id));
        news.nodes.iter().filter_map(id).cloned().collect()
    }

    pub(crate) fn live_of(&self, node_id: NodeId) -> Option<Arc<Live>> {
        let registry = self.registry();
        registry.by_node.get(&node_id).and_then(|id| registry.lives.get(id)).cloned()
    }

    pub(crate) fn feed(&self, live: &Live, input: Input) {
        live.feed(&self.terms, input, self.now());
    }

    /// Ends these sessions, where they are still the ones that are held.
    fn end_sessions(&self, mut ended: Vec<(SessionKey, SessionEnd)>) {
        if mutant::on("gateway.revoked-stays") {
            ended.retain(|(_, end)| *end != SessionEnd::Revoked);
        }
        for (key, end) in ended {
            if let Some(live) = self.live_of(key.node_id)
                && live.lock().core.key() == Some(key)
            {
                self.feed(&live, Input::Ended(end));
            }
        }
    }

    /// Whether sessions hold back until updates are stored.
    pub(crate) fn is_behind(&self, live: &Arc<Live>) -> bool {
        if self.update_bytes.load(Ordering::SeqCst) < UPDATE_BYTES_MAX {
            return false;
        }
        self.held_back.lock().expect("no holder of this lock panics").push(live.clone());
        // What was stored between the look and the note would have woken nobody.
        self.update_bytes.load(Ordering::SeqCst) >= UPDATE_BYTES_MAX
    }

    pub(crate) fn queue_updates(&self, live: &Arc<Live>, updates: Vec<ReportedUpdate>) {
        self.update_bytes.fetch_add(writer::bytes_of(&updates), Ordering::SeqCst);
        let queued = Queued { live: live.clone(), updates };
        self.updates.lock().expect("no holder of this lock panics").push(queued);
        self.writer.wake();
    }

    /// Asks the store for a session.
    pub(crate) fn perform(self: &Arc<Self>, live: &Arc<Live>, request: Request) -> BoxFuture<'static, Input> {
        let (hub, live) = (self.clone(), live.clone());
        Box::pin(async move {
            match hub.answer(&live, request).await {
                Ok(answer) => Input::Answer(answer),
                Err(err) => {
                    hub.failed("session", &err);
                    Input::Unavailable
                }
            }
        })
    }

    async fn answer(&self, live: &Arc<Live>, request: Request) -> Result<Answer, DeliveryError> {
        let key = live.lock().core.key();
        // Everything but an opening is asked by an open session.
        let session = || key.ok_or(DeliveryError::LeaseLost);
        match request {
            Request::Events { journal_id, events } => {
                if !live.lock().core.takes_events() {
                    return Ok(Answer::EventsRefused);
                }
                let session = session()?;
                let last = events.last().map_or(0, |event| event.seq);
                self.metrics.call("put_events");
                let stored = self.store.put_events(self.lease, session, journal_id, events).await?;
                if stored.is_some_and(|stored| stored < last) {
                    tracing::warn!(node_id = %session.node_id, "too many events of a node wait to be handled: no more are stored");
                    return Ok(Answer::EventsRefused);
                }
                Ok(Answer::Events(stored))
            }
            Request::Inventory(sections) => {
                let stored: Vec<(SectionName, String)> = sections
                    .iter()
                    .filter_map(|section| Some((section.section.parse().ok()?, section.hash.clone())))
                    .collect();
                self.metrics.call("put_inventory");
                self.store.put_inventory(self.lease, session()?, sections).await?;
                Ok(Answer::Inventory(stored))
            }
            Request::Spec { bind } => {
                let session = session()?;
                let binding = match bind {
                    Some(statement) => self.bind(statement).await?,
                    None => None,
                };
                self.metrics.call("spec");
                let spec = self.store.spec(self.lease, session).await?;
                Ok(Answer::Spec { spec, binding })
            }
            Request::Secret(asked) => Ok(self.ask_secret(*asked).await),
            // Both have their own way: the answer comes by itself.
            Request::Open(_) => Err(DeliveryError::LeaseLost),
            Request::Updates(updates) => {
                let count = updates.len();
                Ok(Answer::Updates { count, acknowledged: Vec::<CommandId>::new() })
            }
        }
    }

    async fn bind(&self, statement: Vec<u8>) -> Result<Option<Vec<u8>>, DeliveryError> {
        let request = InboxRequest {
            kind: InboxKind::Fresh,
            request: statement,
            source_ip: String::new(),
            peer_serial: None,
        };
        self.metrics.call("ask");
        match self.store.ask(self.lease, request, BINDING_PATIENCE).await? {
            InboxAnswer::Reply(reply) => Ok(Some(reply)),
            InboxAnswer::Refused(why) => {
                tracing::debug!(why, "no binding for a fresh node");
                Ok(None)
            }
            InboxAnswer::TimedOut => Ok(None),
        }
    }

    /// Logs a failed call once, where it is handled; a lost lease ends the hub.
    fn failed(&self, doing: &'static str, err: &DeliveryError) {
        match err {
            DeliveryError::LeaseLost => {
                if !self.over.is_cancelled() {
                    tracing::warn!(gateway_id = %self.lease.gateway_id, epoch = self.lease.epoch, "the gateway's lease is over");
                    self.end();
                }
            }
            DeliveryError::Unavailable(_) => {
                tracing::warn!(doing, err = kit::chain(err), "delivery store unavailable");
            }
            DeliveryError::Failed(_) => {
                tracing::error!(doing, err = kit::chain(err), "delivery store failed");
            }
        }
    }

    /// Ends every session at once, as when the lease is lost.
    pub(crate) fn end_all(&self) {
        self.end();
        self.checks.lock().expect("no holder of this lock panics").clear();
        for live in self.lives() {
            self.feed(&live, Input::Unavailable);
        }
    }

    /// Tells every node to come back later, spread over `window`.
    pub(crate) fn drain(&self, window: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        let lives = self.lives();
        let share = window / u32::try_from(lives.len().max(1)).unwrap_or(u32::MAX);
        for (n, live) in lives.iter().enumerate() {
            let reconnect_after = share * u32::try_from(n).unwrap_or(u32::MAX);
            self.feed(live, Input::Drain { reason: "the gateway stops", reconnect_after });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.registry().lives.is_empty()
    }

    /// Closes in the store what has left here.
    pub(crate) async fn close_left(&self) {
        let closing = std::mem::take(&mut *self.closing.lock().expect("no holder of this lock panics"));
        for some in closing.chunks(CLOSES_AT_ONCE) {
            self.metrics.call("close_sessions");
            if let Err(err) = self.store.close_sessions(self.lease, some.to_vec()).await {
                self.failed("close sessions", &err);
            }
        }
    }
}
