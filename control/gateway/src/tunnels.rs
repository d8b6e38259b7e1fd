//! Tunnels: two connections, joined. One end has a ticket, the other is the node that it names.
//!
//! ```text
//! end with a ticket --TunnelHello--> judged, used up --OpenTunnel, over the session--> node
//!                                    waits <---------------------TunnelHello-------- the node's own connection
//! both: TunnelReply, then bytes: what one end says goes to the other as it came
//! ```
//! What the ends say is sealed between them: a gateway could cut a tunnel or hold it up, and neither read it, nor say
//! anything in it, nor stand at one end of it. It has no keys of either.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kernel::ports::delivery::DeliveryError;
use kernel::ports::tunnels::{TicketStore, TunnelClosed};
use kit::{Clock, Wake, Waker};
use model::{NodeId, Timestamp, TunnelId};
use pki::Purpose;
use pki::worker::CommandVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::proto::agent::tunnel_hello::End;
use wire::proto::agent::{OpenTunnel, TunnelHello, TunnelRefused, TunnelReply};

use crate::hub::Hub;
use crate::places::{Place, Places};
use crate::server::Shared;
use crate::session::{Input, Peer};
use counted::{Counted, Counts};
use held::{CLOSED_MAX, Held, Open, Taken, Waiting};

mod counted;
mod held;

/// Into instances of one node at once.
const OF_NODE_MAX: usize = 16;
/// Of one node's own console. They are counted apart: whoever sees to a node gets onto it, however many are let into what runs there.
const CONSOLES_MAX: usize = 4;
/// Connections of one node that are ends of tunnels or may become that. An honest one has no more than it has tunnels.
const ENDS_OF_NODE_MAX: usize = 32;
/// Of a gateway. Each takes two connections and, while bytes go through it, two buffers in each direction.
const AT_ONCE_MAX: usize = 4096;
const BUFFER_BYTES: usize = 64 * 1024;
/// How soon the first message must have come.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long a node has to come: a frame to it, and a connection from it.
const NODE_WITHIN: Duration = Duration::from_secs(15);
/// How long an end has to take an answer.
const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// How often tunnels that are to be closed are looked for, while any is open; and how often each looks for its gateway's lease.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A tunnel of which one end has said its last, and through which nothing goes, is over.
const HALF_OPEN_MAX: Duration = Duration::from_secs(300);
/// A word of a node's, as it is passed on.
const REASON_CHARS_MAX: usize = 32;
const MESSAGE_CHARS_MAX: usize = 300;

/// What a gateway needs that joins tunnels.
#[derive(Clone)]
pub struct TunnelParts {
    pub store: Arc<dyn TicketStore>,
    /// Whose tickets count.
    pub verifier: CommandVerifier,
    /// Where this very gateway is reached, host:port, when that is not where nodes find it anyway.
    pub own_address: Option<String>,
}

pub(crate) struct Tunnels {
    parts: TunnelParts,
    places: Arc<Places<NodeId>>,
    consoles: Arc<Places<NodeId>>,
    /// Of connections that nodes make.
    ends: Arc<Places<NodeId>>,
    held: Mutex<Held>,
    /// There is a tunnel to look after, or one that has been closed.
    waker: Waker,
    wake: tokio::sync::Mutex<Wake>,
}

/// The node's connection, whose task goes on for as long as this lives.
struct NodeEnd {
    stream: TlsStream<TcpStream>,
    _until: DropGuard,
}

/// Why there is no tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    reason: String,
    message: String,
}

fn refusal(reason: &str, message: &str) -> Refusal {
    Refusal { reason: reason.to_owned(), message: message.to_owned() }
}

fn unavailable() -> Refusal {
    refusal("unavailable", "the control plane does not answer now: try again")
}

/// A ticket that was judged.
struct Admitted {
    tunnel_id: TunnelId,
    node_id: NodeId,
    /// It leads to the node's own console.
    own_console: bool,
    ends_at: Timestamp,
}

/// Two ends that are joined from here on.
struct Joined {
    ticket: Admitted,
    node: NodeEnd,
    close: CancellationToken,
    hub: Arc<Hub>,
    _place: Place<NodeId>,
}

