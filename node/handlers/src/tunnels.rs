//! Tunnels at a node: a connection to the gateway that waits for it, TLS inside with who asked, and what the ticket names.
//!
//! ```text
//! order -> connection to the gateway -> TLS with the other end -> reached, or why not -> bytes, until either has ended
//! ```

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::link::{ByteStream, TunnelLink};
use agent::tunnel::{Order, Refused, Target, Tunnels};
use futures::future::BoxFuture;
use kit::{Clock, Supervisor, TaskKind};
use model::InstanceId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::TunnelReply;
use wire::tunnel::{CONSOLE_DATA_BYTES_MAX, ConsoleFrame, ConsoleFrames};

use crate::sections::instances::port::{Door, Hypervisor, Trouble};
use crate::shell::{Control, Shell};

const TUNNEL: TaskKind = TaskKind::isolated("tunnel");
/// Into instances at once; each holds two sockets and their buffers.
const AT_ONCE_MAX: usize = 16;
/// On consoles of the node itself, and to its SSH server. They are counted apart: whoever sees to this node gets onto it, however many are let into what
/// runs here.
const CONSOLES_MAX: usize = 4;
/// How long the other end has to show who it is.
const GREET_WITHIN: Duration = Duration::from_secs(15);
/// How long what is to be reached has to answer.
const REACH_WITHIN: Duration = Duration::from_secs(10);
/// What a shell said before it ended is still on its way for a moment. What it left behind may hold its terminal for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);
const BUFFER_BYTES: usize = 64 * 1024;
/// Of why something is not reached: what a hypervisor says may be long, and messages of a tunnel are short.
const MESSAGE_CHARS_MAX: usize = 300;

/// That somebody may be let into instances, and onto this node.
pub const CAPABILITY_INSTANCE: &str = "tunnel.instance-dial";
pub const CAPABILITY_NODE: &str = "tunnel.node-console";
pub const CAPABILITY_NODE_SSH: &str = "tunnel.node-ssh";

/// Opens tunnels of one node. Cheap to clone.
#[derive(Clone)]
pub struct NodeTunnels(Arc<Inner>);

struct Inner {
    link: Arc<dyn TunnelLink>,
    hypervisor: Option<Arc<dyn Hypervisor>>,
    shell: Arc<dyn Shell>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    places: Arc<Semaphore>,
    consoles: Arc<Semaphore>,
    /// Cut to close all that are open.
    open: Mutex<CancellationToken>,
}

/// What a ticket led to.
enum Reached {
    Port(Box<dyn ByteStream>),
    Console(Box<dyn ByteStream>, Option<Box<dyn Control>>),
}

type Sealed = TlsStream<Box<dyn ByteStream>>;

impl NodeTunnels {
    pub fn new(
        link: Arc<dyn TunnelLink>,
        hypervisor: Option<Arc<dyn Hypervisor>>,
        shell: Arc<dyn Shell>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
    ) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        let consoles = Arc::new(Semaphore::new(CONSOLES_MAX));
        let open = Mutex::default();
        Self(Arc::new(Inner { link, hypervisor, shell, clock, supervisor, places, consoles, open }))
    }
}

impl Tunnels for NodeTunnels {
    fn open(&self, order: Order) -> bool {
        let places = match order.ticket.target {
            Target::NodeConsole | Target::NodePort(_) => &self.0.consoles,
            Target::Console(_) | Target::Port(..) => &self.0.places,
        };
        let Ok(place) = places.clone().try_acquire_owned() else { return false };
        let (inner, stop) =
            (self.0.clone(), self.0.open.lock().unwrap_or_else(PoisonError::into_inner).clone());
        self.0.supervisor.spawn(TUNNEL, move |ending| async move {
            let _place: OwnedSemaphorePermit = place;
            let (id, user) = (order.ticket.tunnel_id, order.ticket.user.clone());
            let over = inner.clock.sleep(order.lasts);
            // Whatever comes first, what the others did is dropped, and with it both connections.
            let ended = tokio::select! {
                ended = inner.serve(order) => ended,
                () = over => Ok("time-over"),
                () = stop.cancelled() => Ok("revoked"),
                () = ending.cancelled() => Ok("daemon-stops"),
            };
            match ended {
                Ok(reason) => tracing::info!(tunnel_id = %id, user, reason, "tunnel closed"),
                Err(err) => tracing::info!(tunnel_id = %id, user, err = kit::chain(&err), "tunnel broke off"),
            }
            Ok::<_, Infallible>(())
        });
        true
    }

