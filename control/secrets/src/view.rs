//! A secret as callers see it: never its value.

use api::Named;
use api::secrets::KeptSecret;
use kernel::ports::iam::Resource;
use model::{SecretId, TenantId, Timestamp};
use store::{Row, RowExt};

pub(crate) const KIND: &str = "compute-secret";

/// A row without its value.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub id: SecretId,
    pub tenant_id: TenantId,
    tenant_name: String,
    pub name: String,
    version: i64,
    size_bytes: i32,
    created_at: Timestamp,
    updated_at: Timestamp,
    now: Timestamp,
}

impl Stored {
    pub fn of_row(row: &Row) -> Self {
        Self {
            id: row.id("secret_id"),
            tenant_id: row.id("tenant_id"),
            tenant_name: row.get("tenant_name"),
            name: row.get("name"),
            version: row.get("version"),
            size_bytes: row.get("size_bytes"),
            created_at: row.ts("created_at"),
            updated_at: row.ts("updated_at"),
            now: row.ts("now"),
        }
    }

    pub fn resource(&self) -> Resource {
        Resource::one(KIND, self.id, self.tenant_id).with("resource.name", self.name.clone())
    }
}

pub(crate) fn view(stored: &Stored) -> KeptSecret {
    KeptSecret {
        id: stored.id.into(),
        tenant: Named::new(stored.tenant_id, &stored.tenant_name),
        name: stored.name.clone(),
        version: u64::try_from(stored.version).unwrap_or(0),
        size_bytes: u64::try_from(stored.size_bytes).unwrap_or(0),
        created_at: stored.created_at.into(),
        updated_at: stored.updated_at.into(),
        age_seconds: stored.now.since(stored.created_at).as_secs(),
    }
}
