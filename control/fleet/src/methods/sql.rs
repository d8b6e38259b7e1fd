//! Statements of the API methods. Lists are newest first by id, which is time-ordered, so a cursor is the last id.

use store::{Sql, sql};

pub const ROOT_TENANT: Sql =
    sql("fleet_root_tenant", "SELECT tenant_id FROM tenants WHERE parent_id IS NULL");

pub const SITE_INSERT: Sql = sql("site_insert", "INSERT INTO sites (site_id, name) VALUES ($1, $2)");
pub const SITE_BY_ID: Sql = sql("site_by_id", "SELECT site_id FROM sites WHERE site_id = $1");
pub const SITE_BY_NAME: Sql = sql("site_by_name", "SELECT site_id FROM sites WHERE name = $1");
pub const SITES: Sql = sql(
    "sites",
    "SELECT s.site_id, s.name, s.created_at,
       (SELECT count(*) FROM nodes n WHERE n.site_id = s.site_id AND n.state <> 'removed') AS nodes
     FROM sites s
     WHERE ($1::uuid IS NULL OR s.site_id = $1) AND ($2::uuid IS NULL OR s.site_id < $2)
     ORDER BY s.site_id DESC LIMIT $3",
);

pub const POOL_BY_NAME: Sql = sql(
    "pool_by_name",
    "SELECT pool_id, tenant_id FROM pools WHERE tenant_id = $1 AND name = $2 AND deleted_at IS NULL",
);
pub const POOL_OWNER: Sql = sql("pool_owner", "SELECT pool_id, tenant_id FROM pools WHERE pool_id = $1");

pub const JOIN_TOKEN_INSERT: Sql = sql(
    "join_token_insert",
    "INSERT INTO join_tokens (join_token_id, site_id, pool_id, role, secret_sha256, uses_max, deferred, created_by,
       expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, compute_now() + $9::float8 * interval '1 hour')",
);
pub const JOIN_TOKENS: Sql = sql(
    "join_tokens",
    "SELECT t.join_token_id, t.site_id, s.name AS site_name, t.pool_id, p.name AS pool_name, t.role, t.uses,
       t.uses_max, t.deferred, t.created_by, u.name AS user_name, t.created_at, t.expires_at, t.revoked_at
     FROM join_tokens t JOIN sites s USING (site_id) LEFT JOIN pools p USING (pool_id)
     LEFT JOIN users u ON u.user_id = t.created_by
     WHERE ($1::uuid IS NULL OR t.join_token_id = $1) AND ($2::uuid IS NULL OR t.join_token_id < $2)
       AND ($3::uuid IS NULL OR t.site_id = $3)
       AND ($4 OR (t.revoked_at IS NULL AND t.expires_at > compute_now() AND t.uses < t.uses_max))
     ORDER BY t.join_token_id DESC LIMIT $5",
);
pub const JOIN_TOKEN_REVOKE: Sql = sql(
    "join_token_revoke",
    "UPDATE join_tokens SET revoked_at = compute_now() WHERE join_token_id = $1 AND revoked_at IS NULL",
);

pub const JOIN_REQUESTS: Sql = sql(
    "join_requests",
    "SELECT r.join_request_id, r.csr_sha256, r.join_token_id, t.site_id, s.name AS site_name, r.role, r.hostname,
       r.agent_version, r.source_ip, r.state, r.decided_by, u.name AS user_name, r.decided_at, r.node_id,
       n.name AS node_name, r.created_at, r.last_seen_at, r.expires_at
     FROM join_requests r JOIN join_tokens t USING (join_token_id) JOIN sites s ON s.site_id = t.site_id
     LEFT JOIN users u ON u.user_id = r.decided_by LEFT JOIN nodes n ON n.node_id = r.node_id
     WHERE ($1::uuid IS NULL OR r.join_request_id = $1) AND ($2::uuid IS NULL OR r.join_request_id < $2)
       AND ($3::uuid IS NULL OR t.site_id = $3) AND ($4::text IS NULL OR r.state = $4)
     ORDER BY r.join_request_id DESC LIMIT $5",
);
pub const JOIN_REQUEST_DECIDE: Sql = sql(
    "join_request_decide",
    "UPDATE join_requests SET state = $2, decided_by = $3, decided_at = compute_now()
     WHERE join_request_id = $1 AND state = 'pending' AND expires_at > compute_now()",
);

