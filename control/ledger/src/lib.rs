//! What happened, and who asked for it: events, the audit log, parked work, and how long each is kept.
//!
//! Nothing here writes an event or an entry: the kernel does, in the transaction of the change it tells of.

mod audit;
mod events;
mod parked;
mod retention;
mod sql;

use std::sync::Arc;

use kernel::events::EventReader;
use kernel::{BoxFuture, Call, Fault, Module};
use store::Store;

/// Reads the records.
pub struct Ledger {
    store: Store,
    reader: EventReader,
}

impl Ledger {
    pub fn new(store: Store) -> Arc<Self> {
        let reader = EventReader::new(store.clone());
        Arc::new(Self { store, reader })
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
        .pass(Arc::new(retention::Retention::new(ledger.store.clone())))
}
