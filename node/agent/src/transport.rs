//! The link on a machine: gRPC over HTTP/2 over TLS 1.3 whose server chain ends in a pinned CA. Client stubs are not
//! generated: four methods, their paths and codecs are all there is.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kit::{Clock, Supervisor, TaskKind};
use model::TunnelId;
use pki::Pin;
use pki::tls::{ALPN_H2, ALPN_TUNNEL, ClientOptions, TlsClock, TlsIdentity, client_config};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use wire::limits::FRAME_BYTES_MAX;
use wire::paths;
use wire::proto::agent::{
    GatewayFrame, ImageChunk, ImageRequest, JoinReply, JoinRequest, NodeFrame, RenewReply, RenewRequest,
    TunnelHello, TunnelReply, tunnel_hello,
};

use crate::link::{
    ByteStream, Connection, Credentials, FrameSender, ImageChunks, ImageLink, Link, LinkError,
    OUTGOING_FRAMES, TunnelLink,
};

mod hosts;

const CONNECTION: TaskKind = TaskKind::isolated("gateway connection");
/// TCP, TLS and the HTTP/2 preface: three round trips, and room for one lost packet in each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A gateway waits a little longer for a node to come to a tunnel, and is told in time that it will not.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(10);
/// A join or renewal signs a certificate and writes a few rows.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Of silence, after which the gateway is asked for a sign of life by an HTTP/2 ping, and how long it has to give one. One that stands
/// still or is cut off is left for another within eleven seconds. A little over half of a heartbeat's interval: one ping between two
/// heartbeats, and no second one beside the next. A proxy may answer pings by itself, so heartbeats find out too, if later.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the gateway is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
    /// The name its certificate carries, when it is reached by another.
    pub server_name: String,
}

pub struct GrpcLink {
    address: Address,
    /// Other gateways, by their hosts.
    tunnel_hosts: Vec<String>,
    /// Believed while there is no identity yet.
    serving_ca_pins: Vec<Pin>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
}

impl GrpcLink {
    pub fn new(
        address: Address,
        serving_ca_pins: Vec<Pin>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
    ) -> Self {
        Self { address, tunnel_hosts: Vec::new(), serving_ca_pins, clock, supervisor }
    }

    /// Where tunnels may be dialled beside the gateway and those whose names are beside its own.
    pub fn with_tunnel_hosts(self, tunnel_hosts: Vec<String>) -> Self {
        Self { tunnel_hosts, ..self }
    }

    /// Where a gateway says that it waits.
    fn tunnel_address(&self, said: &str) -> Result<Address, String> {
        let other = crate::config::parse_url(&format!("https://{said}"))
            .map_err(|problem| format!("the gateway's address {problem}"))?;
        if !hosts::is_gateway(&self.address.host, &self.tunnel_hosts, &other.host) {
            tracing::warn!(target: "security", host = other.host, "a gateway named a host for a tunnel that is not known as one");
            return Err(format!(
                "{} is not known as a gateway's host here: see gateway.tunnel_hosts",
                other.host
            ));
        }
        // Whatever its address, it is the gateway whose name and authority are known.
        Ok(Address { server_name: self.address.server_name.clone(), ..other })
    }

    fn options(&self, credentials: Option<&Credentials>, protocol: &'static [u8]) -> ClientOptions {
        ClientOptions {
            serving_ca_pins: credentials
                .map_or_else(|| self.serving_ca_pins.clone(), |held| held.serving_ca_pins.to_vec()),
            known_cas: Vec::new(),
            identity: credentials
                .map(|held| TlsIdentity { chain: held.chain.to_vec(), key: held.key.clone() }),
            clock: {
                let clock = self.clock.clone();
                TlsClock::new(move || clock.now())
            },
            protocol,
        }
    }

    fn dial(&self, credentials: Option<&Credentials>) -> BoxFuture<'static, Result<Grpc<Http2>, LinkError>> {
        let options = self.options(credentials, ALPN_H2);
        let (address, supervisor) = (self.address.clone(), self.supervisor.clone());
        let dial = async move { dial(&address, &options, &supervisor).await };
        within(self.clock.as_ref(), CONNECT_TIMEOUT, "connect to the gateway", dial)
    }
}

