//! Pools: nodes that are booked from together, by one policy.

use std::sync::Arc;

use api::pools::{
    CreatePool, GetPool, ListPools, Overcommit, Placement, Pool, PoolClass, PoolPolicy, PoolState, UpdatePool,
};
use api::{GpuTotals, Int, List, Method, Named, Ref, Word};
use kernel::events::{self, EventKind};
use kernel::idempotency::Key;
use kernel::module::{wake, wake_all};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{ApiError, Call, Fault, ResultExt};
use model::unit::GIB;
use model::{PoolId, TenantId};
use placer::Policy;
use serde_json::{Value, json};
use store::{Op, Row, RowExt, StoreError};

use crate::place::spec_key;
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::state::{stored, whole};
use crate::{Capacity, sql};

mod delete;

pub(crate) use delete::delete;

const POOL_CREATE: Op = Op::new("pool_create");
const POOL_UPDATE: Op = Op::new("pool_update");

/// Memory that a daemon keeps back from holds on its machine, whatever the pool says: offering it would only have the
/// node refuse.
const HEADROOM_BYTES: u64 = GIB;
/// Disk that a daemon keeps back, in the same way: so many bytes, and this share.
const DISK_KEPT_BYTES: u64 = 2 * GIB;
const DISK_KEPT_SHARE: u64 = 20;

/// What each machine of a pool keeps for itself, and how often the rest of its CPUs is booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserve {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub cpu_times: u64,
    pub disk_bytes: u64,
    pub disk_times: u64,
}

impl Reserve {
    pub fn of(policy: &PoolPolicy) -> Self {
        let reserve = policy.host_reserve.as_ref();
        let vcpu = reserve.and_then(|reserve| reserve.vcpu).map_or(0, |vcpu| vcpu.get());
        let memory_gib = reserve.and_then(|reserve| reserve.memory_gib).map_or(0, |memory| memory.get());
        let disk_gib = reserve.and_then(|reserve| reserve.disk_gib).map_or(0, |disk| disk.get());
        let overcommit = policy.overcommit.as_ref();
        let times = |of: fn(&Overcommit) -> Option<Int<1, 32>>| overcommit.and_then(of).map_or(1, Int::get);
        Self {
            cpu_millis: vcpu * 1000,
            memory_bytes: memory_gib.saturating_mul(GIB).max(HEADROOM_BYTES),
            cpu_times: times(|overcommit| overcommit.vcpu),
            disk_bytes: disk_gib.saturating_mul(GIB).max(DISK_KEPT_BYTES),
            disk_times: times(|overcommit| overcommit.disk),
        }
    }

    /// What may be booked of a file system of so many bytes.
    pub fn disk_of(&self, machine_bytes: u64) -> u64 {
        let kept = self.disk_bytes.max(machine_bytes / DISK_KEPT_SHARE);
        machine_bytes.saturating_sub(kept).saturating_mul(self.disk_times)
    }
}

/// The stored policy. It was checked when it was written; what a newer program wrote and this one cannot read counts as
/// not given.
pub(crate) fn policy_of(stored: &Value) -> PoolPolicy {
    serde_json::from_value(stored.clone()).unwrap_or_default()
}

pub(crate) fn placement_of(policy: &PoolPolicy) -> Policy {
    match policy.placement {
        None | Some(Word(Placement::Pack)) => Policy::Pack,
        Some(Word(Placement::Spread)) => Policy::Spread,
    }
}

/// A pool as others of this crate need it.
#[derive(Debug, Clone)]
pub(crate) struct PoolRef {
    pub id: PoolId,
    pub tenant_id: TenantId,
    pub name: String,
    pub class: String,
}

