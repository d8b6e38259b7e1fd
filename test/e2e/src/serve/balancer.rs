//! One address in front of several, as a load balancer that passes TCP through, and a way to a socket of this machine.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use kit::{Supervisor, TaskHandle, TaskKind};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};

const ACCEPT: TaskKind = TaskKind::isolated("balancer");
const PASS: TaskKind = TaskKind::isolated("balanced connection");

/// Where connections go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

struct Backend {
    target: Target,
    takes_new: bool,
    passing: Vec<TaskHandle>,
}

pub struct Balancer {
    pub address: SocketAddr,
    backends: Arc<Mutex<Vec<Backend>>>,
    supervisor: Supervisor,
}

impl Balancer {
    pub async fn new(listen: SocketAddr, targets: Vec<Target>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let backends =
            targets.into_iter().map(|target| Backend { target, takes_new: true, passing: Vec::new() });
        let balancer = Self {
            address: listener.local_addr()?,
            backends: Arc::new(Mutex::new(backends.collect())),
            supervisor: Supervisor::new(),
        };
        let (backends, supervisor) = (balancer.backends.clone(), balancer.supervisor.clone());
        balancer.supervisor.spawn(ACCEPT, |stop| async move {
            let mut turn = 0;
            loop {
                // Cancel-safe: a connection that was not accepted waits in the kernel.
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stop.cancelled() => return Ok::<_, Infallible>(()),
                };
                let Ok((from, _)) = accepted else { continue };
                turn += 1;
                assign(&backends, &supervisor, turn, from);
            }
        });
        Ok(balancer)
    }

    /// Whether new connections go there, as a health check decides. Those that are there stay.
    pub fn set_taking(&self, target: &Target, takes_new: bool) {
        for backend in lock(&self.backends).iter_mut().filter(|backend| backend.target == *target) {
            backend.takes_new = takes_new;
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.supervisor.token().cancel();
    }
}

fn lock(backends: &Mutex<Vec<Backend>>) -> MutexGuard<'_, Vec<Backend>> {
    backends.lock().expect("no holder of this lock panics")
}

/// In turn, over those that take connections. Where nobody does, it is closed.
fn assign(backends: &Mutex<Vec<Backend>>, supervisor: &Supervisor, turn: usize, from: TcpStream) {
    let mut all = lock(backends);
    let taking = all.iter().filter(|backend| backend.takes_new).count();
    let Some(nth) = turn.checked_rem(taking) else { return };
    let Some(backend) = all.iter_mut().filter(|backend| backend.takes_new).nth(nth) else { return };
    let target = backend.target.clone();
    let handle = supervisor.spawn(PASS, |stop| async move {
        // Both ends own what they wait for; the loser is dropped whole.
        tokio::select! {
            _ = pass(from, target) => {}
            () = stop.cancelled() => {}
        }
        Ok::<_, Infallible>(())
    });
    backend.passing.retain(|passing| !passing.is_finished());
    backend.passing.push(handle);
}

async fn pass(mut from: TcpStream, target: Target) -> std::io::Result<()> {
    async fn both(from: &mut TcpStream, mut to: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        from.set_nodelay(true)?;
        copy_bidirectional(from, &mut to).await.map(drop)
    }
    match target {
        Target::Tcp(address) => {
            let to = TcpStream::connect(address).await?;
            to.set_nodelay(true)?;
            both(&mut from, to).await
        }
        Target::Unix(path) => both(&mut from, UnixStream::connect(path).await?).await,
    }
}
