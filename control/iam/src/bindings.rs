//! Bindings: a user holds a policy in a tenant.

use std::sync::Arc;

use api::bindings::{Binding, DeleteBinding, ListBindings, PutBinding};
use api::{Deleted, Named};
use kernel::events::{self, EventKind};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{BindingId, PolicyId, TenantId, Timestamp, UserId};
use serde_json::json;
use store::{Op, Row, RowExt};

use crate::authorize::BINDINGS_MAX;
use crate::{Iam, sql, users, version};

const OP_PUT: Op = Op::new("binding_put");
const OP_DELETE: Op = Op::new("binding_delete");

fn attributes(resource: Resource, policy: &Named<PolicyId>, user_id: UserId) -> Resource {
    resource
        .with("resource.policyId", policy.id.to_string())
        .with("resource.policyName", policy.name.clone())
        .with("resource.userId", user_id.to_string())
}

fn resource(binding: &Binding) -> Resource {
    let one = Resource::one("compute-binding", binding.id, binding.tenant.id.get());
    attributes(one, &binding.policy, binding.user.id.get())
}

fn view(row: &Row, now: Timestamp) -> Binding {
    let created_at = row.ts("created_at");
    Binding {
        id: row.id::<BindingId>("binding_id").into(),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        policy: Named::new(row.id("policy_id"), row.get::<_, String>("policy_name")),
        user: Named::new(row.id("user_id"), row.get::<_, String>("user_name")),
        created_at: created_at.into(),
        age_seconds: now.since(created_at).as_secs(),
    }
}

pub(crate) async fn put(iam: Arc<Iam>, call: Arc<Call>, request: PutBinding) -> Result<Binding, Fault> {
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    // Asked of the tenant before anything is looked up, so that names below it cannot be probed.
    call.require_in("compute:bindings:put", &Resource::any("compute-binding", tenant_id)).await?;
    let way = iam.way_up(tenant_id).await?;
    let tenants: Vec<TenantId> = way.iter().map(|tenant| tenant.id.get()).collect();
    let policy = iam.policy_by_ref(&call, &tenants, &request.policy).await?;
    if !tenants.contains(&policy.tenant.id.get()) {
        // A policy of a sibling or of a tenant below is not this tenant's to give.
        return Err(ApiError::not_found("policy", &request.policy).into());
    }
    let user = iam.user_by_ref(&call, &way, &request.user).await?;
    if user.tenant.id.get() != tenant_id {
        let see = "compute:users:get";
        call.require_visible(see, &users::resource(&user), "user", &request.user).await?;
    }
    let (policy_id, user_id) = (policy.id.get(), user.id.get());
    let named = Named::new(policy_id, policy.name.clone());
    let asked = attributes(Resource::any("compute-binding", tenant_id), &named, user_id);
    call.require_in("compute:bindings:put", &asked).await?;

    let binding_id: BindingId = iam.rng.id(call.now);
    call.about(format!("binding/{}/{}/{}", tenant_id, policy.name, user.name));
    let rng = &*iam.rng;
    let put: Result<(), Fault> = call
        .tx(&iam.store, OP_PUT, |tx| {
            Box::pin(async move {
                version::raise(tx).await?;
                let row: [&(dyn store::Param + Sync); 4] =
                    [&binding_id.uuid(), &tenant_id.uuid(), &policy_id.uuid(), &user_id.uuid()];
                if tx.execute(&sql::BINDING_INSERT, &row).await? == 0 {
                    return Ok(());
                }
                // Counted under the lock of the version's row, so that no two pass the limit together.
                let held = tx.query_one(&sql::BINDING_COUNT, &[&tenant_id.uuid(), &user_id.uuid()]).await?;
                if held.get::<_, i64>("bindings") > BINDINGS_MAX {
                    let message = format!(
                        "the user holds {BINDINGS_MAX} policies in this tenant, the most there may be: delete a binding, or \
                         put the statements into one policy"
                    );
                    return Err(ApiError::conflict(message).detail("limit", BINDINGS_MAX).into());
                }
                let data = json!({"policyId": policy_id.to_string(), "userId": user_id.to_string()});
                let tenant_id = Some(tenant_id);
                events::append(tx, rng, EventKind::IamBindingCreated, binding_id, tenant_id, data).await?;
                Ok(())
            })
        })
        .await;
    put?;
    let keys: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &policy_id.uuid(), &user_id.uuid()];
    let row = iam.store.read_opt(&sql::BINDING_FIND, &keys).await?;
    Ok(view(&row.ok_or_else(|| ApiError::conflict("the binding was deleted at the same time"))?, call.now))
}

pub(crate) async fn list(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: ListBindings,
) -> Result<api::List<Binding>, Fault> {
    let action = "compute:bindings:list";
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    call.require_in(action, &Resource::any("compute-binding", tenant_id)).await?;
    let page = Page::of::<BindingId>(request.limit, request.cursor.as_ref())?;
    let user = request.user.map(|id| id.get().uuid());
    let policy = request.policy.map(|id| id.get().uuid());
    let params: [&(dyn store::Param + Sync); 5] =
        [&tenant_id.uuid(), &user, &policy, &page.before, &page.fetch()];
    let rows = iam.store.read(&sql::BINDING_LIST, &params).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<BindingId>("binding_id"));
    let items = rows.iter().map(|row| view(row, call.now)).collect();
    Ok(api::List::new(call.filter(action, items, resource).await?, cursor))
}

pub(crate) async fn delete(iam: Arc<Iam>, call: Arc<Call>, request: DeleteBinding) -> Result<Deleted, Fault> {
    let binding_id = request.id.get();
    let row = iam.store.read_opt(&sql::BINDING_GET, &[&binding_id.uuid()]).await?;
    let row = row.ok_or_else(|| ApiError::not_found("binding", binding_id))?;
    let binding = view(&row, call.now);
    let tenant_id = binding.tenant.id.get();
    let (action, see) = ("compute:bindings:delete", "compute:bindings:list");
    call.require_on(action, see, &resource(&binding), "binding", binding_id).await?;
    call.about(format!("binding/{binding_id}"));
    let of_root = iam.is_administrator(&binding.policy.name, row.id("policy_tenant_id")).await?;
    let last_matters = of_root && tenant_id == row.id::<TenantId>("policy_tenant_id");

    let (rng, binding, dry_run) = (&*iam.rng, &binding, request.dry_run);
    let deleted: Result<(), Fault> = call
        .tx(&iam.store, OP_DELETE, |tx| {
            Box::pin(async move {
                // Two administrators taking each other's binding away meet at the version's row.
                version::raise(tx).await?;
                let others = tx.query_one(&sql::BINDING_OTHERS, &[&binding_id.uuid()]).await?;
                if last_matters && others.get::<_, i64>("others") == 0 {
                    let message = "this is the last administrator: give the policy to another user first";
                    return Err(ApiError::conflict(message).into());
                }
                if dry_run || tx.execute(&sql::BINDING_DELETE, &[&binding_id.uuid()]).await? == 0 {
                    return Ok(());
                }
                let data = json!({
                    "policyId": binding.policy.id.to_string(), "userId": binding.user.id.to_string(),
                });
                let (kind, tenant_id) = (EventKind::IamBindingDeleted, Some(tenant_id));
                events::append(tx, rng, kind, binding_id, tenant_id, data).await?;
                Ok(())
            })
        })
        .await;
    deleted?;
    Ok(Deleted { id: binding_id.to_string(), dry_run })
}