impl Tunnels {
    pub(crate) fn new(parts: TunnelParts) -> Arc<Self> {
        let (wake, waker) = Wake::new();
        Arc::new(Self {
            parts,
            places: Places::new(AT_ONCE_MAX, OF_NODE_MAX),
            consoles: Places::new(AT_ONCE_MAX, CONSOLES_MAX),
            ends: Places::new(2 * AT_ONCE_MAX, ENDS_OF_NODE_MAX),
            held: Mutex::default(),
            waker,
            wake: tokio::sync::Mutex::new(wake),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no holder of this lock panics")
    }

    /// A node's word that it will not come.
    pub(crate) fn refused(&self, node_id: NodeId, refused: &TunnelRefused) {
        let Ok(tunnel_id) = refused.tunnel_id.parse() else { return };
        let Some(waiting) = self.taken_by(tunnel_id, node_id) else { return };
        let plain =
            |text: &str, most| text.chars().filter(|c| !c.is_control()).take(most).collect::<String>();
        let reason = match plain(&refused.reason, REASON_CHARS_MAX) {
            none if none.is_empty() => "refused".to_owned(),
            reason => reason,
        };
        let refusal = Refusal { reason, message: plain(&refused.message, MESSAGE_CHARS_MAX) };
        let _ = waiting.told.send(Err(refusal));
    }

    /// Whoever waits for this node.
    fn taken_by(&self, tunnel_id: TunnelId, node_id: NodeId) -> Option<Waiting> {
        let mut held = self.held();
        match held.waiting.get(&tunnel_id) {
            Some(waiting) if waiting.node_id == node_id => held.waiting.remove(&tunnel_id),
            _ => None,
        }
    }

    /// Judges a ticket by itself. What the rows say of it is asked after.
    fn judge(&self, bytes: &[u8], now: Timestamp) -> Result<Admitted, Refusal> {
        let malformed = || refusal("malformed", "this is no ticket");
        let (signed, ticket) = wire::tunnel::ticket(bytes).map_err(|_| malformed())?;
        let signature = signed.signature.as_ref().map_or(&[][..], |signature| &signature.value);
        self.parts
            .verifier
            .verify_bytes(Purpose::ExecTicket, &signed.ticket, signature, now)
            .map_err(|refused| refusal("bad-signature", &refused.to_string()))?;
        let at = |ms: u64| Timestamp::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
        if now > at(ticket.open_until_ms) {
            return Err(refusal("expired", "the ticket's time is over"));
        }
        Ok(Admitted {
            tunnel_id: ticket.tunnel_id.parse().map_err(|_| malformed())?,
            node_id: ticket.node_id.parse().map_err(|_| malformed())?,
            own_console: ticket.instance_id.is_empty(),
            ends_at: at(ticket.ends_at_ms),
        })
    }

    /// Looks after open tunnels for one lease, and tells of those that are closed.
    pub(crate) async fn run(self: Arc<Self>, hub: Arc<Hub>, clock: Arc<dyn Clock>) {
        // One lease follows another.
        let mut wake = self.wake.lock().await;
        loop {
            let rests = self.pass(&hub).await;
            // Every arm is cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = hub.over().cancelled() => return,
                () = wake.signalled() => {}
                () = clock.sleep(LOOK_EVERY), if !rests => {}
            }
        }
    }

    /// True when there is nothing to look after.
    async fn pass(&self, hub: &Hub) -> bool {
        let (open, closed) = {
            let mut held = self.held();
            (held.open.keys().copied().collect::<Vec<_>>(), std::mem::take(&mut held.closed))
        };
        let told = self.tell(hub, closed).await;
        if open.is_empty() {
            return told;
        }
        // Also when what is closed cannot be told: what may not go on has to end.
        match self.parts.store.ended(hub.lease, open).await {
            Ok(ended) => {
                let held = self.held();
                ended.iter().filter_map(|id| held.open.get(id)).for_each(CancellationToken::cancel);
            }
            Err(err) => tracing::warn!(err = kit::chain(&err), "tunnels that are to end are not known now"),
        }
        false
    }

    /// Writes down which tunnels are closed. False when it has to be tried again.
    async fn tell(&self, hub: &Hub, mut closed: Vec<TunnelClosed>) -> bool {
        if closed.is_empty() {
            return true;
        }
        match self.parts.store.closed(hub.lease, closed.clone()).await {
            Ok(()) => true,
            // Its rows are closed by whoever finds it lost.
            Err(DeliveryError::LeaseLost) => true,
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "closed tunnels are not written down yet");
                let mut held = self.held();
                closed.append(&mut held.closed);
                closed.truncate(CLOSED_MAX);
                held.closed = closed;
                false
            }
        }
    }
}