/// Columns of a node's view. Node first, then where it is, what it offers, what it said last.
macro_rules! node_columns {
    () => {
        "SELECT n.node_id, n.name, n.hostname, n.role, n.state, n.cordoned_at, n.cordoned_by, n.cordon_reason,
       n.cordon_exit, n.draining_at, n.quarantined_at, n.quarantine_reason, n.labels, n.generation, n.revoke_reason, n.dead_at,
       n.created_at, n.adopted_at, n.site_id, si.name AS site_name, n.pool_id, p.name AS pool_name,
       coalesce(p.tenant_id, (SELECT tenant_id FROM tenants WHERE parent_id IS NULL)) AS tenant_id,
       t.gpus_total, t.gpus_free, t.gpus_unhealthy, t.gpu_model, t.cpu_millis_total, t.cpu_millis_free,
       t.memory_bytes_total, t.memory_bytes_free, t.hugepages_total, t.hugepages_free,
       dt.disk_bytes_total, dt.disk_bytes_free,
       coalesce(st.conditions, '[]') AS conditions, coalesce(st.sections, '[]') AS sections,
       coalesce(st.applied_generation, 0) AS applied_generation,
       coalesce(st.observed_generation, 0) AS observed_generation, st.agent_version,
       se.gateway_id, se.session_epoch, se.connected_at, se.closed_at, se.boot_id, se.last_heartbeat_at,
       n.acceptance_command_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM commands ac
         WHERE ac.command_id = n.acceptance_command_id AND ac.handled_at IS NULL) AS acceptance_over,
       d.kind AS diagnosis_kind, d.state AS diagnosis_state, d.message AS diagnosis_message,
       d.result AS diagnosis_result, d.settled_at AS diagnosis_at
     FROM nodes n JOIN sites si USING (site_id) LEFT JOIN pools p USING (pool_id)
     JOIN node_totals t USING (node_id) JOIN node_disk_totals dt USING (node_id)
     LEFT JOIN node_status st USING (node_id) LEFT JOIN node_sessions se USING (node_id)
     LEFT JOIN commands d ON n.state = 'accepting' AND d.command_id = n.acceptance_command_id AND d.handled_at IS NOT NULL"
    };
}

pub const NODE_ONE: Sql = sql("node_one", concat!(node_columns!(), " WHERE n.node_id = $1"));
pub const NODE_BY_NAME: Sql = sql("node_by_name", "SELECT node_id FROM nodes WHERE name = $1");
/// Keys of certificates that count: two while one is renewed, and not many more.
pub const NODE_DOOR: Sql = sql(
    "node_door",
    "SELECT g.address AS gateway, coalesce(st.capabilities, '{}') AS capabilities, d.epoch AS deployment_epoch, compute_now() AS now,
       ARRAY(SELECT c.spki_sha256 FROM node_certs c WHERE c.node_id = n.node_id AND c.revoked_at IS NULL
         AND c.not_after > compute_now() ORDER BY c.issued_at DESC LIMIT 4) AS keys
     FROM nodes n CROSS JOIN deployment d LEFT JOIN node_status st USING (node_id)
     LEFT JOIN node_sessions s ON s.node_id = n.node_id AND s.closed_at IS NULL
     LEFT JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch AND g.expires_at > compute_now()
     WHERE n.node_id = $1 AND n.state NOT IN ('revoked', 'removed')",
);
pub const NODES: Sql = sql(
    "nodes",
    concat!(
        node_columns!(),
        " WHERE ($1::uuid IS NULL OR n.node_id < $1) AND ($2::uuid IS NULL OR n.pool_id = $2)
       AND ($3::uuid IS NULL OR n.site_id = $3) AND ($4::text IS NULL OR n.state = $4)
       AND ($5::boolean IS NULL OR $5 = (n.state = 'ready' AND n.cordoned_at IS NULL AND n.draining_at IS NULL
            AND n.quarantined_at IS NULL))
       AND ($6::text IS NULL OR st.conditions @> jsonb_build_array(jsonb_build_object('kind', $6::text)))
       AND n.labels @> $7 AND ($8 OR n.state NOT IN ('revoked', 'removed'))
     ORDER BY n.node_id DESC LIMIT $9"
    ),
);
pub const NODE_INVENTORY_ALL: Sql = sql(
    "node_inventory_all",
    "SELECT section, hash, content, reported_at FROM node_inventory
     WHERE node_id = $1 AND ($2::text IS NULL OR section = $2) ORDER BY section",
);
pub const NODE_UPDATE: Sql = sql(
    "node_update",
    "UPDATE nodes SET name = coalesce($2, name),
       labels = (labels || $3::jsonb) - $4::text[] WHERE node_id = $1
     RETURNING (SELECT count(*) FROM jsonb_object_keys(labels)) AS labels",
);
pub const NODE_CORDON: Sql = sql(
    "node_cordon",
    "UPDATE nodes SET cordoned_at = coalesce(cordoned_at, compute_now()), cordoned_by = $2,
       cordon_reason = coalesce($3, cordon_reason, ''), cordon_exit = NULL WHERE node_id = $1",
);
pub const NODE_UNCORDON: Sql = sql(
    "node_uncordon",
    "UPDATE nodes SET cordoned_at = NULL, cordoned_by = NULL, cordon_reason = NULL, cordon_exit = NULL,
       draining_at = NULL WHERE node_id = $1 AND (cordoned_at IS NOT NULL OR draining_at IS NOT NULL)",
);
pub const NODE_DRAIN: Sql = sql(
    "node_drain",
    "UPDATE nodes SET draining_at = coalesce(draining_at, compute_now()) WHERE node_id = $1",
);
pub const NODE_REVOKE: Sql = sql(
    "node_revoke",
    "UPDATE nodes SET revoked_at = coalesce(revoked_at, compute_now()), revoke_reason = $2 WHERE node_id = $1",
);
/// Once for as long as it is not heard of again.
pub const NODE_DEAD: Sql = sql(
    "node_dead",
    "UPDATE nodes SET dead_at = compute_now(), dead_by = $2 WHERE node_id = $1 AND dead_at IS NULL",
);
pub const NODE_CERTS_REVOKE: Sql = sql(
    "node_certs_revoke",
    "UPDATE node_certs SET revoked_at = compute_now() WHERE node_id = $1 AND revoked_at IS NULL",
);
pub const NODE_REMOVE: Sql = sql(
    "node_remove",
    "UPDATE nodes SET removed_at = compute_now(), name = name || '.removed-' || left(md5(node_id::text), 8), pool_id = NULL WHERE node_id = $1",
);

