//! What a session costs: memory, and connections and heartbeats per second. The nodes run in a second process, so that what is
//! measured is the gateway's alone.
//!
//! `cargo run --release -p gateway --features testing --example session_bench -- 2000`

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use gateway::memory::MemoryDelivery;
use gateway::{Gateway, GatewayConfig, GatewayParts, Metrics, Tls};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kit::{Clock, OsRng, Supervisor, SystemClock, TaskKind};
use model::{GatewayId, IncarnationId, JournalId, NodeId, Role, SiteId, Timestamp};
use pki::ca::{CertificateAuthority, Validity};
use pki::tls::{ClientOptions, TlsClock, TlsIdentity, client_config, server_config};
use pki::{NodeName, NodeTrust, SeededEntropy, SigningKey};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;
use uuid::Uuid;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{GatewayFrame, Heartbeat, Hello, NodeFrame};

/// Dials at once. More only wait for each other on a small machine.
const DIALS_AT_ONCE: usize = 64;

fn authority(seed: u64, at: Timestamp) -> anyhow::Result<CertificateAuthority> {
    let validity = Validity::starting(at, Duration::from_secs(86_400));
    Ok(CertificateAuthority::create("bench CA", validity, &SeededEntropy::new(seed))?)
}

/// The same node in both processes.
fn node(n: u64, ca: &CertificateAuthority, at: Timestamp) -> anyhow::Result<(NodeId, String, TlsIdentity)> {
    let entropy = SeededEntropy::new(1_000 + n);
    let node_id = NodeId::from_uuid(Uuid::from_u128(u128::from(n) + 1));
    let key = SigningKey::generate(&entropy);
    let site_id = SiteId::from_uuid(Uuid::from_u128(1));
    let name = NodeName { trust_domain: "bench.test".parse()?, site_id, role: Role::Node, node_id };
    let leaf = ca.issue_node(&name, key.verifying_key(), at, &entropy)?;
    Ok((node_id, leaf.serial.to_string(), TlsIdentity { chain: vec![leaf.der], key }))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [nodes] => serve(nodes.parse()?).await,
        [mode, address, nodes, at] if mode == "nodes" => {
            connect(address.parse()?, nodes.parse()?, Timestamp::from_millis(at.parse()?)).await
        }
        _ => bail!("say how many sessions"),
    }
}

