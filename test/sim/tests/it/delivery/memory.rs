//! The store in memory, and the hands of the rest of the control plane on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use gateway::memory::{CommandFate, MemoryDelivery};
use kernel::BoxFuture;
use kernel::ports::delivery::{DeliveryStore, InboxAnswer, InboxRequest, StoredCommand, StoredSpec};
use kit::Clock;
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};

use super::side::Side;

pub struct Memory(MemoryDelivery);

impl Memory {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(MemoryDelivery::new(clock))
    }
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(value))
}

impl Side for Memory {
    fn store(&self) -> Arc<dyn DeliveryStore> {
        Arc::new(self.0.clone())
    }

    fn add_node(&self, node_id: NodeId, cert_serial: String) -> BoxFuture<'_, ()> {
        self.0.add_node(node_id, &cert_serial);
        done(())
    }

    fn revoke_node(&self, node_id: NodeId) -> BoxFuture<'_, ()> {
        self.0.revoke_node(node_id);
        done(())
    }

    fn revoke_certificate(&self, cert_serial: String) -> BoxFuture<'_, ()> {
        self.0.revoke_certificate(&cert_serial);
        done(())
    }

    fn quarantine(&self, node_id: NodeId) -> BoxFuture<'_, ()> {
        self.0.quarantine(node_id);
        done(())
    }

    fn observe_only(&self, on: bool) -> BoxFuture<'_, ()> {
        self.0.set_observe_only(on);
        done(())
    }

    fn put_trust_bundle(&self, version: u64, message: Vec<u8>) -> BoxFuture<'_, ()> {
        self.0.put_trust_bundle(version, message);
        done(())
    }

    fn put_spec(&self, spec: StoredSpec) -> BoxFuture<'_, ()> {
        self.0.put_spec(spec);
        done(())
    }

    fn enqueue(&self, command: StoredCommand, not_after: Timestamp) -> BoxFuture<'_, ()> {
        self.0.enqueue(command, not_after);
        done(())
    }

    fn request_cancel(&self, command_id: CommandId, reason: &'static str) -> BoxFuture<'_, ()> {
        self.0.request_cancel(command_id, reason);
        done(())
    }

    fn expire(&self, gateway_id: GatewayId) -> BoxFuture<'_, ()> {
        self.0.expire(gateway_id);
        done(())
    }

    fn answer_next(&self, answer: InboxAnswer) -> BoxFuture<'_, InboxRequest> {
        Box::pin(async move {
            let item = self.0.next_request().await;
            let request = item.request.clone();
            item.answer(answer);
            request
        })
    }

    fn fate(&self, command_id: CommandId) -> BoxFuture<'_, CommandFate> {
        done(self.0.command_fate(command_id).expect("the command was enqueued"))
    }

    fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> BoxFuture<'_, Vec<u64>> {
        done(self.0.event_seqs(node_id, journal_id))
    }

    fn status(&self, node_id: NodeId) -> BoxFuture<'_, Option<(String, u64)>> {
        done(self.0.status(node_id))
    }

    fn inventory(&self, node_id: NodeId) -> BoxFuture<'_, BTreeMap<String, String>> {
        done(self.0.inventory(node_id))
    }

    fn open_session(&self, node_id: NodeId) -> BoxFuture<'_, Option<u64>> {
        done(self.0.open_session_epoch(node_id))
    }
}
