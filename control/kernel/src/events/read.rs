//! Reading events back in the order of their numbers, and showing each reader what is theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{DeploymentId, TenantId};
use serde_json::Value;
use store::outbox::{self, EventFilter, EventRange, StoredEvent};
use store::{RowExt, Store, StoreError, deployment};
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::fault::{ApiError, Fault};
use crate::ports::iam::Resource;
use crate::sql;

/// The kind of resource that reading events is decided on.
pub const RESOURCE: &str = "compute-event";

/// Reads events. Clones share what never changes: the root tenant and the deployment's id.
#[derive(Clone)]
pub struct EventReader {
    store: Store,
    fixed: Arc<(OnceCell<TenantId>, OnceCell<DeploymentId>)>,
}

impl EventReader {
    pub fn new(store: Store) -> Self {
        Self { store, fixed: Arc::default() }
    }

    /// Which events there are.
    pub async fn range(&self) -> Result<EventRange, StoreError> {
        outbox::events_range(&self.store).await
    }

    /// Up to `limit` events after `seq`, oldest first.
    pub async fn after(&self, seq: i64, limit: u32) -> Result<Vec<StoredEvent>, StoreError> {
        outbox::events_after(&self.store, seq, limit, &EventFilter::default()).await
    }

    /// Refuses unless the caller may read the events of `tenant_id`, or of their own tenant when none is named.
    pub async fn require(&self, call: &Call, tenant_id: Option<TenantId>) -> Result<(), Fault> {
        let tenant_id = tenant_id.unwrap_or(call.principal.tenant_id);
        call.require_in(api::events::STREAM_ACTION, &Resource::any(RESOURCE, tenant_id)).await
    }

    /// Keeps the events of tenants that the caller may read; `tenant_id` gives an event's. Fails whole when one decision
    /// fails.
    pub async fn visible<T>(
        &self,
        call: &Call,
        events: Vec<T>,
        tenant_id: impl Fn(&T) -> Option<TenantId>,
    ) -> Result<Vec<T>, Fault> {
        if events.is_empty() {
            return Ok(events);
        }
        let root = self.root_tenant().await?;
        let whose = |event: &T| tenant_id(event).unwrap_or(root);
        let mut allowed: BTreeMap<TenantId, bool> =
            events.iter().map(|event| (whose(event), false)).collect();
        let asked: Vec<Resource> = allowed.keys().map(|id| Resource::any(RESOURCE, *id)).collect();
        for resource in call.filter(api::events::STREAM_ACTION, asked, Resource::clone).await? {
            allowed.insert(resource.tenant_id, true);
        }
        Ok(events.into_iter().filter(|event| allowed[&whose(event)]).collect())
    }

    /// The event as the API shows it, with the attributes of CloudEvents 1.0.
    pub async fn view(&self, event: &StoredEvent) -> Result<api::events::Event, Fault> {
        let deployment_id = self.deployment_id().await?;
        Ok(api::events::Event {
            specversion: "1.0".to_owned(),
            id: event.id.into(),
            source: format!("/deployments/{deployment_id}"),
            kind: event.kind.clone(),
            subject: event.subject.clone(),
            time: event.at.into(),
            seq: u64::try_from(event.seq).unwrap_or_default(),
            tenant: event.tenant_id.map(Into::into),
            data: match &event.data {
                Value::Object(data) => data.clone(),
                _ => serde_json::Map::new(),
            },
        })
    }

    async fn deployment_id(&self) -> Result<DeploymentId, StoreError> {
        let read = || async { Ok(deployment::read(&self.store).await?.deployment_id) };
        self.fixed.1.get_or_try_init(read).await.copied()
    }

    /// Whose events are those of no tenant.
    pub async fn root_tenant(&self) -> Result<TenantId, Fault> {
        let find = || async {
            match self.store.read_opt(&sql::ROOT_TENANT, &[]).await? {
                Some(row) => Ok(row.id("tenant_id")),
                // Nobody can hold a token before there is a tenant.
                None => Err(Fault::from(ApiError::invalid_state("the installation has no tenant yet"))),
            }
        };
        self.fixed.0.get_or_try_init(find).await.copied()
    }
}

/// Whether an event is of this type, or of a group of types: `reservation` for every `reservation.…`.
pub fn kind_matches(kind: &str, asked: &str) -> bool {
    kind.strip_prefix(asked.trim_end_matches('.'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
