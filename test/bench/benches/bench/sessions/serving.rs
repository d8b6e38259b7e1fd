//! What is measured: a gateway, or a program that only holds TLS connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fleet::PgDelivery;
use gateway::memory::MemoryDelivery;
use gateway::{Gateway, GatewayConfig, GatewayParts, Metrics, Timing, Tls};
use kernel::ports::delivery::DeliveryStore;
use kit::{Clock, OsRng, Rng, Supervisor, SystemClock, TaskKind};
use model::{GatewayId, Timestamp};
use pki::NodeTrust;
use pki::tls::{TlsClock, server_config};
use rustls::ServerConfig;
use serde_json::json;
use store::{Secret, Store, StoreConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{identities, part};

const SERVING: TaskKind = TaskKind::fatal("gateway");
const HOLDING: TaskKind = TaskKind::isolated("connection");
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How fast nodes may come in is a setting; here it is what is measured.
const NO_LIMIT: u32 = 1_000_000;

fn tls(at: Timestamp) -> anyhow::Result<(Arc<ServerConfig>, Vec<u8>)> {
    let node_ca = identities::node_ca(at)?.certificate_der().to_vec();
    let clock = SystemClock::new();
    let config = server_config(
        &identities::server(at)?,
        std::slice::from_ref(&node_ca),
        TlsClock::new(move || clock.now()),
    )?;
    Ok((config, node_ca))
}

/// With `sessions` nodes in memory.
pub async fn in_memory(sessions: u64, at: Timestamp) -> anyhow::Result<()> {
    let store = MemoryDelivery::new(Arc::new(SystemClock::new()));
    let ca = identities::node_ca(at)?;
    for number in 0..sessions {
        let node = identities::node(number, &ca, at)?;
        store.add_node(node.node_id, &node.serial);
    }
    gateway(1, at, Arc::new(store)).await
}

/// With the nodes of a database, under the role of a gateway. `number` tells it from others.
pub async fn over_postgres(number: u64, at: Timestamp, url: &str) -> anyhow::Result<()> {
    let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) = (Arc::new(SystemClock::new()), Arc::new(OsRng));
    let mut config = StoreConfig::new(Secret::new(url));
    config.role = Some("bc_gateway".to_owned());
    let config = PgDelivery::store_config(config, Timing::default().ttl);
    let delivery = PgDelivery::new(Store::open(config).await?, clock, rng);
    gateway(number, at, Arc::new(delivery)).await
}

async fn gateway(number: u64, at: Timestamp, store: Arc<dyn DeliveryStore>) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (config, node_ca) = tls(at)?;
    let trust = Arc::new(NodeTrust::new(identities::TRUST_DOMAIN.parse()?, &[&node_ca])?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let mut limits = GatewayConfig::new(GatewayId::from_uuid(Uuid::from_u128(u128::from(number))), &address);
    (limits.sessions_per_second, limits.sessions_burst) = (NO_LIMIT, NO_LIMIT);
    let supervisor = Supervisor::new();
    let gateway = Gateway::new(GatewayParts {
        config: limits,
        tls: Tls { config, trust },
        store,
        images: None,
        tunnels: None,
        clock,
        rng: Arc::new(OsRng),
        supervisor: supervisor.clone(),
        metrics: Metrics::default(),
    });
    let serving = gateway.clone();
    supervisor.spawn(SERVING, |_| async move {
        gateway.run(listener, CancellationToken::new()).await;
        Ok::<_, Infallible>(())
    });
    // Nobody is sent to it before it has its lease.
    while !serving.is_serving() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    part::say(&json!(address));
    supervisor.token().cancelled_owned().await;
    anyhow::bail!("the gateway ended: {:?}", supervisor.fatal())
}

pub async fn bare(at: Timestamp) -> anyhow::Result<()> {
    let (config, _) = tls(at)?;
    let acceptor = TlsAcceptor::from(config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    part::say(&json!(listener.local_addr()?.to_string()));
    let supervisor = Supervisor::new();
    loop {
        let (tcp, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        supervisor.spawn(HOLDING, move |_| hold(acceptor, tcp));
    }
}

async fn hold(acceptor: TlsAcceptor, tcp: TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = acceptor.accept(tcp).await?;
    // The client's own word that it is in: its handshake ends before ours.
    stream.write_all(b"!").await?;
    stream.flush().await?;
    let mut end = [0];
    stream.read(&mut end).await.map(drop)
}