impl Capacity {
    pub(crate) async fn pool_find_alone(
        &self,
        tenant_id: TenantId,
        pool: &Ref<PoolId>,
    ) -> Result<Option<PoolRef>, StoreError> {
        let (id, name) = match pool {
            Ref::Id(id) => (Some(id.uuid()), None),
            Ref::Name(name) => (None, Some(name.as_str())),
        };
        let rows = self.store().read(&sql::POOLS_ON_WAY_UP, &[&tenant_id.uuid(), &id, &name]).await?;
        Ok(rows.first().map(|row| PoolRef {
            id: row.id("pool_id"),
            tenant_id: row.id("tenant_id"),
            name: row.get("name"),
            class: row.get("class"),
        }))
    }

    /// The pool that a reservation of the tenant is to come from. `action` is what the caller wants to do there: who may not
    /// do it in this tenant learns nothing of its pools.
    pub(crate) async fn pool_to_book_from(
        &self,
        call: &Call,
        action: &str,
        tenant_id: TenantId,
        pool: &Ref<PoolId>,
    ) -> Result<PoolRef, Fault> {
        if let Some(found) = self.pool_find(tenant_id, pool).await? {
            if found.tenant_id == tenant_id {
                return Ok(found);
            }
            let seen =
                call.decide(api::pools::Get::ACTION, &pool_resource(found.id, found.tenant_id)).await?;
            if seen.allowed {
                return Ok(found);
            }
        }
        call.require_in(action, &Resource::any("compute-reservation", tenant_id)).await?;
        Err(ApiError::not_found("pool", pool).into())
    }

    async fn pool_view(&self, pool_id: PoolId) -> Result<Option<Pool>, Fault> {
        let row = self.store().read_opt(&sql::POOL_GET, &[&pool_id.uuid()]).await?;
        row.as_ref().map(view).transpose()
    }

    async fn pool_shown(&self, pool_id: PoolId) -> Result<Pool, Fault> {
        self.pool_view(pool_id).await?.ok_or_else(|| ApiError::not_found("pool", pool_id).into())
    }
}

pub(crate) fn pool_resource(pool_id: PoolId, tenant_id: TenantId) -> Resource {
    Resource::one("compute-pool", pool_id, tenant_id)
}

fn view(row: &Row) -> Result<Pool, Fault> {
    let now = row.ts("now");
    let (created_at, deleted_at) = (row.ts("created_at"), row.opt_ts("deleted_at"));
    let class =
        PoolClass::parse(row.get("class")).ok_or_else(|| StoreError::decode("pool", "column \"class\""))?;
    let count = |column| u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX);
    Ok(Pool {
        id: row.id::<PoolId>("pool_id").into(),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        name: row.get("name"),
        class: Word(class),
        state: Word(if deleted_at.is_some() { PoolState::Deleted } else { PoolState::Active }),
        policy: policy_of(&row.get::<_, Value>("policy")),
        version: whole(row.get("version")),
        nodes: count("nodes"),
        nodes_ready: count("nodes_ready"),
        gpus: GpuTotals {
            total: count("gpus_total"),
            free: count("gpus_free"),
            unhealthy: count("gpus_unhealthy"),
            model: row.get("gpu_model"),
        },
        flavors: count("flavors"),
        created_at: created_at.into(),
        updated_at: row.ts("updated_at").into(),
        deleted_at: deleted_at.map(Into::into),
        age_seconds: now.since(created_at).as_secs(),
        dry_run: false,
    })
}

pub(crate) async fn create(capacity: Capacity, call: Arc<Call>, request: CreatePool) -> Result<Pool, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let resource = Resource::any("compute-pool", tenant_id)
        .with("resource.name", request.name.as_str().to_owned())
        .with("resource.class", request.class.0.name());
    call.require_in(api::pools::Create::ACTION, &resource).await?;
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, tenant_id, given, &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(capacity.store()).await?
    {
        return capacity.pool_shown(made.parse().doing("read what an idempotency key points at")?).await;
    }
    let policy =
        serde_json::to_value(request.policy.clone().unwrap_or_default()).doing("encode a pool's policy")?;
    let pool_id: PoolId = capacity.id();
    let (name, class) = (request.name.as_str(), request.class.0.name());
    let (key, policy, this) = (&key, &policy, &capacity);
    call.about(format!("pool/{pool_id}"));
    let made = call
        .tx(capacity.store(), POOL_CREATE, |tx| {
            Box::pin(async move {
                if let Some(key) = key
                    && let Some(made) = key.claim(tx, &pool_id.to_string()).await?
                {
                    return made.parse().doing("read what an idempotency key points at");
                }
                let values: [&(dyn store::Param + Sync); 5] =
                    [&pool_id.uuid(), &tenant_id.uuid(), &name, &class, policy];
                tx.execute(&sql::POOL_INSERT, &values).await.map_err(|err| taken(err, name, tenant_id))?;
                let data = json!({ "name": name });
                events::append(tx, this.rng(), EventKind::PoolCreated, pool_id, Some(tenant_id), data)
                    .await?;
                Ok::<PoolId, Fault>(pool_id)
            })
        })
        .await?;
    capacity.pool_shown(made).await
}

