//! A gateway whose passes another drives, in memory: the simulator, which decides what runs when. Everything behind the
//! connection is the same; TCP, TLS and HTTP/2 are not there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use kernel::ports::delivery::{DeliveryError, DeliveryStore, GatewayLease, Poke};
use kit::{Clock, Rng, Wake};
use model::NodeId;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use wire::proto::agent::{GatewayFrame, NodeFrame};

use crate::Metrics;
use crate::admission::{Admission, Each};
use crate::body::{Greeting, HelloBudget};
use crate::hub::beat::Unsaved;
use crate::hub::deliver::SpecsDue;
use crate::hub::{Hub, HubParts, Wakes};
use crate::server::{GatewayConfig, HELLO_BYTES_MAX, NODE_SESSIONS_BURST, NODE_SESSIONS_PER_SECOND, Timing};
use crate::session::{Peer, Session, Terms};
use crate::stream::SessionStream;
use crate::time::ServerTime;

/// What a driven gateway is made of.
pub struct DrivenParts {
    pub config: GatewayConfig,
    pub store: Arc<dyn DeliveryStore>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// One gateway under one lease. Its passes may be under way at once.
#[derive(Clone)]
pub struct Driven(Arc<Inner>);

struct Inner {
    hub: Arc<Hub>,
    timing: Timing,
    admission: Admission,
    by_node: Each<NodeId>,
    hellos: Arc<HelloBudget>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    metrics: Metrics,
}

/// What wakes a driven gateway's passes besides their periods.
pub struct DrivenWakes {
    pub opens: Wake,
    pub writer: Wake,
    pub dispatch: Wake,
    pub specs: Wake,
}

/// What the heartbeat pass keeps between two runs.
#[derive(Default)]
pub struct Beats(Unsaved);

/// When the parts of a pass over specs are due without a wake-up.
#[derive(Default)]
pub struct Due(SpecsDue);

/// Why a session is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Come back after this long, or when the node likes.
    Busy(Option<Duration>),
    /// The certificate does not count, or its node does not.
    Certificate,
}

impl Driven {
    /// Registers, which begins a lease.
    pub async fn register(parts: DrivenParts) -> Result<(Self, DrivenWakes), DeliveryError> {
        let DrivenParts { config, store, clock, rng } = parts;
        let asked = clock.monotonic();
        let registered = store.register(config.gateway_id, &config.address, config.timing.ttl).await?;
        let time = Arc::new(ServerTime::new(clock.now(), asked));
        time.set(registered.server_time, asked, clock.monotonic());
        let metrics = Metrics::default();
        let (hub, wakes) = Hub::new(HubParts {
            store,
            lease: registered.lease,
            terms: Terms {
                gateway_id: config.gateway_id,
                versions: config.versions,
                heartbeat: config.timing.heartbeat,
                hello_within: config.timing.hello_within,
            },
            timing: config.timing,
            clock: clock.clone(),
            time,
            metrics: metrics.clone(),
            valid_until: asked + config.timing.ttl,
        });
        let opens = hub.open_apart();
        let admission = Admission::new(config.sessions_per_second, config.sessions_burst);
        let by_node = Each::new(NODE_SESSIONS_PER_SECOND, NODE_SESSIONS_BURST);
        let hellos = HelloBudget::new(HELLO_BYTES_MAX);
        let inner = Inner { hub, timing: config.timing, admission, by_node, hellos, clock, rng, metrics };
        let Wakes { writer, dispatch, specs } = wakes;
        Ok((Self(Arc::new(inner)), DrivenWakes { opens, writer, dispatch, specs }))
    }

    pub fn lease(&self) -> GatewayLease {
        self.0.hub.lease
    }

    pub fn timing(&self) -> Timing {
        self.0.timing
    }

    /// Whether its lease may have run out.
    pub fn is_over(&self) -> bool {
        self.0.hub.is_over()
    }

    /// Something may have to go out.
    pub fn poke(&self) {
        self.0.hub.poke();
    }

    /// The same of what the store named.
    pub fn poked(&self, poke: Poke) {
        self.0.hub.poked(poke);
    }

    /// Ends every session.
    pub fn end_all(&self) {
        self.0.hub.end_all();
    }

    /// Tells every node to come back later.
    pub fn drain(&self) {
        self.0.hub.drain(self.0.timing.drain_window);
    }

    pub fn is_empty(&self) -> bool {
        self.0.hub.is_empty()
    }

    /// Takes up a node's stream, or refuses it.
    pub async fn open<S>(&self, peer: Peer, frames: S) -> Result<DrivenSession<S>, Refused>
    where
        S: Stream<Item = Result<NodeFrame, Status>> + Unpin,
    {
        let (hub, now) = (&self.0.hub, self.0.clock.monotonic());
        if hub.is_over() || hub.is_draining() || !self.0.by_node.admit(peer.node_id, now) {
            return Err(Refused::Busy(None));
        }
        self.0.admission.admit(now, &*self.0.rng).map_err(|wait| Refused::Busy(Some(wait)))?;
        match hub.store.certificate_counts(&peer.cert_serial).await {
            Ok(true) => {}
            Ok(false) => return Err(Refused::Certificate),
            Err(_) => return Err(Refused::Busy(None)),
        }
        let live = hub.enter(|now| Session::new(peer, now), CancellationToken::new());
        let greeting = Greeting::new(self.0.hellos.clone());
        Ok(DrivenSession(SessionStream::new(
            hub.clone(),
            live,
            frames,
            greeting,
            None,
            self.0.metrics.clone(),
        )))
    }

    /// One renewal of the lease; says how long to pause.
    pub async fn renew(&self) -> Duration {
        self.0.hub.renew_once().await
    }

    /// Sessions whose nodes have said Hello.
    pub async fn open_sessions(&self) {
        self.0.hub.open_pass().await;
    }

    /// From here on events wait for a pass of their own, as in a gateway that serves. What is returned wakes it.
    pub fn events_apart(&self) -> Wake {
        self.0.hub.events_apart()
    }

    /// Events of all sessions.
    pub async fn store_events(&self) {
        self.0.hub.events_pass().await;
    }

    /// Heartbeats and statuses.
    pub async fn beat(&self, beats: &mut Beats) {
        self.0.hub.beat_pass(&mut beats.0).await;
    }

    /// Command updates.
    pub async fn write(&self) {
        self.0.hub.write_updates().await;
    }

    /// Commands and cancels.
    pub async fn dispatch(&self) {
        self.0.hub.dispatch_pass().await;
    }

    /// Specs, and sessions that must end.
    pub async fn specs(&self, due: &mut Due) {
        self.0.hub.specs_pass(&mut due.0).await;
    }

    /// Closes in the store what has left here.
    pub async fn close_left(&self) {
        self.0.hub.close_left().await;
    }
}

/// One session: yields what goes to the node, and ends when it is over. Dropping it is the loss of its connection.
pub struct DrivenSession<S>(SessionStream<S>);

impl<S> Stream for DrivenSession<S>
where
    S: Stream<Item = Result<NodeFrame, Status>> + Unpin,
{
    type Item = Result<GatewayFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx)
    }
}
