//! A link inside one process, for simulations and tests: whoever plays the gateway gets the other ends.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use wire::proto::agent::{GatewayFrame, JoinReply, JoinRequest, NodeFrame, RenewReply, RenewRequest};

use super::{Connection, Credentials, FrameSender, Link, LinkError, OUTGOING_FRAMES};

/// Sessions asked for and not yet taken by the gateway's side: a restarted fleet comes at once.
const SESSIONS_WAITING: usize = 64;

/// A session as the gateway sees it. Dropping it ends the session.
pub struct GatewayEnd {
    /// The certificate the node connected with.
    pub certificate: Vec<u8>,
    pub from_node: mpsc::Receiver<NodeFrame>,
    pub to_node: mpsc::Sender<Result<GatewayFrame, LinkError>>,
}

type JoinFn = dyn Fn(JoinRequest) -> Result<JoinReply, LinkError> + Send + Sync;
type RenewFn = dyn Fn(RenewRequest) -> Result<RenewReply, LinkError> + Send + Sync;

/// The node's side.
#[derive(Clone)]
pub struct MemoryLink {
    sessions: mpsc::Sender<GatewayEnd>,
    join: Arc<JoinFn>,
    renew: Arc<RenewFn>,
}

impl MemoryLink {
    /// The link, and where its sessions come out. Joins and renewals are refused until told otherwise.
    pub fn new() -> (Self, mpsc::Receiver<GatewayEnd>) {
        let (sessions, ends) = mpsc::channel(SESSIONS_WAITING);
        let link = Self {
            sessions,
            join: Arc::new(|_| Err(LinkError::new("join", "this gateway takes no joins"))),
            renew: Arc::new(|_| Err(LinkError::new("renew", "this gateway renews nothing"))),
        };
        (link, ends)
    }

    pub fn on_join(
        mut self,
        answer: impl Fn(JoinRequest) -> Result<JoinReply, LinkError> + Send + Sync + 'static,
    ) -> Self {
        self.join = Arc::new(answer);
        self
    }

    pub fn on_renew(
        mut self,
        answer: impl Fn(RenewRequest) -> Result<RenewReply, LinkError> + Send + Sync + 'static,
    ) -> Self {
        self.renew = Arc::new(answer);
        self
    }
}

impl Link for MemoryLink {
    fn connect(&self, credentials: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>> {
        let sessions = self.sessions.clone();
        let certificate = credentials.chain.first().cloned().unwrap_or_default();
        Box::pin(async move {
            let (outgoing, from_node) = mpsc::channel(OUTGOING_FRAMES);
            let (to_node, incoming) = mpsc::channel(OUTGOING_FRAMES);
            sessions
                .send(GatewayEnd { certificate, from_node, to_node })
                .await
                .map_err(|_| LinkError::new("connect", "nobody plays the gateway"))?;
            Ok(Connection {
                outgoing: FrameSender::new(outgoing),
                incoming: Box::pin(ReceiverStream::new(incoming)),
            })
        })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>> {
        Box::pin(futures::future::ready((self.join)(request)))
    }

    fn renew(
        &self,
        _credentials: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>> {
        Box::pin(futures::future::ready((self.renew)(request)))
    }
}
