//! Adoption: a joined node gets a pool, a spec, and the diagnosis that decides whether it may take work.

use std::time::Duration;

use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Fault};
use model::lifecycle::NodeState;
use model::{CommandId, NodeId, PoolId};
use serde_json::json;
use store::{RowExt, Tx};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::{DiagNvml, InventoryRefresh};

use crate::commands::NewCommand;
use crate::core::{Fleet, node_key};
use crate::{OBSERVE_QUEUE, sql};

/// A node that was adopted while it was away still gets its diagnosis for a day.
const DIAGNOSIS_VALID_FOR: Duration = Duration::from_secs(24 * 60 * 60);

impl Fleet {
    /// Takes the node into the pool. In the same pool it changes nothing, except that a diagnosis that failed, or never ran, is
    /// asked for anew.
    pub(crate) async fn adopt(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        pool_id: PoolId,
        by: &str,
    ) -> Result<(), Fault> {
        let Some(pool) = tx.query_opt(&sql::POOL_CLASS, &[&pool_id.uuid()]).await? else {
            return Err(ApiError::not_found("pool", pool_id).into());
        };
        let Some(node) = tx.query_opt(&sql::NODE_ACCEPTANCE, &[&node_id.uuid()]).await? else {
            return Err(ApiError::not_found("node", node_id).into());
        };
        let state: NodeState = parse_state(node.get("state"))?;
        let held: Option<PoolId> = node.opt_id("pool_id");
        match state {
            NodeState::Joined => {
                tx.execute(&sql::NODE_ADOPT, &[&node_id.uuid(), &pool_id.uuid()]).await?;
                let data = json!({ "poolId": pool_id.to_string() });
                self.emit(tx, EventKind::NodeAdopted, node_id, data).await?;
            }
            NodeState::Accepting if held == Some(pool_id) && node.get("over") => {}
            NodeState::Accepting | NodeState::Ready | NodeState::Unreachable | NodeState::Lost
                if held == Some(pool_id) =>
            {
                return Ok(());
            }
            // What is booked on it belongs to the pool it is in.
            NodeState::Accepting | NodeState::Ready | NodeState::Unreachable | NodeState::Lost => {
                let message = format!(
                    "node {node_id} is in another pool: drain it, revoke it, and join the machine again with a token of this pool"
                );
                return Err(ApiError::invalid_state(message).into());
            }
            NodeState::Revoked | NodeState::Removed => {
                let message = format!("node {node_id} is {}: join the machine again", state.name());
                return Err(ApiError::invalid_state(message).into());
            }
        }
        // Only a GPU pool asks for working GPUs; any other takes a node that answers.
        let payload = match pool.get::<_, &str>("class") {
            "gpu" => Payload::DiagNvml(DiagNvml::default()),
            _ => Payload::InventoryRefresh(InventoryRefresh::default()),
        };
        self.start_acceptance(tx, node_id, payload, by).await
    }

    async fn start_acceptance(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        payload: Payload,
        by: &str,
    ) -> Result<(), Fault> {
        let command_id: CommandId = self.id();
        let command = NewCommand {
            node_id,
            payload,
            valid_for: DIAGNOSIS_VALID_FOR,
            min_generation: 0,
            resource_keys: Vec::new(),
            created_by: by.to_owned(),
        };
        self.enqueue(tx, command_id, command).await?;
        tx.execute(&sql::NODE_ACCEPTANCE_PUT, &[&node_id.uuid(), &command_id.uuid()]).await?;
        wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        wake(tx, OBSERVE_QUEUE, &node_key(node_id)).await?;
        Ok(())
    }
}

fn parse_state(name: &str) -> Result<NodeState, Fault> {
    NodeState::parse(name).ok_or_else(|| store::StoreError::decode("node", "state").into())
}
