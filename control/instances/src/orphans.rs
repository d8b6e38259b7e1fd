//! Instances that hosts hold and no row places there. Nothing is done about them: somebody is told, once for each set.
//!
//! A host says so in its conditions, which are all that it holds unlisted, and in its reports, which are sooner. They are kept as
//! rows, so that whoever places an instance sees that a host has it already.

use kernel::Fault;
use kernel::events::{self, EventKind};
use model::{InstanceId, NodeId};
use serde_json::json;
use store::{RowExt, Tx};
use uuid::Uuid;
use wire::limits::CONDITIONS_MAX;

use crate::Instances;
use crate::sql::lost as sql;

/// Named in one event.
const TOLD_MAX: usize = 100;

impl Instances {
    /// The host's conditions may be others.
    pub(crate) async fn orphans_said(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let said = tx.query(&sql::ORPHANS_SAID, &[&node_id.uuid()]).await?;
        let named = said.iter().filter_map(|row| row.get::<_, Option<&str>>("named"));
        let named: Vec<Uuid> =
            named.filter_map(|name| name.parse::<InstanceId>().ok()).map(|id| id.uuid()).collect();
        let dropped = tx.execute(&sql::ORPHANS_DROP, &[&node_id.uuid(), &named]).await?;
        let added = self.orphans_add(tx, node_id, &named).await?;
        if dropped > 0 || added { self.tell_orphans(tx, node_id).await } else { Ok(()) }
    }

    /// A host reports some that have no place there.
    pub(crate) async fn orphans_reported(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        ids: &[InstanceId],
    ) -> Result<(), Fault> {
        let named: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        if self.orphans_add(tx, node_id, &named).await? {
            self.tell_orphans(tx, node_id).await?;
        }
        Ok(())
    }

    async fn orphans_add(&self, tx: &mut Tx<'_>, node_id: NodeId, named: &[Uuid]) -> Result<bool, Fault> {
        if named.is_empty() {
            return Ok(false);
        }
        let most = i64::try_from(CONDITIONS_MAX).unwrap_or(i64::MAX);
        Ok(tx.execute(&sql::ORPHANS_ADD, &[&node_id.uuid(), &named, &most]).await? > 0)
    }

    async fn tell_orphans(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<(), Fault> {
        let rows = tx.query(&sql::ORPHANS_KNOWN, &[&node_id.uuid()]).await?;
        let all = rows.len();
        let ids = rows.iter().take(TOLD_MAX).map(|row| row.id::<InstanceId>("instance_id").to_string());
        let ids: Vec<String> = ids.collect();
        tracing::warn!(%node_id, instances = all, "host holds instances that have no place there");
        let tenant_id = self.tenant_of(tx, node_id).await?;
        let data = json!({ "nodeId": node_id.to_string(), "instanceIds": ids });
        events::append(tx, self.rng(), EventKind::InstanceOrphaned, node_id, tenant_id, data).await?;
        Ok(())
    }
}
