//! One gateway process: the real hub over the real delivery store, and its passes as tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::identity::Identity;
use agent::link::{Connection, Credentials, Link, LinkError};
use fleet::PgDelivery;
use futures::StreamExt;
use futures::future::BoxFuture;
use gateway::GatewayConfig;
use gateway::drive::{Beats, Driven, DrivenParts, DrivenWakes, Due, Refused};
use gateway::session::Peer;
use kernel::ports::delivery::{DeliveryStore, GatewayLease, InboxAnswer, InboxKind, InboxRequest};
use kit::{Backoff, Clock, Rng, Wake};
use prost::Message;
use wire::proto::agent::{JoinReply, JoinRequest, RenewReply, RenewRequest};

use super::event::{Event, ToNode};
use super::exec::ProcessId;
use super::line::{Incoming, Line};
use super::plant::Plant;
use super::schedule::ProcessSchedule;
use super::time::{Core, SimClock};

/// How long a node or a machine waits for a worker's answer.
const PATIENCE: Duration = Duration::from_secs(20);
const REPLY_BYTES_MAX: usize = 256 * 1024;
const REGISTER_PAUSE_FIRST: Duration = Duration::from_millis(200);
const REGISTER_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Between two passes over specs.
const SPEC_PAUSE: Duration = Duration::from_millis(50);

/// What of a gateway others reach.
#[derive(Clone)]
pub struct Served {
    pub driven: Driven,
    pub delivery: PgDelivery,
}

/// The hub that serves now.
pub type Serving = Arc<Mutex<Option<Served>>>;

pub struct SimGateway {
    pub index: usize,
    pub process: ProcessId,
    pub schedule: Arc<ProcessSchedule>,
    pub serving: Serving,
    pub up: bool,
    pub lines: Vec<Arc<Line>>,
}

impl SimGateway {
    pub fn new(plant: &Plant, index: usize, process: ProcessId) -> Self {
        let schedule = plant.schedule(process);
        Self { index, process, schedule, serving: Serving::default(), up: false, lines: Vec::new() }
    }

    pub fn served(&self) -> Option<Served> {
        self.serving.lock().expect("no holder of this lock panics").clone()
    }

    /// A new process in the place of the last one.
    pub fn start(&mut self, plant: &Arc<Plant>, process: ProcessId) {
        *self = Self { up: true, ..Self::new(plant, self.index, process) };
        let process = Process {
            plant: plant.clone(),
            id: process,
            schedule: self.schedule.clone(),
            serving: self.serving.clone(),
            index: self.index,
        };
        plant.core.spawn(self.process, "gateway", Box::pin(process.run()));
    }
}

struct Process {
    plant: Arc<Plant>,
    id: ProcessId,
    schedule: Arc<ProcessSchedule>,
    serving: Serving,
    index: usize,
}

impl Process {
    async fn run(self) {
        let (core, clock) = (self.plant.core.clone(), self.plant.clock.clone());
        let store = loop {
            match self.plant.connect(&self.schedule, true).await {
                Ok(store) => break store,
                Err(_) => clock.sleep(Duration::from_secs(1)).await,
            }
        };
        let rng = self.plant.rng();
        let delivery = PgDelivery::new(store, clock.clone(), rng.clone());
        let gateway_id = rng.id(core.now());
        let mut backoff = Backoff::new(REGISTER_PAUSE_FIRST, REGISTER_PAUSE_MAX);
        loop {
            let parts = DrivenParts {
                config: GatewayConfig::new(gateway_id, format!("gateway-{}", self.index)),
                store: Arc::new(delivery.clone()),
                clock: clock.clone(),
                rng: rng.clone(),
            };
            let Ok((driven, wakes)) = Driven::register(parts).await else {
                clock.sleep(backoff.next_wait(&*rng)).await;
                continue;
            };
            backoff.reset();
            self.set(Some(Served { driven: driven.clone(), delivery: delivery.clone() }));
            loops(&core, &clock, self.id, &driven, wakes);
            driven.poke();
            let mut pause = driven.timing().renew;
            while !driven.is_over() {
                clock.sleep(pause).await;
                pause = driven.renew().await;
            }
            self.set(None);
            driven.end_all();
        }
    }

    fn set(&self, served: Option<Served>) {
        *self.serving.lock().expect("no holder of this lock panics") = served;
    }
}

