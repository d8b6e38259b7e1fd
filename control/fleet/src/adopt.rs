//! Adoption: a joined node gets a pool, a spec, and the diagnosis that decides whether it may take work.

use std::time::Duration;

use kernel::events::EventKind;
use kernel::module::wake;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Fault};
use model::{CommandId, NodeId, PoolId};
use serde_json::json;
use store::Tx;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::{DiagNvml, InventoryRefresh};

use crate::commands::NewCommand;
use crate::core::{Fleet, node_key};
use crate::{OBSERVE_QUEUE, sql};

/// A node that was adopted while it was away still gets its diagnosis for a day.
const DIAGNOSIS_VALID_FOR: Duration = Duration::from_secs(24 * 60 * 60);

impl Fleet {
    pub(crate) async fn adopt(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        pool_id: PoolId,
        by: &str,
    ) -> Result<CommandId, Fault> {
        let Some(pool) = tx.query_opt(&sql::POOL_CLASS, &[&pool_id.uuid()]).await? else {
            return Err(ApiError::not_found("pool", pool_id).into());
        };
        if tx.execute(&sql::NODE_ADOPT, &[&node_id.uuid(), &pool_id.uuid()]).await? == 0 {
            return Err(
                ApiError::invalid_state(format!("node {node_id} is adopted already, or is gone")).into()
            );
        }
        self.emit(tx, EventKind::NodeAdopted, node_id, json!({ "poolId": pool_id.to_string() })).await?;
        // Only a GPU pool asks for working GPUs; any other takes a node that answers.
        let payload = match pool.get::<_, &str>("class") {
            "gpu" => Payload::DiagNvml(DiagNvml::default()),
            _ => Payload::InventoryRefresh(InventoryRefresh::default()),
        };
        self.start_acceptance(tx, node_id, payload, by).await
    }

    /// Asks for the diagnosis, anew when a former one failed.
    pub(crate) async fn start_acceptance(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        payload: Payload,
        by: &str,
    ) -> Result<CommandId, Fault> {
        let command_id = self
            .enqueue(
                tx,
                NewCommand {
                    node_id,
                    payload,
                    valid_for: DIAGNOSIS_VALID_FOR,
                    min_generation: 0,
                    resource_keys: Vec::new(),
                    created_by: by.to_owned(),
                },
            )
            .await?;
        tx.execute(&sql::NODE_ACCEPTANCE_PUT, &[&node_id.uuid(), &command_id.uuid()]).await?;
        wake(tx, SPEC_QUEUE, &node_key(node_id)).await?;
        wake(tx, OBSERVE_QUEUE, &node_key(node_id)).await?;
        Ok(command_id)
    }
}
