//! `sites`.

use std::sync::Arc;

use api::{Id, List, sites};
use kernel::events::{self, EventKind};
use kernel::idempotency::{self, Key};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Module};
use model::{SiteId, TenantId, Timestamp};
use store::{Op, Row, RowExt};

use super::{on, refs, sql};
use crate::core::Fleet;

const KIND: &str = "compute-site";
const CREATE: Op = Op::new("site_create");

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, sites::Create, create);
    let module = on!(module, fleet, sites::Get, get);
    on!(module, fleet, sites::List, list)
}

fn resource(site_id: SiteId, root: TenantId) -> Resource {
    Resource::one(KIND, site_id, root)
}

async fn create(fleet: Fleet, call: Arc<Call>, request: sites::CreateSite) -> Result<sites::Site, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    call.require("compute:sites:create", &Resource::any(KIND, root)).await?;
    let key = request.idempotency_key.as_ref().map(api::IdempotencyKey::as_str);
    let key = Key::of(&call, root, key, &request)?;
    if let Some(key) = &key
        && let Some(made) = key.replay(fleet.store()).await?
    {
        return read(&fleet, &call, idempotency::made(&made)?).await;
    }
    let site_id: SiteId = fleet.id();
    call.about(format!("site/{site_id}"));
    let (name, key, rng, about) = (request.name.as_str(), key.as_ref(), fleet.rng(), &*call);
    let earlier: Option<String> = call
        .tx(fleet.store(), CREATE, |tx| {
            Box::pin(async move {
                if let Some(key) = key
                    && let Some(made) = key.claim(tx, &site_id.to_string()).await?
                {
                    about.about(format!("site/{made}"));
                    return Ok(Some(made));
                }
                match tx.execute(&sql::SITE_INSERT, &[&site_id.uuid(), &name]).await {
                    Ok(_) => {}
                    Err(err) if err.is_unique("sites_name_key") => {
                        return Err(
                            ApiError::conflict(format!("there is a site named {name:?} already")).into()
                        );
                    }
                    Err(err) => return Err(err.into()),
                }
                let data = serde_json::json!({ "name": name });
                events::append(tx, rng, EventKind::SiteCreated, site_id, Some(root), data).await?;
                Ok::<_, Fault>(None)
            })
        })
        .await?;
    match earlier {
        Some(made) => read(&fleet, &call, idempotency::made(&made)?).await,
        None => read(&fleet, &call, site_id).await,
    }
}

async fn get(fleet: Fleet, call: Arc<Call>, request: sites::GetSite) -> Result<sites::Site, Fault> {
    let site_id = refs::visible_site(fleet.store(), &call, &request.site).await?;
    read(&fleet, &call, site_id).await
}

async fn list(fleet: Fleet, call: Arc<Call>, request: sites::ListSites) -> Result<List<sites::Site>, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    let limit = api::limit_or_default(request.limit);
    let after = refs::after::<SiteId>(request.cursor.as_ref())?;
    let one: Option<uuid::Uuid> = None;
    let rows = fleet.store().read(&sql::SITES, &[&one, &after, &refs::sql_limit(limit)]).await?;
    let cursor = refs::next::<SiteId>(&rows, limit, "site_id");
    let items = rows.iter().map(|row| view(row, call.now)).collect();
    let items =
        call.filter("compute:sites:list", items, |site: &sites::Site| resource(site.id.0, root)).await?;
    Ok(List::new(items, cursor))
}

async fn read(fleet: &Fleet, call: &Call, site_id: SiteId) -> Result<sites::Site, Fault> {
    let after: Option<uuid::Uuid> = None;
    let row = fleet.store().read_opt(&sql::SITES, &[&Some(site_id.uuid()), &after, &1i64]).await?;
    Ok(view(&row.ok_or_else(|| ApiError::not_found("site", site_id))?, call.now))
}

fn view(row: &Row, now: Timestamp) -> sites::Site {
    let created_at = row.ts("created_at");
    sites::Site {
        id: Id(row.id("site_id")),
        name: row.get("name"),
        nodes: u32::try_from(row.get::<_, i64>("nodes")).unwrap_or(u32::MAX),
        created_at: created_at.into(),
        age_seconds: now.since(created_at).as_secs(),
    }
}
