//! Secrets between the modules that have to do with one: who keeps them, who uses them, and who knows nodes.
//!
//! ```text
//! instances --keep, hold, forget--> SecretKeeper          node --request--> gateway --row--> fleet: is it the node?
//!                                                          fleet --SecretBroker--> secrets --SecretUses--> instances: may it?
//! ```

use model::{AllocationId, InstanceId, NodeId, SecretId, TenantId};
use store::Tx;

use crate::BoxFuture;
use crate::fault::Fault;

/// Keeps secrets of tenants, for modules whose things use them.
pub trait SecretKeeper: Send + Sync + 'static {
    /// Whether this deployment can keep and tell any: UNSUPPORTED, and what to do, when it cannot.
    fn usable(&self) -> Result<(), Fault>;

    /// The secret that a tenant put under this name.
    fn named<'a>(
        &'a self,
        tenant_id: TenantId,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretId>, Fault>>;

    /// Has the secret stay until the transaction has committed a row that names it. False when it is gone.
    fn hold<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
        secret_id: SecretId,
    ) -> BoxFuture<'a, Result<bool, Fault>>;

    /// Keeps a value that belongs to an instance, in the transaction that makes it.
    fn keep<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
        instance_id: InstanceId,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<SecretId, Fault>>;

    /// Deletes what belongs to an instance, in the transaction that ends it. Its row names it no more.
    fn forget<'a>(&'a self, tx: &'a mut Tx<'_>, instance_id: InstanceId) -> BoxFuture<'a, Result<(), Fault>>;

    /// Stands for a value where two have to be compared: tells nobody anything who does not hold the deployment's key.
    fn mark(&self, value: &[u8]) -> Result<String, Fault>;
}

/// What an instance is that a node asks a secret for, by its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretUse {
    pub tenant_id: TenantId,
    /// Where it is: its live place.
    pub place: Option<(NodeId, AllocationId)>,
    /// It is on its way out, and is told nothing more.
    pub going: bool,
    /// What it names.
    pub secret_id: Option<SecretId>,
}

/// Knows what uses secrets.
pub trait SecretUses: Send + Sync + 'static {
    /// None when there is no such instance. Within the transaction of the answer.
    fn of_instance<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        instance_id: InstanceId,
    ) -> BoxFuture<'a, Result<Option<SecretUse>, Fault>>;
}

/// What a node asks for. That the node asks is established: its signature and its connection were verified.
#[derive(Debug, Clone)]
pub struct SecretAsk {
    pub request_id: [u8; 16],
    pub node_id: NodeId,
    pub instance_id: InstanceId,
    pub allocation_id: AllocationId,
    pub secret_id: SecretId,
    /// SubjectPublicKeyInfo.
    pub one_time_key: Vec<u8>,
    /// What the sealed value names its request by.
    pub kid: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretOutcome {
    /// The value, in a box that the one-time key opens.
    Sealed(String),
    /// Until something else is asked for.
    Refused { reason: &'static str, message: &'static str },
    /// Not now.
    Later { reason: &'static str },
}

/// Judges what nodes ask for.
pub trait SecretBroker: Send + Sync + 'static {
    fn answer<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        ask: &'a SecretAsk,
    ) -> BoxFuture<'a, Result<SecretOutcome, Fault>>;

    /// Somebody asked over this node's connection what the node did not ask, or not so: told as a security event.
    fn distrusted<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
        reason: &'static str,
    ) -> BoxFuture<'a, Result<(), Fault>>;
}