    fn close_all(&self) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *open).cancel();
    }
}

impl Inner {
    async fn serve(&self, order: Order) -> io::Result<&'static str> {
        let ticket = &order.ticket;
        let outer = self.link.tunnel(&order.credentials, order.address.as_deref(), ticket.tunnel_id).await;
        let outer = match outer {
            Ok(outer) => outer,
            Err(err) => {
                // Nobody is there to be told inside; its gateway tells whoever asked.
                let message = format!("the node did not get to the gateway that waits: {err}");
                order.refusals.tell(Refused {
                    tunnel_id: ticket.tunnel_id.to_string(),
                    reason: "not-dialled",
                    message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
                });
                return Err(io::Error::other(err));
            }
        };
        let config = pki::tls::end_server(&order.credentials.key, ticket.client).map_err(io::Error::other)?;
        let mut inner: Sealed = self.within(GREET_WITHIN, TlsAcceptor::from(config).accept(outer)).await??;
        let reached = match self.within(REACH_WITHIN, self.reach(ticket.target)).await {
            Ok(reached) => reached,
            Err(late) => Err(Trouble { reason: "NoAnswer", message: late.to_string(), retryable: true }),
        };
        let reply = match &reached {
            Ok(_) => TunnelReply::default(),
            Err(trouble) => {
                let message = trouble.message.chars().take(MESSAGE_CHARS_MAX).collect();
                TunnelReply { reason: trouble.reason.to_owned(), message }
            }
        };
        inner.write_all(&wire::tunnel::with_length(&reply)).await?;
        inner.flush().await?;
        tracing::info!(tunnel_id = %ticket.tunnel_id, user = ticket.user, reached = ?ticket.target, reason = reply.reason, "tunnel opened");
        match reached {
            Ok(Reached::Port(mut far)) => {
                copy_bidirectional_with_sizes(&mut inner, &mut far, BUFFER_BYTES, BUFFER_BYTES).await?;
                Ok("closed")
            }
            Ok(Reached::Console(far, control)) => console(inner, far, control, &*self.clock).await,
            Err(_) => {
                inner.shutdown().await?;
                Ok("not-reached")
            }
        }
    }

    async fn reach(&self, target: Target) -> Result<Reached, Trouble> {
        match target {
            Target::NodeConsole => {
                let session = self.shell.start().map_err(|err| Trouble {
                    reason: "NoShell",
                    message: format!("failed to start a shell: {err}"),
                    retryable: false,
                })?;
                Ok(Reached::Console(session.stream, Some(session.control)))
            }
            Target::NodePort(port) => self.own_port(port).await.map(Reached::Port),
            Target::Console(id) => Ok(Reached::Console(self.instance(id, Door::Console).await?, None)),
            Target::Port(id, port) => Ok(Reached::Port(self.instance(id, Door::Port(port)).await?)),
        }
    }

    async fn own_port(&self, port: u16) -> Result<Box<dyn ByteStream>, Trouble> {
        let Some(connecting) = self.shell.ssh(port) else {
            let message = "this node has no SSH server of its own".to_owned();
            return Err(Trouble { reason: "NoSsh", message, retryable: false });
        };
        connecting.await.map_err(|err| {
            let message = format!("nothing takes connections on port {port} of the node: {err}");
            Trouble { reason: "NotReached", message, retryable: true }
        })
    }

    async fn instance(&self, id: InstanceId, door: Door) -> Result<Box<dyn ByteStream>, Trouble> {
        match &self.hypervisor {
            Some(hypervisor) => hypervisor.reach(id, door).await,
            None => {
                let message = "this host runs no instances".to_owned();
                Err(Trouble { reason: "NoHypervisor", message, retryable: false })
            }
        }
    }

    async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> io::Result<T> {
        // Both arms own what they wait for, and the loser is dropped whole.
        tokio::select! {
            done = work => Ok(done),
            () = self.clock.sleep(limit) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("nothing answered within {} s", limit.as_secs())))
            }
        }
    }
}