/// A list leaves out results that are large, like a bundle of logs: two hundred of them would not fit an answer.
pub const COMMANDS: Sql = sql(
    "commands",
    "SELECT c.command_id, c.node_id, n.name AS node_name,
       coalesce(p.tenant_id, (SELECT tenant_id FROM tenants WHERE parent_id IS NULL)) AS tenant_id,
       c.kind, c.lane, c.destructive, c.state, c.body, c.reason, c.message, c.created_by, c.attempts, c.not_before,
       c.not_after, c.created_at, c.dispatched_at, c.settled_at, c.cancel_reason,
       CASE WHEN $1::uuid IS NOT NULL OR octet_length(c.result) <= 16384 THEN c.result END AS result,
       sha256(coalesce(c.result, '')) AS result_sha256, c.result_signature, c.result_state,
       (SELECT k.spki_der FROM node_certs k WHERE k.spki_sha256 = c.result_key_sha256 AND k.node_id = c.node_id
          AND k.revoked_at IS NULL ORDER BY k.issued_at DESC LIMIT 1) AS result_spki
     FROM commands c JOIN nodes n USING (node_id) LEFT JOIN pools p USING (pool_id)
     WHERE ($1::uuid IS NULL OR c.command_id = $1) AND ($2::uuid IS NULL OR c.command_id < $2)
       AND ($3::uuid IS NULL OR c.node_id = $3) AND ($4::text IS NULL OR c.state = $4)
       AND ($5::text IS NULL OR c.kind = $5)
     ORDER BY c.command_id DESC LIMIT $6",
);

/// For the test that prepares every statement.
pub const STATEMENTS: &[Sql] = &[
    ROOT_TENANT,
    SITE_INSERT,
    SITE_BY_ID,
    SITE_BY_NAME,
    SITES,
    POOL_BY_NAME,
    POOL_OWNER,
    JOIN_TOKEN_INSERT,
    JOIN_TOKENS,
    JOIN_TOKEN_REVOKE,
    JOIN_REQUESTS,
    JOIN_REQUEST_DECIDE,
    NODE_ONE,
    NODE_BY_NAME,
    NODE_DOOR,
    NODES,
    NODE_INVENTORY_ALL,
    NODE_UPDATE,
    NODE_CORDON,
    NODE_UNCORDON,
    NODE_DRAIN,
    NODE_REVOKE,
    NODE_DEAD,
    NODE_CERTS_REVOKE,
    NODE_REMOVE,
    COMMANDS,
];
