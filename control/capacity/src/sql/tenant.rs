//! What a tenant has.

use store::{Sql, sql};

/// Drafts too: one may be admitted at this moment.
pub const TENANT_HAS: Sql = sql(
    "reservations_tenant_has",
    "SELECT count(*) AS reservations FROM reservations WHERE tenant_id = $1 AND ended_at IS NULL",
);
pub const TENANT_RESERVATIONS: Sql = sql(
    "reservations_of_tenant",
    "SELECT reservation_id FROM reservations
     WHERE tenant_id = $1 AND ended_at IS NULL AND state IN ('scheduling', 'placed', 'active')
     ORDER BY reservation_id LIMIT 100",
);
/// What nobody has admitted yet, and then cannot.
pub const TENANT_DRAFTS_DELETE: Sql =
    sql("reservations_tenant_drafts", "DELETE FROM reservations WHERE tenant_id = $1 AND stage = 0");
