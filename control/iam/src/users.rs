//! Users.

use std::sync::Arc;

use api::users::{CreateUser, DisableUser, EnableUser, GetUser, ListUsers, User, UserKind};
use api::{Named, Ref, Vocabulary};
use kernel::events::{self, EventKind};
use kernel::idempotency::{self, Key};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{TenantId, Timestamp, UserId};
use serde_json::json;
use store::{Op, Row, RowExt};

use crate::{Iam, sql, version};

const OP_CREATE: Op = Op::new("user_create");
const OP_CHANGE: Op = Op::new("user_change");

pub(crate) fn resource(user: &User) -> Resource {
    Resource::one("compute-user", user.id, user.tenant.id.get())
        .with("resource.name", user.name.clone())
        .with("resource.kind", user.kind.0.word())
}

fn view(row: &Row, now: Timestamp) -> User {
    let created_at = row.ts("created_at");
    let kind = if row.get::<_, &str>("kind") == "person" { UserKind::Person } else { UserKind::Service };
    User {
        id: row.id::<UserId>("user_id").into(),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        kind: kind.into(),
        name: row.get("name"),
        email: row.get("email"),
        disabled_at: row.opt_ts("disabled_at").map(Into::into),
        created_at: created_at.into(),
        age_seconds: now.since(created_at).as_secs(),
    }
}

impl Iam {
    pub(crate) async fn user(&self, call: &Call, user_id: UserId) -> Result<User, Fault> {
        let row = self.store.read_opt(&sql::USER_GET, &[&user_id.uuid()]).await?;
        let row = row.ok_or_else(|| ApiError::not_found("user", user_id))?;
        Ok(view(&row, call.now))
    }

    /// By id, or by a name in one of these tenants, the first that has it.
    pub(crate) async fn user_by_ref(
        &self,
        call: &Call,
        way: &[Named<TenantId>],
        user: &Ref<UserId>,
    ) -> Result<User, Fault> {
        let name = match user {
            Ref::Id(user_id) => return self.user(call, *user_id).await,
            Ref::Name(name) => name,
        };
        for tenant in way {
            let found = self.store.read_opt(&sql::USER_GET_BY_NAME, &[&tenant.id.get().uuid(), name]).await?;
            if let Some(row) = found {
                return Ok(view(&row, call.now));
            }
        }
        Err(ApiError::not_found("user", name).into())
    }
}

pub(crate) async fn create(iam: Arc<Iam>, call: Arc<Call>, request: CreateUser) -> Result<User, Fault> {
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    let kind = request.kind.0.word();
    let asked = Resource::any("compute-user", tenant_id)
        .with("resource.name", request.name.as_str().to_owned())
        .with("resource.kind", kind);
    call.require_in("compute:users:create", &asked).await?;
    let key = Key::of(&call, tenant_id, request.idempotency_key.as_ref().map(api::Text::as_str), &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(&iam.store).await?
    {
        return iam.user(&call, idempotency::made(&made)?).await;
    }

    let user_id: UserId = iam.rng.id(call.now);
    call.about(format!("user/{user_id}"));
    let (key, name, rng) = (key.as_ref(), request.name.as_str(), &*iam.rng);
    let email = request.email.as_ref().map(api::Text::as_str);
    let made = call.tx(&iam.store, OP_CREATE, |tx| {
        Box::pin(async move {
            if let Some(key) = key
                && let Some(made) = key.claim(tx, &user_id.to_string()).await?
            {
                return idempotency::made(&made);
            }
            let row: [&(dyn store::Param + Sync); 5] =
                [&user_id.uuid(), &tenant_id.uuid(), &kind, &name, &email];
            tx.execute(&sql::USER_INSERT, &row).await?;
            version::raise(tx).await?;
            let data = json!({"name": name, "kind": kind});
            events::append(tx, rng, EventKind::IamUserCreated, user_id, Some(tenant_id), data).await?;
            Ok::<_, Fault>(user_id)
        })
    });
    let made = made.await.map_err(|fault| {
        fault.on_unique("users_tenant_id_name_key", || {
            ApiError::conflict(format!("there is a user {name} in {tenant_id} already")).detail("name", name)
        })
    })?;
    iam.user(&call, made).await
}

pub(crate) async fn get(iam: Arc<Iam>, call: Arc<Call>, request: GetUser) -> Result<User, Fault> {
    let user_id = request.id.get();
    let user = iam.user(&call, user_id).await?;
    call.require_visible("compute:users:get", &resource(&user), "user", user_id).await?;
    Ok(user)
}

pub(crate) async fn list(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: ListUsers,
) -> Result<api::List<User>, Fault> {
    let action = "compute:users:list";
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    call.require_in(action, &Resource::any("compute-user", tenant_id)).await?;
    let page = Page::of::<UserId>(request.limit, request.cursor.as_ref())?;
    let kind = request.kind.map(|kind| kind.0.word());
    let name = request.name.as_ref().map(api::Name::as_str);
    let params: [&(dyn store::Param + Sync); 5] =
        [&tenant_id.uuid(), &kind, &name, &page.before, &page.fetch()];
    let rows = iam.store.read(&sql::USER_LIST, &params).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<UserId>("user_id"));
    let items = rows.iter().map(|row| view(row, call.now)).collect();
    Ok(api::List::new(call.filter(action, items, resource).await?, cursor))
}

pub(crate) async fn disable(iam: Arc<Iam>, call: Arc<Call>, request: DisableUser) -> Result<User, Fault> {
    let user = iam.user_to_change(&call, "compute:users:disable", request.id.get()).await?;
    if user.id.get() == call.principal.user_id {
        return Err(
            ApiError::invalid_state("you cannot disable yourself: nobody may be left to undo it").into()
        );
    }
    if request.dry_run {
        return Ok(user);
    }
    iam.set_disabled(&call, user, true).await
}

pub(crate) async fn enable(iam: Arc<Iam>, call: Arc<Call>, request: EnableUser) -> Result<User, Fault> {
    let user = iam.user_to_change(&call, "compute:users:enable", request.id.get()).await?;
    iam.set_disabled(&call, user, false).await
}

impl Iam {
    async fn user_to_change(
        &self,
        call: &Call,
        action: &'static str,
        user_id: UserId,
    ) -> Result<User, Fault> {
        let user = self.user(call, user_id).await?;
        call.require_on(action, "compute:users:get", &resource(&user), "user", user_id).await?;
        call.about(format!("user/{user_id}"));
        Ok(user)
    }

    async fn set_disabled(&self, call: &Call, user: User, disabled: bool) -> Result<User, Fault> {
        let (rng, user_id, tenant_id) = (&*self.rng, user.id.get(), user.tenant.id.get());
        let name = user.name.as_str();
        let changed: Result<(), Fault> = call
            .tx(&self.store, OP_CHANGE, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::USER_DISABLE, &[&user_id.uuid(), &disabled]).await? == 0 {
                        return Ok(());
                    }
                    version::raise(tx).await?;
                    let data = json!({"name": name, "disabled": disabled});
                    events::append(tx, rng, EventKind::IamUserChanged, user_id, Some(tenant_id), data)
                        .await?;
                    Ok(())
                })
            })
            .await;
        changed?;
        self.user(call, user_id).await
    }
}
