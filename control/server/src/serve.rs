//! Listening, TLS, connections, and an end that lets calls finish.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use kernel::Pipeline;
use kernel::events::EventReader;
use kernel::run::Running;
use kit::TaskKind;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::routes::{Peer, router};
use crate::tls::{self, TlsError};
use crate::vitals::Vitals;
use crate::{ServerConfig, Shared, stream, tail};

const ACCEPT: TaskKind = TaskKind::fatal("api_accept");
const CONNECTION: TaskKind = TaskKind::isolated("api_connection");

/// Open connections: what the file limit of a usual service allows beside the database's.
const CONNECTIONS_MAX: usize = 16_384;
/// A client that has not finished its handshake, or its headers, by then is not one.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// HTTP/2: requests of one connection at once.
const H2_STREAMS_MAX: u32 = 128;
const H2_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Bytes of one request's headers.
const HEADER_BYTES_MAX: u32 = 32 * 1024;
/// What one connection may have sent that nobody asked for yet: of HTTP/1 the read buffer, of HTTP/2 the windows. A body
/// is asked for once its caller is known.
const UNREAD_BYTES_MAX: usize = 64 * 1024;
const H2_STREAM_WINDOW: u32 = 64 * 1024;
const H2_CONNECTION_WINDOW: u32 = 256 * 1024;
/// After a failed accept, usually for want of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(
        "listen on {address}: it is not a loopback address, so it needs a certificate or trusted proxies"
    )]
    Exposed { address: SocketAddr },
    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("load the certificate of the API")]
    Tls(#[from] TlsError),
    #[error("read the newest event")]
    Events(#[from] store::StoreError),
}

/// The running front.
pub struct Server {
    address: SocketAddr,
    tls: bool,
    vitals: Arc<Vitals>,
}

impl Server {
    /// Listens and serves until the supervisor of `running` stops. Returns once requests are taken.
    pub async fn start(
        config: ServerConfig,
        pipeline: Arc<Pipeline>,
        running: Running,
    ) -> Result<Server, ServerError> {
        let address = config.listen;
        if !address.ip().is_loopback() && config.tls.is_none() && config.trusted_proxies.is_empty() {
            return Err(ServerError::Exposed { address });
        }
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let tls = match config.tls.clone() {
            Some(files) => Some(tls::watch(files, &running).await?),
            None => None,
        };
        let has_tls = tls.is_some();
        let shared = Arc::new(shared(config, pipeline, running).await?);
        let vitals = shared.vitals.clone();
        let acceptor = Acceptor { router: router(shared.clone()), shared: shared.clone(), tls };
        shared.running.supervisor.spawn(ACCEPT, move |cancel| async move {
            acceptor.run(listener, cancel).await;
            Ok::<(), Infallible>(())
        });
        Ok(Server { address, tls: has_tls, vitals })
    }

    /// Where it listens: of interest when the configured port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For another listener that shows the same.
    pub fn vitals(&self) -> Arc<Vitals> {
        self.vitals.clone()
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }
}

async fn shared(
    config: ServerConfig,
    pipeline: Arc<Pipeline>,
    running: Running,
) -> Result<Shared, ServerError> {
    let reader = EventReader::new(running.store.clone());
    Ok(Shared {
        tail: tail::Tail::start(&reader, &running).await?,
        reader,
        vitals: Vitals::of_api(&running, &config.parts),
        openapi: Bytes::from(api::openapi().to_string()),
        discovery: Bytes::from(config.discovery.to_string()),
        streams: stream::Streams::default(),
        bodies: crate::bodies::Bodies::default(),
        contents: crate::content::Places::default(),
        pipeline,
        running,
        config,
    })
}

struct Acceptor {
    router: Router,
    shared: Arc<Shared>,
    tls: Option<watch::Receiver<Arc<rustls::ServerConfig>>>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener, cancel: CancellationToken) {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Cancel-safe: what was accepted is returned, and a permit that was not used comes back.
            let next = cancel.run_until_cancelled(async {
                let permit = room.clone().acquire_owned().await.expect("it is never closed");
                (permit, listener.accept().await)
            });
            match next.await {
                None => return,
                Some((permit, Ok((socket, peer)))) => self.connected(socket, Peer(peer), permit),
                Some((_, Err(err))) => {
                    tracing::warn!(err = %err, "failed to accept a connection");
                    self.shared.running.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn connected(&self, socket: TcpStream, peer: Peer, permit: OwnedSemaphorePermit) {
        if self.tls.is_none() && !self.shared.config.takes_plain(peer.0.ip()) {
            tracing::debug!(peer = %peer.0, "plain connection refused: not from a trusted proxy");
            return;
        }
        // Answers are small and wanted at once.
        let _ = socket.set_nodelay(true);
        let router = self.router.clone();
        let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.borrow().clone()));
        let shared = self.shared.clone();
        self.shared.running.supervisor.spawn(CONNECTION, move |cancel| async move {
            let _permit = permit;
            shared.vitals.metrics.connections.inc();
            match tls {
                None => http(socket, router, peer, cancel).await,
                Some(tls) => match tokio::time::timeout(HANDSHAKE_WITHIN, tls.accept(socket)).await {
                    Ok(Ok(socket)) => http(socket, router, peer, cancel).await,
                    Ok(Err(err)) => tracing::debug!(err = %err, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake took too long"),
                },
            }
            shared.vitals.metrics.connections.dec();
            Ok::<(), Infallible>(())
        });
    }
}

pub(crate) async fn http<S>(socket: S, router: Router, peer: Peer, cancel: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = router.map_request(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        request.map(axum::body::Body::new)
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(UNREAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .keep_alive_interval(H2_KEEP_ALIVE);
    let connection = builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    // Both arms are cancel-safe: the connection goes on below, and a token stays cancelled.
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = done {
        tracing::debug!(err = err.to_string(), "connection ended badly");
    }
}
