//! A bare client: real TLS, real HTTP/2, and frames as a test writes them.

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kit::TaskKind;
use pki::tls::{ClientOptions, client_config};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use wire::limits::FRAME_BYTES_MAX;
use wire::paths;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    GatewayFrame, Heartbeat, Hello, ImageChunk, ImageRequest, JoinReply, JoinRequest, NodeFrame, RenewReply,
    RenewRequest, Welcome,
};

use crate::lab::{Lab, Machine};

/// How long a test waits for what should come at once.
const SOON: Duration = Duration::from_secs(15);

pub type Client = Grpc<Http2>;

pub async fn try_dial(lab: &Lab, address: SocketAddr, machine: Option<&Machine>) -> Result<Client, String> {
    let options = ClientOptions {
        serving_ca_pins: vec![lab.serving_ca.pin()],
        known_cas: vec![],
        identity: machine.map(|machine| machine.tls.clone()),
        clock: lab.tls_clock(),
        protocol: pki::tls::ALPN_H2,
    };
    let config = client_config(&options).map_err(|err| err.to_string())?;
    let tcp = TcpStream::connect(address).await.map_err(|err| err.to_string())?;
    tcp.set_nodelay(true).map_err(|err| err.to_string())?;
    let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
    let tls = TlsConnector::from(config).connect(name, tcp).await.map_err(|err| err.to_string())?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .handshake(TokioIo::new(tls))
        .await
        .map_err(|err| err.to_string())?;
    lab.supervisor.spawn(TaskKind::isolated("client connection"), |_| async move {
        let _ = connection.await;
        Ok::<_, std::convert::Infallible>(())
    });
    let origin = format!("https://{address}").parse().expect("an address is an authority");
    Ok(Grpc::with_origin(Http2(sender), origin)
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(64 << 20))
}

pub async fn dial(lab: &Lab, address: SocketAddr, machine: Option<&Machine>) -> Client {
    try_dial(lab, address, machine).await.expect("the gateway takes the connection")
}

pub struct Http2(SendRequest<Body>);

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

pub async fn join(client: &mut Client, request: JoinRequest) -> Result<JoinReply, Status> {
    client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let codec = ProstCodec::<JoinRequest, JoinReply>::default();
    let path = http::uri::PathAndQuery::from_static(paths::JOIN);
    Ok(client.unary(Request::new(request), path, codec).await?.into_inner())
}

/// The first half of a join: its body never ends.
pub async fn half_join(client: &mut Client) -> Result<(), Status> {
    client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let codec = ProstCodec::<JoinRequest, JoinReply>::default();
    let path = http::uri::PathAndQuery::from_static(paths::JOIN);
    let answer = client.streaming(Request::new(futures::stream::pending()), path, codec);
    let answer = tokio::time::timeout(SOON, answer).await;
    answer.unwrap_or_else(|_| panic!("no answer within {SOON:?}")).map(drop)
}

pub async fn renew(client: &mut Client, request: RenewRequest) -> Result<RenewReply, Status> {
    client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let codec = ProstCodec::<RenewRequest, RenewReply>::default();
    let path = http::uri::PathAndQuery::from_static(paths::RENEW);
    Ok(client.unary(Request::new(request), path, codec).await?.into_inner())
}

/// All of an image, or why not.
pub async fn image(client: &mut Client, sha256: [u8; 32], offset: u64) -> Result<Vec<u8>, Status> {
    client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let codec = ProstCodec::<ImageRequest, ImageChunk>::default();
    let path = http::uri::PathAndQuery::from_static(paths::IMAGE);
    let request = Request::new(ImageRequest { sha256: sha256.to_vec().into(), offset });
    let mut chunks = client.server_streaming(request, path, codec).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await? {
        bytes.extend_from_slice(&chunk.data);
    }
    Ok(bytes)
}

/// A session's two directions.
pub struct Stream {
    pub out: mpsc::UnboundedSender<NodeFrame>,
    pub incoming: Streaming<GatewayFrame>,
    client: Client,
}

pub async fn try_session(mut client: Client) -> Result<Stream, Status> {
    let (out, incoming) = directions(&mut client).await?;
    Ok(Stream { out, incoming, client })
}

async fn directions(
    client: &mut Client,
) -> Result<(mpsc::UnboundedSender<NodeFrame>, Streaming<GatewayFrame>), Status> {
    client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
    let (out, frames) = mpsc::unbounded();
    let codec = ProstCodec::<NodeFrame, GatewayFrame>::default();
    let path = http::uri::PathAndQuery::from_static(paths::SESSION);
    let answer = client.streaming(Request::new(frames), path, codec).await?;
    Ok((out, answer.into_inner()))
}

impl Stream {
    /// A second session over the same connection.
    pub async fn another(&mut self) -> Result<(), Status> {
        directions(&mut self.client).await.map(drop)
    }

    pub fn send(&self, frame: In) {
        // The gateway may have ended the stream: the test sees that when it reads.
        let _ = self.out.unbounded_send(NodeFrame { frame: Some(frame) });
    }

    pub fn beat(&self, seq: u64, control: u32) {
        let lane_credits = [("control".to_owned(), control)].into();
        self.send(In::Heartbeat(Heartbeat { seq, lane_credits, ..Heartbeat::default() }));
    }

    /// The next frame; `None` at a clean end.
    pub async fn next(&mut self) -> Result<Option<Out>, Status> {
        let next = tokio::time::timeout(SOON, self.incoming.next()).await;
        match next.unwrap_or_else(|_| panic!("nothing came within {SOON:?}")) {
            Some(Ok(frame)) => Ok(frame.frame),
            Some(Err(status)) => Err(status),
            None => Ok(None),
        }
    }

    pub async fn frame(&mut self) -> Out {
        self.next().await.expect("the session goes on").expect("the session goes on")
    }

    /// The next frame that `wanted` takes; those before it are skipped.
    pub async fn until<T>(&mut self, mut wanted: impl FnMut(Out) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.frame().await) {
                return found;
            }
        }
    }

    pub async fn welcome(&mut self) -> Welcome {
        match self.frame().await {
            Out::Welcome(welcome) => welcome,
            other => panic!("not a Welcome: {other:?}"),
        }
    }

    /// Reads to the end and says how it ended.
    pub async fn end(&mut self) -> Result<(), Status> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

pub fn hello(machine: &Machine) -> Hello {
    Hello {
        node_id: machine.node_id.to_string(),
        protocol_min: 1,
        protocol_max: 1,
        agent_version: "1.0.0".to_owned(),
        journal_id: journal(1),
        incarnation_id: model::IncarnationId::from_uuid(uuid::Uuid::from_u128(5)).to_string(),
        boot_id: "boot-1".to_owned(),
        deployment_epoch: 1,
        nonce: vec![3; 32].into(),
        lane_credits: [("control".to_owned(), 4), ("bulk".to_owned(), 2)].into(),
        ..Hello::default()
    }
}

pub fn journal(n: u128) -> String {
    model::JournalId::from_uuid(uuid::Uuid::from_u128(n)).to_string()
}

/// Dials, says `hello` and reads nothing yet.
pub async fn greet(lab: &Lab, address: SocketAddr, machine: &Machine, hello: Hello) -> Stream {
    let stream = try_session(dial(lab, address, Some(machine)).await).await.expect("the session is taken");
    stream.send(In::Hello(hello));
    stream
}
