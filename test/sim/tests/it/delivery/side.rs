//! What a history needs of a store, and how both call the same things.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::memory::CommandFate;
use kernel::BoxFuture;
use kernel::ports::delivery::{DeliveryStore, InboxAnswer, InboxRequest, StoredCommand, StoredSpec};
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};
use uuid::Uuid;

/// A store and the hands that the rest of the control plane has on its rows.
pub trait Side: Send + Sync {
    fn store(&self) -> Arc<dyn DeliveryStore>;
    fn add_node(&self, node_id: NodeId, cert_serial: String) -> BoxFuture<'_, ()>;
    fn revoke_node(&self, node_id: NodeId) -> BoxFuture<'_, ()>;
    fn revoke_certificate(&self, cert_serial: String) -> BoxFuture<'_, ()>;
    fn quarantine(&self, node_id: NodeId) -> BoxFuture<'_, ()>;
    fn observe_only(&self, on: bool) -> BoxFuture<'_, ()>;
    fn put_trust_bundle(&self, version: u64, message: Vec<u8>) -> BoxFuture<'_, ()>;
    fn put_spec(&self, spec: StoredSpec) -> BoxFuture<'_, ()>;
    fn enqueue(&self, command: StoredCommand, not_after: Timestamp) -> BoxFuture<'_, ()>;
    fn request_cancel(&self, command_id: CommandId, reason: &'static str) -> BoxFuture<'_, ()>;
    fn expire(&self, gateway_id: GatewayId) -> BoxFuture<'_, ()>;
    fn answer_next(&self, answer: InboxAnswer) -> BoxFuture<'_, InboxRequest>;
    fn fate(&self, command_id: CommandId) -> BoxFuture<'_, CommandFate>;
    fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> BoxFuture<'_, Vec<u64>>;
    fn status(&self, node_id: NodeId) -> BoxFuture<'_, Option<(String, u64)>>;
    fn inventory(&self, node_id: NodeId) -> BoxFuture<'_, BTreeMap<String, String>>;
    /// The epoch of the node's session, while it is open.
    fn open_session(&self, node_id: NodeId) -> BoxFuture<'_, Option<u64>>;
}

pub fn node_id(node: u8) -> NodeId {
    NodeId::from_uuid(Uuid::from_u128(0x100 + u128::from(node)))
}

pub fn journal_id(node_id: NodeId, journal: u8) -> JournalId {
    JournalId::from_uuid(Uuid::from_u128(node_id.uuid().as_u128() << 8 | u128::from(journal)))
}

pub fn serial(node: u8, cert: u8) -> String {
    format!("{:04x}", u16::from(node) << 8 | u16::from(cert) | 0x1000)
}

pub fn gateway_id(gateway: u8) -> GatewayId {
    GatewayId::from_uuid(Uuid::from_u128(0x200 + u128::from(gateway)))
}

/// Counted back from the newest.
pub fn ago<T: Copy>(made: &[T], back: u8) -> Option<T> {
    made.iter().rev().nth(usize::from(back)).copied()
}
