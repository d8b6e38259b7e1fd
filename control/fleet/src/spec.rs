//! Assembles a node's spec from the parts of every module, and stores it signed when its bytes differ.
//!
//! A node takes a spec only under a higher generation, so whatever makes a stored spec unacceptable raises it too: a signature
//! whose certificate ends soon or whose root is gone, a deployment epoch from before a confirmed restore, and a node that proved
//! a higher generation than a restored database remembers. A node that lost its journal can prove nothing and still takes no
//! lower generation than it had, so after a restore the first one is above all that may have been forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel::module::{Again, HandleTogether, QueueHandler};
use kernel::ports::node::SPEC_QUEUE;
use kernel::{BoxFuture, Fault, ResultExt};
use model::NodeId;
use model::lifecycle::NodeState;
use pki::Purpose;
use prost::Message;
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;
use wire::limits::SPEC_BODY_BYTES_MAX;
use wire::proto::agent::{DesiredStateBody, NodeSpec};

use crate::core::{Fleet, node_key, node_of_key};
use crate::{DELIVERY_CHANNEL, sql};

mod renewal;

pub use renewal::{SpecEpochs, SpecRenewal};

const NODE_SPEC: Op = Op::new("node_spec");
/// How far a restored database may be behind what a node had: a spec in every second of twelve days.
pub const FORGOTTEN_MAX: u64 = 1 << 20;
/// Nodes whose specs one transaction assembles: some milliseconds of signing, in which nobody else has their rows.
const NODES_MAX: u32 = 128;

/// What a pass over one node's spec found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assembled {
    /// The node is not one that has desired state: not adopted yet, or revoked.
    NotServed,
    /// The stored spec says this already.
    Unchanged {
        generation: u64,
    },
    Stored {
        generation: u64,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("the spec of node {node_id} is {bytes} bytes, and {SPEC_BODY_BYTES_MAX} may be sent")]
struct TooLarge {
    node_id: NodeId,
    bytes: usize,
}

/// Desired state applies from adoption on, and a node that is revoked keeps the last one it was given.
fn is_served(state: NodeState) -> bool {
    match state {
        NodeState::Accepting | NodeState::Ready | NodeState::Unreachable | NodeState::Lost => true,
        NodeState::Joined | NodeState::Revoked | NodeState::Removed => false,
    }
}

/// Whether what is stored of the node, and of its spec, is from before a confirmed restore.
fn is_before_restore(node: &Row) -> bool {
    let stored = node.opt_ts("spec_at").unwrap_or(node.ts("created_at"));
    node.opt_ts("restored_at").is_some_and(|restored| stored < restored)
}

/// A spec that is to be stored.
struct Intent {
    node_id: NodeId,
    generation: u64,
    spec_hash: String,
    body: Vec<u8>,
    signature: Vec<u8>,
}

impl Fleet {
    /// Brings the node's stored spec up to what the modules want. Idempotent: the generation goes up only when the bytes differ,
    /// or when no node would take the stored ones any longer.
    pub async fn assemble(&self, node_id: NodeId) -> Result<Assembled, Fault> {
        let nodes = &[node_id];
        let found = self.store().tx(NODE_SPEC, |tx| Box::pin(self.assemble_all(tx, nodes))).await?;
        Ok(found.into_iter().next().unwrap_or(Assembled::NotServed))
    }

    /// The same for many nodes in a few statements, in the order of `nodes`, inside a transaction. What is stored is sent with
    /// the commit.
    pub async fn assemble_all(&self, tx: &mut Tx<'_>, nodes: &[NodeId]) -> Result<Vec<Assembled>, Fault> {
        // Parts are read under the nodes' locks, so that the spec of two passes is never the older of two reads.
        let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
        let rows = tx.query(&sql::NODE_SPECS_LOCK, &[&ids]).await?;
        let mut served: BTreeMap<NodeId, Row> = BTreeMap::new();
        for row in rows {
            if NodeState::parse(row.get("state")).is_some_and(is_served) {
                served.insert(row.id("node_id"), row);
            }
        }
        let wanted = self.wanted_specs(tx, served.keys().copied().collect()).await?;
        let mut found: BTreeMap<NodeId, Assembled> = BTreeMap::new();
        let mut intents = Vec::new();
        for ((node_id, row), spec) in served.iter().zip(wanted) {
            let (node_id, spec_hash) = (*node_id, wire::spec::hash(&spec));
            let generation = u64::try_from(row.get::<_, i64>("generation")).unwrap_or(0);
            let proved = u64::try_from(row.get::<_, i64>("proved_generation")).unwrap_or(0);
            let same = row.get::<_, Option<&str>>("spec_hash") == Some(spec_hash.as_str());
            if same && proved < generation && !self.is_stale(row)? {
                found.insert(node_id, Assembled::Unchanged { generation });
                continue;
            }
            let kept = generation > 0 && kit::mutant::on("fleet.generation-not-raised");
            let above = if is_before_restore(row) { FORGOTTEN_MAX } else { u64::from(!kept) };
            let generation = generation.max(proved) + above;
            intents.push(self.intent(row, node_id, generation, spec_hash, spec)?);
            found.insert(node_id, Assembled::Stored { generation });
        }
        put_specs(tx, intents);
        let of = |node_id: &NodeId| found.get(node_id).copied().unwrap_or(Assembled::NotServed);
        Ok(nodes.iter().map(of).collect())
    }

