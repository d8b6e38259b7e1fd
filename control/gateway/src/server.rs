//! The gateway as a whole: it takes connections, registers, serves under its lease, and registers anew when that is lost.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures::FutureExt;
use kernel::BoxFuture;
use kernel::ports::delivery::{DeliveryError, DeliveryStore, Registered};
use kernel::ports::images::ImageStore;
use kit::{Backoff, Clock, Rng, Supervisor, TaskHandle, TaskKind};
use model::{GatewayId, NodeId, Timestamp};
use pki::NodeTrust;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use wire::versions::Versions;

use crate::admission::{Admission, Each};
use crate::body::HelloBudget;
use crate::connection;
use crate::hub::{Hub, HubParts};
use crate::metrics::Metrics;
use crate::named::Named;
use crate::nodes::Connections;
use crate::places::Places;
use crate::session::Terms;
use crate::threads::Threads;
use crate::time::ServerTime;
use crate::tunnels::{TunnelParts, Tunnels};

const CONNECTION: TaskKind = TaskKind::isolated("gateway connection");
const ACCEPT: TaskKind = TaskKind::fatal("gateway accept");
const POKES: TaskKind = TaskKind::fatal("gateway wake-ups");
const LEASE: TaskKind = TaskKind::fatal("gateway lease");
const CHECKS: TaskKind = TaskKind::fatal("gateway certificates");
const OPENS: TaskKind = TaskKind::fatal("gateway openings");
const EVENTS: TaskKind = TaskKind::fatal("gateway events");
const BEATS: TaskKind = TaskKind::fatal("gateway heartbeats");
const WRITER: TaskKind = TaskKind::fatal("gateway updates");
const DISPATCH: TaskKind = TaskKind::fatal("gateway dispatch");
const SPECS: TaskKind = TaskKind::fatal("gateway specs");
const TUNNELS: TaskKind = TaskKind::fatal("gateway tunnels");

/// Joins waiting for a worker at once, and renewals: strangers must not take the places of nodes.
const JOINS_AT_ONCE: usize = 128;
const RENEWALS_AT_ONCE: usize = 128;
/// Images on their way to hosts at once: each holds a few chunks of 256 KiB, and more would only share the line.
const IMAGES_AT_ONCE: usize = 64;
/// Joins of one source: a burst of a rack that boots, then a hall of them behind one address within minutes.
const JOINS_PER_SECOND: f64 = 5.0;
const JOINS_BURST: u32 = 64;
/// Sessions of one node: some tries in a row, and then one in a while.
pub(crate) const NODE_SESSIONS_PER_SECOND: f64 = 0.2;
pub(crate) const NODE_SESSIONS_BURST: u32 = 20;
/// What sessions that are not greeted yet hold together beyond what each may: thirty of the largest Hellos, with the whole spec.
pub(crate) const HELLO_BYTES_MAX: usize = 128 << 20;
/// Connections without a certificate have an eighth of all places: strangers must not keep nodes out, and one address has an
/// eighth of those.
const ANONYMOUS_SHARE: usize = 8;
const ANONYMOUS_SOURCE_SHARE: usize = 8;
/// After an error of accepting, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const REGISTER_PAUSE_FIRST: Duration = Duration::from_millis(200);
const REGISTER_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a drain looks whether everybody has gone.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// How long things take. The defaults are those of the protocol; tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Told to nodes in Welcome.
    pub heartbeat: Duration,
    /// How soon the first frame must come.
    pub hello_within: Duration,
    /// How soon the request of a join or a renewal must have come whole.
    pub call_within: Duration,
    /// The gateway's lease, and how often it is renewed.
    pub ttl: Duration,
    pub renew: Duration,
    /// Heartbeats and statuses are written this often.
    pub beat: Duration,
    /// Without a wake-up, commands are looked for this often.
    pub dispatch: Duration,
    /// And specs.
    pub specs: Duration,
    /// And revoked sessions.
    pub ended: Duration,
    /// Nodes are asked to come back over this long when the gateway stops.
    pub drain_window: Duration,
    /// How long a stop waits for them to go.
    pub drain_within: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            hello_within: Duration::from_secs(10),
            call_within: Duration::from_secs(10),
            ttl: Duration::from_secs(10),
            renew: Duration::from_secs(3),
            beat: Duration::from_secs(1),
            dispatch: Duration::from_secs(1),
            specs: Duration::from_secs(10),
            ended: Duration::from_secs(2),
            drain_window: Duration::from_secs(5),
            drain_within: Duration::from_secs(8),
        }
    }
}

