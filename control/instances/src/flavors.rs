//! Flavors: sizes that a pool offers. Who may see the pool may see them.

use std::sync::Arc;

use api::flavors::{CreateFlavor, Flavor, FlavorPlacement, GetFlavor, ListFlavors, PageSize};
use api::pools::PoolClass;
use api::{List, Method, Named, Word};
use capacity::Seating;
use kernel::events::{self, EventKind};
use kernel::idempotency::Key;
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::unit::mib_to_gib_up;
use model::{FlavorId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, StoreError};

use crate::state::{Shape, stored};
use crate::{Instances, sql};

const FLAVOR_CREATE: Op = Op::new("flavor_create");
const KIND: &str = "compute-flavor";

fn view(row: &Row) -> Flavor {
    let (shape, created_at) = (Shape::of_row(row), row.ts("created_at"));
    Flavor {
        id: row.id::<FlavorId>("flavor_id").into(),
        name: row.get("name"),
        pool: Named::new(row.id("pool_id"), row.get::<_, String>("pool_name")),
        vcpu: shape.vcpu,
        memory_gib: mib_to_gib_up(shape.memory_mib),
        memory_mib: shape.memory_mib,
        disk_gib: shape.disk_gib,
        gpus: shape.gpus,
        gpu_model: shape.gpu_model,
        placement: placement(shape.seating),
        created_at: created_at.into(),
        age_seconds: row.ts("now").since(created_at).as_secs(),
    }
}

fn placement(seating: Seating) -> Option<FlavorPlacement> {
    seating.is_any().then(|| FlavorPlacement {
        numa_affine: seating.numa_affine,
        pinned: seating.pinned,
        hugepages: seating.hugepages_1gi.then_some(Word(PageSize::OneGi)),
    })
}

fn resource(id: FlavorId, tenant_id: TenantId, pool: &str) -> Resource {
    Resource::one(KIND, id, tenant_id).with("resource.pool", pool.to_owned())
}

async fn shown(instances: &Instances, id: FlavorId) -> Result<Option<(Flavor, TenantId)>, StoreError> {
    let row = instances.store().read_opt(&sql::FLAVOR_GET, &[&id.uuid()]).await?;
    Ok(row.map(|row| (view(&row), row.id("tenant_id"))))
}

pub(crate) async fn create(
    instances: Instances,
    call: Arc<Call>,
    request: CreateFlavor,
) -> Result<Flavor, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::flavors::Create::ACTION;
    let pool = instances.capacity().pool_of_instances(&call, action, KIND, tenant_id, &request.pool).await?;
    // What a pool offers is its owner's to say.
    let asked = Resource::any(KIND, pool.tenant_id)
        .with("resource.name", request.name.as_str().to_owned())
        .with("resource.pool", pool.name.clone());
    call.require_in(action, &asked).await?;
    if pool.class != PoolClass::VpsHost.name() {
        let message =
            format!("pool {:?} is of class {}: flavors are for class vps-host", pool.name, pool.class);
        return Err(ApiError::invalid("/pool", message).into());
    }
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, pool.tenant_id, given, &request)?;
    let fresh: FlavorId = instances.id();
    let made = match &key {
        Some(key) => key.replay(instances.store()).await?,
        None => None,
    };
    let id = match made {
        Some(made) => kernel::idempotency::made(&made)?,
        None => {
            call.about(format!("flavor/{fresh}"));
            let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
            let name = request.name.as_str();
            let gpu_model = request.gpu_model.as_ref().map(|model| model.as_str());
            let (vcpu, gpus) =
                (small(request.vcpu.get_u32()), small(request.gpus.map_or(0, |gpus| gpus.get_u32())));
            let (memory, disk) = (stored(request.memory_mib()), stored(request.disk_gib.get()));
            let placement = request.placement.clone().unwrap_or_default();
            let (numa_affine, pinned) = (placement.numa_affine, placement.pinned);
            let hugepages = placement.hugepages.map(|size| size.0.name());
            let (key, pool, this) = (key.as_ref(), &pool, &instances);
            let made = call.tx(instances.store(), FLAVOR_CREATE, |tx| {
                Box::pin(async move {
                    if let Some(key) = key
                        && let Some(made) = key.claim(tx, &fresh.to_string()).await?
                    {
                        return kernel::idempotency::made(&made);
                    }
                    let values: [&(dyn store::Param + Sync); 11] = [
                        &fresh.uuid(),
                        &pool.id.uuid(),
                        &name,
                        &vcpu,
                        &memory,
                        &disk,
                        &gpus,
                        &gpu_model,
                        &numa_affine,
                        &pinned,
                        &hugepages,
                    ];
                    tx.execute(&sql::FLAVOR_INSERT, &values).await?;
                    let data = json!({ "name": name, "poolId": pool.id.to_string() });
                    let kind = EventKind::FlavorCreated;
                    events::append(tx, this.rng(), kind, fresh, Some(pool.tenant_id), data).await?;
                    Ok::<FlavorId, Fault>(fresh)
                })
            });
            made.await.map_err(|fault| {
                fault.on_unique("flavors_pool_id_name_key", || {
                    ApiError::conflict(format!("pool {:?} has a flavor {name:?} already", pool.name))
                        .detail("kind", "flavor")
                        .detail("name", name)
                })
            })?
        }
    };
    let (flavor, _) = shown(&instances, id).await?.ok_or_else(|| ApiError::not_found("flavor", id))?;
    Ok(flavor)
}

pub(crate) async fn get(instances: Instances, call: Arc<Call>, request: GetFlavor) -> Result<Flavor, Fault> {
    let (id, action) = (request.id.get(), api::flavors::Get::ACTION);
    let Some((flavor, tenant_id)) = shown(&instances, id).await? else {
        call.decide(action, &Resource::one(KIND, id, call.principal.tenant_id)).await?;
        return Err(ApiError::not_found("flavor", id).into());
    };
    call.require_visible(action, &resource(id, tenant_id, &flavor.pool.name), "flavor", id).await?;
    Ok(flavor)
}

pub(crate) async fn list(
    instances: Instances,
    call: Arc<Call>,
    request: ListFlavors,
) -> Result<List<Flavor>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::flavors::List::ACTION;
    let pool = instances.capacity().pool_of_instances(&call, action, KIND, tenant_id, &request.pool).await?;
    let page = Page::of::<FlavorId>(request.limit, request.cursor.as_ref())?;
    let values: [&(dyn store::Param + Sync); 3] = [&pool.id.uuid(), &page.before, &page.fetch()];
    let rows = instances.store().read(&sql::FLAVORS_LIST, &values).await?;
    let flavors: Vec<Flavor> = rows.iter().map(view).collect();
    let (flavors, cursor) = page.cut(flavors, |flavor| flavor.id.get());
    let shown =
        call.filter(action, flavors, |flavor| resource(flavor.id.get(), pool.tenant_id, &pool.name)).await?;
    Ok(List::new(shown, cursor))
}
