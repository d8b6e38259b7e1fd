//! Every statement of this module.
//!
//! Durable: all of it. Tokens as hashes only. A list is newest first by id.

use store::{Sql, sql};

pub(crate) const VERSION_GET: Sql = sql("iam_version_get", "SELECT version FROM iam_version");
pub(crate) const VERSION_RAISE: Sql =
    sql("iam_version_raise", "UPDATE iam_version SET version = version + 1");

// Authentication and authorization.

/// One row for each id of `$1`, in their order: the version, the time and whether the deployment may act, with nulls for a token
/// that is not there. Behind a SELECT the list is as long as any to the planner, which plans once then.
pub(crate) const TOKENS_AUTHENTICATE: Sql = sql(
    "tokens_authenticate",
    "SELECT v.version, compute_now() AS now, (SELECT observe_only FROM deployment) AS observe_only,
            t.secret_sha256, t.expires_at, t.revoked_at, t.last_used_at,
            u.user_id, u.tenant_id, u.kind, u.name, u.disabled_at
     FROM iam_version v CROSS JOIN unnest((SELECT $1::uuid[])) WITH ORDINALITY AS k (token_id, place)
     LEFT JOIN (tokens t JOIN users u USING (user_id)) ON t.token_id = k.token_id
     ORDER BY k.place",
);
pub(crate) const TOKEN_USED: Sql = sql(
    "token_used",
    "UPDATE tokens SET last_used_at = compute_now()
     WHERE token_id = $1
       AND (last_used_at IS NULL OR last_used_at <= compute_now() - $2::bigint * interval '1 second')",
);
pub(crate) const TENANT_WAY_UP: Sql = sql(
    "tenant_way_up",
    "WITH RECURSIVE way AS (
       SELECT tenant_id, parent_id, name, 0 AS up FROM tenants WHERE tenant_id = $1
       UNION ALL
       SELECT t.tenant_id, t.parent_id, t.name, way.up + 1 FROM tenants t JOIN way ON t.tenant_id = way.parent_id)
     SELECT tenant_id, name FROM way ORDER BY up",
);
/// In each of the tenants `$2`, up to `$3`.
pub(crate) const POLICIES_HELD: Sql = sql(
    "policies_held",
    "SELECT x.tenant_id, p.name, p.document FROM unnest($2::uuid[]) AS x (tenant_id)
     CROSS JOIN LATERAL (
       SELECT b.binding_id, b.policy_id FROM bindings b WHERE b.user_id = $1 AND b.tenant_id = x.tenant_id
       ORDER BY b.binding_id LIMIT $3) b
     JOIN policies p ON p.policy_id = b.policy_id ORDER BY b.binding_id",
);

// Tenants.

pub(crate) const TENANT_INSERT: Sql =
    sql("tenant_insert", "INSERT INTO tenants (tenant_id, parent_id, name) VALUES ($1, $2, $3)");
pub(crate) const TENANT_GET: Sql = sql(
    "tenant_get",
    "SELECT t.tenant_id, t.name, t.created_at, t.deleting_at, t.deleted_at, p.tenant_id AS parent_id, p.name AS parent_name
     FROM tenants t LEFT JOIN tenants p ON p.tenant_id = t.parent_id WHERE t.tenant_id = $1",
);
/// Below `$1`: its children alone, or with `$2` the tenant itself and everything below it.
pub(crate) const TENANT_LIST: Sql = sql(
    "tenant_list",
    "WITH RECURSIVE below AS (
       SELECT tenant_id, 0 AS down FROM tenants WHERE tenant_id = $1
       UNION ALL
       SELECT t.tenant_id, below.down + 1 FROM tenants t JOIN below ON t.parent_id = below.tenant_id
       WHERE $2 OR below.down = 0)
     SELECT t.tenant_id, t.name, t.created_at, t.deleting_at, t.deleted_at, p.tenant_id AS parent_id, p.name AS parent_name
     FROM below JOIN tenants t USING (tenant_id) LEFT JOIN tenants p ON p.tenant_id = t.parent_id
     WHERE ($2 OR below.down = 1) AND ($3::text IS NULL OR t.name = $3) AND t.tenant_id < $4
       AND ($6 OR t.deleted_at IS NULL)
     ORDER BY t.tenant_id DESC LIMIT $5",
);
/// Also waits for whoever is adding a row that names it.
pub(crate) const TENANT_LOCK: Sql =
    sql("tenant_lock", "SELECT deleting_at, deleted_at FROM tenants WHERE tenant_id = $1 FOR UPDATE");
