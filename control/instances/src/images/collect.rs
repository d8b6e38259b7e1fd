//! Takes images of the own store to their end: those whose bytes do not come, and the bytes of those that were deleted.
//!
//! Bytes go when no image that is there has their digest and no instance is made of one, under a lock by which an image of the
//! same digest that arrives meanwhile is looked at before or after, and not in between.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kernel::events::{self, EventKind};
use kernel::module::{QueueHandler, wake};
use kernel::ports::images::{ImageStore, ImageStoreError, Received, Upload};
use kernel::{BoxFuture, Fault};
use model::{ImageId, TenantId};
use serde_json::json;
use store::{Op, Row, RowExt, StoreError};
use uuid::Uuid;

use crate::state::{stored, whole};
use crate::{Instances, sql};

/// The queue of images to look at again. Key: the image's UUID.
pub const IMAGE_QUEUE: &str = "image";

const IMAGE_SEEN: Op = Op::new("image_seen");
const IMAGE_GIVE_UP: Op = Op::new("image_give_up");
const IMAGE_BYTES_GO: Op = Op::new("image_bytes_go");

/// How often it is looked whether more of an image has come.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// An announced image of which nothing more came for so long is given up.
const UNFINISHED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Whoever sent bytes when their image was deleted has come to an end by then: a body may last six hours.
const SENDERS_GONE: Duration = Duration::from_secs(7 * 3600);

pub(crate) fn image_key(id: ImageId) -> String {
    id.uuid().hyphenated().to_string()
}

pub(crate) struct Collect(pub Instances, pub Arc<dyn ImageStore>);

/// An image of the own store, as far as its end goes.
struct Kept {
    id: ImageId,
    tenant_id: TenantId,
    name: String,
    digest: [u8; 32],
    total_bytes: u64,
    arrived: bool,
    /// Since when it is deleted.
    deleted_for: Option<Duration>,
    seen_bytes: u64,
    seen_at: SystemTime,
    unchanged_for: Duration,
}

impl Kept {
    fn of_row(id: ImageId, row: &Row) -> Result<Self, StoreError> {
        let digest = row.get::<_, &[u8]>("sha256").try_into();
        let now = row.ts("now");
        Ok(Self {
            id,
            tenant_id: row.id("tenant_id"),
            name: row.get("name"),
            digest: digest.map_err(|_| StoreError::decode("image", "column \"sha256\""))?,
            total_bytes: whole(row.get("size_bytes")),
            arrived: row.opt_ts("arrived_at").is_some(),
            deleted_for: row.opt_ts("deleted_at").map(|at| now.since(at)),
            seen_bytes: whole(row.get("seen_bytes")),
            seen_at: row.get("seen_at"),
            unchanged_for: now.since(row.ts("seen_at")),
        })
    }

    fn upload(&self) -> Upload {
        let Self { id, digest, total_bytes, .. } = self;
        Upload { image_id: *id, digest: *digest, total_bytes: *total_bytes, known: false }
    }
}

fn failed(err: ImageStoreError) -> Fault {
    Fault::Internal { doing: "tidy the image store", source: Box::new(err) }
}

impl Collect {
    async fn look(&self, id: ImageId) -> Result<Option<Duration>, Fault> {
        let Some(row) = self.0.store().read_opt(&sql::IMAGE_UPKEEP, &[&id.uuid()]).await? else {
            return Ok(None);
        };
        let kept = Kept::of_row(id, &row)?;
        match kept.deleted_for {
            Some(deleted_for) => {
                self.remove(&kept).await?;
                Ok(SENDERS_GONE.checked_sub(deleted_for).filter(|left| !left.is_zero()))
            }
            None if kept.arrived => Ok(None),
            None => self.unfinished(&kept).await,
        }
    }

    async fn unfinished(&self, kept: &Kept) -> Result<Option<Duration>, Fault> {
        let (instances, store) = (&self.0, &self.1);
        let id = kept.id.uuid();
        let has = match store.received(kept.upload()).await.map_err(failed)? {
            Received::Part(bytes) | Received::Whole(bytes) => bytes,
        };
        if has != kept.seen_bytes {
            let seen = instances.store().tx(IMAGE_SEEN, |tx| {
                Box::pin(async move { tx.execute(&sql::IMAGE_SEEN, &[&id, &stored(has)]).await })
            });
            seen.await?;
            return Ok(Some(LOOK_EVERY));
        }
        if kept.unchanged_for < UNFINISHED_FOR {
            return Ok(Some((UNFINISHED_FOR - kept.unchanged_for).min(LOOK_EVERY)));
        }
        let given_up = instances.store().tx(IMAGE_GIVE_UP, |tx| {
            Box::pin(async move {
                if tx.execute(&sql::IMAGE_GIVE_UP, &[&id, &kept.seen_at]).await? > 0 {
                    let digest: String = kept.digest.iter().map(|byte| format!("{byte:02x}")).collect();
                    let data =
                        json!({ "name": kept.name, "sha256": digest, "reason": "its bytes did not come" });
                    let (kind, tenant_id) = (EventKind::ImageDeleted, Some(kept.tenant_id));
                    events::append(tx, instances.rng(), kind, kept.id, tenant_id, data).await?;
                }
                wake(tx, IMAGE_QUEUE, &image_key(kept.id)).await?;
                Ok::<_, Fault>(())
            })
        });
        given_up.await?;
        Ok(None)
    }

    /// What is gone already is no fault: this runs again after whatever cut it short.
    async fn remove(&self, kept: &Kept) -> Result<(), Fault> {
        let (instances, store) = (&self.0, &self.1);
        store.drop_part(kept.id).await.map_err(failed)?;
        let digest = &kept.digest;
        let removed = instances.store().tx(IMAGE_BYTES_GO, |tx| {
            Box::pin(async move {
                tx.query_one(&sql::DIGEST_LOCK, &[&digest.as_slice()]).await?;
                let needed: bool =
                    tx.query_one(&sql::DIGEST_NEEDED, &[&digest.as_slice()]).await?.get("needed");
                if !needed {
                    store.remove(*digest).await.map_err(failed)?;
                }
                Ok::<_, Fault>(())
            })
        });
        removed.await
    }
}

impl QueueHandler for Collect {
    fn queue(&self) -> &'static str {
        IMAGE_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            match Uuid::parse_str(key) {
                Ok(id) => self.look(ImageId::from_uuid(id)).await,
                Err(_) => Ok(None),
            }
        })
    }
}
