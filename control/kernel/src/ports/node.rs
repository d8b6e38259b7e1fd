//! Between `fleet`, which owns nodes, and the modules that put things on them.

use std::collections::BTreeMap;

use model::{NodeId, PoolId, TenantId, Timestamp};
use store::{StoreError, Tx};
use wire::proto::agent::{NodeReport, NodeSpec};

use crate::BoxFuture;
use crate::fault::Fault;

/// Contributes a part of every node's spec. Called inside the transaction that writes the spec, so it reads rows
/// and nothing else.
pub trait SpecContributor: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn part<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId)
    -> BoxFuture<'a, Result<NodeSpec, StoreError>>;

    /// The parts of many nodes in a few statements, in the order of `nodes`.
    fn parts<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeSpec>, StoreError>> {
        Box::pin(async move {
            let mut parts = Vec::with_capacity(nodes.len());
            for node_id in nodes {
                parts.push(self.part(tx, *node_id).await?);
            }
            Ok(parts)
        })
    }
}

/// What a node offers, as its accepted inventory says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub node_id: NodeId,
    /// None when it was taken out of its pool.
    pub pool: Option<(PoolId, TenantId)>,
    /// Sections of the stored inventory; each is absent until the node reported it.
    pub inventory: wire::inventory::NodeInventory,
    /// GPU UUID to why it takes no work: conditions of blocking severity on a device.
    pub unhealthy: BTreeMap<String, String>,
}

/// One of many reports that are handled together. Verified as [`NodeObserver::report`] says.
#[derive(Debug, Clone, Copy)]
pub struct Reported<'a> {
    pub node_id: NodeId,
    pub report: &'a NodeReport,
    pub observed_at: Timestamp,
}

/// Hears what happens to nodes, inside the transaction in which it happens.
pub trait NodeObserver: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The node's offer may have changed: adopted, moved, its inventory or its health.
    fn facts_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        facts: &'a NodeFacts,
    ) -> BoxFuture<'a, Result<(), Fault>>;

    /// Those of these nodes of whose facts something could not be used for what another node says. It is told to them again
    /// within the minute, though their facts are what they were.
    fn unsettled<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeId>, Fault>> {
        let _ = (tx, nodes);
        Box::pin(async { Ok(Vec::new()) })
    }

    /// The node's ability to take new work may have changed: state, cordon, drain, quarantine, capability.
    fn schedulable_changed<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<(), Fault>>;

    /// A report of the node about itself. Its signature was verified against the node's own certificate and its node id
    /// is the reporting node's. Runs under a savepoint: an error undoes this handler alone.
    fn report<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
        report: &'a NodeReport,
        observed_at: Timestamp,
    ) -> BoxFuture<'a, Result<(), Fault>>;

    /// Many reports in a few statements, of any number of nodes, those of one node in its order. Gives the places, rising,
    /// of those it did not handle: the caller then hands each to [`report`](Self::report) by itself, after the others. An
    /// error undoes the transaction, and the caller hands over all of them one by one.
    fn reports<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        reports: &'a [Reported<'a>],
    ) -> BoxFuture<'a, Result<Vec<usize>, Fault>> {
        let _ = tx;
        Box::pin(async move { Ok((0..reports.len()).collect()) })
    }

    /// Whether anything of this module is still on the node: what is asked before a node is removed.
    fn holds<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<Vec<String>, Fault>>;

    /// A person gave up what [`holds`](Self::holds) names, and declared the node dead. What can go on elsewhere does. A node
    /// that is not revoked may come back nevertheless: what it is to let go of stays in its spec until it has.
    fn abandoned<'a>(&'a self, tx: &'a mut Tx<'_>, node_id: NodeId) -> BoxFuture<'a, Result<(), Fault>> {
        let _ = (tx, node_id);
        Box::pin(async { Ok(()) })
    }
}

/// The queue whose handler, in `fleet`, assembles, signs and stores a node's spec. Key: the node's UUID in hyphenated form.
/// A module wakes it in the transaction that changes its part.
pub const SPEC_QUEUE: &str = "node-spec";
