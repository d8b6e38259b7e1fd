//! What can be booked, what is booked, and by whom: pools, quotas, reservations.
//!
//! ```text
//! create: draft -> decision -> admitted, placed        (drafts that nobody admitted are deleted)
//!
//! scheduling -> placed -> active -> releasing -> released | expired
//!     ^           |       |   the node's signed reports move it
//!     +-----------+-------+   a refusal, or the loss of its node, sends it back
//!
//! What it booked on a node stays booked until that node says that nothing of it is held, wherever the reservation is by
//! then; or until the node is removed.
//!
//! node's inventory -> facts -> node_capacity, atoms -> books (a picture in memory) -> placer -> bookings
//! ```
//!
//! # Who places
//!
//! In a small pool every process places what it admits (`create`, `place`); in a large one its owner does, by a lease
//! (`owner`). Calls and reports that come together are one transaction (`many`), and what waits is placed in turn (`line`).
//!
//! # Who may book where
//!
//! A reservation belongs to a tenant and books from a pool of that tenant or of one above it. From a pool of a tenant
//! above, only who may see that pool (`compute:pools:get`) may book: granting that sight is what offers a pool.
//! `compute:reservations:create` is decided on the draft's attributes; what the caller left out is absent there, so a
//! policy that bounds `resource.gpuModel` or `resource.hours` denies who names no model or no end.
//!
//! # What cannot happen
//!
//! No atom is booked twice (the key of `bookings`), no node is booked beyond what it offers (a trigger that holds the
//! nodes' rows), no tenant holds more, with those below it, than its quota (a trigger that holds the rows of the
//! quotas on the way up). Both look once for a statement, however many rows it writes. A tenant without a row for a
//! resource is bound by those above it alone. Where code and database disagree, the database wins and the code looks again.
//! Nothing comes into a pool that is deleted, and none is deleted under what has not ended (a lock of its row, and triggers).

mod change;
mod create;
mod read;

mod facts;
mod inline;
mod observe;
mod spec;

mod books;
mod explain;
mod line;
mod many;
mod owner;
mod place;
mod reconcile;

mod state;
mod view;

mod pools;
mod quotas;
mod seat;
mod tenant;

mod invariants;
mod sql;

use std::sync::{Arc, OnceLock};

use kernel::events::{self, EventKind};
use kernel::{BoxFuture, Call, Fault, Module};
use kit::{Clock, Rng};
use model::{Id, ReservationId, TenantId};
use serde_json::Value;
use store::{Store, StoreError, Tx};

use books::Books;
pub use inline::{Place, PoolOfInstances, Room, is_over_quota, is_taken};
pub use invariants::{Violation, invariants};
use many::{Batches, Readers};
use owner::Owner;
pub use reconcile::PLACE_QUEUE;
pub use seat::Seating;

/// Statements on the way of every call or report, for the test that looks at their plans.
pub fn hot_statements() -> Vec<store::Sql> {
    [sql::HOT, sql::many::ALL].concat()
}

/// The module's methods, its part of node specs, and its ear for nodes. Cheap to clone; clones share their books.
#[derive(Clone)]
pub struct Capacity(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    books: Books,
    owner: Owner,
    /// Where calls are done together.
    batches: OnceLock<Batches>,
    readers: OnceLock<Readers>,
}

impl Capacity {
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self::with_owners_from(owner::NODES_MIN, store, clock, rng)
    }

    /// As [`Capacity::new`], with an owner for every pool of at least so many nodes.
    pub fn with_owners_from(
        nodes_min: usize,
        store: Store,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        let books = Books::new(store.clone(), clock.clone());
        let owner = Owner::new(&*rng, nodes_min);
        Self(Arc::new(Inner {
            store,
            clock,
            rng,
            books,
            owner,
            batches: OnceLock::new(),
            readers: OnceLock::new(),
        }))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn rng(&self) -> &dyn Rng {
        &*self.0.rng
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    pub(crate) fn books(&self) -> &Books {
        &self.0.books
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.0.owner
    }

    pub(crate) fn id<I: Id>(&self) -> I {
        self.0.rng.id(self.0.clock.now())
    }

    pub(crate) async fn tell(
        &self,
        tx: &mut Tx<'_>,
        kind: EventKind,
        id: ReservationId,
        tenant_id: TenantId,
        data: Value,
    ) -> Result<(), StoreError> {
        events::append(tx, self.rng(), kind, id, Some(tenant_id), data).await
    }
}

/// One line per method: what takes `(Capacity, Arc<Call>, Request)`.
fn handler<R, T, F, Fut>(
    capacity: &Capacity,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Capacity, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let capacity = capacity.clone();
    move |call, request| Box::pin(run(capacity.clone(), call, request))
}

pub fn module(capacity: &Capacity) -> Module {
    Module::new("capacity")
        .method::<api::pools::Create, _>(handler(capacity, pools::create))
        .method::<api::pools::Get, _>(handler(capacity, pools::get))
        .method::<api::pools::List, _>(handler(capacity, pools::list))
        .method::<api::pools::Update, _>(handler(capacity, pools::update))
        .method::<api::pools::Delete, _>(handler(capacity, pools::delete))
        .method::<api::quotas::Set, _>(handler(capacity, quotas::set))
        .method::<api::quotas::List, _>(handler(capacity, quotas::list))
        .method::<api::reservations::Create, _>(handler(capacity, create::create))
        .method::<api::reservations::Get, _>(handler(capacity, read::get))
        .method::<api::reservations::List, _>(handler(capacity, read::list))
        .method::<api::reservations::Extend, _>(handler(capacity, change::extend))
        .method::<api::reservations::Release, _>(handler(capacity, change::release))
        .method::<api::reservations::Explain, _>(handler(capacity, explain::explain))
        .queue(Arc::new(reconcile::PlaceQueue(capacity.clone())))
        .pass(Arc::new(reconcile::Sweep(capacity.clone())))
        .pass(Arc::new(owner::Own(capacity.clone())))
}
