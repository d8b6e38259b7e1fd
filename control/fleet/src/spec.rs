//! Assembles a node's spec from the parts of every module, and stores it signed when its bytes differ.
//!
//! A node takes a spec only under a higher generation, so whatever makes a stored spec unacceptable raises it too: a signature
//! whose certificate ends soon or whose root is gone, a deployment epoch from before a confirmed restore, and a node that proved
//! a higher generation than a restored database remembers.

use std::time::Duration;

use kernel::module::QueueHandler;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{BoxFuture, Fault, ResultExt};
use model::NodeId;
use model::lifecycle::NodeState;
use pki::Purpose;
use prost::Message;
use store::{Op, Row, RowExt, Tx};
use wire::limits::SPEC_BODY_BYTES_MAX;
use wire::proto::agent::{DesiredStateBody, NodeSpec};

use crate::core::{Fleet, node_of_key};
use crate::{DELIVERY_CHANNEL, sql};

mod renewal;

pub use renewal::{SpecEpochs, SpecRenewal};

const NODE_SPEC: Op = Op::new("node_spec");

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

impl Fleet {
    /// Brings the node's stored spec up to what the modules want. Idempotent: the generation goes up only when the bytes differ,
    /// or when no node would take the stored ones any longer.
    pub async fn assemble(&self, node_id: NodeId) -> Result<Assembled, Fault> {
        self.store().tx(NODE_SPEC, |tx| Box::pin(self.assemble_in(tx, node_id))).await
    }

    /// The same inside a transaction that goes on.
    pub async fn assemble_in(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<Assembled, Fault> {
        // Parts are read under the node's lock, so that the spec of two passes is never the older of two reads.
        let Some(node) = tx.query_opt(&sql::NODE_SPEC_LOCK, &[&node_id.uuid()]).await? else {
            return Ok(Assembled::NotServed);
        };
        if !NodeState::parse(node.get("state")).is_some_and(is_served) {
            return Ok(Assembled::NotServed);
        }
        let mut parts = Vec::with_capacity(self.0.contributors.len());
        for contributor in &self.0.contributors {
            parts.push(contributor.part(tx, node_id).await?);
        }
        let spec = wire::spec::merge(parts).doing("merge the parts of a node's spec")?;
        let spec_hash = wire::spec::hash(&spec);
        let generation = u64::try_from(node.get::<_, i64>("generation")).unwrap_or(0);
        let proved = u64::try_from(node.get::<_, i64>("proved_generation")).unwrap_or(0);
        let same = node.get::<_, Option<&str>>("spec_hash") == Some(spec_hash.as_str());
        if same && proved < generation && !self.is_stale(tx, &node).await? {
            return Ok(Assembled::Unchanged { generation });
        }
        self.put_spec(tx, node_id, generation.max(proved) + 1, spec_hash, spec).await
    }

    /// Whether the stored bytes are ones that a node may refuse although they say what is wanted.
    async fn is_stale(&self, tx: &mut Tx<'_>, node: &Row) -> Result<bool, Fault> {
        if node.opt_ts("restored_at").is_some_and(|restored| node.opt_ts("spec_at") < Some(restored)) {
            return Ok(true);
        }
        let signature: Option<&[u8]> = node.get("spec_signature");
        let now = tx.now().await?;
        Ok(self.keys()?.should_sign_again(signature.unwrap_or_default(), now))
    }

    async fn put_spec(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        generation: u64,
        spec_hash: String,
        spec: NodeSpec,
    ) -> Result<Assembled, Fault> {
        let epoch = tx.query_one(&sql::DEPLOYMENT, &[]).await?.get::<_, i64>("epoch");
        let body = DesiredStateBody {
            node_id: node_id.to_string(),
            generation,
            deployment_epoch: u64::try_from(epoch).unwrap_or(0),
            spec_hash: spec_hash.clone(),
            base_generation: 0,
            spec: Some(spec),
        }
        .encode_to_vec();
        if body.len() > SPEC_BODY_BYTES_MAX {
            return Err(TooLarge { node_id, bytes: body.len() }).doing("store a node's spec");
        }
        let signature = self.sign(Purpose::DesiredState, &body, tx.now().await?)?;
        let stored = i64::try_from(generation).unwrap_or(i64::MAX);
        tx.execute(&sql::NODE_SPEC_PUT, &[&node_id.uuid(), &stored, &spec_hash, &body, &signature]).await?;
        tx.execute(&sql::CLAIM_FORGET, &[&node_id.uuid(), &stored]).await?;
        tx.notify(DELIVERY_CHANNEL, node_id.uuid().hyphenated().to_string());
        Ok(Assembled::Stored { generation })
    }
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
}