/// The passes of one lease, until it is over.
fn loops(core: &Arc<Core>, clock: &Arc<SimClock>, process: ProcessId, driven: &Driven, wakes: DrivenWakes) {
    let timing = driven.timing();
    let (own, time) = (driven.clone(), clock.clone());
    let opens = async move {
        let mut wake = wakes.opens;
        while !own.is_over() {
            woken(&mut wake, &time, timing.dispatch).await;
            own.open_sessions().await;
        }
    };
    core.spawn(process, "gateway openings", Box::pin(opens));
    let (own, time) = (driven.clone(), clock.clone());
    let beats = async move {
        let mut beats = Beats::default();
        while !own.is_over() {
            time.sleep(timing.beat).await;
            own.beat(&mut beats).await;
        }
    };
    core.spawn(process, "gateway heartbeats", Box::pin(beats));
    let (own, time) = (driven.clone(), clock.clone());
    let writer = async move {
        let mut wake = wakes.writer;
        while !own.is_over() {
            woken(&mut wake, &time, timing.beat).await;
            own.write().await;
        }
    };
    core.spawn(process, "gateway updates", Box::pin(writer));
    let (own, time) = (driven.clone(), clock.clone());
    let dispatch = async move {
        let mut wake = wakes.dispatch;
        while !own.is_over() {
            woken(&mut wake, &time, timing.dispatch).await;
            own.dispatch().await;
        }
    };
    core.spawn(process, "gateway dispatch", Box::pin(dispatch));
    let (own, time) = (driven.clone(), clock.clone());
    let specs = async move {
        let (mut wake, mut due) = (wakes.specs, Due::default());
        while !own.is_over() {
            woken(&mut wake, &time, timing.ended.min(timing.specs)).await;
            own.specs(&mut due).await;
            time.sleep(SPEC_PAUSE).await;
        }
    };
    core.spawn(process, "gateway specs", Box::pin(specs));
}

async fn woken(wake: &mut Wake, clock: &SimClock, at_most: Duration) {
    futures::future::select(Box::pin(wake.signalled()), clock.sleep(at_most)).await;
}

/// One session, from the node's dial to its end. Dropped with its process.
pub async fn session(served: Served, peer: Peer, line: Arc<Line>) {
    let opened = served.driven.open(peer, Incoming(line.clone())).await;
    let mut session = match opened {
        Ok(session) => session,
        Err(refused) => {
            let pushback = match refused {
                Refused::Busy(wait) => wait,
                Refused::Certificate => None,
            };
            return line.answer(ToNode::Ended { why: format!("{refused:?}"), pushback });
        }
    };
    line.answer(ToNode::Connected);
    while let Some(frame) = session.next().await {
        match frame {
            Ok(frame) => line.answer(ToNode::Frame(Box::new(frame))),
            Err(status) => {
                return line.answer(ToNode::Ended { why: status.message().to_owned(), pushback: None });
            }
        }
    }
    line.answer(ToNode::Ended { why: "the gateway closed the session".to_owned(), pushback: None });
}

pub fn peer(identity: &Identity) -> Peer {
    Peer {
        node_id: identity.node_id,
        cert_serial: identity.serial.to_string(),
        cert_ends: identity.not_after,
    }
}

/// The unary calls of one gateway.
pub struct Calls {
    pub delivery: PgDelivery,
    pub lease: GatewayLease,
    /// The certificate of the connection, for a renewal.
    pub peer_serial: Option<String>,
}

impl Calls {
    fn ask<A: Message + Default>(
        &self,
        kind: InboxKind,
        request: Vec<u8>,
    ) -> BoxFuture<'static, Result<A, LinkError>> {
        let (delivery, lease) = (self.delivery.clone(), self.lease);
        let request = InboxRequest {
            kind,
            request,
            source_ip: "192.0.2.1".to_owned(),
            peer_serial: self.peer_serial.clone(),
        };
        Box::pin(async move {
            match delivery.ask(lease, request, PATIENCE).await {
                Ok(InboxAnswer::Reply(reply)) => wire::decode("reply", &reply, REPLY_BYTES_MAX)
                    .map_err(|err| LinkError::new(kind.name(), err.to_string())),
                Ok(InboxAnswer::Refused(why)) => Err(LinkError::new(kind.name(), why)),
                Ok(InboxAnswer::TimedOut) => Err(LinkError::new(kind.name(), "no worker answered in time")),
                Err(err) => Err(LinkError::new(kind.name(), kit::chain(&err))),
            }
        })
    }
}

impl Link for Calls {
    fn connect(&self, _: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>> {
        Box::pin(async { Err(LinkError::new("connect", "sessions are opened by lines")) })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>> {
        self.ask(InboxKind::Join, request.encode_to_vec())
    }

    fn renew(
        &self,
        _: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>> {
        self.ask(InboxKind::Renew, request.encode_to_vec())
    }
}

/// Asks for the next certificate of a node.
pub async fn renewal(
    core: Arc<Core>,
    served: Served,
    identity: Identity,
    rng: Arc<dyn Rng>,
    node: usize,
    life: u64,
) {
    let calls = Calls {
        delivery: served.delivery,
        lease: served.driven.lease(),
        peer_serial: Some(identity.serial.to_string()),
    };
    let entropy = super::keys::AsEntropy(rng);
    let renewed = agent::renew::renew(&calls, &identity, &entropy, core.now()).await;
    let renewed = renewed.map(Box::new).map_err(|err| kit::chain(&err));
    core.post(Duration::from_millis(2), Event::Renewed { node, life, renewed });
}