fn taken(err: StoreError, name: &str, tenant_id: TenantId) -> Fault {
    if err.is_unique("pools_tenant_id_name_key") {
        return ApiError::conflict(format!("there is a pool {name:?} already"))
            .detail("kind", "pool")
            .detail("name", name)
            .into();
    }
    if err.is_foreign_key("pools_tenant_id_fkey") {
        return ApiError::not_found("tenant", tenant_id).into();
    }
    err.into()
}

fn network_in_use(pool: &str) -> Fault {
    let message =
        "instances of the pool have addresses of this network: of it only the nameservers may change";
    let help = format!("better-compute instances list --pool {pool}");
    ApiError::invalid_state(message).detail("see", help).into()
}

/// The pool a caller names, when it may see it.
async fn visible(
    capacity: &Capacity,
    call: &Call,
    tenant: Option<api::Id<TenantId>>,
    pool: &Ref<PoolId>,
) -> Result<(PoolId, TenantId), Fault> {
    let tenant_id = tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let found = match pool {
        Ref::Id(id) => capacity.pool_view(*id).await?.map(|pool| (*id, pool.tenant.id.get())),
        Ref::Name(_) => capacity.pool_find(tenant_id, pool).await?.map(|pool| (pool.id, pool.tenant_id)),
    };
    match found {
        Some(found) => Ok(found),
        None => Err(absent(call, tenant_id, pool).await),
    }
}

/// The pool that a caller wants changed. A pool of that name above is not what was meant, all the less when the own one was
/// deleted just now.
async fn meant(
    capacity: &Capacity,
    call: &Call,
    tenant: Option<api::Id<TenantId>>,
    pool: &Ref<PoolId>,
) -> Result<(PoolId, TenantId), Fault> {
    let asked_in = tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let (pool_id, tenant_id) = visible(capacity, call, tenant, pool).await?;
    match pool {
        Ref::Name(_) if tenant_id != asked_in => Err(absent(call, asked_in, pool).await),
        Ref::Name(_) | Ref::Id(_) => Ok((pool_id, tenant_id)),
    }
}

/// Who may see no pools in the tenant learns nothing of which there are.
async fn absent(call: &Call, tenant_id: TenantId, pool: &Ref<PoolId>) -> Fault {
    let any = Resource::any("compute-pool", tenant_id);
    match call.require_in(api::pools::Get::ACTION, &any).await {
        Ok(()) => ApiError::not_found("pool", pool).into(),
        Err(fault) => fault,
    }
}

pub(crate) async fn get(capacity: Capacity, call: Arc<Call>, request: GetPool) -> Result<Pool, Fault> {
    let (pool_id, tenant_id) = visible(&capacity, &call, request.tenant, &request.pool).await?;
    let resource = pool_resource(pool_id, tenant_id);
    call.require_visible(api::pools::Get::ACTION, &resource, "pool", &request.pool).await?;
    capacity.pool_shown(pool_id).await
}

