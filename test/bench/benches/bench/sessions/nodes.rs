//! The nodes: each dials, opens its session, and beats when it is told.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use anyhow::{Context as _, bail};
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kit::{Clock, Supervisor, SystemClock, TaskKind};
use model::{IncarnationId, JournalId, Lane, NodeId, Timestamp};
use pki::ca::CertificateAuthority;
use pki::tls::{ClientOptions, TlsClock, TlsIdentity, client_config};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use uuid::Uuid;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{GatewayFrame, Heartbeat, Hello, NodeFrame};

use super::{identities, part};

/// Heartbeats of each node.
pub const ROUNDS: u64 = 10;
/// More only wait for each other on a small machine.
const DIALS_AT_ONCE: usize = 32;
const CONNECTION: TaskKind = TaskKind::isolated("connection");

pub async fn run(address: SocketAddr, numbers: Range<u64>, at: Timestamp, bare: bool) -> anyhow::Result<()> {
    let (serving, node_ca) = (identities::serving_ca(at)?, identities::node_ca(at)?);
    let made =
        numbers.map(|number| identities::node(number, &node_ca, at)).collect::<anyhow::Result<Vec<_>>>()?;
    part::say(&json!("ready"));
    part::wait().await?;
    let supervisor = Supervisor::new();
    let started = Instant::now();
    let (serving, supervisor) = (&serving, &supervisor);
    let opened: Vec<(Node, Value)> = futures::stream::iter(made)
        .map(|node| async move {
            let from = Instant::now();
            let open = Node::open(address, node, serving, supervisor, bare).await?;
            anyhow::Ok((open, pair(started, from)))
        })
        .buffer_unordered(DIALS_AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<anyhow::Result<_>>()?;
    let (mut nodes, samples): (Vec<Node>, Vec<Value>) = opened.into_iter().unzip();
    part::say(&Value::Array(samples));
    part::wait().await?;
    let started = Instant::now();
    let mut rounds = Vec::new();
    for seq in 1..=ROUNDS {
        let from = Instant::now();
        for node in &nodes {
            node.say(In::Heartbeat(Heartbeat { seq, ..Heartbeat::default() }))?;
        }
        for node in &mut nodes {
            node.hears_an_ack(seq).await?;
        }
        rounds.push(pair(started, from));
    }
    part::say(&Value::Array(rounds));
    part::wait().await
}

/// When it ended and how long it took, in microseconds.
fn pair(started: Instant, from: Instant) -> Value {
    json!([started.elapsed().as_micros() as u64, from.elapsed().as_micros() as u64])
}

enum Node {
    Session(Box<Session>),
    Bare { _stream: Box<TlsStream<TcpStream>> },
}

pub struct Session {
    out: mpsc::UnboundedSender<NodeFrame>,
    incoming: tonic::Streaming<GatewayFrame>,
    _grpc: Grpc<Http2>,
}

impl Node {
    async fn open(
        address: SocketAddr,
        node: identities::Node,
        serving: &CertificateAuthority,
        supervisor: &Supervisor,
        bare: bool,
    ) -> anyhow::Result<Self> {
        let node_id = node.node_id;
        let mut tls = dial(address, config(Some(node.identity), serving)?).await?;
        if bare {
            let mut in_it = [0];
            tls.read_exact(&mut in_it).await?;
            return Ok(Self::Bare { _stream: Box::new(tls) });
        }
        Ok(Self::Session(Box::new(Session::open(address, node_id, tls, supervisor).await?)))
    }

    fn say(&self, frame: In) -> anyhow::Result<()> {
        match self {
            Self::Session(session) => session.say(frame),
            Self::Bare { .. } => bail!("a bare connection says nothing"),
        }
    }

    async fn hears_an_ack(&mut self, wanted: u64) -> anyhow::Result<()> {
        let Self::Session(session) = self else { bail!("a bare connection hears nothing") };
        match session.hears().await? {
            Out::HeartbeatAck(ack) if ack.seq == wanted => Ok(()),
            other => bail!("not the acknowledgement: {other:?}"),
        }
    }
}

fn config(
    identity: Option<TlsIdentity>,
    serving: &CertificateAuthority,
) -> anyhow::Result<Arc<ClientConfig>> {
    let clock = SystemClock::new();
    Ok(client_config(&ClientOptions {
        serving_ca_pins: vec![serving.pin()],
        known_cas: vec![],
        identity,
        clock: TlsClock::new(move || clock.now()),
        protocol: pki::tls::ALPN_H2,
    })?)
}

/// A node that can connect, again and again.
#[derive(Clone)]
pub struct Dialer {
    node_id: NodeId,
    config: Arc<ClientConfig>,
}

impl Dialer {
    pub fn new(node: identities::Node, serving: &CertificateAuthority) -> anyhow::Result<Self> {
        Ok(Self { node_id: node.node_id, config: config(Some(node.identity), serving)? })
    }

    /// Somebody without a certificate, who can shake hands and no more.
    pub fn stranger(at: Timestamp) -> anyhow::Result<Self> {
        let serving = identities::serving_ca(at)?;
        Ok(Self { node_id: NodeId::from_uuid(Uuid::nil()), config: config(None, &serving)? })
    }

    pub async fn shake(&self, tcp: TcpStream) -> anyhow::Result<TlsStream<TcpStream>> {
        shake(tcp, self.config.clone()).await
    }

    /// To its Welcome.
    pub async fn open(&self, address: SocketAddr, supervisor: &Supervisor) -> anyhow::Result<Box<Session>> {
        let tls = dial(address, self.config.clone()).await?;
        Ok(Box::new(Session::open(address, self.node_id, tls, supervisor).await?))
    }
}

async fn dial(address: SocketAddr, config: Arc<ClientConfig>) -> anyhow::Result<TlsStream<TcpStream>> {
    shake(TcpStream::connect(address).await?, config).await
}

async fn shake(tcp: TcpStream, config: Arc<ClientConfig>) -> anyhow::Result<TlsStream<TcpStream>> {
    tcp.set_nodelay(true)?;
    Ok(TlsConnector::from(config).connect(ServerName::try_from("127.0.0.1")?, tcp).await?)
}

impl Session {
    /// Of a node that has nothing to do.
    pub fn credits() -> std::collections::BTreeMap<String, u32> {
        Lane::ALL.into_iter().map(|lane| (lane.name().to_owned(), lane.credits())).collect()
    }

    async fn open(
        address: SocketAddr,
        node_id: NodeId,
        tls: TlsStream<TcpStream>,
        supervisor: &Supervisor,
    ) -> anyhow::Result<Self> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        supervisor.spawn(CONNECTION, |_| connection);
        let mut grpc = Grpc::with_origin(Http2(sender), format!("https://{address}").parse()?);
        grpc.ready().await?;
        // Unbounded, and holds one frame at most: each is answered before the next is said.
        let (out, frames) = mpsc::unbounded();
        let path = http::uri::PathAndQuery::from_static(wire::paths::SESSION);
        let codec = ProstCodec::<NodeFrame, GatewayFrame>::default();
        let incoming = grpc.streaming(tonic::Request::new(frames), path, codec).await?.into_inner();
        let mut session = Self { out, incoming, _grpc: grpc };
        session.say(In::Hello(Hello {
            node_id: node_id.to_string(),
            protocol_min: 1,
            protocol_max: 1,
            journal_id: JournalId::from_uuid(node_id.uuid()).to_string(),
            incarnation_id: IncarnationId::from_uuid(node_id.uuid()).to_string(),
            boot_id: "boot".to_owned(),
            lane_credits: Self::credits(),
            ..Hello::default()
        }))?;
        match session.hears().await? {
            Out::Welcome(_) => Ok(session),
            other => bail!("not a Welcome: {other:?}"),
        }
    }

    pub fn say(&self, frame: In) -> anyhow::Result<()> {
        Ok(self.out.unbounded_send(NodeFrame { frame: Some(frame) })?)
    }

    pub async fn hears(&mut self) -> anyhow::Result<Out> {
        let frame = self.incoming.next().await.context("the session ended")??;
        frame.frame.context("an unknown frame")
    }
}

struct Http2(SendRequest<Body>);

impl tower_service::Service<http::Request<Body>> for Http2 {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
