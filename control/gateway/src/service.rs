//! The four methods of `AgentGateway`, routed by path. Server stubs are not generated: paths and codecs are all there is.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use http::{Request as HttpRequest, Response as HttpResponse};
use hyper::body::Incoming;
use kernel::BoxFuture;
use kernel::ports::delivery::{DeliveryError, InboxAnswer, InboxKind, InboxRequest};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::metadata::MetadataValue;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};
use wire::limits::{
    CSR_BYTES_MAX, FRAME_BYTES_MAX, IMAGE_CHUNK_BYTES_MAX, SEALED_TOKEN_BYTES_MAX, TEXT_BYTES_MAX,
};
use wire::paths;
use wire::proto::agent::{
    GatewayFrame, ImageChunk, ImageRequest, JoinReply, JoinRequest, NodeFrame, RenewReply, RenewRequest,
};

use crate::admission::{counted_as, jittered};
use crate::body::{Greeting, HelloBody, SoonBody};
use crate::connection::Conn;
use crate::hub::Hub;
use crate::server::Shared;
use crate::session::{Peer, Session};
use crate::stream::SessionStream;

/// A join or a renewal, with its envelope. The inbox takes no more either.
const CALL_BYTES_MAX: usize = 32 * 1024;
/// A certificate chain and a trust bundle.
const REPLY_BYTES_MAX: usize = 256 * 1024;
const PROOF_BYTES_MAX: usize = 2048;
/// How long a worker has: it signs a certificate and writes a few rows.
const PATIENCE: Duration = Duration::from_secs(20);
/// When to come back where nothing better is known.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// A heartbeat and its answer are some dozens of bytes, and a session holds one of these in each direction. Larger frames grow it
/// while they pass.
const BUFFER_BYTES: usize = 256;
const YIELD_BYTES: usize = 16 * 1024;

/// Answers one request of a connection.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    conn: Arc<Conn>,
    request: HttpRequest<Incoming>,
) -> HttpResponse<Body> {
    let (small, large) = (Some(CALL_BYTES_MAX), Some(FRAME_BYTES_MAX));
    match request.uri().path() {
        paths::JOIN => {
            let mut grpc = Grpc::new(SmallCodec::<JoinReply, JoinRequest>::default())
                .apply_max_message_size_config(small, Some(REPLY_BYTES_MAX));
            let request = request.map(|body| SoonBody::new(body, &shared));
            grpc.unary(Join(shared, conn), request).await
        }
        paths::RENEW => {
            let mut grpc = Grpc::new(SmallCodec::<RenewReply, RenewRequest>::default())
                .apply_max_message_size_config(small, Some(REPLY_BYTES_MAX));
            let request = request.map(|body| SoonBody::new(body, &shared));
            grpc.unary(Renew(shared, conn), request).await
        }
        paths::IMAGE => {
            let mut grpc = Grpc::new(SmallCodec::<ImageChunk, ImageRequest>::default())
                .apply_max_message_size_config(small, large);
            let request = request.map(|body| SoonBody::new(body, &shared));
            grpc.server_streaming(FetchImage(shared, conn), request).await
        }
        paths::SESSION => {
            let mut grpc = Grpc::new(SmallCodec::<GatewayFrame, NodeFrame>::default())
                .apply_max_message_size_config(large, large);
            let greeting = Greeting::new(shared.hellos.clone());
            let request = request.map(|body| HelloBody::new(body, greeting.clone()));
            grpc.streaming(OpenSession(shared, conn, greeting), request).await
        }
        _ => Status::unimplemented("no such method").into_http(),
    }
}

/// Not now: with the exact wait that a client honours (gRFC A6).
pub(crate) fn busy(why: &'static str, wait: Duration) -> Status {
    let mut status = Status::unavailable(why);
    let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    status.metadata_mut().insert(paths::RETRY_PUSHBACK, MetadataValue::from(wait));
    status
}

impl Shared {
    /// The hub that serves now.
    fn serving(&self) -> Result<Arc<Hub>, Status> {
        self.hub()
            .filter(|hub| !hub.is_over() && !hub.is_draining())
            .ok_or_else(|| self.come_back("this gateway does not serve now"))
    }

    fn come_back(&self, why: &'static str) -> Status {
        busy(why, jittered(BUSY_WAIT, &*self.rng))
    }