#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// New for each process.
    pub gateway_id: GatewayId,
    /// Where nodes reach it, for operators.
    pub address: String,
    /// TCP connections held at once: a session takes one file descriptor and some 40 KiB.
    pub connections_max: usize,
    /// Handshakes under way at once: past it, connections wait in the kernel.
    pub handshakes_max: usize,
    /// Sessions taken per second, and how many at one instant.
    pub sessions_per_second: u32,
    pub sessions_burst: u32,
    /// Protocol versions spoken to nodes: those of this build.
    pub versions: Versions,
    pub timing: Timing,
}

impl GatewayConfig {
    pub fn new(gateway_id: GatewayId, address: impl Into<String>) -> Self {
        Self {
            gateway_id,
            address: address.into(),
            connections_max: 15_000,
            handshakes_max: 512,
            sessions_per_second: 500,
            sessions_burst: 1_000,
            versions: Versions::SPOKEN,
            timing: Timing::default(),
        }
    }
}

/// How connections are secured, and whose certificates count.
#[derive(Debug, Clone)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    pub trust: Arc<NodeTrust>,
}

/// What a gateway is made of.
pub struct GatewayParts {
    pub config: GatewayConfig,
    pub tls: Tls,
    pub store: Arc<dyn DeliveryStore>,
    /// What hosts fetch images from; without one, this gateway hands out none.
    pub images: Option<Arc<dyn ImageStore>>,
    /// Without these, it joins no tunnels.
    pub tunnels: Option<TunnelParts>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub supervisor: Supervisor,
    pub metrics: Metrics,
}

/// What all connections share.
pub(crate) struct Shared {
    config: GatewayConfig,
    tls: RwLock<Tls>,
    store: Arc<dyn DeliveryStore>,
    pub(crate) images: Option<Arc<dyn ImageStore>>,
    pub(crate) image_places: Arc<Semaphore>,
    pub(crate) named: Named,
    pub(crate) tunnels: Option<Arc<Tunnels>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) metrics: Metrics,
    pub(crate) admission: Admission,
    pub(crate) joins_by_source: Each<IpAddr>,
    pub(crate) sessions_by_node: Each<NodeId>,
    /// What Hellos under way may take together.
    pub(crate) hellos: Arc<HelloBudget>,
    pub(crate) nodes: Connections,
    /// By the address they come from.
    pub(crate) anonymous: Arc<Places<IpAddr>>,
    pub(crate) joins: Semaphore,
    pub(crate) renewals: Semaphore,
    time: Arc<ServerTime>,
    hub: RwLock<Option<Arc<Hub>>>,
}

impl Shared {
    pub(crate) fn hub(&self) -> Option<Arc<Hub>> {
        self.hub.read().expect("no holder of this lock panics").clone()
    }

    fn set_hub(&self, hub: Option<Arc<Hub>>) {
        *self.hub.write().expect("no holder of this lock panics") = hub;
    }

    pub(crate) fn tls(&self) -> Tls {
        self.tls.read().expect("no holder of this lock panics").clone()
    }

    pub(crate) fn call_within(&self) -> Duration {
        self.config.timing.call_within
    }

    pub(crate) fn server_time(&self) -> Timestamp {
        self.time.at(self.clock.monotonic())
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
    supervisor: Supervisor,
}

impl Gateway {
    pub fn new(parts: GatewayParts) -> Self {
        let GatewayParts { config, tls, store, images, tunnels, clock, rng, supervisor, metrics } = parts;
        let time = Arc::new(ServerTime::new(clock.now(), clock.monotonic()));
        let anonymous_max = (config.connections_max / ANONYMOUS_SHARE).max(1);
        let shared = Shared {
            anonymous: Places::new(anonymous_max, (anonymous_max / ANONYMOUS_SOURCE_SHARE).max(1)),
            admission: Admission::new(config.sessions_per_second, config.sessions_burst),
            joins_by_source: Each::new(JOINS_PER_SECOND, JOINS_BURST),
            sessions_by_node: Each::new(NODE_SESSIONS_PER_SECOND, NODE_SESSIONS_BURST),
            hellos: HelloBudget::new(HELLO_BYTES_MAX),
            nodes: Connections::default(),
            joins: Semaphore::new(JOINS_AT_ONCE),
            renewals: Semaphore::new(RENEWALS_AT_ONCE),
            image_places: Arc::new(Semaphore::new(IMAGES_AT_ONCE)),
            named: Named::default(),
            images,
            tunnels: tunnels.map(Tunnels::new),
            hub: RwLock::new(None),
            tls: RwLock::new(tls),
            config,
            store,
            clock,
            rng,
            metrics,
            time,
        };
        Self { shared: Arc::new(shared), supervisor }
    }

