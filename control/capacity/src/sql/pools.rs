//! Pools. The row of one that was deleted stays for readers of what has ended in it: whoever finds a pool by its name, or to put
//! something into it, leaves such rows out.

use store::{Sql, sql};

pub const POOL_INSERT: Sql = sql(
    "pool_insert",
    "INSERT INTO pools (pool_id, tenant_id, name, class, policy) VALUES ($1, $2, $3, $4, $5)",
);
/// Those a tenant may name: its own and, nearest first, those of the tenants above it.
pub const POOLS_ON_WAY_UP: Sql = sql(
    "pools_on_way_up",
    "WITH RECURSIVE way AS (
       SELECT tenant_id, parent_id, 0 AS depth FROM tenants WHERE tenant_id = $1
       UNION ALL
       SELECT t.tenant_id, t.parent_id, way.depth + 1 FROM tenants t JOIN way ON t.tenant_id = way.parent_id
       WHERE way.depth < 64
     )
     SELECT p.pool_id, p.tenant_id, p.name, p.class, p.policy FROM way JOIN pools p ON p.tenant_id = way.tenant_id
     WHERE p.deleted_at IS NULL AND ($2::uuid IS NULL OR p.pool_id = $2) AND ($3::text IS NULL OR p.name = $3)
     ORDER BY way.depth LIMIT 8",
);

macro_rules! pool_select {
    ($rest:literal) => {
        concat!(
            "SELECT p.pool_id, p.tenant_id, t.name AS tenant_name, p.name, p.class, p.policy, p.version, p.created_at,
       p.updated_at, p.deleted_at, (SELECT count(*) FROM flavors f WHERE f.pool_id = p.pool_id) AS flavors,
       s.nodes, s.nodes_ready, s.gpus_total, s.gpus_free, s.gpus_unhealthy, s.gpu_model, compute_now() AS now
     FROM pools p JOIN tenants t ON t.tenant_id = p.tenant_id
     JOIN LATERAL (SELECT * FROM pool_totals x WHERE x.pool_id = p.pool_id) s ON true ",
            $rest
        )
    };
}

pub const POOL_GET: Sql = sql("pool_get", pool_select!("WHERE p.pool_id = $1"));
pub const POOLS_LIST: Sql = sql(
    "pools_list",
    pool_select!(
        "WHERE p.tenant_id = $1 AND p.pool_id < $2 AND ($3::text IS NULL OR p.class = $3)
       AND ($5::boolean OR p.deleted_at IS NULL)
     ORDER BY p.pool_id DESC LIMIT $4"
    ),
);
pub const POOL_LOCK: Sql = sql(
    "pool_lock",
    "SELECT name, policy, version FROM pools WHERE pool_id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
);
pub const POOL_UPDATE: Sql = sql(
    "pool_update",
    "UPDATE pools SET name = $2, policy = $3, version = version + 1, updated_at = compute_now() WHERE pool_id = $1",
);
pub const POOL_NODES: Sql =
    sql("pool_nodes", "SELECT node_id FROM nodes WHERE pool_id = $1 AND state <> 'removed' ORDER BY node_id");
pub const POOL_POLICY: Sql = sql("pool_policy", "SELECT policy FROM pools WHERE pool_id = $1");

// Their end.

/// What of a pool has not ended, a row each: what it is, and whose it is or which it is. Revoked nodes come into no pool again, and
/// drafts are not admitted yet.
macro_rules! pool_contents {
    () => {
        "SELECT 1 AS place, 'instance' AS thing, i.pool_id, i.tenant_id AS about FROM instances i WHERE i.ended_at IS NULL
       UNION ALL
       SELECT 2, 'reservation', r.pool_id, r.tenant_id FROM reservations r WHERE r.ended_at IS NULL AND r.stage > 0
       UNION ALL
       SELECT 3, 'address lease', l.pool_id, l.node_id FROM ip_leases l
       UNION ALL
       SELECT 4, 'join token', t.pool_id, t.join_token_id FROM join_tokens t
       WHERE t.revoked_at IS NULL AND t.uses < t.uses_max AND t.expires_at > compute_now()
       UNION ALL
       SELECT 5, 'join request', t.pool_id, t.join_token_id FROM join_requests q JOIN join_tokens t USING (join_token_id)
       WHERE q.state IN ('pending', 'approved') AND q.expires_at > compute_now()
         AND t.revoked_at IS NULL AND t.uses < t.uses_max
       UNION ALL
       SELECT 6, 'node', n.pool_id, n.node_id FROM nodes n WHERE n.state NOT IN ('revoked', 'removed')"
    };
}
pub(crate) use pool_contents;

/// Waits for whoever is adding a row that names it, and keeps others from that.
pub const POOL_DELETE_LOCK: Sql =
    sql("pool_delete_lock", "SELECT name, deleted_at FROM pools WHERE pool_id = $1 FOR UPDATE");
/// What nobody has admitted yet, and then cannot.
pub const POOL_DRAFTS_DELETE: Sql =
    sql("pool_drafts_delete", "DELETE FROM reservations WHERE pool_id = $1 AND stage = 0");
/// Of each kind how many, and one of whose or which they are.
pub const POOL_HAS: Sql = sql(
    "pool_has",
    concat!(
        "SELECT c.thing, count(*) AS count, (array_agg(c.about ORDER BY c.about))[1] AS about FROM (",
        pool_contents!(),
        ") c WHERE c.pool_id = $1 GROUP BY c.place, c.thing ORDER BY c.place"
    ),
);
pub const POOL_DELETED: Sql =
    sql("pool_deleted", "UPDATE pools SET deleted_at = compute_now() WHERE pool_id = $1");
