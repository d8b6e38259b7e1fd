//! What happened, and who asked for it: events, the audit log, parked work, how long each is kept, and the deployment's
//! own account of itself.
//!
//! Events and entries are written by the kernel, in the transaction of the change they tell of; here they are read.

mod audit;
mod events;
mod parked;
mod retention;
mod sql;
mod system;

use std::sync::Arc;

use api::system::JoinFacts;
use kernel::events::EventReader;
use kernel::{BoxFuture, Call, Fault, Module};
use kit::{OsRng, Rng};
use store::Store;

/// Reads the records.
pub struct Ledger {
    store: Store,
    reader: EventReader,
    rng: Arc<dyn Rng>,
    /// What `system.info` tells a machine that wants to join.
    join: Option<JoinFacts>,
}

impl Ledger {
    /// For a deployment that publishes no gateway.
    pub fn new(store: Store) -> Arc<Self> {
        Self::with_join(store, Arc::new(OsRng), None)
    }

    pub fn with_join(store: Store, rng: Arc<dyn Rng>, join: Option<JoinFacts>) -> Arc<Self> {
        let reader = EventReader::new(store.clone());
        Arc::new(Self { store, reader, rng, join })
    }
}

fn handler<R, T, F, Fut>(
    ledger: &Arc<Ledger>,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Arc<Ledger>, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let ledger = ledger.clone();
    move |call, request| Box::pin(run(ledger.clone(), call, request))
}

pub fn module(ledger: &Arc<Ledger>) -> Module {
    Module::new("ledger")
        .method::<api::events::List, _>(handler(ledger, events::list))
        .method::<api::audit::List, _>(handler(ledger, audit::list))
        .method::<api::work::ListParked, _>(handler(ledger, parked::list))
        .method::<api::work::Requeue, _>(handler(ledger, parked::requeue))
        .method::<api::system::Info, _>(handler(ledger, system::info))
        .method::<api::system::ConfirmRestore, _>(handler(ledger, system::confirm_restore))
        .pass(Arc::new(retention::Retention::new(ledger.store.clone())))
}