    /// New connections are secured by these: for a renewed serving certificate or another node CA.
    pub fn set_tls(&self, tls: Tls) {
        *self.shared.tls.write().expect("no holder of this lock panics") = tls;
    }

    /// Whether it holds a lease and takes sessions.
    pub fn is_serving(&self) -> bool {
        self.shared.hub().is_some_and(|hub| !hub.is_over() && !hub.is_draining())
    }

    /// Serves `listener` until `stop`, then drains: nodes are sent elsewhere, spread in time, before this returns.
    pub fn run(&self, listener: TcpListener, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let gateway = self.clone();
        Box::pin(async move { gateway.serve(listener, stop).await })
    }

    async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        // Connections outlive the stop: they end with their drain, or with everything.
        let close = self.supervisor.token().child_token();
        let threads = Threads::start();
        let accept = {
            let (gateway, stop, close) = (self.clone(), stop.clone(), close.clone());
            let _there = threads.enter();
            self.supervisor.spawn(ACCEPT, |own| async move {
                // Both arms are cancel-safe: an accepted connection is handed on at once.
                tokio::select! {
                    () = gateway.accept(listener, close) => {}
                    () = own.cancelled() => {}
                    () = stop.cancelled() => {}
                }
                Ok::<_, Infallible>(())
            })
        };
        let pokes = {
            let (gateway, close) = (self.clone(), close.clone());
            self.supervisor.spawn(POKES, |own| async move {
                tokio::select! {
                    () = gateway.pass_pokes_on() => {}
                    () = own.cancelled() => {}
                    () = close.cancelled() => {}
                }
                Ok::<_, Infallible>(())
            })
        };
        while !stop.is_cancelled() {
            self.serve_under_a_lease(&stop).await;
        }
        close.cancel();
        accept.finished().await;
        pokes.finished().await;
    }

    /// One lease, from its registration to its loss or to the stop.
    async fn serve_under_a_lease(&self, stop: &CancellationToken) {
        let shared = &self.shared;
        // Both arms are cancel-safe: a lease that nobody uses runs out by itself.
        let (registered, asked) = tokio::select! {
            registered = self.register() => registered,
            () = stop.cancelled() => return,
        };
        shared.time.set(registered.server_time, asked, shared.clock.monotonic());
        let (hub, wakes) = Hub::new(HubParts {
            store: shared.store.clone(),
            lease: registered.lease,
            terms: Terms {
                gateway_id: shared.config.gateway_id,
                versions: shared.config.versions,
                heartbeat: shared.config.timing.heartbeat,
                hello_within: shared.config.timing.hello_within,
            },
            timing: shared.config.timing,
            clock: shared.clock.clone(),
            time: shared.time.clone(),
            metrics: shared.metrics.clone(),
            valid_until: asked + shared.config.timing.ttl,
        });
        tracing::info!(gateway_id = %registered.lease.gateway_id, epoch = registered.lease.epoch, "gateway serves");
        let mut tasks = vec![
            self.task(LEASE, hub.clone().run_lease().boxed()),
            self.task(CHECKS, hub.clone().run_checks(hub.check_apart()).boxed()),
            self.task(OPENS, hub.clone().run_opens(hub.open_apart()).boxed()),
            self.task(EVENTS, hub.clone().run_events(hub.events_apart()).boxed()),
            self.task(BEATS, hub.clone().run_beats().boxed()),
            self.task(WRITER, hub.clone().run_writer(wakes.writer).boxed()),
            self.task(DISPATCH, hub.clone().run_dispatch(wakes.dispatch).boxed()),
            self.task(SPECS, hub.clone().run_specs(wakes.specs).boxed()),
        ];
        if let Some(tunnels) = &shared.tunnels {
            tasks.push(self.task(TUNNELS, tunnels.clone().run(hub.clone(), shared.clock.clone()).boxed()));
        }
        shared.set_hub(Some(hub.clone()));
        hub.poke();
        // Both arms are cancel-safe.
        tokio::select! {
            () = hub.over().cancelled() => {}
            () = stop.cancelled() => self.drain(&hub).await,
        }
        shared.set_hub(None);
        hub.end_all();
        for task in tasks {
            task.finished().await;
        }
    }

