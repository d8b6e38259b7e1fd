//! The decision: a user's policies, compiled, asked along the way from the resource's tenant up to the root.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kernel::bounded::Bounded;
use kernel::ports::iam::{AuthorizationPort, Resource, Verdict};
use kernel::{BoxFuture, Call, Fault, ResultExt};
use model::{TenantId, UserId};
use policy::attribute::{DELEGATED, SOURCE_IP, TIME};
use policy::{Attributes, Compiled, Document, PolicyRef, Reason, Request, Value};
use serde_json::Value as Json;
use store::{RowExt, Store};

use crate::sql;

/// Users whose compiled policies are kept. A policy of ten statements takes a few kilobytes.
const USERS_MAX: usize = 4_096;
/// Tenants whose way to the root is kept: 16 ids each at most.
const TENANTS_MAX: usize = 16_384;
/// Policies one user holds. More is refused as a whole rather than decided in part.
const POLICIES_MAX: i64 = 256;

/// What a user holds, by the tenant in which it is held.
type Held = BTreeMap<TenantId, Compiled>;

/// The authorization port. Caches by user and version: a changed binding or policy holds from the next call on.
pub struct Authorizer {
    store: Store,
    held: Mutex<Bounded<UserId, (i64, Arc<Held>)>>,
    /// A tenant never moves, so its way to the root is true for good.
    ways: Mutex<Bounded<TenantId, Arc<[TenantId]>>>,
}

impl Authorizer {
    pub fn new(store: Store) -> Arc<Self> {
        let (held, ways) = (Bounded::new(USERS_MAX), Bounded::new(TENANTS_MAX));
        Arc::new(Self { store, held: Mutex::new(held), ways: Mutex::new(ways) })
    }

    /// The tenant and those above it, from itself to the root; empty when there is none of this id.
    pub(crate) async fn way_up(&self, tenant_id: TenantId) -> Result<Arc<[TenantId]>, Fault> {
        if let Some(way) = self.ways.lock().expect("no holder of this lock panics").get(&tenant_id) {
            return Ok(way.clone());
        }
        let rows = self.store.read(&sql::TENANT_WAY_UP, &[&tenant_id.uuid()]).await?;
        let way: Arc<[TenantId]> = rows.iter().map(|row| row.id("tenant_id")).collect();
        if !way.is_empty() {
            self.ways.lock().expect("no holder of this lock panics").insert(tenant_id, way.clone());
        }
        Ok(way)
    }

    async fn held(&self, call: &Call) -> Result<Arc<Held>, Fault> {
        let user_id = call.principal.user_id;
        let version = match call.iam_version {
            Some(version) => version,
            None => self.store.read_one(&sql::VERSION_GET, &[]).await?.get("version"),
        };
        if let Some((kept, held)) = self.held.lock().expect("no holder of this lock panics").get(&user_id)
            && *kept == version
        {
            return Ok(held.clone());
        }
        // Read after the version: what is newer than its label is read again under the next label, never the reverse.
        let held = Arc::new(self.load(user_id).await?);
        let mut cache = self.held.lock().expect("no holder of this lock panics");
        if cache.get(&user_id).is_none_or(|(kept, _)| *kept <= version) {
            cache.insert(user_id, (version, held.clone()));
        }
        Ok(held)
    }

    async fn load(&self, user_id: UserId) -> Result<Held, Fault> {
        let rows = self.store.read(&sql::POLICIES_HELD, &[&user_id.uuid(), &(POLICIES_MAX + 1)]).await?;
        if rows.len() as i64 > POLICIES_MAX {
            return Err(TooMany { user_id }).doing("decide by a user's policies");
        }
        let mut documents: BTreeMap<TenantId, Vec<(PolicyRef, Document)>> = BTreeMap::new();
        for row in &rows {
            let text = row.get::<_, Json>("document").to_string();
            let document = Document::parse(text).doing("parse a stored policy")?;
            let name: String = row.get("name");
            documents.entry(row.id("tenant_id")).or_default().push((PolicyRef::from(name), document));
        }
        let compile = |policies: &Vec<(PolicyRef, Document)>| {
            let bound: Vec<(PolicyRef, &Document)> =
                policies.iter().map(|(name, document)| (name.clone(), document)).collect();
            Compiled::compile(&bound)
        };
        Ok(documents.iter().map(|(tenant_id, policies)| (*tenant_id, compile(policies))).collect())
    }

    async fn one(
        &self,
        held: &Held,
        call: &Call,
        action: &str,
        resource: &Resource,
    ) -> Result<Verdict, Fault> {
        let way = self.way_up(resource.tenant_id).await?;
        let attributes = attributes(call, resource);
        let request = Request { action, resource: &resource.name, attributes: &attributes };
        Ok(decide(held, &way, &request))
    }
}

/// Policies of every tenant on the way are one set: a denial in any of them stands, else one that allows is enough.
fn decide(held: &Held, way: &[TenantId], request: &Request<'_>) -> Verdict {
    let mut allowed = None;
    for compiled in way.iter().filter_map(|tenant_id| held.get(tenant_id)) {
        match compiled.decide(request).reason {
            Reason::ExplicitDeny(by) => {
                return Verdict { allowed: false, by: format!("{}/{}", by.policy, by.sid) };
            }
            Reason::Allowed(by) => {
                allowed.get_or_insert(by);
            }
            Reason::NoMatch => {}
        }
    }
    match allowed {
        Some(by) => Verdict { allowed: true, by: format!("{}/{}", by.policy, by.sid) },
        None => Verdict { allowed: false, by: "no statement matched".to_owned() },
    }
}

/// The resource's own, then what the server knows, which nothing can stand in for.
fn attributes(call: &Call, resource: &Resource) -> Attributes<'static> {
    let principal = &call.principal;
    let mut attributes = resource.attributes.clone();
    attributes.set("resource.tenantId", resource.tenant_id.to_string());
    attributes.set("principal.id", principal.user_id.to_string());
    attributes.set("principal.name", principal.name.clone());
    attributes.set("principal.kind", principal.kind);
    attributes.set("principal.tenantId", principal.tenant_id.to_string());
    attributes.set("principal.tokenId", principal.token_id.to_string());
    attributes.set(SOURCE_IP, call.source_ip);
    attributes.set(TIME, Value::Time(call.now.micros()));
    attributes.set(DELEGATED, false);
    attributes
}

#[derive(Debug, thiserror::Error)]
#[error("{user_id} holds more than {POLICIES_MAX} policies")]
struct TooMany {
    user_id: UserId,
}

impl AuthorizationPort for Authorizer {
    fn decide<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>> {
        Box::pin(async move {
            let held = self.held(call).await?;
            self.one(&held, call, action, resource).await
        })
    }

    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>> {
        Box::pin(async move {
            let held = self.held(call).await?;
            let mut verdicts = Vec::with_capacity(resources.len());
            for resource in resources {
                verdicts.push(self.one(&held, call, action, resource).await?);
            }
            Ok(verdicts)
        })
    }
}
