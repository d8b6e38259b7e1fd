//! What stands before gateways: passes connections on to one of them, in turn, and leaves one alone for a while that does not answer.
//! A gateway can be cut off: then nothing gets through to it or back, and nobody is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kit::{Supervisor, TaskKind};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::sessions::part;

const CONNECTION: TaskKind = TaskKind::isolated("relayed connection");
const ACCEPTING: TaskKind = TaskKind::fatal("relay");
/// A gateway that has not answered the first bytes of a connection by then is left alone for a while.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const LEFT_ALONE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 16 * 1024;

struct Backend {
    address: SocketAddr,
    cut: bool,
    alone_until: Option<Instant>,
}

#[derive(Clone)]
struct Relay {
    backends: Arc<Mutex<Vec<Backend>>>,
    next: Arc<AtomicUsize>,
}

/// Says where it listens, and then does a line at a time: `cut N` and `set N ADDRESS`.
pub async fn run(addresses: Vec<SocketAddr>) -> anyhow::Result<()> {
    let backends = addresses.into_iter().map(|address| Backend { address, cut: false, alone_until: None });
    let relay = Relay { backends: Arc::new(Mutex::new(backends.collect())), next: Arc::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    part::say(&json!(listener.local_addr()?.to_string()));
    let supervisor = Supervisor::new();
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
                *backend = Backend { address: address.parse()?, cut: false, alone_until: None };
            }
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

    /// One that is not left alone, in turn; else any.
    fn choose(&self) -> (usize, SocketAddr) {
        let backends = self.lock();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let turn = |at: usize| (first + at) % backends.len();
        let now = Instant::now();
        let answers = |number: &usize| backends[*number].alone_until.is_none_or(|until| until <= now);
        let number = (0..backends.len()).map(turn).find(answers).unwrap_or(turn(0));
        (number, backends[number].address)
    }

    fn leave_alone(&self, number: usize, address: SocketAddr) {
        let mut backends = self.lock();
        if backends[number].address == address {
            backends[number].alone_until = Some(Instant::now() + LEFT_ALONE);
        }
    }

    /// Whether what stands at this address is cut off; what stood there before is gone, and its connections with it.
    fn is_cut(&self, number: usize, address: SocketAddr) -> bool {
        let backends = self.lock();
        backends[number].cut && backends[number].address == address
    }

    async fn pass(self, node: TcpStream) -> std::io::Result<()> {
        let (number, address) = self.choose();
        let connected = match self.is_cut(number, address) {
            // Nothing comes back at all.
            true => {
                tokio::time::sleep(ANSWERS_WITHIN).await;
                None
            }
            false => TcpStream::connect(address).await.ok(),
        };
        let Some(gateway) = connected else {
            self.leave_alone(number, address);
            return Ok(());
        };
        node.set_nodelay(true)?;
        gateway.set_nodelay(true)?;
        let (mut from_node, mut to_node) = node.into_split();
        let (mut from_gateway, mut to_gateway) = gateway.into_split();
        let mut first = vec![0; BUFFER_BYTES];
        let there = async {
            let asked = from_node.read(&mut first).await?;
            to_gateway.write_all(&first[..asked]).await?;
            self.copy(number, address, &mut from_node, &mut to_gateway).await
        };
        let back = async {
            let mut first = vec![0; BUFFER_BYTES];
            match tokio::time::timeout(ANSWERS_WITHIN, from_gateway.read(&mut first)).await {
                Ok(answered) => to_node.write_all(&first[..answered?]).await?,
                Err(_) => {
                    self.leave_alone(number, address);
                    return Ok(());
                }
            }
            drop(first);
            self.copy(number, address, &mut from_gateway, &mut to_node).await
        };
        // Either end ends both.
        tokio::select! {
            ended = there => ended,
            ended = back => ended,
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
        let mut buffer = vec![0; 1024];
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
