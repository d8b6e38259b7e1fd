//! What the parts of this crate share.

use std::sync::{Arc, OnceLock};

use kernel::Fault;
use kernel::events::{self, EventKind};
use kernel::ports::node::{NodeObserver, SpecContributor};
use kernel::ports::secrets::SecretBroker;
use kit::{Clock, Rng};
use model::{NodeId, TenantId, Timestamp};
use pki::Purpose;
use serde_json::Value;
use store::{RowExt, Store, Tx};

use crate::keys::FleetKeys;
use crate::sql;

/// Cheap to clone.
#[derive(Clone)]
pub struct Fleet(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub store: Store,
    pub keys: Option<FleetKeys>,
    pub contributors: Vec<Arc<dyn SpecContributor>>,
    pub observers: Vec<Arc<dyn NodeObserver>>,
    /// Judges what nodes ask to be told; without one, none is told anything.
    pub broker: OnceLock<Arc<dyn SecretBroker>>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

impl Fleet {
    /// `keys` is absent in a process that only serves the API's reads; what needs them answers UNAVAILABLE.
    pub fn new(
        store: Store,
        keys: Option<FleetKeys>,
        contributors: Vec<Arc<dyn SpecContributor>>,
        observers: Vec<Arc<dyn NodeObserver>>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        Self(Arc::new(Inner { store, keys, contributors, observers, broker: OnceLock::new(), clock, rng }))
    }

    /// Has nodes' requests for secrets judged. Once: a second broker is not taken.
    pub fn set_broker(&self, broker: Arc<dyn SecretBroker>) {
        let _ = self.0.broker.set(broker);
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn rng(&self) -> &dyn Rng {
        &*self.0.rng
    }

    pub(crate) fn keys(&self) -> Result<&FleetKeys, kernel::Fault> {
        self.0.keys.as_ref().ok_or_else(|| {
            kernel::ApiError::new(model::ErrorCode::Unavailable, "this process holds no signing keys").into()
        })
    }

    /// A worker's signature over intent, at the transaction's time.
    pub(crate) fn sign(&self, purpose: Purpose, body: &[u8], at: Timestamp) -> Result<Vec<u8>, Fault> {
        self.keys()?
            .sign(purpose, body, at)
            .map_err(|over| kernel::ApiError::new(model::ErrorCode::Unavailable, over.to_string()).into())
    }

    /// Why this process cannot sign intent, for a readiness probe. A process without keys is not asked to.
    pub fn signing_problem(&self, at: Timestamp) -> Option<String> {
        self.0.keys.as_ref()?.usable(at).err().map(|over| over.to_string())
    }

    /// A domain event about a node, for its pool's tenant.
    pub(crate) async fn emit(
        &self,
        tx: &mut Tx<'_>,
        kind: EventKind,
        node_id: NodeId,
        data: Value,
    ) -> Result<(), Fault> {
        let tenant = self.tenant_of(tx, node_id).await?;
        Ok(events::append(tx, self.rng(), kind, node_id, tenant, data).await?)
    }

    /// Whose pool the node is in; none before its adoption.
    pub(crate) async fn tenant_of(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
    ) -> Result<Option<TenantId>, Fault> {
        let row = tx.query_opt(&sql::NODE_TENANT, &[&node_id.uuid()]).await?;
        Ok(row.and_then(|row| row.opt_id("tenant_id")))
    }

    pub(crate) fn id<I: model::Id>(&self) -> I {
        self.0.rng.id(self.0.clock.now())
    }
}

/// A queue's key for a node.
pub(crate) fn node_key(node_id: NodeId) -> String {
    node_id.uuid().hyphenated().to_string()
}

pub(crate) fn node_of_key(key: &str) -> Option<NodeId> {
    uuid::Uuid::parse_str(key).ok().map(NodeId::from_uuid)
}

/// Lets our generator stand where the key code wants randomness.
pub(crate) struct AsEntropy<'a>(pub &'a dyn Rng);

impl pki::Entropy for AsEntropy<'_> {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}
