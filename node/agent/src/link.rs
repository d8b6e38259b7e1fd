//! The way to a gateway, as a port: gRPC over pinned TLS on a machine, channels in a simulation.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use model::TunnelId;
use pki::{Pin, SigningKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use wire::proto::agent::{
    GatewayFrame, ImageChunk, ImageRequest, JoinReply, JoinRequest, NodeFrame, RenewReply, RenewRequest,
};

pub mod memory;

/// Frames on their way out. A session says little: what waits longer than this many frames is not being read.
pub const OUTGOING_FRAMES: usize = 32;

/// As whom a node connects, and which gateways it believes.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// DER, the node's certificate first.
    pub chain: Arc<[Vec<u8>]>,
    pub key: SigningKey,
    pub serving_ca_pins: Arc<[Pin]>,
}

/// Why a call or a session failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {reason}")]
pub struct LinkError {
    pub doing: &'static str,
    pub reason: String,
    /// How long a busy gateway asked us to wait, exactly.
    pub pushback: Option<Duration>,
    /// Trying again unchanged cannot help: the request itself was refused.
    pub refused: bool,
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl LinkError {
    pub fn new(doing: &'static str, reason: impl Into<String>) -> Self {
        Self { doing, reason: reason.into(), pushback: None, refused: false, source: None }
    }
}

/// The sending half of a session.
#[derive(Debug)]
pub struct FrameSender(mpsc::Sender<NodeFrame>);

impl FrameSender {
    pub fn new(frames: mpsc::Sender<NodeFrame>) -> Self {
        Self(frames)
    }

    /// Waits for room and sends. False when the session is gone. Cancel-safe: a dropped call has sent nothing.
    pub async fn send(&self, take: impl FnOnce() -> Option<NodeFrame>) -> bool {
        match self.0.reserve().await {
            Ok(permit) => {
                if let Some(frame) = take() {
                    permit.send(frame);
                }
                true
            }
            Err(_) => false,
        }
    }
}

/// An open connection, before the Hello. Dropping it closes it.
pub struct Connection {
    pub outgoing: FrameSender,
    /// Ends, or yields one error and ends, when the session is over.
    pub incoming: BoxStream<'static, Result<GatewayFrame, LinkError>>,
}

pub trait Link: Send + Sync + 'static {
    /// Connects with the node's certificate.
    fn connect(&self, credentials: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>>;
    /// Asks to join, without a certificate.
    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>>;
    /// Asks for the next certificate, with the current one.
    fn renew(
        &self,
        credentials: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>>;
}

/// What comes of an image.
pub type ImageChunks = BoxStream<'static, Result<ImageChunk, LinkError>>;

/// The way to images of the control plane's own store: each on a connection of its own, so that no frame of a session waits
/// behind one.
pub trait ImageLink: Send + Sync + 'static {
    fn image(
        &self,
        credentials: &Credentials,
        request: ImageRequest,
    ) -> BoxFuture<'static, Result<ImageChunks, LinkError>>;
}

/// One end of a tunnel at a node, or what it leads to.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The way to a gateway that waits for the node's end of a tunnel: on a connection of its own, which is that tunnel.
pub trait TunnelLink: Send + Sync + 'static {
    /// Joined with the other end, which has yet to be known. `address` is the gateway's, when it is not the session's.
    fn tunnel(
        &self,
        credentials: &Credentials,
        address: Option<&str>,
        tunnel_id: TunnelId,
    ) -> BoxFuture<'static, Result<Box<dyn ByteStream>, LinkError>>;
}
