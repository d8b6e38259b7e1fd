//! Images: what disks begin with. A tenant may use its own, and what tenants above it share.

use std::io::ErrorKind;
use std::sync::Arc;

use api::images::{
    CreateImage, Digest, GetImage, Image, ImageContent, ImageFormat, ImageState, ImportImage, ListImages,
};
use api::{List, Method, Named, Word};
use kernel::events::{self, EventKind};
use kernel::idempotency::Key;
use kernel::module::{Content, ContentBytes, wake, wake_in};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::ports::images::{ImageStore, ImageStoreError, Received, Upload};
use kernel::{ApiError, BoxFuture, Call, Fault};
use model::unit::GIB;
use model::{ErrorCode, ImageId, TenantId};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, StoreError};

use crate::{Instances, sql};

mod collect;
mod delete;

pub(crate) use collect::Collect;
pub use collect::IMAGE_QUEUE;
use collect::{LOOK_EVERY, image_key};
pub(crate) use delete::{Gone, delete, delete_in};

const IMAGE_CREATE: Op = Op::new("image_create");
const IMAGE_ARRIVED: Op = Op::new("image_arrived");
const KIND: &str = "compute-image";

fn view(row: &Row) -> Result<Image, StoreError> {
    let undecodable = |column| StoreError::decode("image", format!("column {column:?}"));
    let sha256: [u8; 32] = row.get::<_, &[u8]>("sha256").try_into().map_err(|_| undecodable("sha256"))?;
    let created_at = row.ts("created_at");
    Ok(Image {
        id: row.id::<ImageId>("image_id").into(),
        name: row.get("name"),
        tenant: Named::new(row.id("tenant_id"), row.get::<_, String>("tenant_name")),
        state: Word(state_of(row)),
        url: row.get("url"),
        size_bytes: row.get::<_, Option<i64>>("size_bytes").and_then(|size| u64::try_from(size).ok()),
        sha256: Digest(sha256),
        format: Word(ImageFormat::parse(row.get("format")).ok_or_else(|| undecodable("format"))?),
        shared: row.get("shared"),
        verified: row.get("verified"),
        login_user: row.get("login_user"),
        created_at: created_at.into(),
        deleted_at: row.opt_ts("deleted_at").map(Into::into),
        age_seconds: row.ts("now").since(created_at).as_secs(),
    })
}

/// One at an address is taken to be there: a host says when it is not.
pub(crate) fn state_of(row: &Row) -> ImageState {
    let awaited = row.get::<_, Option<&str>>("url").is_none() && row.opt_ts("arrived_at").is_none();
    match (row.opt_ts("deleted_at"), awaited) {
        (Some(_), _) => ImageState::Deleted,
        (None, true) => ImageState::Awaited,
        (None, false) => ImageState::Ready,
    }
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

/// What is to be made.
struct Asked<'a> {
    tenant_id: TenantId,
    name: &'a str,
    /// None for the own store.
    url: Option<&'a str>,
    size_bytes: Option<i64>,
    sha256: Digest,
    format: ImageFormat,
    shared: bool,
    verified: bool,
    login_user: Option<&'a str>,
}

pub(crate) async fn create(
    instances: Instances,
    call: Arc<Call>,
    request: CreateImage,
) -> Result<Image, Fault> {
    let asked = Asked {
        tenant_id: request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get()),
        name: request.name.as_str(),
        url: Some(request.url.as_str()),
        size_bytes: None,
        sha256: request.sha256,
        format: request.format.0,
        shared: request.shared,
        verified: request.verified,
        login_user: request.login_user.as_ref().map(|user| user.as_str()),
    };
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, asked.tenant_id, given, &request)?;
    make(&instances, &call, api::images::Create::ACTION, &asked, key.as_ref()).await
}

/// Announces one whose bytes come by [`Content`].
pub(crate) async fn import(
    instances: Instances,
    call: Arc<Call>,
    request: ImportImage,
) -> Result<Image, Fault> {
    let asked = Asked {
        tenant_id: request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get()),
        name: request.name.as_str(),
        url: None,
        // It was checked to be far below this.
        size_bytes: Some(i64::try_from(request.size_bytes.get()).unwrap_or(i64::MAX)),
        sha256: request.sha256,
        format: request.format.0,
        shared: request.shared,
        verified: request.verified,
        login_user: request.login_user.as_ref().map(|user| user.as_str()),
    };
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, asked.tenant_id, given, &request)?;
    make(&instances, &call, api::images::Import::ACTION, &asked, key.as_ref()).await
}

