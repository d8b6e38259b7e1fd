//! The deployment's own row: who it is, and whether it may act.

use model::{DeploymentId, Timestamp};
use tokio_postgres::Row;

use crate::{RowExt, Sql, Store, StoreError, Tx, sql};

const GET: Sql = sql(
    "deployment_get",
    "SELECT deployment_id, epoch, observe_only, observe_reason, observe_since, restored_at, created_at FROM deployment",
);

pub(crate) const STATEMENTS: &[Sql] = &[GET];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    pub deployment_id: DeploymentId,
    /// Rises when a restored database is confirmed. Nodes refuse intent of an older epoch.
    pub epoch: i64,
    /// While set, the control plane looks and answers, and sends nothing that acts.
    pub observe_only: bool,
    pub observe_reason: Option<String>,
    pub observe_since: Option<Timestamp>,
    pub restored_at: Option<Timestamp>,
    pub created_at: Timestamp,
}

/// The deployment, read in a transaction that goes on to act on it.
pub async fn get(tx: &mut Tx<'_>) -> Result<Deployment, StoreError> {
    Ok(read_row(&tx.query_one(&GET, &[]).await?))
}

/// The deployment as it is now.
pub async fn read(store: &Store) -> Result<Deployment, StoreError> {
    Ok(read_row(&store.read_one(&GET, &[]).await?))
}

fn read_row(row: &Row) -> Deployment {
    Deployment {
        deployment_id: row.id("deployment_id"),
        epoch: row.get("epoch"),
        observe_only: row.get("observe_only"),
        observe_reason: row.get("observe_reason"),
        observe_since: row.opt_ts("observe_since"),
        restored_at: row.opt_ts("restored_at"),
        created_at: row.ts("created_at"),
    }
}
