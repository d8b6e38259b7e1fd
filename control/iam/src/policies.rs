//! Policies. A document is parsed before it is stored, so what is stored compiles.

use std::sync::Arc;

use api::policies::{DeletePolicy, GetPolicy, ListPolicies, POLICY_BYTES_MAX, Policy, PutPolicy};
use api::{Deleted, Named, Object, Ref};
use kernel::events::{self, EventKind};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, ResultExt};
use model::{PolicyId, TenantId, Timestamp};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, Tx};

use crate::bootstrap::ADMINISTRATOR;
use crate::{Iam, sql, version};

const OP_PUT: Op = Op::new("policy_put");
const OP_DELETE: Op = Op::new("policy_delete");

pub(crate) fn resource(policy: &Policy) -> Resource {
    Resource::one("compute-policy", policy.id, policy.tenant.id.get())
        .with("resource.name", policy.name.clone())
}

fn view(row: &Row, now: Timestamp) -> Result<Policy, Fault> {
    let created_at = row.ts("created_at");
    let document: Object<POLICY_BYTES_MAX> =
        serde_json::from_value(row.get::<_, Value>("document")).doing("read a stored policy")?;
    Ok(Policy {
        id: row.id::<PolicyId>("policy_id").into(),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        name: row.get("name"),
        version: u64::try_from(row.get::<_, i64>("version")).unwrap_or_default(),
        document: Some(document),
        created_at: created_at.into(),
        updated_at: row.ts("updated_at").into(),
        age_seconds: now.since(created_at).as_secs(),
    })
}

impl Iam {
    async fn policy(&self, call: &Call, policy_id: PolicyId) -> Result<Policy, Fault> {
        let row = self.store.read_opt(&sql::POLICY_GET, &[&policy_id.uuid()]).await?;
        view(&row.ok_or_else(|| ApiError::not_found("policy", policy_id))?, call.now)
    }

    /// By id, or by a name in one of these tenants, the first that has it.
    pub(crate) async fn policy_by_ref(
        &self,
        call: &Call,
        tenants: &[TenantId],
        policy: &Ref<PolicyId>,
    ) -> Result<Policy, Fault> {
        let name = match policy {
            Ref::Id(policy_id) => return self.policy(call, *policy_id).await,
            Ref::Name(name) => name,
        };
        for tenant_id in tenants {
            let found = self.store.read_opt(&sql::POLICY_GET_BY_NAME, &[&tenant_id.uuid(), name]).await?;
            if let Some(row) = found {
                return view(&row, call.now);
            }
        }
        Err(ApiError::not_found("policy", name).into())
    }

    /// The one that keeps somebody able to repair everything else.
    pub(crate) async fn is_administrator(&self, name: &str, tenant_id: TenantId) -> Result<bool, Fault> {
        if name != ADMINISTRATOR {
            return Ok(false);
        }
        let root = self.store.read_opt(&sql::TENANT_ROOT, &[]).await?;
        Ok(root.is_some_and(|row| row.id::<TenantId>("tenant_id") == tenant_id))
    }
}

fn built_in() -> ApiError {
    ApiError::conflict(
        "the root tenant's policy administrator is built in: make another one under another name",
    )
}

fn check(document: &Object<POLICY_BYTES_MAX>) -> Result<(), ApiError> {
    let text = Value::Object(document.get().clone()).to_string();
    match policy::Document::parse(text) {
        Ok(_) => Ok(()),
        Err(err) => Err(ApiError::invalid(&format!("/document{}", err.pointer), err.problem.to_string())),
    }
}

pub(crate) async fn put(iam: Arc<Iam>, call: Arc<Call>, request: PutPolicy) -> Result<Policy, Fault> {
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    let name = request.name.as_str();
    let asked = Resource::any("compute-policy", tenant_id).with("resource.name", name.to_owned());
    call.require_in("compute:policies:put", &asked).await?;
    if iam.is_administrator(name, tenant_id).await? {
        return Err(built_in().into());
    }
    check(&request.document)?;
    let put = Put {
        tenant_id,
        policy_id: iam.rng.id(call.now),
        name,
        document: Value::Object(request.document.get().clone()),
        if_version: request.if_version.map(api::Int::get),
    };
    call.about(format!("policy/{name}"));
    if request.dry_run {
        return iam.would_be(&call, &put).await;
    }
    let (put, rng) = (&put, &*iam.rng);
    let written = call.tx(&iam.store, OP_PUT, |tx| {
        Box::pin(async move {
            let Some((policy_id, version)) = put.write(tx).await? else {
                let row = tx.query_one(&sql::POLICY_GET_BY_NAME, &[&put.tenant_id.uuid(), &put.name]).await?;
                return Ok(row.id("policy_id"));
            };
            version::raise(tx).await?;
            let data = json!({"name": put.name, "version": version});
            let tenant_id = Some(put.tenant_id);
            events::append(tx, rng, EventKind::IamPolicyChanged, policy_id, tenant_id, data).await?;
            Ok::<PolicyId, Fault>(policy_id)
        })
    });
    let written = written.await.map_err(|fault| {
        fault.on_unique("policies_tenant_id_name_key", || {
            ApiError::conflict(format!("policy {name} was made at the same time: try again"))
        })
    })?;
    iam.policy(&call, written).await
}

struct Put<'a> {
    tenant_id: TenantId,
    /// Of a new one.
    policy_id: PolicyId,
    name: &'a str,
    document: Value,
    if_version: Option<u64>,
}

