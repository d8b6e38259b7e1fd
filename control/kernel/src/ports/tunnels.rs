//! Ways into instances and nodes: what `access` asks of those whose things they are, and what a gateway asks of the rows.

use api::Ref;
use model::lifecycle::InstanceState;
use model::{InstanceId, NodeId, TenantId, Timestamp, TunnelId};

use crate::BoxFuture;
use crate::fault::Fault;
use crate::ports::delivery::{Delivered, GatewayLease};
use crate::ports::iam::Resource;

/// What there is to know of an instance before anybody is let into it.
#[derive(Debug, Clone)]
pub struct InstanceDoor {
    /// What decisions are about.
    pub resource: Resource,
    pub state: InstanceState,
    /// Where it is.
    pub node_id: Option<NodeId>,
}

pub trait InstanceDoors: Send + Sync + 'static {
    /// None when there is no such instance.
    fn instance(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<InstanceDoor>, Fault>>;
}

/// The same of a node, and how it is reached.
#[derive(Debug, Clone)]
pub struct NodeDoor {
    pub node_id: NodeId,
    pub name: String,
    /// Of its pool; the root's before it has one.
    pub tenant_id: TenantId,
    pub resource: Resource,
    /// Where the gateway is reached that holds its session; none when it has none.
    pub gateway: Option<String>,
    /// SHA-256 of its keys' SPKI: those of its certificates that count now.
    pub keys: Vec<[u8; 32]>,
    pub capabilities: Vec<String>,
    pub deployment_epoch: u64,
}

pub trait NodeDoors: Send + Sync + 'static {
    /// None when there is no such node.
    fn node<'a>(&'a self, node: &'a Ref<NodeId>) -> BoxFuture<'a, Result<Option<NodeDoor>, Fault>>;

    /// A worker's signature over a ticket.
    fn sign_ticket(&self, ticket: &[u8], at: Timestamp) -> Result<Vec<u8>, Fault>;
}

/// A tunnel that is closed, as the gateway that held it saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelClosed {
    pub tunnel_id: TunnelId,
    /// One stable word.
    pub reason: &'static str,
    /// As they came through: sealed, with what that adds.
    pub to_node_bytes: u64,
    pub to_client_bytes: u64,
}

/// The gateway's side of tunnels' rows.
pub trait TicketStore: Send + Sync + 'static {
    /// Uses a ticket up. False when it was used, has ended, was taken back, or is not one for this node.
    fn take<'a>(&'a self, lease: GatewayLease, tunnel_id: TunnelId, node_id: NodeId) -> Delivered<'a, bool>;

    /// Those of these tunnels that are to be closed now.
    fn ended<'a>(&'a self, lease: GatewayLease, open: Vec<TunnelId>) -> Delivered<'a, Vec<TunnelId>>;

    /// Repeating it changes nothing.
    fn closed<'a>(&'a self, lease: GatewayLease, closed: Vec<TunnelClosed>) -> Delivered<'a, ()>;
}
