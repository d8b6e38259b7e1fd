//! Every statement of this crate.
//!
//! Durable: a secret before whatever names it, and the judgement of a node's request before it is answered, so that no request
//! is answered twice. Of one secret that is put and named at the same time, the row's lock decides who is first.

use store::{Sql, sql};

pub const SECRET_INSERT: Sql = sql(
    "secret_insert",
    "INSERT INTO secrets (secret_id, tenant_id, name, instance_id, sealed, kek_id, size_bytes)
     VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
pub const SECRET_LOCK: Sql = sql(
    "secret_lock",
    "SELECT secret_id, version, sealed FROM secrets WHERE tenant_id = $1 AND name = $2 FOR NO KEY UPDATE",
);
pub const SECRET_UPDATE: Sql = sql(
    "secret_update",
    "UPDATE secrets SET sealed = $2, kek_id = $3, size_bytes = $4, version = version + 1, updated_at = compute_now()
     WHERE secret_id = $1",
);
pub const SECRETS_COUNT: Sql =
    sql("secrets_count", "SELECT count(*) AS kept FROM secrets WHERE tenant_id = $1 AND name IS NOT NULL");

/// What a secret is read by: all but its value. One of an instance is nobody's to read.
macro_rules! secret_select {
    ($rest:literal) => {
        concat!(
            "SELECT s.secret_id, s.tenant_id, t.name AS tenant_name, s.name, s.version, s.size_bytes, s.created_at, s.updated_at,
       compute_now() AS now
     FROM secrets s JOIN tenants t ON t.tenant_id = s.tenant_id WHERE s.name IS NOT NULL AND ",
            $rest
        )
    };
}

pub const SECRET_GET: Sql = sql("secret_get", secret_select!("s.secret_id = $1"));
pub const SECRET_FIND: Sql = sql(
    "secret_find",
    secret_select!(
        "s.tenant_id = $1 AND ($2::uuid IS NULL OR s.secret_id = $2) AND ($3::text IS NULL OR s.name = $3)
     ORDER BY s.secret_id LIMIT 1"
    ),
);
pub const SECRETS_LIST: Sql = sql(
    "secrets_list",
    secret_select!("s.tenant_id = $1 AND s.secret_id < $2 ORDER BY s.secret_id DESC LIMIT $3"),
);
/// One instance that names it.
pub const SECRET_USED: Sql = sql(
    "secret_used",
    "SELECT instance_id FROM instances WHERE user_data_secret = $1 ORDER BY instance_id LIMIT 1",
);
pub const SECRET_DELETE: Sql =
    sql("secret_delete", "DELETE FROM secrets WHERE secret_id = $1 AND name IS NOT NULL");
/// Until the transaction is over nobody deletes it.
pub const SECRET_HOLD: Sql = sql(
    "secret_hold",
    "SELECT 1 AS held FROM secrets WHERE secret_id = $1 AND tenant_id = $2 AND name IS NOT NULL FOR KEY SHARE",
);
pub const SECRET_FORGET: Sql = sql("secret_forget", "DELETE FROM secrets WHERE instance_id = $1");

// What nodes ask for.

pub const SECRET_SEALED: Sql =
    sql("secret_sealed", "SELECT tenant_id, sealed FROM secrets WHERE secret_id = $1");
pub const REQUESTS_LATELY: Sql = sql(
    "secret_requests_lately",
    "SELECT count(*) AS lately FROM secret_requests WHERE node_id = $1 AND at > compute_now() - interval '1 minute'",
);
/// Nothing when it was judged before.
pub const REQUEST_INSERT: Sql = sql(
    "secret_request_insert",
    "INSERT INTO secret_requests (request_id, node_id, secret_id, outcome) VALUES ($1, $2, $3, $4)
     ON CONFLICT (request_id) DO NOTHING",
);
/// Longer than a request's time may be away from ours, both ways.
pub const REQUESTS_FORGET: Sql = sql(
    "secret_requests_forget",
    "DELETE FROM secret_requests WHERE request_id IN (SELECT request_id FROM secret_requests
       WHERE at < compute_now() - interval '1 hour' ORDER BY at LIMIT $1)",
);
pub const REFUSAL_TELL: Sql = sql(
    "secret_refusal_tell",
    "INSERT INTO secret_refusals AS r (node_id, reason) VALUES ($1, $2)
     ON CONFLICT (node_id, reason) DO UPDATE SET told_at = compute_now()
     WHERE r.told_at < compute_now() - interval '1 minute'",
);
pub const REFUSALS_FORGET: Sql = sql(
    "secret_refusals_forget",
    "DELETE FROM secret_refusals WHERE told_at < compute_now() - interval '1 day'",
);
pub const NODE_TENANT: Sql = sql(
    "secret_node_tenant",
    "SELECT p.tenant_id FROM nodes n JOIN pools p ON p.pool_id = n.pool_id WHERE n.node_id = $1",
);
/// What a tenant put here.
pub const TENANT_HAS: Sql = sql(
    "secrets_tenant_has",
    "SELECT count(*) AS secrets FROM secrets WHERE tenant_id = $1 AND name IS NOT NULL",
);
/// Those that no instance names any more.
pub const TENANT_SECRETS: Sql = sql(
    "secrets_of_tenant",
    "SELECT s.secret_id, s.name FROM secrets s WHERE s.tenant_id = $1 AND s.name IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.user_data_secret = s.secret_id)
     ORDER BY s.secret_id LIMIT 100",
);

// Keys.

pub const SECRETS_OF_OTHER_KEYS: Sql = sql(
    "secrets_of_other_keys",
    "SELECT secret_id, tenant_id, sealed FROM secrets WHERE kek_id <> $1 ORDER BY secret_id LIMIT $2
     FOR NO KEY UPDATE SKIP LOCKED",
);
pub const SECRET_REWRAP: Sql =
    sql("secret_rewrap", "UPDATE secrets SET sealed = $2, kek_id = $3 WHERE secret_id = $1");

/// For a test that prepares each of them.
pub const ALL: &[Sql] = &[
    SECRET_INSERT,
    SECRET_LOCK,
    SECRET_UPDATE,
    SECRETS_COUNT,
    SECRET_GET,
    SECRET_FIND,
    SECRETS_LIST,
    SECRET_USED,
    SECRET_DELETE,
    SECRET_HOLD,
    SECRET_FORGET,
    SECRET_SEALED,
    REQUESTS_LATELY,
    REQUEST_INSERT,
    REQUESTS_FORGET,
    REFUSAL_TELL,
    REFUSALS_FORGET,
    NODE_TENANT,
    TENANT_HAS,
    TENANT_SECRETS,
    SECRETS_OF_OTHER_KEYS,
    SECRET_REWRAP,
];