async fn make(
    instances: &Instances,
    call: &Call,
    action: &'static str,
    asked: &Asked<'_>,
    key: Option<&Key>,
) -> Result<Image, Fault> {
    let of = Resource::any(KIND, asked.tenant_id)
        .with("resource.name", asked.name.to_owned())
        .with("resource.shared", asked.shared)
        .with("resource.verified", asked.verified);
    call.require_in(action, &of).await?;
    let made = match key {
        Some(key) => key.replay(instances.store()).await?,
        None => None,
    };
    let id = match made {
        Some(made) => kernel::idempotency::made(&made)?,
        None => insert(instances, call, asked, key).await?,
    };
    Ok(shown(instances, id).await?.ok_or_else(|| ApiError::not_found("image", id))?)
}

async fn insert(
    instances: &Instances,
    call: &Call,
    asked: &Asked<'_>,
    key: Option<&Key>,
) -> Result<ImageId, Fault> {
    let fresh: ImageId = instances.id();
    call.about(format!("image/{fresh}"));
    let (tenant_id, name) = (asked.tenant_id, asked.name);
    let sha256 = asked.sha256.0.as_slice();
    let made = call.tx(instances.store(), IMAGE_CREATE, |tx| {
        Box::pin(async move {
            if let Some(key) = key
                && let Some(made) = key.claim(tx, &fresh.to_string()).await?
            {
                return kernel::idempotency::made(&made);
            }
            let values: [&(dyn store::Param + Sync); 10] = [
                &fresh.uuid(),
                &tenant_id.uuid(),
                &name,
                &asked.url,
                &sha256,
                &asked.format.name(),
                &asked.shared,
                &asked.verified,
                &asked.size_bytes,
                &asked.login_user,
            ];
            tx.execute(&sql::IMAGE_INSERT, &values).await?;
            let data = json!({
                "name": name, "sha256": asked.sha256.to_string(), "shared": asked.shared, "verified": asked.verified,
            });
            let kind = EventKind::ImageCreated;
            events::append(tx, instances.rng(), kind, fresh, Some(tenant_id), data).await?;
            if asked.url.is_none() {
                wake_in(tx, IMAGE_QUEUE, &image_key(fresh), LOOK_EVERY).await?;
            }
            Ok::<ImageId, Fault>(fresh)
        })
    });
    let fault = match made.await {
        Ok(made) => return Ok(made),
        Err(Fault::Store(err)) if capacity::is_over_quota(&err) => {
            let wanted = asked.size_bytes.unwrap_or_default().unsigned_abs().div_ceil(GIB);
            let wanted = [("imageGiB", i64::try_from(wanted).unwrap_or(i64::MAX))];
            let refusal = instances.capacity().quota_refusal(tenant_id, &wanted).await?;
            let by_now = || ApiError::new(ErrorCode::Unavailable, "a quota was used up: try again");
            return Err(refusal.unwrap_or_else(by_now).into());
        }
        Err(fault) => fault,
    };
    Err(match &fault {
        Fault::Store(err) if err.is_foreign_key("images_tenant_id_fkey") => {
            ApiError::not_found("tenant", tenant_id).into()
        }
        Fault::Store(err) if err.is_check("images_awaited") => {
            let message = "16 images of the tenant wait for their bytes: send those, or delete some \
                           (better-compute images list)";
            ApiError::invalid_state(message).detail("awaited", 16).into()
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

/// Takes the bytes of announced images.
pub(crate) struct Bytes(pub Instances, pub Arc<dyn ImageStore>);

impl Bytes {
    async fn take(&self, call: &Call, id: &str, offset: u64, bytes: ContentBytes) -> Result<Value, Fault> {
        let Bytes(instances, store) = self;
        let id: ImageId = id.parse().map_err(|_| ApiError::not_found("image", id))?;
        let image = shown(instances, id).await?;
        // Whoever may announce images of the tenant may send their bytes.
        let of = match &image {
            Some(image) => resource(image),
            None => Resource::one(KIND, id, call.principal.tenant_id),
        };
        call.require_in(api::images::Import::ACTION, &of).await?;
        let image = image.ok_or_else(|| ApiError::not_found("image", id))?;
        if image.state.0 == ImageState::Deleted {
            return Err(ApiError::invalid_state("the image was deleted: import it anew").into());
        }
        let Some(size_bytes) = image.size_bytes else {
            let message = "hosts fetch this image from its address: it takes no bytes";
            return Err(ApiError::new(ErrorCode::InvalidState, message).into());
        };
        call.about(format!("image/{id}"));
        let known = image.state.0 == ImageState::Ready || self.is_known(&image).await?;
        let upload = Upload { image_id: id, digest: image.sha256.0, total_bytes: size_bytes, known };
        let received = store.append(upload, offset, bytes).await.map_err(refused)?;
        let received_bytes = match received {
            Received::Part(bytes) => bytes,
            Received::Whole(bytes) => {
                self.arrived(call, &image, upload).await?;
                bytes
            }
        };
        let image = shown(instances, id).await?.ok_or_else(|| ApiError::not_found("image", id))?;
        encoded(&ImageContent { image, received_bytes })
    }

    /// Who knows a digest need not have the image: only what the tenant may use already need not come again.
    async fn is_known(&self, image: &Image) -> Result<bool, StoreError> {
        let (tenant_id, digest) = (image.tenant.id.get().uuid(), image.sha256.0.as_slice());
        let known = self.0.store().read_opt(&sql::IMAGE_KNOWN, &[&tenant_id, &digest]).await?;
        Ok(known.is_some())
    }

    /// Its bytes are in the store, and stay there from here on.
    async fn arrived(&self, call: &Call, image: &Image, upload: Upload) -> Result<(), Fault> {
        let Bytes(instances, store) = self;
        let (id, tenant_id) = (upload.image_id, image.tenant.id.get());
        let there = Upload { known: true, ..upload };
        let data =
            json!({ "name": image.name, "sha256": image.sha256.to_string(), "sizeBytes": image.size_bytes });
        let data = &data;
        call.tx(instances.store(), IMAGE_ARRIVED, |tx| {
            Box::pin(async move {
                tx.query_one(&sql::DIGEST_LOCK, &[&upload.digest.as_slice()]).await?;
                if let Received::Part(at) = store.received(there).await.map_err(refused)? {
                    // They went with another image of this digest, before anybody could know that this one has them.
                    return Err(refused(ImageStoreError::Offset { at, given: upload.total_bytes }));
                }
                if tx.execute(&sql::IMAGE_ARRIVED, &[&id.uuid()]).await? > 0 {
                    let kind = EventKind::ImageReady;
                    events::append(tx, instances.rng(), kind, id, Some(tenant_id), data.clone()).await?;
                }
                // Of one that was deleted meanwhile they go again.
                wake(tx, IMAGE_QUEUE, &image_key(id)).await?;
                Ok::<_, Fault>(())
            })
        })
        .await
    }
}

impl Content for Bytes {
    fn group(&self) -> &'static str {
        "images"
    }

    fn method(&self) -> &'static str {
        api::images::Import::NAME
    }

    fn put<'a>(
        &'a self,
        call: &'a Call,
        id: &'a str,
        offset: u64,
        bytes: ContentBytes,
    ) -> BoxFuture<'a, Result<Value, Fault>> {
        Box::pin(self.take(call, id, offset, bytes))
    }
}

