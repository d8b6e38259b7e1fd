//! One TCP connection: TLS, whose certificate it is, then HTTP/2. Its calls run in its own task, so that nothing outlives it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kernel::BoxFuture;
use pki::tls::ALPN_TUNNEL;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;

use crate::admission::counted_as;
use crate::server::Shared;
use crate::session::Peer;
use crate::{service, tunnels};

/// A node's handshake takes three round trips and some milliseconds of work.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// A connection without a call is closed after this long.
const IDLE: Duration = Duration::from_secs(20);
/// A connection that carries no session has this long: a call takes its request's and its worker's time, and what comes after
/// that is somebody who does not read.
const LIFE: Duration = Duration::from_secs(60);
/// How long what is unsent has once the connection should close.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// A session, and a renewal beside it.
const STREAMS_MAX: u32 = 4;
/// The least that HTTP/2 allows to announce without a change of settings; a frame larger than it takes several turns.
const WINDOW_BYTES: u32 = 65_535;
const FRAME_BYTES: u32 = 16_384;
const SEND_BUFFER_BYTES: usize = 16 * 1024;
const HEADER_BYTES_MAX: u32 = 8 * 1024;
/// Streams reset before they were looked at: more are an attack.
const RESETS_MAX: usize = 8;

/// What the calls of a connection know of it.
pub(crate) struct Conn {
    pub(crate) peer: Option<Peer>,
    pub(crate) source: IpAddr,
    /// Cuts the connection. Cut as well when all connections are.
    pub(crate) kill: CancellationToken,
    calls: AtomicUsize,
    /// It carried a session: once that has ended there is nothing more to say.
    session: AtomicBool,
}

impl Conn {
    /// Makes it the connection of a session; not when it has been one before.
    pub(crate) fn hold_session(&self) -> bool {
        !self.session.swap(true, Ordering::SeqCst)
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::SeqCst) == 0
    }
}

/// Serves one accepted connection to its end.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    tcp: TcpStream,
    source: IpAddr,
    shaking: OwnedSemaphorePermit,
    stop: CancellationToken,
) {
    let Some((tls, peer)) = Box::pin(handshake(&shared, tcp, source, &stop)).await else { return };
    drop(shaking);
    let mut anonymous = None;
    if peer.is_none() {
        anonymous = shared.anonymous.take(counted_as(source));
        if anonymous.is_none() {
            shared.metrics.handshake("anonymous_full");
            return;
        }
    }
    if tls.get_ref().1.alpn_protocol() == Some(ALPN_TUNNEL) {
        shared.metrics.connection(1);
        Box::pin(tunnels::serve(shared.clone(), tls, peer, source, anonymous, stop)).await;
        return shared.metrics.connection(-1);
    }
    let conn = Arc::new(Conn {
        peer,
        source,
        kill: stop.child_token(),
        calls: AtomicUsize::new(0),
        session: AtomicBool::new(false),
    });
    let _of_node = conn.peer.as_ref().map(|peer| shared.nodes.enter(peer.node_id, conn.kill.clone()));
    shared.metrics.connection(1);
    Box::pin(serve_http2(&shared, tls, &conn)).await;
    shared.metrics.connection(-1);
    drop(anonymous);
}

async fn handshake(
    shared: &Shared,
    tcp: TcpStream,
    source: IpAddr,
    stop: &CancellationToken,
) -> Option<(TlsStream<TcpStream>, Option<Peer>)> {
    let tls = shared.tls();
    let _ = tcp.set_nodelay(true);
    let accept = TlsAcceptor::from(tls.config.clone()).accept(tcp);
    // Every arm owns what it waits for, and the losers are dropped whole.
    let accepted = tokio::select! {
        accepted = accept => accepted,
        () = shared.clock.sleep(HANDSHAKE_WITHIN) => {
            shared.metrics.handshake("late");
            return None;
        }
        () = stop.cancelled() => return None,
    };
    let stream = match accepted {
        Ok(stream) => stream,
        Err(err) => {
            shared.metrics.handshake("failed");
            tracing::debug!(source_ip = %source, err = kit::chain(&err), "handshake failed");
            return None;
        }
    };
    let at = shared.server_time();
    match pki::tls::peer_identity(stream.get_ref().1, &tls.trust, at) {
        Ok(identity) => {
            shared.metrics.handshake(if identity.is_some() { "node" } else { "anonymous" });
            let peer = identity.map(|identity| Peer {
                node_id: identity.node_id,
                cert_serial: identity.serial.to_string(),
                cert_ends: identity.not_after,
            });
            Some((stream, peer))
        }
        Err(err) => {
            shared.metrics.handshake("refused");
            tracing::warn!(target: "security", source_ip = %source, err = %err, "peer certificate refused");
            None
        }
    }
}

