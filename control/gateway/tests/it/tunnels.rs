//! Ends of tunnels, as a gateway joins them: real sockets, real TLS, and rows that a test keeps.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::join_all;
use gateway::TunnelParts;
use gateway::memory::MemoryDelivery;
use kernel::ports::delivery::{Delivered, DeliveryError, GatewayLease};
use kernel::ports::tunnels::{TicketStore, TunnelClosed};
use model::{DeploymentId, GatewayId, InstanceId, NodeId, TunnelId};
use pki::tls::{ALPN_TUNNEL, ClientOptions, client_config};
use pki::worker::{CommandVerifier, IntentSigner, WorkerCertificate, WorkerKeyStatement};
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::tunnel_hello::End;
use wire::proto::agent::{
    ExecTicket, OpenTunnel, SignedTicket, TunnelHello, TunnelOp, TunnelRefused, TunnelReply,
};
use wire::proto::common::IntentSignature;

use crate::client::{Stream, greet, hello};
use crate::lab::{Lab, Machine, Running};

mod ending;
mod joining;
mod refusing;

/// How long a test waits for what should come at once, or within a look or two.
const SOON: Duration = Duration::from_secs(15);

/// Rows of tickets, kept by hand.
#[derive(Clone, Default)]
struct Tickets(Arc<Mutex<Rows>>);

#[derive(Default)]
struct Rows {
    issued: HashMap<TunnelId, NodeId>,
    taken: HashSet<TunnelId>,
    revoked: HashSet<TunnelId>,
    closed: Vec<TunnelClosed>,
    /// What is done is not answered, as when a connection breaks off with its commit.
    take_breaks_off: bool,
    closed_fails: bool,
}

impl Tickets {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Once it is told.
    async fn closed(&self, tunnel_id: TunnelId) -> TunnelClosed {
        testkit::eventually(SOON, || async {
            let rows = self.rows();
            let told: Vec<_> = rows.closed.iter().filter(|one| one.tunnel_id == tunnel_id).cloned().collect();
            match told.as_slice() {
                [one] => Ok(one.clone()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}

fn broken_off() -> DeliveryError {
    DeliveryError::Unavailable("the connection broke off".into())
}

impl TicketStore for Tickets {
    fn take<'a>(&'a self, _: GatewayLease, tunnel_id: TunnelId, node_id: NodeId) -> Delivered<'a, bool> {
        let mut rows = self.rows();
        let good = rows.issued.get(&tunnel_id) == Some(&node_id) && !rows.revoked.contains(&tunnel_id);
        let taken = good && rows.taken.insert(tunnel_id);
        let answer = if rows.take_breaks_off { Err(broken_off()) } else { Ok(taken) };
        Box::pin(async move { answer })
    }

    fn ended<'a>(&'a self, _: GatewayLease, open: Vec<TunnelId>) -> Delivered<'a, Vec<TunnelId>> {
        let rows = self.rows();
        let ended = open.into_iter().filter(|id| rows.revoked.contains(id)).collect();
        Box::pin(async move { Ok(ended) })
    }

    fn closed<'a>(&'a self, _: GatewayLease, closed: Vec<TunnelClosed>) -> Delivered<'a, ()> {
        let mut rows = self.rows();
        let answer = if rows.closed_fails {
            Err(broken_off())
        } else {
            rows.closed.extend(closed);
            Ok(())
        };
        Box::pin(async move { answer })
    }
}

/// A deployment's worker key, under a root of its own.
struct Worker {
    root: SigningKey,
    signer: IntentSigner,
}

const DEPLOYMENT: DeploymentId = DeploymentId::from_uuid(Uuid::from_u128(7));

impl Worker {
    fn new(lab: &Lab) -> Self {
        let (root, key) = (SigningKey::generate(&OsEntropy), SigningKey::generate(&OsEntropy));
        let now = lab.clock.now();
        let statement = WorkerKeyStatement {
            key: key.verifying_key().clone(),
            deployment_id: DEPLOYMENT,
            not_before: now.saturating_sub(Duration::from_secs(60)),
            not_after: now.saturating_add(Duration::from_secs(3600)),
        };
        let certificate = WorkerCertificate::issue(&root, statement);
        let signer = IntentSigner::new(key, certificate).expect("it is for this key");
        Self { root, signer }
    }

    fn sign(&self, ticket: &ExecTicket, purpose: Purpose) -> Vec<u8> {
        let ticket = ticket.encode_to_vec();
        let value = self.signer.sign(purpose, &ticket).encode().into();
        SignedTicket { ticket: ticket.into(), signature: Some(IntentSignature { value }) }.encode_to_vec()
    }
}

struct Bench {
    lab: Lab,
    store: MemoryDelivery,
    tickets: Tickets,
    worker: Worker,
    gateway: Running,
    gateway_id: GatewayId,
}

impl Bench {
    async fn new() -> Self {
        let lab = Lab::new();
        let store = MemoryDelivery::new(lab.clock.clone());
        let (tickets, worker) = (Tickets::default(), Worker::new(&lab));
        let parts = TunnelParts {
            store: Arc::new(tickets.clone()),
            verifier: CommandVerifier::new(DEPLOYMENT, &[worker.root.verifying_key().clone()]),
            own_address: Some("gw-1.example.test:8443".to_owned()),
        };
        let gateway_id = GatewayId::from_uuid(Uuid::new_v4());
        let own = Arc::new(store.clone());
        let gateway = lab.gateway_that_joins(own, Some(parts), |config| config.gateway_id = gateway_id).await;
        Self { lab, store, tickets, worker, gateway, gateway_id }
    }

