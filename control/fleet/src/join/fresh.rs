//! A node that lost every mark of what it held takes only a spec that was bound to its own question just now, so that an
//! old spec, truly signed once, cannot be played to it again.

use kernel::Fault;
use model::NodeId;
use model::lifecycle::NodeState;
use pki::Purpose;
use prost::Message;
use store::{Row, RowExt, Tx};
use wire::proto::agent::{FreshBinding, FreshStatement};
use wire::proto::common::IntentSignature;

use super::{Answer, refused};
use crate::core::Fleet;
use crate::sql;

const NONCE_BYTES: usize = 32;
const REQUEST_BYTES_MAX: usize = 256;

impl Fleet {
    pub(super) async fn bind_fresh(&self, tx: &mut Tx<'_>, row: &Row) -> Result<Answer, Fault> {
        let asked: FreshStatement = match wire::decode("fresh request", row.get("request"), REQUEST_BYTES_MAX)
        {
            Ok(asked) => asked,
            Err(err) => return refused(err.to_string()),
        };
        let Ok(node_id) = asked.node_id.parse::<NodeId>() else {
            return refused("the request names no node");
        };
        if asked.nonce.len() != NONCE_BYTES {
            return refused("a nonce is 32 bytes");
        }
        let Some(node) = tx.query_opt(&sql::NODE_LOCK, &[&node_id.uuid()]).await? else {
            return refused("the node is unknown");
        };
        let state = NodeState::parse(node.get("state"));
        if matches!(state, None | Some(NodeState::Revoked | NodeState::Removed))
            || node.opt_ts("quarantined_at").is_some()
        {
            return refused("the node is revoked or quarantined");
        }
        let Some(spec_hash) = node.get::<_, Option<String>>("spec_hash") else {
            return refused("the node has no spec yet");
        };
        let epoch = tx.query_one(&sql::DEPLOYMENT, &[]).await?.get::<_, i64>("epoch");
        let statement = FreshStatement {
            node_id: asked.node_id,
            nonce: asked.nonce,
            generation: u64::try_from(node.get::<_, i64>("generation")).unwrap_or(0),
            deployment_epoch: u64::try_from(epoch).unwrap_or(0),
            spec_hash,
        }
        .encode_to_vec();
        let signature = self.sign(Purpose::DeploymentEpoch, &statement, tx.now().await?)?;
        let signature = Some(IntentSignature { value: signature.into() });
        Ok(Answer::Reply(FreshBinding { statement: statement.into(), signature }.encode_to_vec()))
    }
}