    fn unanswered(&self, doing: &'static str, err: &DeliveryError) -> Status {
        tracing::warn!(doing, err = kit::chain(err), "call not answered");
        self.come_back("the control plane does not answer now")
    }

    /// The certificate of the connection, when it still counts.
    async fn counted_peer(&self, hub: &Hub, conn: &Conn) -> Result<Peer, Status> {
        let Some(peer) = &conn.peer else {
            return Err(Status::unauthenticated("this call needs the node's certificate"));
        };
        match hub.certificate_counts(&peer.cert_serial).await {
            Ok(true) => Ok(peer.clone()),
            Ok(false) => {
                tracing::warn!(
                    target: "security",
                    node_id = %peer.node_id, cert_serial = %peer.cert_serial, source_ip = %conn.source,
                    "a certificate that no longer counts was shown"
                );
                Err(Status::permission_denied("the certificate is revoked or unknown, or its node is"))
            }
            Err(err) => Err(self.unanswered("check a certificate", &err)),
        }
    }

    /// Has a worker answer.
    async fn ask<A: Message + Default>(
        &self,
        hub: &Hub,
        conn: &Conn,
        kind: InboxKind,
        request: Vec<u8>,
    ) -> Result<A, Status> {
        let places = match kind {
            InboxKind::Join => &self.joins,
            InboxKind::Renew | InboxKind::Fresh | InboxKind::Secret => &self.renewals,
        };
        let Ok(_permit) = places.try_acquire() else {
            return Err(self.come_back("too many joins or renewals at once"));
        };
        let peer_serial = conn.peer.as_ref().map(|peer| peer.cert_serial.clone());
        let request = InboxRequest { kind, request, source_ip: conn.source.to_string(), peer_serial };
        self.metrics.call("ask");
        match hub.store.ask(hub.lease, request, PATIENCE).await {
            Ok(InboxAnswer::Reply(reply)) => wire::decode("reply", &reply, REPLY_BYTES_MAX).map_err(|err| {
                tracing::error!(kind = kind.name(), err = %err, "a worker's reply does not decode");
                Status::internal("the control plane's answer cannot be read")
            }),
            Ok(InboxAnswer::Refused(why)) => Err(Status::permission_denied(why)),
            Ok(InboxAnswer::TimedOut) => Err(self.come_back("no worker answered in time")),
            Err(err) => Err(self.unanswered("ask a worker", &err)),
        }
    }
}

fn bound(holds: bool, what: &'static str) -> Result<(), Status> {
    if holds { Ok(()) } else { Err(Status::invalid_argument(what)) }
}

struct Join(Arc<Shared>, Arc<Conn>);

impl UnaryService<JoinRequest> for Join {
    type Response = JoinReply;
    type Future = BoxFuture<'static, Result<Response<JoinReply>, Status>>;

    fn call(&mut self, request: Request<JoinRequest>) -> Self::Future {
        let (shared, conn) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let hub = shared.serving()?;
            let request = request.into_inner();
            if !shared.joins_by_source.admit(counted_as(conn.source), shared.clock.monotonic()) {
                return Err(shared.come_back("too many joins from this address"));
            }
            bound((1..=CSR_BYTES_MAX).contains(&request.csr_der.len()), "csr_der is 1 byte to 4 KiB")?;
            bound(
                (1..=SEALED_TOKEN_BYTES_MAX).contains(&request.sealed_token.len()),
                "sealed_token is 1 byte to 8 KiB",
            )?;
            let texts = [&request.role, &request.hostname, &request.agent_version];
            bound(
                texts.iter().all(|text| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control)),
                "role, hostname and agent_version are short texts",
            )?;
            bound(request.hardware_key.len() <= 64, "hardware_key is at most 64 bytes")?;
            shared.ask(&hub, &conn, InboxKind::Join, request.encode_to_vec()).await.map(Response::new)
        })
    }
}

struct Renew(Arc<Shared>, Arc<Conn>);

impl UnaryService<RenewRequest> for Renew {
    type Response = RenewReply;
    type Future = BoxFuture<'static, Result<Response<RenewReply>, Status>>;

    fn call(&mut self, request: Request<RenewRequest>) -> Self::Future {
        let (shared, conn) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let hub = shared.serving()?;
            let request = request.into_inner();
            bound((1..=CSR_BYTES_MAX).contains(&request.csr_der.len()), "csr_der is 1 byte to 4 KiB")?;
            bound((1..=PROOF_BYTES_MAX).contains(&request.proof.len()), "proof is 1 byte to 2 KiB")?;
            shared.counted_peer(&hub, &conn).await?;
            shared.ask(&hub, &conn, InboxKind::Renew, request.encode_to_vec()).await.map(Response::new)
        })
    }
}

