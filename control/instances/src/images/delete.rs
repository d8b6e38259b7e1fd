//! `images.delete`: the row stays for readers, and nothing is made of it any more.
//!
//! An instance that is made at the same time decides it with the database: either it is there first, and the image stays, or
//! the image is deleted first, and the create finds none.

use std::sync::Arc;

use api::Method;
use api::images::{DeleteImage, Image, ImageState};
use kernel::events::{self, EventKind};
use kernel::module::wake;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{ErrorCode, ImageId, InstanceId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, Tx};

use super::collect::{IMAGE_QUEUE, image_key};
use super::{KIND, resource, shown, view};
use crate::create::parts;
use crate::{Instances, sql};

const IMAGE_DELETE: Op = Op::new("image_delete");
/// Instances that are named to whoever may not delete their image. The rest is counted.
const NAMED_MAX: usize = 10;
/// Of those that are looked at.
const USERS_MAX: i64 = 1000;

pub(crate) async fn delete(
    instances: Instances,
    call: Arc<Call>,
    request: DeleteImage,
) -> Result<Image, Fault> {
    let action = api::images::Delete::ACTION;
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let image = match parts(&request.image) {
        (_, Some(name)) => {
            let row = instances.store().read_opt(&sql::IMAGE_NAMED, &[&tenant_id.uuid(), &name]).await?;
            row.as_ref().map(view).transpose()?
        }
        (id, None) => shown(&instances, ImageId::from_uuid(id.unwrap_or_default())).await?,
    };
    let Some(image) = image else {
        call.require_in(action, &Resource::any(KIND, tenant_id)).await?;
        return Err(ApiError::not_found("image", &request.image).into());
    };
    let see = api::images::Get::ACTION;
    call.require_on(action, see, &resource(&image), "image", &request.image).await?;
    let id = image.id.get();
    call.about(format!("image/{id}"));
    if image.state.0 == ImageState::Deleted {
        return Ok(image);
    }
    let sha256 = image.sha256.to_string();
    let gone = Gone {
        id,
        tenant_id: image.tenant.id.get(),
        name: &image.name,
        sha256: &sha256,
        reason: "it was asked for",
    };
    let deleted =
        call.tx(instances.store(), IMAGE_DELETE, |tx| Box::pin(delete_in(&instances, tx, gone))).await;
    match deleted {
        Ok(()) => Ok(shown(&instances, id).await?.unwrap_or(image)),
        Err(Fault::Store(err)) if err.is_check("images_in_use") => {
            Err(in_use(&instances, &call, &image).await?.into())
        }
        Err(fault) => Err(fault),
    }
}

/// An image that is to go, for what its event says.
#[derive(Clone, Copy)]
pub(crate) struct Gone<'a> {
    pub id: ImageId,
    pub tenant_id: TenantId,
    pub name: &'a str,
    pub sha256: &'a str,
    pub reason: &'a str,
}

/// Nothing for one that is gone. The database refuses it for one of which an instance is made.
pub(crate) async fn delete_in(instances: &Instances, tx: &mut Tx<'_>, gone: Gone<'_>) -> Result<(), Fault> {
    if tx.execute(&sql::IMAGE_DELETE, &[&gone.id.uuid()]).await? > 0 {
        let data = json!({ "name": gone.name, "sha256": gone.sha256, "reason": gone.reason });
        let kind = EventKind::ImageDeleted;
        events::append(tx, instances.rng(), kind, gone.id, Some(gone.tenant_id), data).await?;
        wake(tx, IMAGE_QUEUE, &image_key(gone.id)).await?;
    }
    Ok(())
}

/// An instance that is made of the image.
struct User {
    id: InstanceId,
    tenant_id: TenantId,
    text: String,
}

impl User {
    fn of_row(row: &Row) -> Self {
        let id: InstanceId = row.id("instance_id");
        let name = row.get::<_, Option<String>>("name").unwrap_or_else(|| id.to_string());
        let text = format!("{name} of tenant {}", row.get::<_, &str>("tenant_name"));
        Self { id, tenant_id: row.id("tenant_id"), text }
    }
}

/// Names what the caller may see, and counts all.
async fn in_use(instances: &Instances, call: &Call, image: &Image) -> Result<ApiError, Fault> {
    let rows = instances.store().read(&sql::IMAGE_USERS, &[&image.id.get().uuid(), &USERS_MAX]).await?;
    let count = rows.len();
    if count == 0 {
        let message = format!("image {:?} was in use until just now: try again", image.name);
        return Ok(ApiError { retry_after: Some(1), ..ApiError::new(ErrorCode::Unavailable, message) });
    }
    let users: Vec<User> = rows.iter().map(User::of_row).collect();
    let of = |user: &User| Resource::one(crate::create::KIND, user.id, user.tenant_id);
    let seen = call.filter(api::instances::Get::ACTION, users, of).await?;
    let named: Vec<&str> = seen.iter().take(NAMED_MAX).map(|user| user.text.as_str()).collect();
    let more = count - named.len();
    let rest = match (named.is_empty(), more) {
        (true, _) => format!("{count} that you may not see"),
        (false, 0) => String::new(),
        (false, more) => format!(" and {more} more"),
    };
    let message = format!(
        "image {:?} is in use by {count} instances: {}{rest}; delete those first (better-compute instances delete ID)",
        image.name,
        named.join(", "),
    );
    let ids: Vec<String> = seen.iter().take(NAMED_MAX).map(|user| user.id.to_string()).collect();
    Ok(ApiError::invalid_state(message).detail("instances", ids).detail("count", count))
}