fn encoded(content: &ImageContent) -> Result<Value, Fault> {
    serde_json::to_value(content)
        .map_err(|source| Fault::Internal { doing: "encode the answer", source: Box::new(source) })
}

fn refused(err: ImageStoreError) -> Fault {
    let code = match &err {
        ImageStoreError::OtherDigest { .. } | ImageStoreError::TooLong { .. } => ErrorCode::InvalidInput,
        ImageStoreError::BrokenOff(line) if line.kind() == ErrorKind::TimedOut => {
            let message = "the image's bytes came too slowly: send it again, and it goes on where it stopped";
            return ApiError::new(ErrorCode::Unavailable, message).into();
        }
        ImageStoreError::BrokenOff(_) => ErrorCode::InvalidInput,
        ImageStoreError::Offset { .. } | ImageStoreError::Busy => ErrorCode::Conflict,
        ImageStoreError::Full { .. } | ImageStoreError::NoSpace(_) => {
            let message = format!(
                "{err}: delete images that nobody needs (better-compute images list), or give it room"
            );
            return ApiError::new(ErrorCode::CapacityUnavailable, message).into();
        }
        ImageStoreError::Failed(_) => {
            return Fault::Internal { doing: "store an image", source: Box::new(err) };
        }
    };
    let error = ApiError::new(code, err.to_string());
    match err {
        ImageStoreError::Offset { at, .. } => error.detail("receivedBytes", at).into(),
        _ => error.into(),
    }
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
    let values: [&(dyn store::Param + Sync); 4] =
        [&tenant_id.uuid(), &page.before, &page.fetch(), &request.include_deleted];
    let rows = instances.store().read(&sql::IMAGES_LIST, &values).await?;
    let images: Vec<Image> = rows.iter().map(view).collect::<Result<_, _>>()?;
    let (images, cursor) = page.cut(images, |image| image.id.get());
    // What is shared with the tenant is decided as the tenant's: that it may be used is what sharing it says.
    let shown = call.filter(action, images, |image| Resource::one(KIND, image.id, tenant_id)).await?;
    Ok(List::new(shown, cursor))
}