/// What is never deleted with a tenant.
pub(crate) const TENANT_STAYS: Sql = sql(
    "tenant_stays",
    "SELECT (SELECT count(*) FROM tenants WHERE parent_id = $1 AND deleted_at IS NULL) AS below,
            (SELECT count(*) FROM pools WHERE tenant_id = $1 AND deleted_at IS NULL) AS pools,
            EXISTS (SELECT 1 FROM bindings b JOIN policies p USING (policy_id)
              JOIN tenants r ON r.tenant_id = b.tenant_id AND r.tenant_id = p.tenant_id AND r.parent_id IS NULL
              JOIN users u USING (user_id)
              WHERE p.name = 'administrator' AND u.disabled_at IS NULL AND u.tenant_id <> $1) AS administered",
);
pub(crate) const TENANT_HAS: Sql = sql(
    "tenant_has",
    "SELECT (SELECT count(*) FROM users WHERE tenant_id = $1 AND disabled_at IS NULL) AS users,
            (SELECT count(*) FROM policies WHERE tenant_id = $1) AS policies",
);
pub(crate) const TENANT_DELETING: Sql =
    sql("tenant_deleting", "UPDATE tenants SET deleting_at = compute_now() WHERE tenant_id = $1");
pub(crate) const TENANT_USERS_DISABLE: Sql = sql(
    "tenant_users_disable",
    "UPDATE users SET disabled_at = compute_now() WHERE tenant_id = $1 AND disabled_at IS NULL",
);
pub(crate) const TENANT_UNDER_WAY: Sql = sql(
    "tenant_under_way",
    "SELECT name, deleting_at, compute_now() AS now FROM tenants
     WHERE tenant_id = $1 AND deleting_at IS NOT NULL AND deleted_at IS NULL",
);
pub(crate) const TENANT_DELETED: Sql =
    sql("tenant_deleted", "UPDATE tenants SET deleted_at = compute_now() WHERE tenant_id = $1");
pub(crate) const TENANT_KEYS_DELETE: Sql =
    sql("tenant_keys_delete", "DELETE FROM idempotency WHERE tenant_id = $1");
pub(crate) const TENANT_QUOTAS_DELETE: Sql =
    sql("tenant_quotas_delete", "DELETE FROM quotas WHERE tenant_id = $1");
/// In it, and of its users elsewhere.
pub(crate) const TENANT_BINDINGS_DELETE: Sql = sql(
    "tenant_bindings_delete",
    "DELETE FROM bindings WHERE tenant_id = $1 OR user_id IN (SELECT user_id FROM users WHERE tenant_id = $1)",
);
pub(crate) const TENANT_POLICIES_DELETE: Sql =
    sql("tenant_policies_delete", "DELETE FROM policies WHERE tenant_id = $1");
/// What is the tenant's own and nobody asks for later, in the order in which it goes. Its users stay, disabled, for what names
/// them.
pub(crate) const TENANT_OWN: &[Sql] =
    &[TENANT_KEYS_DELETE, TENANT_QUOTAS_DELETE, TENANT_BINDINGS_DELETE, TENANT_POLICIES_DELETE];
pub(crate) const TENANT_ROOT: Sql =
    sql("tenant_root", "SELECT tenant_id FROM tenants WHERE parent_id IS NULL");

// Users.

pub(crate) const USER_INSERT: Sql = sql(
    "user_insert",
    "INSERT INTO users (user_id, tenant_id, kind, name, email) VALUES ($1, $2, $3, $4, $5)",
);
pub(crate) const USER_GET: Sql = sql(
    "user_get",
    "SELECT u.user_id, u.tenant_id, t.name AS tenant_name, u.kind, u.name, u.email, u.disabled_at, u.created_at
     FROM users u JOIN tenants t USING (tenant_id) WHERE u.user_id = $1",
);
pub(crate) const USER_GET_BY_NAME: Sql = sql(
    "user_get_by_name",
    "SELECT u.user_id, u.tenant_id, t.name AS tenant_name, u.kind, u.name, u.email, u.disabled_at, u.created_at
     FROM users u JOIN tenants t USING (tenant_id) WHERE u.tenant_id = $1 AND u.name = $2",
);
pub(crate) const USER_LIST: Sql = sql(
    "user_list",
    "SELECT u.user_id, u.tenant_id, t.name AS tenant_name, u.kind, u.name, u.email, u.disabled_at, u.created_at
     FROM users u JOIN tenants t USING (tenant_id)
     WHERE u.tenant_id = $1 AND ($2::text IS NULL OR u.kind = $2) AND ($3::text IS NULL OR u.name = $3)
       AND u.user_id < $4
     ORDER BY u.user_id DESC LIMIT $5",
);
/// Nothing where it is so already.
pub(crate) const USER_DISABLE: Sql = sql(
    "user_disable",
    "UPDATE users SET disabled_at = CASE WHEN $2 THEN compute_now() END
     WHERE user_id = $1 AND (disabled_at IS NOT NULL) <> $2",
);