/// Serves a connection that an end of a tunnel made, to its end.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    mut tls: TlsStream<TcpStream>,
    peer: Option<Peer>,
    source: IpAddr,
    anonymous: Option<Place<IpAddr>>,
    stop: CancellationToken,
) {
    let Some(tunnels) = shared.tunnels.clone() else { return };
    // A tunnel without it is as good, and ends when its time is over.
    let _ = kit::net::keep_alive(tls.get_ref().0);
    // For as long as there is the connection.
    let _end = match &peer {
        Some(peer) => match tunnels.ends.take(peer.node_id) {
            Some(place) => Some(place),
            None => return shared.metrics.tunnel_end("node_full"),
        },
        None => None,
    };
    let hello = shared.within(HELLO_WITHIN, read_hello(&mut tls)).await;
    let Some(Ok(TunnelHello { end: Some(end) })) = hello else {
        return shared.metrics.tunnel_end("no_hello");
    };
    match (end, peer) {
        (End::TunnelId(id), Some(peer)) => tunnels.node_end(&shared, tls, &peer, &id, &stop).await,
        (End::Ticket(ticket), None) => {
            // Both arms end what they do by being dropped.
            tokio::select! {
                () = tunnels.ticket_end(&shared, tls, source, anonymous, &ticket) => {}
                () = stop.cancelled() => {}
            }
        }
        // A node asks nobody in, and who has no certificate is no node.
        _ => shared.metrics.tunnel_end("wrong_end"),
    }
}

impl Tunnels {
    async fn node_end(
        &self,
        shared: &Shared,
        mut tls: TlsStream<TcpStream>,
        peer: &Peer,
        id: &str,
        stop: &CancellationToken,
    ) {
        let counts = match shared.hub() {
            Some(hub) => hub.certificate_counts(&peer.cert_serial).await.unwrap_or(false),
            None => false,
        };
        let waiting = id.parse().ok().filter(|_| counts).and_then(|id| self.taken_by(id, peer.node_id));
        let Some(waiting) = waiting else {
            let refusal = refusal("not-here", "nobody waits here for this tunnel");
            return shared.answer(&mut tls, Some(&refusal)).await;
        };
        let until = CancellationToken::new();
        let end = NodeEnd { stream: tls, _until: until.clone().drop_guard() };
        if waiting.told.send(Ok(end)).is_ok() {
            // Both arms are cancel-safe. The connection's place is held for as long as it is used.
            tokio::select! {
                () = until.cancelled() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn ticket_end(
        self: &Arc<Self>,
        shared: &Shared,
        mut tls: TlsStream<TcpStream>,
        source: IpAddr,
        anonymous: Option<Place<IpAddr>>,
        ticket: &[u8],
    ) {
        let joined = match self.join(shared, ticket).await {
            Ok(joined) => joined,
            Err(refusal) => {
                shared.metrics.tunnel_end("refused");
                tracing::info!(source_ip = %source, reason = refusal.reason, "tunnel refused");
                return shared.answer(&mut tls, Some(&refusal)).await;
            }
        };
        // It has a place among tunnels.
        drop(anonymous);
        let mut joined = joined;
        let open = Open::new(self, shared, joined.ticket.tunnel_id);
        let counts = open.counts.clone();
        let reason = tokio::select! {
            reason = carry(shared, tls, &mut joined.node.stream, &counts) => reason,
            () = joined.close.cancelled() => "revoked",
            () = lease_over(&joined.hub, &*shared.clock) => "gateway-stopped",
            () = shared.clock.sleep(joined.ticket.ends_at.since(shared.server_time())) => "time-over",
        };
        open.closed(reason);
    }

    /// Both ends of a ticket, or why there are not both.
    async fn join(self: &Arc<Self>, shared: &Shared, ticket: &[u8]) -> Result<Joined, Refusal> {
        let hub = shared.hub().filter(|hub| !hub.is_over() && !hub.is_draining()).ok_or_else(unavailable)?;
        let admitted = self.judge(ticket, shared.server_time())?;
        let (tunnel_id, node_id) = (admitted.tunnel_id, admitted.node_id);
        let live = hub
            .live_of(node_id)
            .ok_or_else(|| refusal("not-here", "the node's session is at another gateway, or nowhere"))?;
        let claim = Taken::claim(self, tunnel_id)
            .ok_or_else(|| refusal("spent", "somebody else is here with the ticket"))?;
        let (places, most) = match admitted.own_console {
            true => (&self.consoles, CONSOLES_MAX),
            false => (&self.places, OF_NODE_MAX),
        };
        let Some(place) = places.take(node_id) else {
            claim.let_go();
            let message = format!("a node has {most} tunnels of this kind at most, and this one has them");
            return Err(refusal("busy", &message));
        };
        let taken = self.use_up(&hub, claim, &admitted).await?;
        let (told, answer) = oneshot::channel();
        self.held().waiting.insert(tunnel_id, Waiting { node_id, told });
        let address = self.parts.own_address.clone().unwrap_or_default();
        hub.feed(&live, Input::Tunnel(OpenTunnel { ticket: bytes::Bytes::copy_from_slice(ticket), address }));
        let node = match shared.within(NODE_WITHIN, answer).await {
            Some(Ok(answer)) => answer?,
            Some(Err(_)) | None => {
                return Err(refusal("no-answer", "the node did not come; it may be busy, or just gone"));
            }
        };
        let close = CancellationToken::new();
        self.held().open.insert(tunnel_id, close.clone());
        taken.goes_on();
        self.waker.wake();
        Ok(Joined { ticket: admitted, node, close, hub, _place: place })
    }
}

impl Tunnels {
    async fn use_up<'a>(&self, hub: &Hub, claim: Taken<'a>, ticket: &Admitted) -> Result<Taken<'a>, Refusal> {
        // Waited for to its end, which the store bounds: what is dropped under way may be done later, and then nobody closes it.
        match self.parts.store.take(hub.lease, ticket.tunnel_id, ticket.node_id).await {
            Ok(true) => Ok(claim),
            Ok(false) => {
                claim.let_go();
                Err(refusal("spent", "the ticket was used, taken back, or has ended"))
            }
            // It may be used up all the same, and is told to be closed.
            Err(err) => {
                tracing::warn!(tunnel_id = %ticket.tunnel_id, err = kit::chain(&err), "ticket not looked up");
                Err(unavailable())
            }
        }
    }
}

/// Returns when the lease is lost, or may be: also while nobody has heard so, as with a database that does not answer.
async fn lease_over(hub: &Hub, clock: &dyn Clock) {
    while !hub.is_over() {
        // Both arms are cancel-safe.
        tokio::select! {
            () = hub.over().cancelled() => return,
            () = clock.sleep(LOOK_EVERY) => {}
        }
    }
}

/// Carries bytes until both ends have said their last. Gives the reason of its end.
async fn carry(
    shared: &Shared,
    mut client: TlsStream<TcpStream>,
    node: &mut TlsStream<TcpStream>,
    counts: &Arc<Counts>,
) -> &'static str {
    let ready = wire::tunnel::with_length(&TunnelReply::default());
    let told = async {
        node.write_all(&ready).await?;
        node.flush().await?;
        client.write_all(&ready).await?;
        client.flush().await
    };
    if !matches!(shared.within(REPLY_WITHIN, told).await, Some(Ok(()))) {
        return "broken";
    }
    let mut client = Counted::new(client, counts, |counts| &counts.to_node);
    let mut node = Counted::new(node, counts, |counts| &counts.to_client);
    let carried = copy_bidirectional_with_sizes(&mut client, &mut node, BUFFER_BYTES, BUFFER_BYTES);
    // The loser is dropped, and with it both connections.
    tokio::select! {
        carried = carried => match carried.map_err(|err| err.kind()) {
            Ok(_) => "closed",
            // An end that goes away without a word, as programs do that are ended.
            Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => "closed",
            Err(_) => "broken",
        },
        () = stands_still(shared, counts) => "idle",
    }
}

