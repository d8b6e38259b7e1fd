//! Every statement of this crate.
//!
//! Durable here: audit entries, because they are the proof of who asked for what; idempotency keys, because a repeated
//! create must find what the first one made.

use store::{Sql, sql};

pub(crate) const AUDIT_UPSERT: Sql = sql(
    "audit_upsert",
    "INSERT INTO audit (audit_id, at, tenant_id, principal, principal_id, action, resource, decision, outcome,
                        request_id, source_ip, detail)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
     ON CONFLICT (at, audit_id) DO UPDATE SET
       tenant_id = excluded.tenant_id, resource = excluded.resource, decision = excluded.decision,
       outcome = excluded.outcome, detail = audit.detail || excluded.detail",
);

/// [`AUDIT_UPSERT`] for many calls; what a call is about is given once for each.
pub(crate) const AUDIT_UPSERT_ALL: Sql = sql(
    "audit_upsert_all",
    "INSERT INTO audit (audit_id, at, tenant_id, principal, principal_id, action, resource, decision, outcome,
                        request_id, source_ip, detail)
     SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[],
                          $8::text[], $9::text[], $10::uuid[], $11::text[], $12::jsonb[])
     ON CONFLICT (at, audit_id) DO UPDATE SET
       tenant_id = excluded.tenant_id, resource = excluded.resource, decision = excluded.decision,
       outcome = excluded.outcome, detail = audit.detail || excluded.detail",
);

pub(crate) const AUDIT_SYSTEM: Sql = sql(
    "audit_system",
    "INSERT INTO audit (audit_id, tenant_id, principal, action, resource, decision, outcome, detail)
     VALUES ($1, $2, 'system', $3, $4, 'allowed', 'ok', $5)",
);

pub(crate) const IDEMPOTENCY_INSERT: Sql = sql(
    "idempotency_insert",
    "INSERT INTO idempotency (tenant_id, user_id, key, method, request_sha256, resource)
     VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant_id, user_id, key) DO NOTHING",
);

pub(crate) const IDEMPOTENCY_GET: Sql = sql(
    "idempotency_get",
    "SELECT method, request_sha256, resource FROM idempotency WHERE tenant_id = $1 AND user_id = $2 AND key = $3",
);

pub(crate) const IDEMPOTENCY_DELETE: Sql = sql(
    "idempotency_delete",
    "DELETE FROM idempotency WHERE tenant_id = $1 AND user_id = $2 AND key = $3 AND resource = $4",
);

pub(crate) const IDEMPOTENCY_PRUNE: Sql = sql(
    "idempotency_prune",
    "DELETE FROM idempotency WHERE ctid IN (
       SELECT ctid FROM idempotency WHERE created_at < compute_now() - make_interval(secs => $1::bigint::double precision)
       ORDER BY created_at LIMIT 1000)",
);

pub(crate) const ROOT_TENANT: Sql =
    sql("root_tenant", "SELECT tenant_id FROM tenants WHERE parent_id IS NULL");

pub(crate) const MAY_ACT: Sql = sql("may_act", "SELECT NOT observe_only AS may_act FROM deployment");

/// For the test that prepares them.
#[cfg(test)]
pub(crate) const ALL: &[Sql] = &[
    AUDIT_UPSERT,
    AUDIT_UPSERT_ALL,
    AUDIT_SYSTEM,
    IDEMPOTENCY_INSERT,
    IDEMPOTENCY_GET,
    IDEMPOTENCY_DELETE,
    IDEMPOTENCY_PRUNE,
    ROOT_TENANT,
    MAY_ACT,
];

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn every_statement_prepares_on_a_migrated_database() {
        testkit::db().await.prepare_all(super::ALL).await;
    }
}