/// An image of the control plane's own store, for a node whose spec names it now.
struct FetchImage(Arc<Shared>, Arc<Conn>);

impl ServerStreamingService<ImageRequest> for FetchImage {
    type Response = ImageChunk;
    type ResponseStream = BoxStream<'static, Result<ImageChunk, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<ImageRequest>) -> Self::Future {
        let (shared, conn) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let hub = shared.serving()?;
            let request = request.into_inner();
            let Ok(digest) = <[u8; 32]>::try_from(&*request.sha256) else {
                return Err(Status::invalid_argument("sha256 is 32 bytes"));
            };
            let peer = shared.counted_peer(&hub, &conn).await?;
            let named = shared.named.names(&*hub.store, peer.node_id, &digest).await;
            if !named.map_err(|err| shared.unanswered("read a node's spec", &err))? {
                tracing::warn!(
                    target: "security",
                    node_id = %peer.node_id, digest = hex::encode(digest), source_ip = %conn.source,
                    "an image was asked for that the node's spec does not name"
                );
                // Of a node that is ahead of a restored database this is not the last word.
                return Err(shared.come_back("the node's spec names no such image"));
            }
            let Some(images) = &shared.images else {
                return Err(Status::not_found("this gateway has no images"));
            };
            let Ok(place) = shared.image_places.clone().try_acquire_owned() else {
                return Err(shared.come_back("too many images are fetched at once"));
            };
            let read = images.read(digest, request.offset).await.map_err(|err| {
                tracing::warn!(err = kit::chain(&err), "image not read");
                shared.come_back("the image store does not answer now")
            })?;
            let read = read.ok_or_else(|| Status::not_found("there is no such image"))?;
            let first = ImageChunk { total_bytes: read.total_bytes, ..ImageChunk::default() };
            let chunks = read.bytes.flat_map(move |bytes| {
                // It has its place until its last byte is taken.
                let _place = &place;
                futures::stream::iter(chunks_of(bytes))
            });
            Ok(Response::new(futures::stream::once(std::future::ready(Ok(first))).chain(chunks).boxed()))
        })
    }
}

fn chunks_of(bytes: std::io::Result<bytes::Bytes>) -> Vec<Result<ImageChunk, Status>> {
    let mut rest = match bytes {
        Ok(bytes) => bytes,
        Err(err) => {
            tracing::warn!(err = kit::chain(&err), "image not read");
            return vec![Err(Status::unavailable("the image store broke off"))];
        }
    };
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let data = rest.split_to(rest.len().min(IMAGE_CHUNK_BYTES_MAX));
        chunks.push(Ok(ImageChunk { total_bytes: 0, data }));
    }
    chunks
}

struct OpenSession(Arc<Shared>, Arc<Conn>, Arc<Greeting>);

impl StreamingService<NodeFrame> for OpenSession {
    type Response = GatewayFrame;
    type ResponseStream = SessionStream<Streaming<NodeFrame>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<NodeFrame>>) -> Self::Future {
        let (shared, conn, greeting) = (self.0.clone(), self.1.clone(), self.2.clone());
        Box::pin(async move {
            let hub = shared.serving()?;
            let Some(peer) = &conn.peer else {
                return Err(Status::unauthenticated("a session needs the node's certificate"));
            };
            // Its own first: what one node is refused must not be taken from the others.
            if !shared.sessions_by_node.admit(peer.node_id, shared.clock.monotonic()) {
                return Err(shared.come_back("too many sessions of this node"));
            }
            if let Err(wait) = shared.admission.admit(shared.clock.monotonic(), &*shared.rng) {
                return Err(busy("too many nodes connect at once", wait));
            }
            let peer = shared.counted_peer(&hub, &conn).await?;
            if !conn.hold_session() {
                return Err(Status::failed_precondition("this connection carries a session, or did"));
            }
            let live = hub.enter(|now| Session::new(peer, now), conn.kill.clone());
            let stream = SessionStream::new(
                hub,
                live,
                request.into_inner(),
                greeting,
                shared.tunnels.clone(),
                shared.metrics.clone(),
            );
            Ok(Response::new(stream))
        })
    }
}

/// The protobuf codec with buffers of a session's size.
struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}