// Tokens.

pub(crate) const TOKEN_INSERT: Sql = sql(
    "token_insert",
    "INSERT INTO tokens (token_id, user_id, name, secret_sha256, expires_at) VALUES ($1, $2, $3, $4, $5)",
);
pub(crate) const TOKEN_GET: Sql = sql(
    "token_get",
    "SELECT k.token_id, k.user_id, u.name AS user_name, u.tenant_id, k.name, k.created_at, k.expires_at,
            k.last_used_at, k.revoked_at
     FROM tokens k JOIN users u USING (user_id) WHERE k.token_id = $1",
);
pub(crate) const TOKEN_LIST: Sql = sql(
    "token_list",
    "SELECT k.token_id, k.user_id, u.name AS user_name, u.tenant_id, k.name, k.created_at, k.expires_at,
            k.last_used_at, k.revoked_at
     FROM tokens k JOIN users u USING (user_id)
     WHERE u.tenant_id = $1 AND ($2::uuid IS NULL OR k.user_id = $2)
       AND ($3 OR (k.revoked_at IS NULL AND k.expires_at > compute_now())) AND k.token_id < $4
     ORDER BY k.token_id DESC LIMIT $5",
);
pub(crate) const TOKEN_REVOKE: Sql = sql(
    "token_revoke",
    "UPDATE tokens SET revoked_at = compute_now() WHERE token_id = $1 AND revoked_at IS NULL",
);

// Policies.

pub(crate) const POLICY_INSERT: Sql = sql(
    "policy_insert",
    "INSERT INTO policies (policy_id, tenant_id, name, document) VALUES ($1, $2, $3, $4)",
);
pub(crate) const POLICY_UPDATE: Sql = sql(
    "policy_update",
    "UPDATE policies SET document = $2, version = version + 1, updated_at = compute_now()
     WHERE policy_id = $1 AND document <> $2 RETURNING version",
);
/// Locked, so that `ifVersion` is compared with what is replaced.
pub(crate) const POLICY_LOCK: Sql = sql(
    "policy_lock",
    "SELECT policy_id, version FROM policies WHERE tenant_id = $1 AND name = $2 FOR UPDATE",
);
pub(crate) const POLICY_GET: Sql = sql(
    "policy_get",
    "SELECT p.policy_id, p.tenant_id, t.name AS tenant_name, p.name, p.version, p.document, p.created_at, p.updated_at
     FROM policies p JOIN tenants t USING (tenant_id) WHERE p.policy_id = $1",
);
pub(crate) const POLICY_GET_BY_NAME: Sql = sql(
    "policy_get_by_name",
    "SELECT p.policy_id, p.tenant_id, t.name AS tenant_name, p.name, p.version, p.document, p.created_at, p.updated_at
     FROM policies p JOIN tenants t USING (tenant_id) WHERE p.tenant_id = $1 AND p.name = $2",
);
pub(crate) const POLICY_LIST: Sql = sql(
    "policy_list",
    "SELECT p.policy_id, p.tenant_id, t.name AS tenant_name, p.name, p.version, p.document, p.created_at, p.updated_at
     FROM policies p JOIN tenants t USING (tenant_id) WHERE p.tenant_id = $1 AND p.policy_id < $2
     ORDER BY p.policy_id DESC LIMIT $3",
);
pub(crate) const POLICY_DELETE: Sql = sql("policy_delete", "DELETE FROM policies WHERE policy_id = $1");
pub(crate) const POLICY_HOLDERS: Sql =
    sql("policy_holders", "SELECT count(*) AS holders FROM bindings WHERE policy_id = $1");

// Bindings.

pub(crate) const BINDING_INSERT: Sql = sql(
    "binding_insert",
    "INSERT INTO bindings (binding_id, tenant_id, policy_id, user_id) VALUES ($1, $2, $3, $4)
     ON CONFLICT (tenant_id, policy_id, user_id) DO NOTHING",
);
pub(crate) const BINDING_COUNT: Sql =
    sql("binding_count", "SELECT count(*) AS bindings FROM bindings WHERE tenant_id = $1 AND user_id = $2");