async fn serve_http2(shared: &Arc<Shared>, tls: TlsStream<TcpStream>, conn: &Arc<Conn>) {
    let calls = Calls::default();
    let service = service_fn(|request: Request<Incoming>| call(shared.clone(), conn.clone(), request));
    let mut connection = pin!(
        http2::Builder::new(calls.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(tls), service)
    );
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    // Until it carries a session.
    let mut limits = Some((shared.clock.sleep(IDLE), shared.clock.sleep(LIFE)));
    let mut closing: Option<BoxFuture<'static, ()>> = None;
    let mut killed = pin!(conn.kill.cancelled());
    poll_fn(|cx| {
        if killed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                if let Err(err) = ended {
                    tracing::debug!(source_ip = %conn.source, err = kit::chain(&err), "connection ended");
                }
                return Poll::Ready(());
            }
            calls.take(&running);
            let mut progress = false;
            while let Poll::Ready(Some(())) = running.poll_next_unpin(cx) {
                progress = true;
            }
            // A call that ended left its last frames with the connection.
            if !progress && calls.is_empty() {
                break;
            }
        }
        if closing.is_none() {
            let over = match &mut limits {
                _ if conn.session.load(Ordering::SeqCst) => {
                    limits = None;
                    conn.is_idle()
                }
                Some((idle, life)) => {
                    let outlived = life.as_mut().poll(cx).is_ready();
                    let unused = idle.as_mut().poll(cx).is_ready();
                    if unused && !conn.is_idle() && !outlived {
                        *idle = shared.clock.sleep(IDLE);
                        cx.waker().wake_by_ref();
                        false
                    } else {
                        unused || outlived
                    }
                }
                None => false,
            };
            if over {
                connection.as_mut().graceful_shutdown();
                closing = Some(shared.clock.sleep(CLOSE_WITHIN));
                cx.waker().wake_by_ref();
            }
        }
        match &mut closing {
            Some(closing) => closing.as_mut().poll(cx),
            None => Poll::Pending,
        }
    })
    .await;
}

async fn call(
    shared: Arc<Shared>,
    conn: Arc<Conn>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let counted = Counted::new(conn.clone());
    let response = Box::pin(service::answer(shared, conn, request)).await;
    // The call lasts as long as its body.
    Ok(response.map(|body| Body::new(HoldingBody { body, _counted: counted })))
}

/// Counts a call from its request to the end of its response.
struct Counted(Arc<Conn>);

impl Counted {
    fn new(conn: Arc<Conn>) -> Self {
        conn.calls.fetch_add(1, Ordering::SeqCst);
        Self(conn)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

struct HoldingBody {
    body: Body,
    _counted: Counted,
}

impl http_body::Body for HoldingBody {
    type Data = bytes::Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Runs the calls of a connection inside its own task. Dropping the connection drops them.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl Calls {
    fn take(&self, running: &FuturesUnordered<BoxFuture<'static, ()>>) {
        let new = std::mem::take(&mut *self.0.lock().expect("no holder of this lock panics"));
        new.into_iter().for_each(|call| running.push(call));
    }

    fn is_empty(&self) -> bool {
        self.0.lock().expect("no holder of this lock panics").is_empty()
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.lock().expect("no holder of this lock panics").push(Box::pin(call));
    }
}
