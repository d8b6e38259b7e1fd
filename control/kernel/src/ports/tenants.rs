//! What modules have of tenants, for the one that deletes tenants.

use model::TenantId;
use store::Tx;

use crate::BoxFuture;
use crate::fault::Fault;

/// What one module has of tenants. A tenant that is being deleted gets nothing new: the database refuses it.
pub trait Belongings: Send + Sync + 'static {
    /// What a tenant has here, in words like `3 instances`; empty when it has nothing. What has ended and stays for readers is not
    /// counted.
    fn left<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        tenant_id: TenantId,
    ) -> BoxFuture<'a, Result<Vec<String>, Fault>>;

    /// Asks for the end of what a tenant has here, as far as it can be asked for now, and a bounded part at once. Level-triggered:
    /// called again until nothing is left, and asking twice is asking once. What cannot be asked to end does not keep the rest.
    /// Whether there may be more that was not asked yet.
    fn clear(&self, tenant_id: TenantId) -> BoxFuture<'_, Result<bool, Fault>>;
}

/// Of one kind, at once.
pub const CLEARED_AT_ONCE: usize = 100;

/// `1 image`, `2 images`; nothing for none.
pub fn counted(count: i64, thing: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {thing}")),
        _ => Some(format!("{count} {thing}s")),
    }
}
