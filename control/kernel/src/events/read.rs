//! Reading events back in the order of their numbers, and showing each reader what is theirs.

use std::collections::BTreeMap;

use model::TenantId;
use store::outbox::{self, EventFilter, EventRange, StoredEvent};
use store::{RowExt, Store, StoreError};
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::fault::{ApiError, Fault};
use crate::ports::iam::Resource;
use crate::sql;

/// Reads events.
#[derive(Clone)]
pub struct EventReader {
    store: Store,
    root: std::sync::Arc<OnceCell<TenantId>>,
}

impl EventReader {
    pub fn new(store: Store) -> Self {
        Self { store, root: std::sync::Arc::default() }
    }

    /// Which events there are.
    pub async fn range(&self) -> Result<EventRange, StoreError> {
        outbox::events_range(&self.store).await
    }

    /// Up to `limit` events after `seq`, oldest first.
    pub async fn after(&self, seq: i64, limit: u32) -> Result<Vec<StoredEvent>, StoreError> {
        outbox::events_after(&self.store, seq, limit, &EventFilter::default()).await
    }

    /// Keeps what the caller may see: `action` is decided on `compute-event/*` of each event's tenant. Fails whole when
    /// one decision fails.
    pub async fn visible(
        &self,
        call: &Call,
        action: &str,
        events: Vec<StoredEvent>,
    ) -> Result<Vec<StoredEvent>, Fault> {
        if events.is_empty() {
            return Ok(events);
        }
        let root = self.root_tenant().await?;
        let mut allowed: BTreeMap<TenantId, bool> =
            events.iter().map(|event| (event.tenant_id.unwrap_or(root), false)).collect();
        let asked: Vec<Resource> =
            allowed.keys().map(|tenant_id| Resource::any("compute-event", *tenant_id)).collect();
        let kept = call.filter(action, asked, Resource::clone).await?;
        for resource in kept {
            allowed.insert(resource.tenant_id, true);
        }
        Ok(events.into_iter().filter(|event| allowed[&event.tenant_id.unwrap_or(root)]).collect())
    }

    async fn root_tenant(&self) -> Result<TenantId, Fault> {
        let find = || async {
            match self.store.read_opt(&sql::ROOT_TENANT, &[]).await? {
                Some(row) => Ok(row.id("tenant_id")),
                // Nobody can hold a token before there is a tenant.
                None => Err(Fault::from(ApiError::invalid_state("the installation has no tenant yet"))),
            }
        };
        self.root.get_or_try_init(find).await.copied()
    }
}