pub(crate) async fn list(
    capacity: Capacity,
    call: Arc<Call>,
    request: ListPools,
) -> Result<List<Pool>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::pools::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any("compute-pool", tenant_id)).await?;
    }
    let page = Page::of::<PoolId>(request.limit, request.cursor.as_ref())?;
    let class = request.class.map(|class| class.0.name());
    let values: [&(dyn store::Param + Sync); 5] =
        [&tenant_id.uuid(), &page.before, &class, &page.fetch(), &request.include_deleted];
    let rows = capacity.store().read(&sql::POOLS_LIST, &values).await?;
    let pools: Vec<Pool> = rows.iter().map(view).collect::<Result<_, _>>()?;
    let (pools, cursor) = page.cut(pools, |pool| pool.id.get());
    let shown = call.filter(action, pools, |pool| pool_resource(pool.id.get(), tenant_id)).await?;
    Ok(List::new(shown, cursor))
}

pub(crate) async fn update(capacity: Capacity, call: Arc<Call>, request: UpdatePool) -> Result<Pool, Fault> {
    let (pool_id, tenant_id) = meant(&capacity, &call, request.tenant, &request.pool).await?;
    let resource = pool_resource(pool_id, tenant_id);
    let (action, see) = (api::pools::Update::ACTION, api::pools::Get::ACTION);
    call.require_on(action, see, &resource, "pool", &request.pool).await?;
    call.about(format!("pool/{pool_id}"));
    let (request, this) = (&request, &capacity);
    call.tx(capacity.store(), POOL_UPDATE, |tx| {
        Box::pin(async move {
            let Some(row) = tx.query_opt(&sql::POOL_LOCK, &[&pool_id.uuid()]).await? else {
                return Err(ApiError::not_found("pool", pool_id).into());
            };
            let version = whole(row.get("version"));
            if request.if_version.is_some_and(|wanted| wanted.get() != version) {
                let message = format!("the pool is at version {version}: read it again");
                return Err(ApiError::conflict(message).detail("version", version).into());
            }
            let (old_name, old_policy): (String, Value) = (row.get("name"), row.get("policy"));
            let name = request.name.as_ref().map_or(old_name.as_str(), |name| name.as_str());
            let policy = match &request.policy {
                Some(policy) => serde_json::to_value(policy).doing("encode a pool's policy")?,
                None => old_policy.clone(),
            };
            let mut changed = Vec::new();
            changed.extend((name != old_name).then_some("name"));
            changed.extend((policy != old_policy).then_some("policy"));
            if changed.is_empty() {
                return Ok::<(), Fault>(());
            }
            let values: [&(dyn store::Param + Sync); 3] = [&pool_id.uuid(), &name, &policy];
            let in_use = |err: StoreError| match err.is_check("pools_network_in_use") {
                true => network_in_use(&old_name),
                false => taken(err, name, tenant_id),
            };
            tx.execute(&sql::POOL_UPDATE, &values).await.map_err(in_use)?;
            if policy != old_policy {
                let reserve = Reserve::of(&policy_of(&policy));
                let (cpu, memory) = (stored(reserve.cpu_millis), stored(reserve.memory_bytes));
                let (times, disk) = (stored(reserve.cpu_times), stored(reserve.disk_bytes));
                let disk_times = stored(reserve.disk_times);
                let values: [&(dyn store::Param + Sync); 6] =
                    [&pool_id.uuid(), &cpu, &memory, &times, &disk, &disk_times];
                tx.execute(&sql::CAPACITY_RESERVE, &values).await?;
                wake(tx, PLACE_QUEUE, &pool_key(pool_id)).await?;
            }
            if policy.get("sshAccounts") != old_policy.get("sshAccounts") {
                let rows = tx.query(&sql::POOL_NODES, &[&pool_id.uuid()]).await?;
                let keys: Vec<String> = rows.iter().map(|row| spec_key(row.id("node_id"))).collect();
                wake_all(tx, SPEC_QUEUE, &keys).await?;
            }
            let data = json!({ "name": name, "changed": changed });
            events::append(tx, this.rng(), EventKind::PoolUpdated, pool_id, Some(tenant_id), data).await?;
            Ok(())
        })
    })
    .await?;
    capacity.pool_shown(pool_id).await
}