    /// What every module wants of these nodes, in their order.
    async fn wanted_specs(&self, tx: &mut Tx<'_>, nodes: Vec<NodeId>) -> Result<Vec<NodeSpec>, Fault> {
        let mut parts: Vec<Vec<NodeSpec>> = nodes.iter().map(|_| Vec::new()).collect();
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        for contributor in &self.0.contributors {
            for (parts, part) in parts.iter_mut().zip(contributor.parts(tx, &nodes).await?) {
                parts.push(part);
            }
        }
        parts
            .into_iter()
            .map(|parts| wire::spec::merge(parts).doing("merge the parts of a node's spec"))
            .collect()
    }

    /// Whether the stored bytes are ones that a node may refuse although they say what is wanted.
    fn is_stale(&self, node: &Row) -> Result<bool, Fault> {
        if is_before_restore(node) {
            return Ok(true);
        }
        let signature: Option<&[u8]> = node.get("spec_signature");
        Ok(self.keys()?.should_sign_again(signature.unwrap_or_default(), node.ts("now")))
    }

    fn intent(
        &self,
        node: &Row,
        node_id: NodeId,
        generation: u64,
        spec_hash: String,
        spec: NodeSpec,
    ) -> Result<Intent, Fault> {
        let body = DesiredStateBody {
            node_id: node_id.to_string(),
            generation,
            deployment_epoch: u64::try_from(node.get::<_, i64>("epoch")).unwrap_or(0),
            spec_hash: spec_hash.clone(),
            base_generation: 0,
            spec: Some(spec),
        }
        .encode_to_vec();
        if body.len() > SPEC_BODY_BYTES_MAX {
            return Err(TooLarge { node_id, bytes: body.len() }).doing("store a node's spec");
        }
        let signature = self.sign(Purpose::DesiredState, &body, node.ts("now"))?;
        Ok(Intent { node_id, generation, spec_hash, body, signature })
    }
}

/// Generations, hashes, bodies and signatures of many nodes go out in one statement, and with the commit.
fn put_specs(tx: &mut Tx<'_>, intents: Vec<Intent>) {
    if intents.is_empty() {
        return;
    }
    let (mut ids, mut generations, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bodies, mut signatures) = (Vec::new(), Vec::new());
    for Intent { node_id, generation, spec_hash, body, signature } in intents {
        ids.push(node_id.uuid());
        generations.push(i64::try_from(generation).unwrap_or(i64::MAX));
        hashes.push(spec_hash);
        bodies.push(body);
        signatures.push(signature);
        tx.notify(DELIVERY_CHANNEL, node_key(node_id));
    }
    tx.later(&sql::CLAIMS_FORGET, vec![Box::new(ids.clone()), Box::new(generations.clone())]);
    let columns: Vec<store::Owned> =
        vec![Box::new(ids), Box::new(generations), Box::new(hashes), Box::new(bodies), Box::new(signatures)];
    tx.later(&sql::NODE_SPECS_PUT, columns);
}

/// The handler of [`SPEC_QUEUE`].
pub struct SpecQueue(pub Fleet);

impl QueueHandler for SpecQueue {
    fn queue(&self) -> &'static str {
        SPEC_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            if let Some(node_id) = node_of_key(key) {
                self.0.assemble(node_id).await?;
            }
            Ok(None)
        })
    }

    fn together(&self) -> Option<&dyn HandleTogether> {
        Some(self)
    }
}

impl HandleTogether for SpecQueue {
    fn keys_max(&self) -> u32 {
        NODES_MAX
    }

    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>> {
        Box::pin(async move {
            let nodes: Vec<NodeId> = keys.iter().filter_map(|key| node_of_key(key)).collect();
            self.0.assemble_all(tx, &nodes).await?;
            Ok(Vec::new())
        })
    }
}
