//! `system.info` and `system.confirmRestore`: the deployment itself, decided in the root tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::system::{GatewayInfo, GetSystemInfo, ObserveOnly, RestoreConfirmation, SystemInfo};
use kernel::events::{self, EventKind};
use kernel::module::queue;
use kernel::ports::iam::Resource;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault};
use model::{ErrorCode, GatewayId};
use serde_json::json;
use store::{Op, RowExt, Sql, deployment, restore, work};

use crate::{Ledger, sql};

const OP_CONFIRM: Op = Op::new("restore_confirm");

impl Ledger {
    async fn system(&self) -> Result<Resource, Fault> {
        Ok(Resource::any("compute-system", self.reader.root_tenant().await?))
    }

    async fn counts(&self, statement: &Sql) -> Result<BTreeMap<String, u32>, Fault> {
        let rows = self.store.read(statement, &[]).await?;
        let count = |row: &store::Row| u32::try_from(row.get::<_, i64>("count")).unwrap_or(u32::MAX);
        Ok(rows.iter().map(|row| (row.get("state"), count(row))).collect())
    }

    async fn info(&self, call: &Call) -> Result<SystemInfo, Fault> {
        let deployment = deployment::read(&self.store).await?;
        let observe_only = deployment.observe_only.then(|| {
            let since = deployment.observe_since.unwrap_or(call.now);
            ObserveOnly {
                reason: deployment.observe_reason.clone().unwrap_or_default(),
                since: since.into(),
                since_seconds: call.now.since(since).as_secs(),
            }
        });
        let gateways = self.store.read(&sql::GATEWAYS, &[]).await?;
        let gateways = gateways.iter().map(|row| GatewayInfo {
            id: row.id::<GatewayId>("gateway_id").to_string(),
            address: row.get("address"),
            sessions: u32::try_from(row.get::<_, i64>("sessions")).unwrap_or(u32::MAX),
            started_at: row.ts("started_at").into(),
            draining: row.opt_ts("drained_at").is_some(),
        });
        let parked: i64 = self.store.read_one(&sql::PARKED_COUNT, &[]).await?.get("parked");
        Ok(SystemInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            deployment_id: deployment.deployment_id.into(),
            epoch: u64::try_from(deployment.epoch).unwrap_or_default(),
            observe_only,
            restored_at: deployment.restored_at.map(Into::into),
            server_time: call.now.into(),
            nodes: self.counts(&sql::NODES_BY_STATE).await?,
            reservations: self.counts(&sql::RESERVATIONS_BY_STATE).await?,
            gateways: gateways.collect(),
            work_parked: u64::try_from(parked).unwrap_or_default(),
            join: self.join.clone(),
        })
    }
}

pub(crate) async fn info(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    _: GetSystemInfo,
) -> Result<SystemInfo, Fault> {
    call.require("compute:system:info", &ledger.system().await?).await?;
    ledger.info(&call).await
}

/// Lets intent flow again, under a new epoch: every node is to get its spec anew, signed for that epoch.
pub(crate) async fn confirm_restore(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    request: RestoreConfirmation,
) -> Result<SystemInfo, Fault> {
    let asked = ledger.system().await?;
    call.require("compute:system:confirmRestore", &asked).await?;
    let deployment = deployment::read(&ledger.store).await?;
    let deployment_id = deployment.deployment_id;
    call.about(format!("deployment/{deployment_id}"));
    if request.confirm.map(api::Id::get) != Some(deployment_id) {
        let message = format!(
            "nodes that ran newer intent than this database holds will be told to run this database's: look at \
             system.info, then confirm with the deployment's id {deployment_id}"
        );
        let error = ApiError::new(ErrorCode::ConfirmationRequired, message);
        return Err(error.detail("confirm", deployment_id.to_string()).into());
    }
    let (rng, by) = (&*ledger.rng, call.principal.name.as_str());
    let (expected, reason) = (request.epoch.get(), request.reason.as_ref().map_or("", api::Text::as_str));
    let confirmed: Result<(), Fault> = call
        .tx(&ledger.store, OP_CONFIRM, |tx| {
            Box::pin(async move {
                // Held until the end, so that two confirmations are one after the other.
                let epoch: i64 = tx.query_one(&sql::EPOCH_LOCK, &[]).await?.get("epoch");
                if u64::try_from(epoch) != Ok(expected) {
                    let message = format!("the deployment is at epoch {epoch}, not {expected}: look again");
                    return Err(ApiError::conflict(message).detail("epoch", epoch).into());
                }
                let Some(epoch) = restore::confirm_restore(tx).await? else {
                    let message = "the deployment is not observe-only: there is nothing to confirm";
                    return Err(ApiError::invalid_state(message).into());
                };
                let nodes = tx.query(&sql::NODE_KEYS, &[]).await?;
                let keys: Vec<String> = nodes.iter().map(|row| row.get("key")).collect();
                work::enqueue_all(tx, queue(SPEC_QUEUE), &keys).await?;
                let data = json!({"epoch": epoch, "reason": reason, "by": by});
                events::append(tx, rng, EventKind::DeploymentRestored, deployment_id, None, data).await?;
                Ok(())
            })
        })
        .await;
    confirmed?;
    ledger.info(&call).await
}
