//! The connections of each node: a session, a renewal beside it or a session that takes over, and images that it fetches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use model::NodeId;
use tokio_util::sync::CancellationToken;

/// Connections of one node. One more cuts the oldest: a node whose machine went away without a word must not be kept out by what
/// it left behind.
///
/// A node fetches four images at once at most, so that these with a renewal never cut its session.
const EACH_MAX: usize = 8;

#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    next: u64,
    /// Oldest first.
    of_node: HashMap<NodeId, Vec<(u64, CancellationToken)>>,
}

/// A connection's entry, until it is dropped.
pub(crate) struct Entered {
    connections: Connections,
    node_id: NodeId,
    id: u64,
}

impl Connections {
    /// Takes a connection up; `kill` cuts it.
    pub(crate) fn enter(&self, node_id: NodeId, kill: CancellationToken) -> Entered {
        let mut held = self.0.lock().expect("no holder of this lock panics");
        held.next += 1;
        let id = held.next;
        let own = held.of_node.entry(node_id).or_default();
        if own.len() >= EACH_MAX {
            own.remove(0).1.cancel();
        }
        own.push((id, kill));
        Entered { connections: self.clone(), node_id, id }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut held = self.connections.0.lock().expect("no holder of this lock panics");
        let Some(own) = held.of_node.get_mut(&self.node_id) else { return };
        own.retain(|(id, _)| *id != self.id);
        if own.is_empty() {
            held.of_node.remove(&self.node_id);
        }
    }
}

#[cfg(test)]
mod tests;