    /// One with a session.
    async fn node(&self) -> (Machine, Stream) {
        let machine = self.machine();
        let mut session = greet(&self.lab, self.gateway.address, &machine, hello(&machine)).await;
        session.welcome().await;
        (machine, session)
    }

    fn machine(&self) -> Machine {
        let machine = self.lab.machine();
        self.store.add_node(machine.node_id, &machine.serial);
        machine
    }

    fn ticket(&self, machine: &Machine) -> ExecTicket {
        let tunnel_id = TunnelId::from_uuid(Uuid::new_v4());
        self.tickets.rows().issued.insert(tunnel_id, machine.node_id);
        let now = u64::try_from(self.lab.clock.now().millis()).expect("it is after 1970");
        ExecTicket {
            tunnel_id: tunnel_id.to_string(),
            node_id: machine.node_id.to_string(),
            instance_id: InstanceId::from_uuid(Uuid::from_u128(1)).to_string(),
            op: TunnelOp::Ssh.into(),
            port: 22,
            client_key_sha256: vec![1; 32].into(),
            open_until_ms: now + 60_000,
            ends_at_ms: now + 3_600_000,
            ..ExecTicket::default()
        }
    }

    fn signed(&self, ticket: &ExecTicket) -> Vec<u8> {
        self.worker.sign(ticket, Purpose::ExecTicket)
    }

    /// An end that has said what it wants.
    async fn end(&self, machine: Option<&Machine>, end: End) -> TlsStream<TcpStream> {
        let mut stream = connected(&self.lab, &self.gateway, machine).await;
        let hello = wire::tunnel::with_length(&TunnelHello { end: Some(end) });
        // One that the gateway cut at once is seen to be so by who reads.
        let _ = stream.write_all(&hello).await;
        let _ = stream.flush().await;
        stream
    }

    async fn client(&self, ticket: &ExecTicket) -> TlsStream<TcpStream> {
        self.end(None, End::Ticket(self.signed(ticket).into())).await
    }

    /// What a client is told whose ticket leads nowhere.
    async fn refused(&self, ticket: &[u8]) -> String {
        let mut client = self.end(None, End::Ticket(ticket.to_vec().into())).await;
        let reason = reply(&mut client).await.expect("it is told why").reason;
        over(&mut client).await;
        reason
    }

    /// Both ends of a new tunnel.
    async fn joined(
        &self,
        machine: &Machine,
        session: &mut Stream,
    ) -> (TunnelId, TlsStream<TcpStream>, TlsStream<TcpStream>) {
        let ticket = self.ticket(machine);
        let mut client = self.client(&ticket).await;
        asked(session).await;
        let mut node = self.end(Some(machine), End::TunnelId(ticket.tunnel_id.clone())).await;
        assert_eq!(reply(&mut node).await.expect("it is joined"), TunnelReply::default());
        assert_eq!(reply(&mut client).await.expect("it is joined"), TunnelReply::default());
        (id(&ticket), client, node)
    }
}

fn id(ticket: &ExecTicket) -> TunnelId {
    ticket.tunnel_id.parse().expect("it is one")
}

async fn connected(lab: &Lab, gateway: &Running, machine: Option<&Machine>) -> TlsStream<TcpStream> {
    let options = ClientOptions {
        serving_ca_pins: vec![lab.serving_ca.pin()],
        known_cas: vec![],
        identity: machine.map(|machine| machine.tls.clone()),
        clock: lab.tls_clock(),
        protocol: ALPN_TUNNEL,
    };
    let config = client_config(&options).expect("it fits");
    let tcp = TcpStream::connect(gateway.address).await.expect("the gateway listens");
    let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
    TlsConnector::from(config).connect(name, tcp).await.expect("the gateway takes the connection")
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.unwrap_or_else(|_| panic!("nothing came within {SOON:?}"))
}

async fn reply(stream: &mut TlsStream<TcpStream>) -> io::Result<TunnelReply> {
    within(async {
        let mut head = [0; 2];
        stream.read_exact(&mut head).await?;
        let mut body = vec![0; wire::tunnel::length(head).map_err(io::Error::other)?];
        stream.read_exact(&mut body).await?;
        wire::decode("tunnel reply", &body, body.len()).map_err(io::Error::other)
    })
    .await
}

/// Nothing more comes, with or without a word.
async fn over(stream: &mut TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    let _ = within(stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "{} bytes came", rest.len());
}

/// What the gateway asks of a node whose end of a tunnel is wanted.
async fn asked(session: &mut Stream) -> OpenTunnel {
    session
        .until(|frame| match frame {
            Out::OpenTunnel(open) => Some(open),
            _ => None,
        })
        .await
}

fn will_not(session: &Stream, tunnel_id: &str, reason: &str) {
    session.send(In::TunnelRefused(TunnelRefused {
        tunnel_id: tunnel_id.to_owned(),
        reason: reason.to_owned(),
        message: "no\nroom".to_owned(),
    }));
}