/// Returns when one end has said its last and nothing went through for a while.
async fn stands_still(shared: &Shared, counts: &Counts) {
    let mut before = counts.total();
    loop {
        shared.clock.sleep(HALF_OPEN_MAX).await;
        let now = counts.total();
        if counts.ended.load(Ordering::Relaxed) && now == before {
            return;
        }
        before = now;
    }
}

impl Shared {
    /// None when it takes longer.
    async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        // Both arms own what they wait for, and the loser is dropped whole.
        tokio::select! {
            done = work => Some(done),
            () = self.clock.sleep(limit) => None,
        }
    }

    async fn answer(&self, tls: &mut TlsStream<TcpStream>, refusal: Option<&Refusal>) {
        let reply = refusal.map_or_else(TunnelReply::default, |refusal| TunnelReply {
            reason: refusal.reason.clone(),
            message: refusal.message.clone(),
        });
        let said = async {
            tls.write_all(&wire::tunnel::with_length(&reply)).await?;
            tls.shutdown().await
        };
        // Whoever does not take it learns nothing, and that is all.
        let _ = self.within(REPLY_WITHIN, said).await;
    }
}

async fn read_hello(tls: &mut TlsStream<TcpStream>) -> std::io::Result<TunnelHello> {
    let mut head = [0; 2];
    tls.read_exact(&mut head).await?;
    let length = wire::tunnel::length(head).map_err(std::io::Error::other)?;
    let mut body = vec![0; length];
    tls.read_exact(&mut body).await?;
    wire::decode("tunnel hello", &body, length).map_err(std::io::Error::other)
}
