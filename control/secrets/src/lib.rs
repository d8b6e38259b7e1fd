//! Secrets of tenants: kept sealed, told to the node that runs what names them, and to nobody else.
//!
//! ```text
//! secrets.put ---> row, sealed by a key that is not in the database
//! instances   ---> row of an instance's own (user data), which goes with it
//!
//! node's signed question -> fleet: is it that node? -> broker: is what it runs the tenant's, placed there, naming this?
//!                                                        -> the value, sealed to the key in the question
//! ```
//!
//! # What cannot happen
//!
//! No answer of the API, no event and no entry in the audit log has a value. A copied database gives none away. A value that is
//! moved to another row or tenant opens there no more. No question is answered twice, and no answer can be read by whoever
//! carries it.

mod delete;
mod put;
mod read;

mod broker;
mod keep;
mod upkeep;

pub mod sql;
mod view;

use std::sync::Arc;

use kernel::{ApiError, BoxFuture, Call, Fault, Module, ResultExt};
use kit::{Clock, Rng};
use model::{ErrorCode, Id, SecretId, TenantId};
use pki::Entropy;
use pki::envelope::KekRing;
use store::Store;
use zeroize::Zeroizing;

pub use broker::Broker;

/// Keeps secrets. Cheap to clone.
#[derive(Clone)]
pub struct Secrets(Arc<Inner>);

struct Inner {
    store: Store,
    /// None in a deployment that was made before there were secrets, until somebody makes its key.
    ring: Option<KekRing>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    entropy: Arc<dyn Entropy>,
}

impl Secrets {
    pub fn new(
        store: Store,
        ring: Option<KekRing>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self(Arc::new(Inner { store, ring, clock, rng, entropy }))
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn id<I: Id>(&self) -> I {
        self.0.rng.id(self.0.clock.now())
    }

    fn ring(&self) -> Result<&KekRing, Fault> {
        self.0.ring.as_ref().ok_or_else(|| {
            let message = "this deployment has no key to keep secrets with. Make one: better-compute pki add-secrets-key --dir DIR, \
                with the folder of its keys; then start it again";
            ApiError::new(ErrorCode::Unsupported, message).into()
        })
    }

    /// A value as its row holds it.
    fn seal(&self, tenant_id: TenantId, id: SecretId, value: &[u8]) -> Result<Vec<u8>, Fault> {
        self.ring()?.seal(value, &context(tenant_id, id), &*self.0.entropy).doing("seal a secret")
    }

    fn open(&self, tenant_id: TenantId, id: SecretId, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Fault> {
        self.ring()?.open(sealed, &context(tenant_id, id)).doing("open a secret")
    }
}

/// The row that a sealed value belongs to. In another it does not open.
fn context(tenant_id: TenantId, id: SecretId) -> String {
    format!("secrets/{tenant_id}/{id}")
}

/// One line per method: what takes `(Secrets, Arc<Call>, Request)`.
fn handler<R, T, F, Fut>(
    secrets: &Secrets,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Secrets, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let secrets = secrets.clone();
    move |call, request| Box::pin(run(secrets.clone(), call, request))
}

pub fn module(secrets: &Secrets) -> Module {
    Module::new("secrets")
        .method::<api::secrets::Put, _>(handler(secrets, put::put))
        .method::<api::secrets::Get, _>(handler(secrets, read::get))
        .method::<api::secrets::List, _>(handler(secrets, read::list))
        .method::<api::secrets::Delete, _>(handler(secrets, delete::delete))
        .pass(Arc::new(upkeep::Upkeep(secrets.clone())))
}