pub(crate) const BINDING_GET: Sql = sql(
    "binding_get",
    "SELECT b.binding_id, b.tenant_id, t.name AS tenant_name, b.policy_id, p.name AS policy_name,
            p.tenant_id AS policy_tenant_id, b.user_id, u.name AS user_name, b.created_at
     FROM bindings b JOIN tenants t USING (tenant_id) JOIN policies p USING (policy_id) JOIN users u USING (user_id)
     WHERE b.binding_id = $1",
);
pub(crate) const BINDING_FIND: Sql = sql(
    "binding_find",
    "SELECT b.binding_id, b.tenant_id, t.name AS tenant_name, b.policy_id, p.name AS policy_name,
            p.tenant_id AS policy_tenant_id, b.user_id, u.name AS user_name, b.created_at
     FROM bindings b JOIN tenants t USING (tenant_id) JOIN policies p USING (policy_id) JOIN users u USING (user_id)
     WHERE b.tenant_id = $1 AND b.policy_id = $2 AND b.user_id = $3",
);
pub(crate) const BINDING_LIST: Sql = sql(
    "binding_list",
    "SELECT b.binding_id, b.tenant_id, t.name AS tenant_name, b.policy_id, p.name AS policy_name,
            p.tenant_id AS policy_tenant_id, b.user_id, u.name AS user_name, b.created_at
     FROM bindings b JOIN tenants t USING (tenant_id) JOIN policies p USING (policy_id) JOIN users u USING (user_id)
     WHERE b.tenant_id = $1 AND ($2::uuid IS NULL OR b.user_id = $2) AND ($3::uuid IS NULL OR b.policy_id = $3)
       AND b.binding_id < $4
     ORDER BY b.binding_id DESC LIMIT $5",
);
pub(crate) const BINDING_DELETE: Sql = sql("binding_delete", "DELETE FROM bindings WHERE binding_id = $1");
/// Other bindings of the same policy in the same tenant whose user can still come in.
pub(crate) const BINDING_OTHERS: Sql = sql(
    "binding_others",
    "SELECT count(*) AS others FROM bindings b JOIN bindings mine ON mine.binding_id = $1
     JOIN users u ON u.user_id = b.user_id
     WHERE b.policy_id = mine.policy_id AND b.tenant_id = mine.tenant_id AND b.binding_id <> mine.binding_id
       AND u.disabled_at IS NULL",
);
pub(crate) const BINDING_TENANTS_OF_USER: Sql = sql(
    "binding_tenants_of_user",
    "SELECT DISTINCT tenant_id FROM bindings WHERE user_id = $1 ORDER BY tenant_id LIMIT $2",
);

/// For the test that prepares them.
#[cfg(test)]
pub(crate) const ALL: &[Sql] = &[
    VERSION_GET,
    VERSION_RAISE,
    TOKENS_AUTHENTICATE,
    TOKEN_USED,
    TENANT_WAY_UP,
    POLICIES_HELD,
    TENANT_INSERT,
    TENANT_GET,
    TENANT_LIST,
    TENANT_LOCK,
    TENANT_STAYS,
    TENANT_HAS,
    TENANT_DELETING,
    TENANT_USERS_DISABLE,
    TENANT_UNDER_WAY,
    TENANT_DELETED,
    TENANT_KEYS_DELETE,
    TENANT_QUOTAS_DELETE,
    TENANT_BINDINGS_DELETE,
    TENANT_POLICIES_DELETE,
    TENANT_ROOT,
    USER_INSERT,
    USER_GET,
    USER_GET_BY_NAME,
    USER_LIST,
    TOKEN_INSERT,
    TOKEN_GET,
    TOKEN_LIST,
    TOKEN_REVOKE,
    POLICY_INSERT,
    POLICY_UPDATE,
    POLICY_LOCK,
    POLICY_GET,
    POLICY_GET_BY_NAME,
    POLICY_LIST,
    POLICY_DELETE,
    POLICY_HOLDERS,
    BINDING_INSERT,
    BINDING_COUNT,
    BINDING_GET,
    BINDING_FIND,
    BINDING_LIST,
    BINDING_DELETE,
    BINDING_OTHERS,
    BINDING_TENANTS_OF_USER,
];

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn every_statement_prepares_on_a_migrated_database() {
        testkit::db().await.prepare_all(super::ALL).await;
    }
}