async fn serve(nodes: u64) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let at = clock.now();
    let (serving, node_ca) = (authority(1, at)?, authority(2, at)?);
    let store = MemoryDelivery::new(clock.clone());
    for n in 0..nodes {
        let (node_id, serial, _) = node(n, &node_ca, at)?;
        store.add_node(node_id, &serial);
    }
    let entropy = SeededEntropy::new(3);
    let key = SigningKey::generate(&entropy);
    let validity = Validity::starting(at, Duration::from_secs(86_400));
    let leaf = serving.issue_serving(&["127.0.0.1"], key.verifying_key(), validity, &entropy)?;
    let identity = TlsIdentity { chain: vec![leaf.der, serving.certificate_der().to_vec()], key };
    let cas = [node_ca.certificate_der()];
    let wall = clock.clone();
    let tls = Tls {
        config: server_config(&identity, &cas, TlsClock::new(move || wall.now()))?,
        trust: Arc::new(NodeTrust::new("bench.test".parse()?, &cas)?),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut config = GatewayConfig::new(GatewayId::from_uuid(Uuid::from_u128(1)), address.to_string());
    (config.sessions_per_second, config.sessions_burst) = (1_000_000, 1_000_000);
    let supervisor = Supervisor::new();
    let parts = GatewayParts {
        config,
        tls,
        store: Arc::new(store),
        clock,
        rng: Arc::new(OsRng),
        supervisor: supervisor.clone(),
        metrics: Metrics::default(),
    };
    let run = Gateway::new(parts).run(listener, CancellationToken::new());
    supervisor.spawn(TaskKind::isolated("gateway"), |_| async move {
        run.await;
        Ok::<_, std::convert::Infallible>(())
    });
    let before = usage()?;
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["nodes", &address.to_string(), &nodes.to_string(), &at.millis().to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("it is piped")?;
    let mut lines = BufReader::new(child.stdout.take().context("it is piped")?).lines();
    let mut said = async |what: &str| -> anyhow::Result<()> {
        let line = lines.next_line().await?.context("the nodes ended early")?;
        println!("{what}: {line}");
        Ok(())
    };
    said("connected").await?;
    let opened = usage()?;
    let per_node = |bytes: u64| bytes as f64 / 1024.0 / nodes as f64;
    println!(
        "gateway: {:.1} KiB per session after the Welcome, {:.0} us CPU per connect",
        per_node(opened.resident - before.resident),
        (opened.cpu - before.cpu).as_micros() as f64 / nodes as f64
    );
    stdin.write_all(b"beat\n").await?;
    said("heartbeats").await?;
    let beaten = usage()?;
    println!(
        "gateway: {:.1} KiB per session after ten heartbeats each, {:.1} us CPU per heartbeat",
        per_node(beaten.resident - before.resident),
        (beaten.cpu - opened.cpu).as_micros() as f64 / nodes as f64 / 10.0
    );
    child.kill().await?;
    Ok(())
}

async fn connect(address: SocketAddr, nodes: u64, at: Timestamp) -> anyhow::Result<()> {
    let (serving, node_ca) = (authority(1, at)?, authority(2, at)?);
    let supervisor = Supervisor::new();
    let identities = (0..nodes).map(|n| node(n, &node_ca, at)).collect::<anyhow::Result<Vec<_>>>()?;
    let started = Instant::now();
    let mut sessions: Vec<Session> = futures::stream::iter(identities)
        .map(|(node_id, _, identity)| Session::open(address, node_id, identity, &serving, &supervisor))
        .buffer_unordered(DIALS_AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect::<anyhow::Result<_>>()?;
    let took = started.elapsed();
    println!("{nodes} sessions in {took:.2?}, {:.0} a second", nodes as f64 / took.as_secs_f64());
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    let started = Instant::now();
    for seq in 1..=10 {
        for session in &sessions {
            session.say(In::Heartbeat(Heartbeat { seq, ..Heartbeat::default() }))?;
        }
        for session in &mut sessions {
            session.hears_an_ack(seq).await?;
        }
    }
    let took = started.elapsed();
    println!("{} in {took:.2?}, {:.0} a second", nodes * 10, nodes as f64 * 10.0 / took.as_secs_f64());
    std::future::pending().await
}

struct Session {
    out: mpsc::UnboundedSender<NodeFrame>,
    incoming: tonic::Streaming<GatewayFrame>,
    _grpc: Grpc<Http2>,
}

impl Session {
    async fn open(
        address: SocketAddr,
        node_id: NodeId,
        identity: TlsIdentity,
        serving: &CertificateAuthority,
        supervisor: &Supervisor,
    ) -> anyhow::Result<Self> {
        let clock = SystemClock::new();
        let config = client_config(&ClientOptions {
            serving_ca_pins: vec![serving.pin()],
            known_cas: vec![],
            identity: Some(identity),
            clock: TlsClock::new(move || clock.now()),
        })?;
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(config).connect(ServerName::try_from("127.0.0.1")?, tcp).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        supervisor.spawn(TaskKind::isolated("node"), |_| async move {
            let _ = connection.await;
            Ok::<_, std::convert::Infallible>(())
        });
        let mut grpc = Grpc::with_origin(Http2(sender), format!("https://{address}").parse()?);
        grpc.ready().await?;
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
            ..Hello::default()
        }))?;
        match session.hears().await? {
            Out::Welcome(_) => Ok(session),
            other => bail!("not a Welcome: {other:?}"),
        }
    }

    fn say(&self, frame: In) -> anyhow::Result<()> {
        Ok(self.out.unbounded_send(NodeFrame { frame: Some(frame) })?)
    }

    async fn hears(&mut self) -> anyhow::Result<Out> {
        let frame = self.incoming.next().await.context("the session ended")??;
        frame.frame.context("an unknown frame")
    }

    async fn hears_an_ack(&mut self, wanted: u64) -> anyhow::Result<()> {
        match self.hears().await? {
            Out::HeartbeatAck(ack) if ack.seq == wanted => Ok(()),
            other => bail!("not the acknowledgement: {other:?}"),
        }
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

struct Usage {
    resident: u64,
    cpu: Duration,
}

/// Of this process, from procfs.
fn usage() -> anyhow::Result<Usage> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|text| text.trim().split(' ').next())
        .context("procfs says VmRSS")?;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Usage { resident: resident.parse::<u64>()? * 1024, cpu: Duration::from_millis(ticks * 10) })
}
