//! What stands before gateways: passes connections on to one of them, in turn, as a load balancer for TCP does. One that refuses a
//! connection is passed over for the next at once; one that does not answer a TLS handshake in time, twice in a row, gets none until
//! it does. A gateway can be cut off: then nothing gets through to it or back, and nobody is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, bail};
use kit::{Supervisor, TaskKind};
use model::Timestamp;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::sessions::{nodes, part};

const CONNECTION: TaskKind = TaskKind::isolated("relayed connection");
const ACCEPTING: TaskKind = TaskKind::fatal("relay");
const CHECKING: TaskKind = TaskKind::fatal("relay health checks");
const CONNECTS_WITHIN: Duration = Duration::from_secs(2);
/// Of a health check: a TLS handshake, so that the kernel's word for a process that stands still is not enough.
const CHECK_EVERY: Duration = Duration::from_secs(1);
const CHECK_WITHIN: Duration = Duration::from_secs(2);
const FAILS_MAX: u32 = 2;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The server's half of a handshake in one piece.
const BUFFER_BYTES: usize = 4096;

struct Backend {
    address: SocketAddr,
    cut: bool,
    /// Checks that failed since the last that did not.
    failed: u32,
}

impl Backend {
    fn at(address: SocketAddr) -> Self {
        Self { address, cut: false, failed: 0 }
    }
}

#[derive(Clone)]
struct Relay {
    backends: Arc<Mutex<Vec<Backend>>>,
    next: Arc<AtomicUsize>,
    /// Ends what is carried.
    carried: Arc<Mutex<CancellationToken>>,
}

/// Says where it listens, and then does a line at a time: `cut N`, `set N ADDRESS`, and `spread`, which has every node connect anew.
pub async fn run(addresses: Vec<SocketAddr>, at: Timestamp) -> anyhow::Result<()> {
    let count = addresses.len();
    let backends = addresses.into_iter().map(Backend::at).collect();
    let relay =
        Relay { backends: Arc::new(Mutex::new(backends)), next: Arc::default(), carried: Arc::default() };
    let checker = nodes::Dialer::stranger(at)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    part::say(&json!(listener.local_addr()?.to_string()));
    let supervisor = Supervisor::new();
    for number in 0..count {
        let (relay, checker) = (relay.clone(), checker.clone());
        supervisor.spawn(CHECKING, move |_| async move { relay.check(number, &checker).await });
    }
    let (accepting, connections) = (relay.clone(), supervisor.clone());
    supervisor.spawn(ACCEPTING, |_| async move {
        loop {
            let (tcp, _) = listener.accept().await?;
            let relay = accepting.clone();
            connections.spawn(CONNECTION, |_| async move { relay.pass(tcp).await });
        }
        #[allow(unreachable_code)]
        std::io::Result::Ok(())
    });
    loop {
        let line = part::line().await?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut backends = relay.lock();
        match words.as_slice() {
            ["cut", number] => {
                backends.get_mut(number.parse::<usize>()?).context("no such gateway")?.cut = true
            }
            ["set", number, address] => {
                let backend = backends.get_mut(number.parse::<usize>()?).context("no such gateway")?;
                *backend = Backend::at(address.parse()?);
            }
            ["spread"] => relay.spread(),
            other => bail!("not an order: {other:?}"),
        }
        drop(backends);
        part::say(&json!("done"));
    }
}

impl Relay {
    fn lock(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.backends.lock().expect("no holder of this lock panics")
    }

    fn spread(&self) {
        std::mem::take(&mut *self.carried.lock().expect("no holder of this lock panics")).cancel();
    }

    /// All of them, in the order in which this connection tries them: first those that answer checks, beginning with whose turn it is.
    fn order(&self) -> Vec<(usize, SocketAddr)> {
        let backends = self.lock();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let turns = (0..backends.len()).map(|at| (first + at) % backends.len());
        let (well, ill): (Vec<usize>, Vec<usize>) = turns.partition(|at| backends[*at].failed < FAILS_MAX);
        well.into_iter().chain(ill).map(|at| (at, backends[at].address)).collect()
    }

    /// Whether what stands at this address is cut off; what stood there before is gone, and its connections with it.
    fn is_cut(&self, number: usize, address: SocketAddr) -> bool {
        let backends = self.lock();
        backends[number].cut && backends[number].address == address
    }

    async fn connect(&self, number: usize, address: SocketAddr) -> Option<TcpStream> {
        if self.is_cut(number, address) {
            // Nothing comes back at all.
            tokio::time::sleep(CONNECTS_WITHIN).await;
            return None;
        }
        tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(address)).await.ok()?.ok()
    }

    async fn check(self, number: usize, checker: &nodes::Dialer) -> std::io::Result<()> {
        let mut every = tokio::time::interval(CHECK_EVERY);
        loop {
            every.tick().await;
            let address = self.lock()[number].address;
            let handshake = async {
                match self.connect(number, address).await {
                    Some(tcp) => checker.shake(tcp).await.is_ok(),
                    None => false,
                }
            };
            let answers = tokio::time::timeout(CHECK_WITHIN, handshake).await.unwrap_or(false);
            let backend = &mut self.lock()[number];
            if backend.address == address {
                backend.failed = if answers { 0 } else { backend.failed + 1 };
            }
        }
    }

    async fn pass(self, node: TcpStream) -> std::io::Result<()> {
        for (number, address) in self.order() {
            if let Some(gateway) = self.connect(number, address).await {
                return self.carry(number, address, node, gateway).await;
            }
        }
        Ok(())
    }

    async fn carry(
        &self,
        number: usize,
        address: SocketAddr,
        node: TcpStream,
        gateway: TcpStream,
    ) -> std::io::Result<()> {
        node.set_nodelay(true)?;
        gateway.set_nodelay(true)?;
        let (mut from_node, mut to_node) = node.into_split();
        let (mut from_gateway, mut to_gateway) = gateway.into_split();
        let carried = self.carried.lock().expect("no holder of this lock panics").clone();
        // Either end ends both.
        tokio::select! {
            () = carried.cancelled() => Ok(()),
            ended = self.copy(number, address, &mut from_node, &mut to_gateway) => ended,
            ended = self.copy(number, address, &mut from_gateway, &mut to_node) => ended,
        }
    }

    /// Until the end, or as long as the gateway is cut off: then neither a byte nor an end gets through.
    async fn copy(
        &self,
        number: usize,
        address: SocketAddr,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> std::io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = from.read(&mut buffer).await?;
            while self.is_cut(number, address) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if read == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..read]).await?;
        }
    }
}