/// A failed step, with the chain of what failed under it as its reason.
fn failed<E>(doing: &'static str) -> impl Fn(E) -> LinkError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |err| LinkError {
        doing,
        reason: kit::chain(&err),
        pushback: None,
        refused: false,
        source: Some(Box::new(err)),
    }
}

/// The future's result, or an error when it takes longer than `limit`.
fn within<T: Send + 'static>(
    clock: &dyn Clock,
    limit: Duration,
    doing: &'static str,
    work: impl Future<Output = Result<T, LinkError>> + Send + 'static,
) -> BoxFuture<'static, Result<T, LinkError>> {
    let over = clock.sleep(limit);
    Box::pin(async move {
        // Both arms own what they wait for, and the loser is dropped whole.
        tokio::select! {
            result = work => result,
            () = over => Err(LinkError::new(doing, format!("no answer within {} s", limit.as_secs()))),
        }
    })
}

async fn connect(address: &Address, options: &ClientOptions) -> Result<TlsStream<TcpStream>, LinkError> {
    let config = client_config(options).map_err(failed("set up TLS"))?;
    let name =
        ServerName::try_from(address.server_name.clone()).map_err(failed("read the gateway's name"))?;
    let tcp = TcpStream::connect((address.host.as_str(), address.port))
        .await
        .map_err(failed("connect to the gateway"))?;
    tcp.set_nodelay(true).map_err(failed("connect to the gateway"))?;
    TlsConnector::from(config).connect(name, tcp).await.map_err(failed("agree on TLS with the gateway"))
}

async fn dial(
    address: &Address,
    options: &ClientOptions,
    supervisor: &Supervisor,
) -> Result<Grpc<Http2>, LinkError> {
    let tls = connect(address, options).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(tls))
        .await
        .map_err(failed("open HTTP/2 with the gateway"))?;
    // The connection ends by itself when its last stream and sender are gone; how it ended shows in the streams.
    supervisor.spawn(CONNECTION, |stop| async move {
        tokio::select! {
            ended = connection => {
                if let Err(err) = ended {
                    tracing::debug!(err = kit::chain(&err), "gateway connection ended");
                }
            }
            () = stop.cancelled() => {}
        }
        Ok::<_, std::convert::Infallible>(())
    });
    let origin = http::Uri::builder()
        .scheme("https")
        .authority(format!("{}:{}", bracketed(&address.server_name), address.port))
        .path_and_query("/")
        .build()
        .map_err(failed("read the gateway's name"))?;
    Ok(Grpc::with_origin(Http2(sender), origin)
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(FRAME_BYTES_MAX))
}

/// An IPv6 address needs brackets beside a port.
fn bracketed(name: &str) -> String {
    if name.contains(':') { format!("[{name}]") } else { name.to_owned() }
}

/// One HTTP/2 connection as the service tonic calls.
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

fn from_status(doing: &'static str) -> impl Fn(Status) -> LinkError {
    move |status| {
        let pushback = status
            .metadata()
            .get(paths::RETRY_PUSHBACK)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok())
            .map(Duration::from_millis);
        let refused = matches!(
            status.code(),
            Code::InvalidArgument
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::AlreadyExists
                | Code::NotFound
                | Code::Unimplemented
        );
        let message = crate::conditions::cut(status.message());
        LinkError {
            doing,
            reason: format!("{}: {message}", status.code()),
            pushback,
            refused,
            source: Some(Box::new(status)),
        }
    }
}

fn path(text: &'static str) -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static(text)
}

async fn unary<Q, A>(
    mut grpc: Grpc<Http2>,
    request: Q,
    method: &'static str,
    doing: &'static str,
) -> Result<A, LinkError>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    grpc.ready().await.map_err(failed(doing))?;
    let answer = grpc.unary(Request::new(request), path(method), ProstCodec::<Q, A>::default()).await;
    Ok(answer.map_err(from_status(doing))?.into_inner())
}

