//! The decision: a user's policies, compiled, asked along the way from the resource's tenant up to the root.

use std::collections::{BTreeMap, BTreeSet};
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

/// What users hold in tenants that is kept, compiled; most of it is nothing. A policy of ten statements takes a few kilobytes.
const HELD_MAX: usize = 16_384;
/// Tenants whose way to the root is kept: 16 ids each at most.
const TENANTS_MAX: usize = 16_384;
/// Policies one user holds in one tenant. More is not bound, and where there is more all the same it is refused as a whole
/// rather than decided in part.
pub(crate) const BINDINGS_MAX: i64 = 64;

/// What a user holds in one tenant, if anything.
type HeldIn = Option<Arc<Compiled>>;
/// What a user holds, by the tenant in which it is held.
type Held = BTreeMap<TenantId, HeldIn>;

/// The authorization port. Caches by user, tenant and version: a changed binding or policy holds from the next call on.
///
/// A decision reads what is held on the way up from its resource and nothing else, so whatever is bound in another tenant
/// neither slows it nor breaks it.
pub struct Authorizer {
    store: Store,
    held: Mutex<Bounded<(UserId, TenantId), (i64, HeldIn)>>,
    /// A tenant never moves, so its way to the root is true for good.
    ways: Mutex<Bounded<TenantId, Arc<[TenantId]>>>,
}

impl Authorizer {
    pub fn new(store: Store) -> Arc<Self> {
        let (held, ways) = (Bounded::new(HELD_MAX), Bounded::new(TENANTS_MAX));
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

    /// What the caller holds in each of these tenants.
    async fn held(&self, call: &Call, tenants: BTreeSet<TenantId>) -> Result<Held, Fault> {
        let user_id = call.principal.user_id;
        let version = match call.iam_version {
            Some(version) => version,
            None => self.store.read_one(&sql::VERSION_GET, &[]).await?.get("version"),
        };
        let mut held = Held::new();
        let mut missing = Vec::new();
        {
            let cache = &mut self.held.lock().expect("no holder of this lock panics");
            for tenant_id in tenants {
                match cache.get(&(user_id, tenant_id)) {
                    Some((kept, compiled)) if *kept == version => {
                        drop(held.insert(tenant_id, compiled.clone()))
                    }
                    _ => missing.push(tenant_id),
                }
            }
        }
        if missing.is_empty() {
            return Ok(held);
        }
        // Read after the version: what is newer than its label is read again under the next label, never the reverse.
        let loaded = self.load(user_id, &missing).await?;
        let mut cache = self.held.lock().expect("no holder of this lock panics");
        for (tenant_id, compiled) in loaded {
            if cache.get(&(user_id, tenant_id)).is_none_or(|(kept, _)| *kept <= version) {
                cache.insert((user_id, tenant_id), (version, compiled.clone()));
            }
            held.insert(tenant_id, compiled);
        }
        Ok(held)
    }

    async fn load(&self, user_id: UserId, tenants: &[TenantId]) -> Result<Held, Fault> {
        let ids: Vec<uuid::Uuid> = tenants.iter().map(|tenant_id| tenant_id.uuid()).collect();
        let rows =
            self.store.read(&sql::POLICIES_HELD, &[&user_id.uuid(), &ids, &(BINDINGS_MAX + 1)]).await?;
        let mut documents: BTreeMap<TenantId, Vec<(PolicyRef, Document)>> = BTreeMap::new();
        for row in &rows {
            let text = row.get::<_, Json>("document").to_string();
            let document = Document::parse(text).doing("parse a stored policy")?;
            let name: String = row.get("name");
            documents.entry(row.id("tenant_id")).or_default().push((PolicyRef::from(name), document));
        }
        let mut held: Held = tenants.iter().map(|tenant_id| (*tenant_id, None)).collect();
        for (tenant_id, policies) in documents {
            if policies.len() as i64 > BINDINGS_MAX {
                return Err(TooMany { user_id, tenant_id }).doing("decide by a user's policies");
            }
            let bound: Vec<(PolicyRef, &Document)> =
                policies.iter().map(|(name, document)| (name.clone(), document)).collect();
            held.insert(tenant_id, Some(Arc::new(Compiled::compile(&bound))));
        }
        Ok(held)
    }
}

/// Policies of every tenant on the way are one set: a denial in any of them stands, else one that allows is enough.
fn decide(held: &Held, way: &[TenantId], call: &Call, action: &str, resource: &Resource) -> Verdict {
    let attributes = attributes(call, resource);
    let request = &Request { action, resource: &resource.name, attributes: &attributes };
    let mut allowed = None;
    for compiled in way.iter().filter_map(|tenant_id| held.get(tenant_id)?.as_ref()) {
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
#[error("{user_id} holds more than {BINDINGS_MAX} policies in {tenant_id}")]
struct TooMany {
    user_id: UserId,
    tenant_id: TenantId,
}

impl AuthorizationPort for Authorizer {
    fn decide<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>> {
        Box::pin(async move {
            let way = self.way_up(resource.tenant_id).await?;
            let held = self.held(call, way.iter().copied().collect()).await?;
            Ok(decide(&held, &way, call, action, resource))
        })
    }

    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>> {
        Box::pin(async move {
            let mut ways = Vec::with_capacity(resources.len());
            for resource in resources {
                ways.push(self.way_up(resource.tenant_id).await?);
            }
            let held = self.held(call, ways.iter().flat_map(|way| way.iter().copied()).collect()).await?;
            let each = resources.iter().zip(&ways);
            Ok(each.map(|(resource, way)| decide(&held, way, call, action, resource)).collect())
        })
    }
}
