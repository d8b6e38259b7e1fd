//! Images: what disks begin with. A tenant may use its own, and what tenants above it share.

use std::sync::Arc;

use api::images::{CreateImage, Digest, GetImage, Image, ImageFormat, ListImages};
use api::{List, Method, Named, Word};
use kernel::events::{self, EventKind};
use kernel::idempotency::Key;
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{ImageId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, StoreError};

use crate::{Instances, sql};

const IMAGE_CREATE: Op = Op::new("image_create");
const KIND: &str = "compute-image";

fn view(row: &Row) -> Result<Image, StoreError> {
    let undecodable = |column| StoreError::decode("image", format!("column {column:?}"));
    let sha256: [u8; 32] = row.get::<_, &[u8]>("sha256").try_into().map_err(|_| undecodable("sha256"))?;
    let created_at = row.ts("created_at");
    Ok(Image {
        id: row.id::<ImageId>("image_id").into(),
        name: row.get("name"),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        url: row.get("url"),
        sha256: Digest(sha256),
        format: Word(ImageFormat::parse(row.get("format")).ok_or_else(|| undecodable("format"))?),
        shared: row.get("shared"),
        verified: row.get("verified"),
        created_at: created_at.into(),
        age_seconds: row.ts("now").since(created_at).as_secs(),
    })
}

fn resource(image: &Image) -> Resource {
    Resource::one(KIND, image.id, image.tenant.id.get())
        .with("resource.shared", image.shared)
        .with("resource.verified", image.verified)
}

async fn shown(instances: &Instances, id: ImageId) -> Result<Option<Image>, StoreError> {
    let row = instances.store().read_opt(&sql::IMAGE_GET, &[&id.uuid()]).await?;
    row.as_ref().map(view).transpose()
}

pub(crate) async fn create(
    instances: Instances,
    call: Arc<Call>,
    request: CreateImage,
) -> Result<Image, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let asked = Resource::any(KIND, tenant_id)
        .with("resource.name", request.name.as_str().to_owned())
        .with("resource.shared", request.shared)
        .with("resource.verified", request.verified);
    call.require_in(api::images::Create::ACTION, &asked).await?;
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, tenant_id, given, &request)?;
    let made = match &key {
        Some(key) => key.replay(instances.store()).await?,
        None => None,
    };
    let id = match made {
        Some(made) => kernel::idempotency::made(&made)?,
        None => insert(&instances, &call, tenant_id, key.as_ref(), &request).await?,
    };
    Ok(shown(&instances, id).await?.ok_or_else(|| ApiError::not_found("image", id))?)
}

async fn insert(
    instances: &Instances,
    call: &Call,
    tenant_id: TenantId,
    key: Option<&Key>,
    request: &CreateImage,
) -> Result<ImageId, Fault> {
    let fresh: ImageId = instances.id();
    call.about(format!("image/{fresh}"));
    let (name, url) = (request.name.as_str(), request.url.as_str());
    let sha256 = request.sha256.0.as_slice();
    let made = call.tx(instances.store(), IMAGE_CREATE, |tx| {
        Box::pin(async move {
            if let Some(key) = key
                && let Some(made) = key.claim(tx, &fresh.to_string()).await?
            {
                return kernel::idempotency::made(&made);
            }
            let values: [&(dyn store::Param + Sync); 8] = [
                &fresh.uuid(),
                &tenant_id.uuid(),
                &name,
                &url,
                &sha256,
                &request.format.0.name(),
                &request.shared,
                &request.verified,
            ];
            tx.execute(&sql::IMAGE_INSERT, &values).await?;
            let data = json!({
                "name": name, "sha256": request.sha256.to_string(), "shared": request.shared, "verified": request.verified,
            });
            let kind = EventKind::ImageCreated;
            events::append(tx, instances.rng(), kind, fresh, Some(tenant_id), data).await?;
            Ok::<ImageId, Fault>(fresh)
        })
    });
    made.await.map_err(|fault| match &fault {
        Fault::Store(err) if err.is_foreign_key("images_tenant_id_fkey") => {
            ApiError::not_found("tenant", tenant_id).into()
        }
        Fault::Store(_) | Fault::Refused(_) | Fault::Internal { .. } => {
            fault.on_unique("images_tenant_id_name_key", || {
                ApiError::conflict(format!("there is an image {name:?} already"))
                    .detail("kind", "image")
                    .detail("name", name)
            })
        }
    })
}

pub(crate) async fn get(instances: Instances, call: Arc<Call>, request: GetImage) -> Result<Image, Fault> {
    let (id, action) = (request.id.get(), api::images::Get::ACTION);
    let Some(image) = shown(&instances, id).await? else {
        call.decide(action, &Resource::one(KIND, id, call.principal.tenant_id)).await?;
        return Err(ApiError::not_found("image", id).into());
    };
    call.require_visible(action, &resource(&image), "image", id).await?;
    Ok(image)
}

pub(crate) async fn list(
    instances: Instances,
    call: Arc<Call>,
    request: ListImages,
) -> Result<List<Image>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::images::List::ACTION;
    if tenant_id != call.principal.tenant_id {
        call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
    }
    let page = Page::of::<ImageId>(request.limit, request.cursor.as_ref())?;
    let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &page.before, &page.fetch()];
    let rows = instances.store().read(&sql::IMAGES_LIST, &values).await?;
    let images: Vec<Image> = rows.iter().map(view).collect::<Result<_, _>>()?;
    let (images, cursor) = page.cut(images, |image| image.id.get());
    // What is shared with the tenant is decided as the tenant's: that it may be used is what sharing it says.
    let shown = call.filter(action, images, |image| Resource::one(KIND, image.id, tenant_id)).await?;
    Ok(List::new(shown, cursor))
}
