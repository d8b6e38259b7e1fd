//! The end of images.
//!
//! Durable: that an image is deleted, before anything of it goes from the store.

use store::{Sql, sql};

pub const IMAGE_DELETE: Sql = sql(
    "image_delete",
    "UPDATE images SET deleted_at = compute_now() WHERE image_id = $1 AND deleted_at IS NULL",
);
pub const IMAGE_USERS: Sql = sql(
    "image_users",
    "SELECT i.instance_id, i.tenant_id, i.name, t.name AS tenant_name
     FROM instances i JOIN tenants t ON t.tenant_id = i.tenant_id
     WHERE i.image_id = $1 AND i.ended_at IS NULL ORDER BY i.instance_id LIMIT $2",
);
pub const IMAGE_UPKEEP: Sql = sql(
    "image_upkeep",
    "SELECT tenant_id, name, size_bytes, sha256, arrived_at, deleted_at, seen_bytes, seen_at, compute_now() AS now
     FROM images WHERE image_id = $1 AND url IS NULL",
);
pub const IMAGE_SEEN: Sql =
    sql("image_seen", "UPDATE images SET seen_bytes = $2, seen_at = compute_now() WHERE image_id = $1");
/// One whose bytes did not come: nobody looked since they were seen to be so many.
pub const IMAGE_GIVE_UP: Sql = sql(
    "image_give_up",
    "UPDATE images SET deleted_at = compute_now()
     WHERE image_id = $1 AND arrived_at IS NULL AND deleted_at IS NULL AND seen_at = $2",
);
/// Until the transaction is over, what is in the store under this digest is in nobody else's hands.
pub const DIGEST_LOCK: Sql = sql(
    "digest_lock",
    "SELECT pg_advisory_xact_lock(hashtextextended('image-bytes:' || encode($1::bytea, 'hex'), 0)) IS NULL AS locked",
);
pub const DIGEST_NEEDED: Sql = sql(
    "digest_needed",
    "SELECT EXISTS (SELECT 1 FROM images WHERE sha256 = $1 AND url IS NULL AND deleted_at IS NULL)
       OR EXISTS (SELECT 1 FROM images i JOIN instances n USING (image_id)
         WHERE i.sha256 = $1 AND i.url IS NULL AND n.ended_at IS NULL) AS needed",
);

/// For the test that prepares them.
#[cfg(test)]
pub const IMAGES_END: &[Sql] =
    &[IMAGE_DELETE, IMAGE_USERS, IMAGE_UPKEEP, IMAGE_SEEN, IMAGE_GIVE_UP, DIGEST_LOCK, DIGEST_NEEDED];