impl Put<'_> {
    fn check_version(&self, stored: u64) -> Result<(), ApiError> {
        match self.if_version {
            Some(expected) if expected != stored => {
                let message = match stored {
                    0 => format!("there is no policy {} yet", self.name),
                    _ => format!("policy {} is at version {stored}, not {expected}", self.name),
                };
                Err(ApiError::conflict(message).detail("version", stored))
            }
            _ => Ok(()),
        }
    }

    /// The policy's id and new version; `None` when it was just so already.
    async fn write(&self, tx: &mut Tx<'_>) -> Result<Option<(PolicyId, i64)>, Fault> {
        let Some(row) = tx.query_opt(&sql::POLICY_LOCK, &[&self.tenant_id.uuid(), &self.name]).await? else {
            self.check_version(0)?;
            let row: [&(dyn store::Param + Sync); 4] =
                [&self.policy_id.uuid(), &self.tenant_id.uuid(), &self.name, &self.document];
            tx.execute(&sql::POLICY_INSERT, &row).await?;
            return Ok(Some((self.policy_id, 1)));
        };
        self.check_version(u64::try_from(row.get::<_, i64>("version")).unwrap_or_default())?;
        let policy_id: PolicyId = row.id("policy_id");
        let updated = tx.query_opt(&sql::POLICY_UPDATE, &[&policy_id.uuid(), &self.document]).await?;
        Ok(updated.map(|row| (policy_id, row.get("version"))))
    }
}

impl Iam {
    /// What a put would answer.
    async fn would_be(&self, call: &Call, put: &Put<'_>) -> Result<Policy, Fault> {
        let document = serde_json::from_value(put.document.clone()).doing("encode the document")?;
        let by_name = Ref::Name(put.name.to_owned());
        match self.policy_by_ref(call, &[put.tenant_id], &by_name).await {
            Ok(stored) => {
                put.check_version(stored.version)?;
                let version = stored.version + u64::from(stored.document != document);
                Ok(Policy { document, version, ..stored })
            }
            Err(Fault::Refused(_)) => {
                put.check_version(0)?;
                let way = self.way_up(put.tenant_id).await?;
                let tenant =
                    way.into_iter().next().ok_or_else(|| ApiError::not_found("tenant", put.tenant_id))?;
                Ok(Policy {
                    id: put.policy_id.into(),
                    tenant,
                    name: put.name.to_owned(),
                    version: 1,
                    document,
                    created_at: call.now.into(),
                    updated_at: call.now.into(),
                    age_seconds: 0,
                })
            }
            Err(fault) => Err(fault),
        }
    }
}

pub(crate) async fn get(iam: Arc<Iam>, call: Arc<Call>, request: GetPolicy) -> Result<Policy, Fault> {
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    let policy = iam.policy_by_ref(&call, &[tenant_id], &request.policy).await?;
    call.require_visible("compute:policies:get", &resource(&policy), "policy", &request.policy).await?;
    Ok(policy)
}

pub(crate) async fn list(
    iam: Arc<Iam>,
    call: Arc<Call>,
    request: ListPolicies,
) -> Result<api::List<Policy>, Fault> {
    let action = "compute:policies:list";
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    call.require_in(action, &Resource::any("compute-policy", tenant_id)).await?;
    let page = Page::of::<PolicyId>(request.limit, request.cursor.as_ref())?;
    let rows = iam.store.read(&sql::POLICY_LIST, &[&tenant_id.uuid(), &page.before, &page.fetch()]).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<PolicyId>("policy_id"));
    let items: Result<Vec<Policy>, Fault> =
        rows.iter().map(|row| Ok(Policy { document: None, ..view(row, call.now)? })).collect();
    Ok(api::List::new(call.filter(action, items?, resource).await?, cursor))
}

pub(crate) async fn delete(iam: Arc<Iam>, call: Arc<Call>, request: DeletePolicy) -> Result<Deleted, Fault> {
    let tenant_id = Iam::tenant_of(&call, request.tenant);
    let policy = iam.policy_by_ref(&call, &[tenant_id], &request.policy).await?;
    let (policy_id, tenant_id) = (policy.id.get(), policy.tenant.id.get());
    let (action, see) = ("compute:policies:delete", "compute:policies:get");
    call.require_on(action, see, &resource(&policy), "policy", &request.policy).await?;
    call.about(format!("policy/{policy_id}"));
    if iam.is_administrator(&policy.name, tenant_id).await? {
        return Err(built_in().into());
    }
    let (rng, name, dry_run) = (&*iam.rng, policy.name.as_str(), request.dry_run);
    let deleted: Result<(), Fault> = call
        .tx(&iam.store, OP_DELETE, |tx| {
            Box::pin(async move {
                // Against a binding that is made now: both take the version's row.
                version::raise(tx).await?;
                let holders: i64 =
                    tx.query_one(&sql::POLICY_HOLDERS, &[&policy_id.uuid()]).await?.get("holders");
                if holders > 0 {
                    let message = format!("policy {name} has {holders} bindings: delete those first");
                    return Err(ApiError::conflict(message).detail("bindings", holders).into());
                }
                if dry_run || tx.execute(&sql::POLICY_DELETE, &[&policy_id.uuid()]).await? == 0 {
                    return Ok(());
                }
                let data = json!({"name": name});
                events::append(tx, rng, EventKind::IamPolicyDeleted, policy_id, Some(tenant_id), data)
                    .await?;
                Ok(())
            })
        })
        .await;
    deleted?;
    Ok(Deleted { id: policy_id.to_string(), dry_run })
}