impl Link for GrpcLink {
    fn connect(&self, credentials: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>> {
        const DOING: &str = "hold a session";
        let dial = self.dial(Some(credentials));
        Box::pin(async move {
            let mut grpc = dial.await?;
            grpc.ready().await.map_err(failed(DOING))?;
            let (outgoing, frames) = mpsc::channel::<NodeFrame>(OUTGOING_FRAMES);
            // A gateway may read the Hello before it answers at all: the answer is awaited as part of the stream.
            let answer = async move {
                let frames = Request::new(ReceiverStream::new(frames));
                let codec = ProstCodec::<NodeFrame, GatewayFrame>::default();
                grpc.streaming(frames, path(paths::SESSION), codec).await.map(tonic::Response::into_inner)
            };
            let incoming = answer.into_stream().try_flatten().map_err(from_status(DOING)).boxed();
            Ok(Connection { outgoing: FrameSender::new(outgoing), incoming })
        })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>> {
        let dial = self.dial(None);
        let call = async move { unary(dial.await?, request, paths::JOIN, "join").await };
        within(self.clock.as_ref(), CALL_TIMEOUT, "join", call)
    }

    fn renew(
        &self,
        credentials: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>> {
        let dial = self.dial(Some(credentials));
        let call = async move { unary(dial.await?, request, paths::RENEW, "renew the certificate").await };
        within(self.clock.as_ref(), CALL_TIMEOUT, "renew the certificate", call)
    }
}

impl ImageLink for GrpcLink {
    fn image(
        &self,
        credentials: &Credentials,
        request: ImageRequest,
    ) -> BoxFuture<'static, Result<ImageChunks, LinkError>> {
        const DOING: &str = "fetch an image";
        let dial = self.dial(Some(credentials));
        Box::pin(async move {
            let mut grpc = dial.await?;
            grpc.ready().await.map_err(failed(DOING))?;
            let codec = ProstCodec::<ImageRequest, ImageChunk>::default();
            let chunks = grpc.server_streaming(Request::new(request), path(paths::IMAGE), codec).await;
            Ok(chunks.map_err(from_status(DOING))?.into_inner().map_err(from_status(DOING)).boxed())
        })
    }
}

impl TunnelLink for GrpcLink {
    fn tunnel(
        &self,
        credentials: &Credentials,
        address: Option<&str>,
        tunnel_id: TunnelId,
    ) -> BoxFuture<'static, Result<Box<dyn ByteStream>, LinkError>> {
        const DOING: &str = "open a tunnel";
        let options = self.options(Some(credentials), ALPN_TUNNEL);
        let address = match address {
            None => Ok(self.address.clone()),
            Some(said) => self.tunnel_address(said).map_err(|problem| LinkError::new(DOING, problem)),
        };
        let end = Some(tunnel_hello::End::TunnelId(tunnel_id.to_string()));
        let hello = wire::tunnel::with_length(&TunnelHello { end });
        within(self.clock.as_ref(), TUNNEL_TIMEOUT, DOING, async move {
            let mut tls = connect(&address?, &options).await?;
            // A gateway whose machine is gone says nothing, and neither may what the tunnel leads to: it would stay open for hours.
            kit::net::keep_alive(tls.get_ref().0).map_err(failed(DOING))?;
            let reply = async {
                tls.write_all(&hello).await?;
                tls.flush().await?;
                let mut head = [0; 2];
                tls.read_exact(&mut head).await?;
                let mut body = vec![0; wire::tunnel::length(head).map_err(std::io::Error::other)?];
                tls.read_exact(&mut body).await?;
                wire::decode::<TunnelReply>("tunnel reply", &body, body.len()).map_err(std::io::Error::other)
            };
            let reply = reply.await.map_err(failed(DOING))?;
            match reply.reason.is_empty() {
                true => Ok(Box::new(tls) as Box<dyn ByteStream>),
                false => Err(LinkError::new(
                    DOING,
                    crate::conditions::cut(&format!("{}: {}", reply.reason, reply.message)),
                )),
            }
        })
    }
}

#[cfg(test)]
mod tests;
