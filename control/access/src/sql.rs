//! Every statement of this crate.
//!
//! Durable: that a ticket was taken, before its node is told of it, so that no second connection uses it. The gateway's
//! statements name columns that its role may read or write, and no others.

use store::{Sql, sql};

pub mod ssh;

pub const TUNNEL_INSERT: Sql = sql(
    "tunnel_insert",
    "INSERT INTO tunnels (tunnel_id, tenant_id, node_id, instance_id, op, port, user_id, token_id, source_ip, open_until, ends_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
);

/// Whoever opens a tunnel into an instance of it holds it.
pub const TUNNELS_NODE_HOLD: Sql =
    sql("tunnels_node_hold", "SELECT node_id FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE");
pub const TUNNELS_OF_TENANT: Sql = sql(
    "tunnels_of_tenant",
    "SELECT (SELECT count(*) FROM tunnels t WHERE t.node_id = $1 AND t.tenant_id = $2 AND t.instance_id IS NOT NULL
         AND t.closed_at IS NULL AND (t.taken_at IS NOT NULL OR (t.revoked_at IS NULL AND t.open_until >= compute_now()))) AS open,
       EXISTS (SELECT 1 FROM instance_allocations a JOIN instances i USING (instance_id)
         WHERE a.node_id = $1 AND a.ended_at IS NULL AND i.tenant_id <> $2) AS shared",
);

macro_rules! tunnel_select {
    ($more:literal, $rest:literal) => {
        concat!(
            "SELECT t.tunnel_id, t.tenant_id, t.node_id, t.instance_id, t.op, t.port, t.user_id, t.source_ip, t.created_at,
       t.open_until, t.ends_at, t.revoked_at, t.revoke_reason, t.taken_at, t.closed_at, t.close_reason, t.to_node_bytes,
       t.to_client_bytes, tn.name AS tenant_name, n.name AS node_name, u.name AS user_name, compute_now() AS now",
            $more,
            " FROM tunnels t JOIN tenants tn USING (tenant_id) JOIN nodes n ON n.node_id = t.node_id JOIN users u ON u.user_id = t.user_id ",
            $rest
        )
    };
}

pub const TUNNEL_GET: Sql = sql("tunnel_get", tunnel_select!("", "WHERE t.tunnel_id = $1"));
pub const TUNNELS_LIST: Sql = sql(
    "tunnels_list",
    tunnel_select!(
        "",
        "WHERE t.tenant_id = $1 AND t.tunnel_id < $2 AND ($3::uuid IS NULL OR t.instance_id = $3)
       AND ($4::uuid IS NULL OR t.node_id = $4) AND ($5::text IS NULL OR n.name = $5)
       AND ($6 OR (t.closed_at IS NULL AND (t.taken_at IS NOT NULL OR (t.revoked_at IS NULL AND t.open_until >= compute_now()))))
     ORDER BY t.tunnel_id DESC LIMIT $7"
    ),
);
pub const TUNNEL_WATCH: Sql = sql(
    "tunnel_watch",
    tunnel_select!(
        ", t.token_id, t.decided_at, t.told_open_at IS NOT NULL AS told_open, t.told_closed_at IS NOT NULL AS told_closed,
       EXISTS (SELECT 1 FROM gateways g WHERE g.gateway_id = t.gateway_id AND g.epoch = t.gateway_epoch
         AND g.expires_at > compute_now()) AS gateway_is_there",
        "WHERE t.tunnel_id = $1"
    ),
);
pub const TUNNEL_DECIDED: Sql = sql(
    "tunnel_decided",
    "UPDATE tunnels SET decided_at = compute_now() WHERE tunnel_id = $1 AND closed_at IS NULL",
);
pub const TUNNEL_REVOKE: Sql = sql(
    "tunnel_revoke",
    "UPDATE tunnels SET revoked_at = compute_now(), revoke_reason = $2
     WHERE tunnel_id = $1 AND revoked_at IS NULL AND closed_at IS NULL",
);
pub const TUNNEL_CLOSE: Sql = sql(
    "tunnel_close",
    "UPDATE tunnels SET closed_at = compute_now(), close_reason = $2
     WHERE tunnel_id = $1 AND taken_at IS NOT NULL AND closed_at IS NULL",
);
pub const TUNNEL_TOLD_OPEN: Sql = sql(
    "tunnel_told_open",
    "UPDATE tunnels SET told_open_at = compute_now() WHERE tunnel_id = $1 AND told_open_at IS NULL",
);
pub const TUNNEL_TOLD_CLOSED: Sql = sql(
    "tunnel_told_closed",
    "UPDATE tunnels SET told_closed_at = compute_now() WHERE tunnel_id = $1 AND told_closed_at IS NULL",
);
pub const TUNNELS_FORGET: Sql = sql(
    "tunnels_forget",
    "DELETE FROM tunnels WHERE tunnel_id IN (SELECT tunnel_id FROM tunnels
       WHERE ends_at < compute_now() - $1::int * interval '1 day' AND (taken_at IS NULL OR closed_at IS NOT NULL)
       ORDER BY ends_at LIMIT $2)",
);

// Of gateways.

pub const TUNNEL_TAKE: Sql = sql(
    "tunnel_take",
    "UPDATE tunnels SET gateway_id = $3, gateway_epoch = $4, taken_at = compute_now()
     WHERE tunnel_id = $1 AND node_id = $2 AND taken_at IS NULL AND revoked_at IS NULL AND open_until >= compute_now()
       AND EXISTS (SELECT 1 FROM gateways g WHERE g.gateway_id = $3 AND g.epoch = $4 AND g.expires_at > compute_now())",
);
pub const TUNNELS_ENDED: Sql = sql(
    "tunnels_ended",
    "SELECT k.tunnel_id FROM unnest($1::uuid[]) AS k (tunnel_id) LEFT JOIN tunnels t USING (tunnel_id)
     WHERE t.tunnel_id IS NULL OR t.revoked_at IS NOT NULL OR t.closed_at IS NOT NULL
       OR (t.gateway_id, t.gateway_epoch) IS DISTINCT FROM ($2::uuid, $3::bigint)",
);
pub const TUNNELS_CLOSED: Sql = sql(
    "tunnels_closed",
    "UPDATE tunnels t SET closed_at = compute_now(), close_reason = k.reason, to_node_bytes = k.to_node, to_client_bytes = k.to_client
     FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) AS k (tunnel_id, reason, to_node, to_client)
     WHERE t.tunnel_id = k.tunnel_id AND t.closed_at IS NULL AND t.gateway_id = $5 AND t.gateway_epoch = $6",
);

/// For a test that prepares each of them.
pub const ALL: &[Sql] = &[
    TUNNEL_INSERT,
    TUNNELS_NODE_HOLD,
    TUNNELS_OF_TENANT,
    TUNNEL_DECIDED,
    TUNNEL_GET,
    TUNNELS_LIST,
    TUNNEL_WATCH,
    TUNNEL_REVOKE,
    TUNNEL_CLOSE,
    TUNNEL_TOLD_OPEN,
    TUNNEL_TOLD_CLOSED,
    TUNNELS_FORGET,
    TUNNEL_TAKE,
    TUNNELS_ENDED,
    TUNNELS_CLOSED,
];