    fn task(&self, kind: TaskKind, work: BoxFuture<'static, ()>) -> TaskHandle {
        self.supervisor.spawn(kind, |stop| async move {
            // Passes are cut between statements; what they had not written is said again by the nodes.
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
            Ok::<_, Infallible>(())
        })
    }

    async fn register(&self) -> (Registered, Duration) {
        let shared = &self.shared;
        let mut backoff = Backoff::new(REGISTER_PAUSE_FIRST, REGISTER_PAUSE_MAX);
        loop {
            let asked = shared.clock.monotonic();
            let config = &shared.config;
            shared.metrics.call("register");
            match shared.store.register(config.gateway_id, &config.address, config.timing.ttl).await {
                Ok(registered) => return (registered, asked),
                Err(err) => {
                    let attempt = backoff.attempt();
                    match err {
                        DeliveryError::Unavailable(_) | DeliveryError::LeaseLost => {
                            tracing::warn!(attempt, err = kit::chain(&err), "cannot register the gateway");
                        }
                        DeliveryError::Failed(_) => {
                            tracing::error!(attempt, err = kit::chain(&err), "cannot register the gateway");
                        }
                    }
                    shared.clock.sleep(backoff.next_wait(&*shared.rng)).await;
                }
            }
        }
    }

    /// Sends the nodes elsewhere, waits for them to go, and gives the lease back.
    async fn drain(&self, hub: &Arc<Hub>) {
        let timing = self.shared.config.timing;
        hub.drain(timing.drain_window);
        let until = self.shared.clock.monotonic() + timing.drain_within;
        while !hub.is_empty() && self.shared.clock.monotonic() < until && !hub.is_over() {
            self.shared.clock.sleep(DRAIN_LOOK).await;
        }
        hub.write_updates().await;
        hub.close_left().await;
        if let Err(err) = self.shared.store.deregister(hub.lease).await {
            tracing::warn!(err = kit::chain(&err), "cannot give the gateway's lease back");
        }
    }

    async fn pass_pokes_on(&self) {
        let mut backoff = Backoff::new(REGISTER_PAUSE_FIRST, REGISTER_PAUSE_MAX);
        loop {
            match self.shared.store.next_poke().await {
                Ok(poke) => {
                    backoff.reset();
                    if let Some(hub) = self.shared.hub() {
                        hub.poked(poke);
                    }
                }
                Err(err) => {
                    tracing::warn!(err = kit::chain(&err), "cannot listen for wake-ups");
                    self.shared.clock.sleep(backoff.next_wait(&*self.shared.rng)).await;
                }
            }
        }
    }

    async fn accept(&self, listener: TcpListener, close: CancellationToken) {
        let handshakes = Arc::new(Semaphore::new(self.shared.config.handshakes_max));
        let connections = Arc::new(Semaphore::new(self.shared.config.connections_max));
        loop {
            let Ok(handshake) = handshakes.clone().acquire_owned().await else { return };
            let (tcp, source) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(err) => {
                    tracing::warn!(err = %err, "cannot accept a connection");
                    self.shared.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match connections.clone().try_acquire_owned() {
                Ok(slot) => self.take(tcp, source, Permits { handshake, slot }, close.clone()),
                // Closed at once: a place in the queue would only be closed later.
                Err(_) => self.shared.metrics.handshake("full"),
            }
        }
    }

    fn take(
        &self,
        tcp: tokio::net::TcpStream,
        source: SocketAddr,
        permits: Permits,
        close: CancellationToken,
    ) {
        let shared = self.shared.clone();
        self.supervisor.spawn(CONNECTION, |_| async move {
            let Permits { handshake, slot } = permits;
            connection::serve(shared, tcp, source.ip(), handshake, close).await;
            drop(slot);
            Ok::<_, Infallible>(())
        });
    }
}

/// What a connection holds: a place among those that shake hands, until it has; and a place among all.
struct Permits {
    handshake: OwnedSemaphorePermit,
    slot: OwnedSemaphorePermit,
}
