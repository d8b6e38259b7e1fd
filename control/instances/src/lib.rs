//! Virtual machines: what they may be made of, where each is, and what its host says of it.
//!
//! ```text
//! create: decision -> admitted, placed        (what a refused create asked for is nowhere)
//!
//! scheduling -> provisioning -> running <-> stopping -> stopped -> starting -> running
//!                                   deleting -> deleted
//!
//! row -> spec (an entry with its revision) -> host -> signed report (of that revision) -> observe -> row
//! ```
//!
//! Callers write what is wanted, and each such change has a revision. A host's report answers to one revision of an
//! instance; what it says of an earlier one moves nothing. So a stop and a start that come faster than the host are not
//! taken for done by what it said in between.
//!
//! # What cannot happen
//!
//! No instance has its place given back before its host said that nothing of it is there, or was given up by a person in a
//! call of its own and is told nothing any more. It is named in its host's spec until then, at the end as one to be deleted; an
//! entry that is merely missing deletes nothing. One that goes on elsewhere meanwhile leaves such a place behind. No two have one address (two indexes of `ip_leases`), which is leased on the host where the
//! instance's place is (a foreign key). What is booked and what counts for quotas is `capacity`'s to refuse.

mod change;
mod create;
mod read;
mod recover;
mod resize;

mod spec;

mod exhausted;
mod fence;
mod lost;
mod observe;
mod orphans;
mod reconcile;

mod advice;
mod ipam;
mod state;
mod view;
mod vitals;

mod flavors;
mod folder;
mod images;
mod tenant;
mod user_data;

mod sql;

use std::sync::{Arc, OnceLock};

use capacity::Capacity;
use kernel::events::{self, EventKind};
use kernel::ports::images::ImageStore;
use kernel::ports::secrets::SecretKeeper;
use kernel::{BoxFuture, Call, Fault, Module};
use kit::{Clock, Rng};
use model::{Id, InstanceId, TenantId};
use prometheus_client::registry::Registry;
use serde_json::Value;
use store::{Store, StoreError, Tx};

pub use folder::ImageFolder;
pub use images::IMAGE_QUEUE;
pub use reconcile::QUEUE;

/// The module's methods, its part of node specs, and its ear for nodes. Cheap to clone.
#[derive(Clone)]
pub struct Instances(Arc<Inner>);

struct Inner {
    store: Store,
    capacity: Capacity,
    /// Keeps user data; without one, instances have none.
    keeper: OnceLock<Arc<dyn SecretKeeper>>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    metrics: vitals::Metrics,
}

impl Instances {
    pub fn new(store: Store, capacity: Capacity, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let (keeper, metrics) = (OnceLock::new(), vitals::Metrics::default());
        Self(Arc::new(Inner { store, capacity, keeper, clock, rng, metrics }))
    }

    /// What it counts, under `instances_`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    fn metrics(&self) -> &vitals::Metrics {
        &self.0.metrics
    }

    /// Has user data kept. Once: a second keeper is not taken.
    pub fn set_keeper(&self, keeper: Arc<dyn SecretKeeper>) {
        let _ = self.0.keeper.set(keeper);
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn capacity(&self) -> &Capacity {
        &self.0.capacity
    }

    fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    fn rng(&self) -> &dyn Rng {
        &*self.0.rng
    }

    fn id<I: Id>(&self) -> I {
        self.0.rng.id(self.0.clock.now())
    }

    async fn tell(
        &self,
        tx: &mut Tx<'_>,
        kind: EventKind,
        id: InstanceId,
        tenant_id: TenantId,
        data: Value,
    ) -> Result<(), StoreError> {
        events::append(tx, self.rng(), kind, id, Some(tenant_id), data).await
    }
}

/// One line per method: what takes `(Instances, Arc<Call>, Request)`.
fn handler<R, T, F, Fut>(
    instances: &Instances,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Instances, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let instances = instances.clone();
    move |call, request| Box::pin(run(instances.clone(), call, request))
}

/// With a store for images of its own, where there is one.
pub fn module(instances: &Instances, images: Option<Arc<dyn ImageStore>>) -> Module {
    let module = Module::new("instances")
        .method::<api::flavors::Create, _>(handler(instances, flavors::create))
        .method::<api::flavors::Get, _>(handler(instances, flavors::get))
        .method::<api::flavors::List, _>(handler(instances, flavors::list))
        .method::<api::images::Create, _>(handler(instances, images::create))
        .method::<api::images::Import, _>(handler(instances, images::import))
        .method::<api::images::Get, _>(handler(instances, images::get))
        .method::<api::images::List, _>(handler(instances, images::list))
        .method::<api::images::Delete, _>(handler(instances, images::delete))
        .method::<api::instances::Create, _>(handler(instances, create::create))
        .method::<api::instances::Get, _>(handler(instances, read::get))
        .method::<api::instances::List, _>(handler(instances, read::list))
        .method::<api::instances::Start, _>(handler(instances, change::start))
        .method::<api::instances::Stop, _>(handler(instances, change::stop))
        .method::<api::instances::Reboot, _>(handler(instances, change::reboot))
        .method::<api::instances::Resize, _>(handler(instances, resize::resize))
        .method::<api::instances::Recover, _>(handler(instances, recover::recover))
        .method::<api::instances::ForceRelease, _>(handler(instances, recover::force_release))
        .method::<api::instances::Delete, _>(handler(instances, change::delete))
        .queue(Arc::new(reconcile::Reconcile(instances.clone())))
        .pass(Arc::new(vitals::Vitals(instances.clone())));
    match images {
        Some(images) => module
            .queue(Arc::new(images::Collect(instances.clone(), images.clone())))
            .content(Arc::new(images::Bytes(instances.clone(), images))),
        None => module,
    }
}
