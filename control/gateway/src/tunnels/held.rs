//! What a gateway holds of its tunnels: who waits, what is open, and what is over and was not told yet. However a connection
//! ends, what it held is told to be closed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kernel::ports::tunnels::TunnelClosed;
use model::{NodeId, TunnelId};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::counted::Counts;
use super::{AT_ONCE_MAX, NodeEnd, Refusal, Tunnels};
use crate::server::Shared;

/// Closed tunnels that are not written down yet. Of those past it the rows are closed when their time is over.
pub(super) const CLOSED_MAX: usize = 2 * AT_ONCE_MAX;

#[derive(Default)]
pub(super) struct Held {
    /// Tickets that are being used up, or were and are open: each by one connection.
    pub claimed: HashSet<TunnelId>,
    /// Ends with a ticket that wait for their node.
    pub waiting: HashMap<TunnelId, Waiting>,
    pub open: HashMap<TunnelId, CancellationToken>,
    pub closed: Vec<TunnelClosed>,
}

impl Held {
    /// A tunnel is over. Of one that ended twice, its first end is told.
    pub fn close(&mut self, closed: TunnelClosed) {
        let tunnel_id = closed.tunnel_id;
        self.claimed.remove(&tunnel_id);
        self.waiting.remove(&tunnel_id);
        self.open.remove(&tunnel_id);
        let told = self.closed.iter().any(|one| one.tunnel_id == tunnel_id);
        if !told && self.closed.len() < CLOSED_MAX {
            self.closed.push(closed);
        }
    }
}

pub(super) struct Waiting {
    pub node_id: NodeId,
    pub told: oneshot::Sender<Result<NodeEnd, Refusal>>,
}

/// A ticket that is being used up, or is and has no tunnel yet. Dropped, it is one that is closed: whoever does not know whether
/// it was used up says so too.
pub(super) struct Taken<'a> {
    tunnels: &'a Arc<Tunnels>,
    tunnel_id: Option<TunnelId>,
}

impl<'a> Taken<'a> {
    /// None when another connection has it: it must not end what that one opened.
    pub fn claim(tunnels: &'a Arc<Tunnels>, tunnel_id: TunnelId) -> Option<Self> {
        let new = tunnels.held().claimed.insert(tunnel_id);
        // Not made and dropped when it is not new: that would end it.
        new.then(|| Self { tunnels, tunnel_id: Some(tunnel_id) })
    }

    /// It was not used up here.
    pub fn let_go(mut self) {
        if let Some(tunnel_id) = self.tunnel_id.take() {
            self.tunnels.held().claimed.remove(&tunnel_id);
        }
    }

    pub fn goes_on(mut self) {
        self.tunnel_id = None;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Some(tunnel_id) = self.tunnel_id else { return };
        let (to_node_bytes, to_client_bytes) = (0, 0);
        let closed = TunnelClosed { tunnel_id, reason: "not-opened", to_node_bytes, to_client_bytes };
        self.tunnels.held().close(closed);
        self.tunnels.waker.wake();
    }
}

/// A tunnel that is open. Dropped, it is one that is closed, whoever dropped it.
pub(super) struct Open<'a> {
    tunnels: &'a Arc<Tunnels>,
    shared: &'a Shared,
    tunnel_id: TunnelId,
    pub counts: Arc<Counts>,
    reason: &'static str,
}

impl<'a> Open<'a> {
    pub fn new(tunnels: &'a Arc<Tunnels>, shared: &'a Shared, tunnel_id: TunnelId) -> Self {
        shared.metrics.tunnel(1);
        Self { tunnels, shared, tunnel_id, counts: Arc::default(), reason: "gateway-stopped" }
    }

    pub fn closed(mut self, reason: &'static str) {
        self.reason = reason;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.metrics.tunnel(-1);
        self.shared.metrics.tunnel_end(self.reason);
        self.tunnels.held().close(TunnelClosed {
            tunnel_id: self.tunnel_id,
            reason: self.reason,
            to_node_bytes: self.counts.to_node.load(Ordering::Relaxed),
            to_client_bytes: self.counts.to_client.load(Ordering::Relaxed),
        });
        self.tunnels.waker.wake();
    }
}