/// Bytes of a terminal, in frames. It ends with what is typed into, or with who types.
async fn console(
    inner: Sealed,
    far: Box<dyn ByteStream>,
    control: Option<Box<dyn Control>>,
    clock: &dyn Clock,
) -> io::Result<&'static str> {
    let (mut from_client, mut to_client) = tokio::io::split(inner);
    let (mut from_far, mut to_far) = tokio::io::split(far);
    let control = control.map(|control| (control.resizer(), control));
    let (resize, control) = control.unzip();
    let typed = async {
        let (mut frames, mut buffer) = (ConsoleFrames::default(), vec![0; CONSOLE_DATA_BYTES_MAX]);
        loop {
            let read = from_client.read(&mut buffer).await?;
            if read == 0 {
                return Ok::<_, io::Error>(());
            }
            frames.push(&buffer[..read]);
            while let Some(frame) = frames.next_frame().map_err(io::Error::other)? {
                match (frame, &resize) {
                    (ConsoleFrame::Data(data), _) => {
                        to_far.write_all(&data).await?;
                        to_far.flush().await?;
                    }
                    (ConsoleFrame::Resize { columns, rows }, Some(resize)) => resize(columns, rows),
                    (ConsoleFrame::Resize { .. } | ConsoleFrame::Exit(_), _) => {}
                }
            }
        }
    };
    let shown = async {
        let status = show(&mut from_far, &mut to_client, control, clock).await?;
        to_client.write_all(&ConsoleFrame::Exit(status).encode()).await?;
        to_client.shutdown().await
    };
    // The loser is dropped, in a frame that nobody waits for any more.
    tokio::select! {
        ended = typed => ended.map(|()| "closed"),
        ended = shown => ended.map(|()| "ended"),
    }
}

/// Shows what comes until no more does, and gives the status of what ran there. A shell ends the console when it ends, although
/// what it started may go on and hold the terminal; and one that gave up its terminal does so no earlier.
async fn show(
    far: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    control: Option<Box<dyn Control>>,
    clock: &dyn Clock,
) -> io::Result<u8> {
    let is_shell = control.is_some();
    let mut ended = match control {
        Some(control) => control.ended(),
        None => Box::pin(std::future::pending()),
    };
    let mut last: Option<(u8, BoxFuture<'static, ()>)> = None;
    let mut buffer = vec![0; CONSOLE_DATA_BYTES_MAX];
    loop {
        // Each arm is cancel-safe: nothing is read by one that loses, and the futures stay.
        let read = match &mut last {
            None => tokio::select! {
                read = far.read(&mut buffer) => read?,
                status = &mut ended => {
                    last = Some((status, clock.sleep(LAST_WORDS)));
                    continue;
                }
            },
            Some((_, over)) => tokio::select! {
                read = far.read(&mut buffer) => read?,
                () = over => 0,
            },
        };
        if read == 0 {
            return match last {
                Some((status, _)) => Ok(status),
                None if is_shell => Ok(ended.await),
                None => Ok(0),
            };
        }
        client.write_all(&ConsoleFrame::Data(buffer[..read].to_vec()).encode()).await?;
        client.flush().await?;
    }
}

#[cfg(test)]
mod tests;
