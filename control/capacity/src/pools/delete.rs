//! `pools.delete`: a pool that nothing is in goes, with its flavors. Its row stays for readers of what has ended in it.
//!
//! Whoever deletes has the pool's row for itself. What comes into a pool names that row: it was there first, and is seen here, or
//! it waits, and then the database refuses it (`pool_is_open`).

use std::sync::Arc;

use api::Method;
use api::pools::{DeletePool, Pool, PoolState};
use kernel::events::{self, EventKind};
use kernel::ports::tenants::counted;
use kernel::{ApiError, Call, Fault};
use model::{JoinTokenId, NodeId, PoolId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;

use super::{meant, pool_resource};
use crate::{Capacity, sql};

const POOL_DELETE: Op = Op::new("pool_delete");

pub(crate) async fn delete(capacity: Capacity, call: Arc<Call>, request: DeletePool) -> Result<Pool, Fault> {
    let (pool_id, tenant_id) = meant(&capacity, &call, request.tenant, &request.pool).await?;
    let (action, see) = (api::pools::Delete::ACTION, api::pools::Get::ACTION);
    call.require_on(action, see, &pool_resource(pool_id, tenant_id), "pool", &request.pool).await?;
    call.about(format!("pool/{pool_id}"));
    let pool = capacity.pool_shown(pool_id).await?;
    if pool.state.0 == PoolState::Deleted {
        return Ok(Pool { dry_run: request.dry_run, ..pool });
    }
    // As it stands, without keeping anybody from it: whoever is refused, or asks what would be, locks nothing.
    let has = capacity.store().read(&sql::POOL_HAS, &[&pool_id.uuid()]).await?;
    refuse_contents(pool_id, &pool.name, &has)?;
    if request.dry_run {
        return Ok(Pool { dry_run: true, ..pool });
    }
    let this = &capacity;
    call.tx(capacity.store(), POOL_DELETE, |tx| {
        Box::pin(async move { this.pool_delete_in(tx, pool_id, tenant_id).await })
    })
    .await?;
    capacity.pool_shown(pool_id).await
}

impl Capacity {
    /// Nothing for one that is deleted.
    async fn pool_delete_in(
        &self,
        tx: &mut Tx<'_>,
        pool_id: PoolId,
        tenant_id: TenantId,
    ) -> Result<(), Fault> {
        let id = pool_id.uuid();
        let Some(row) = tx.query_opt(&sql::POOL_DELETE_LOCK, &[&id]).await? else {
            return Err(ApiError::not_found("pool", pool_id).into());
        };
        if row.opt_ts("deleted_at").is_some() {
            return Ok(());
        }
        let name: String = row.get("name");
        // Before it is looked what there is: a draft of the last moment is then either admitted or gone.
        tx.execute(&sql::POOL_DRAFTS_DELETE, &[&id]).await?;
        refuse_contents(pool_id, &name, &tx.query(&sql::POOL_HAS, &[&id]).await?)?;
        tx.execute(&sql::POOL_DELETED, &[&id]).await?;
        let (kind, data) = (EventKind::PoolDeleted, json!({ "name": name }));
        Ok(events::append(tx, self.rng(), kind, pool_id, Some(tenant_id), data).await?)
    }
}

/// Says what is in the pool, and what to look at first.
fn refuse_contents(pool_id: PoolId, name: &str, has: &[Row]) -> Result<(), ApiError> {
    let Some(first) = has.first() else { return Ok(()) };
    let next = next_command(pool_id, first.get("thing"), first.get("about"));
    let has: Vec<String> = has.iter().filter_map(|row| counted(row.get("count"), row.get("thing"))).collect();
    let listed = has.join(", ");
    let message = format!("pool {name} is not empty: it has {listed}. Next: better-compute {next}");
    Err(ApiError::invalid_state(message).detail("has", has))
}

/// The names are those of [`sql::POOL_HAS`].
fn next_command(pool_id: PoolId, thing: &str, about: Uuid) -> String {
    match thing {
        "instance" | "reservation" => {
            format!("{thing}s list --tenant {} --pool {pool_id}", TenantId::from_uuid(about))
        }
        // Its host says when nothing has the address any more.
        "address lease" => format!("nodes get {}", NodeId::from_uuid(about)),
        "node" => format!("nodes revoke {}", NodeId::from_uuid(about)),
        "join token" | "join request" => format!("join-tokens revoke {}", JoinTokenId::from_uuid(about)),
        _ => format!("pools get {pool_id}"),
    }
}
