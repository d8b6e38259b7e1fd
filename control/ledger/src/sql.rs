//! Every statement of this module. They only read: what is durable here is written by the kernel and the store.

use store::{Sql, sql};

/// Newest first, below a number.
pub(crate) const EVENTS_BEFORE: Sql = sql(
    "events_before",
    "SELECT seq, at, event_id, kind, subject, tenant_id, data FROM events
     WHERE seq < $1 AND ($2::uuid IS NULL OR tenant_id = $2)
       AND ($3::text IS NULL OR kind = $3 OR starts_with(kind, $3 || '.')) AND ($4::text IS NULL OR subject = $4)
       AND ($5::timestamptz IS NULL OR at >= $5) AND ($6::timestamptz IS NULL OR at < $6)
     ORDER BY seq DESC LIMIT $7",
);
/// Oldest first, above a number.
pub(crate) const EVENTS_AFTER: Sql = sql(
    "events_after_filtered",
    "SELECT seq, at, event_id, kind, subject, tenant_id, data FROM events
     WHERE seq > $1 AND ($2::uuid IS NULL OR tenant_id = $2)
       AND ($3::text IS NULL OR kind = $3 OR starts_with(kind, $3 || '.')) AND ($4::text IS NULL OR subject = $4)
       AND ($5::timestamptz IS NULL OR at >= $5) AND ($6::timestamptz IS NULL OR at < $6)
     ORDER BY seq LIMIT $7",
);

/// Newest first. `$9` and `$10` are the last entry of the page before; the action is exact or, with `$4`, a beginning.
pub(crate) const AUDIT_LIST: Sql = sql(
    "audit_list",
    "SELECT audit_id, at, tenant_id, principal, principal_id, action, resource, decision, outcome, request_id,
            source_ip, detail
     FROM audit
     WHERE tenant_id = $1 AND ($2::text IS NULL OR principal = $2) AND ($3::uuid IS NULL OR principal_id = $3)
       AND ($4::text IS NULL OR starts_with(action, $4)) AND ($5::text IS NULL OR action = $5)
       AND ($6::text IS NULL OR resource = $6) AND ($7::text IS NULL OR decision = $7)
       AND ($8::uuid IS NULL OR request_id = $8)
       AND (at, audit_id) < ($9::timestamptz, $10::uuid)
       AND ($11::timestamptz IS NULL OR at >= $11) AND ($12::timestamptz IS NULL OR at < $12)
     ORDER BY at DESC, audit_id DESC LIMIT $13",
);

pub(crate) const PARKED_LIST: Sql = sql(
    "parked_list",
    "SELECT work_id, queue, key, attempts, last_error, parked_at FROM work
     WHERE state = 'parked' AND ($1::text IS NULL OR queue = $1) AND work_id < $2
     ORDER BY work_id DESC LIMIT $3",
);
pub(crate) const PARKED_IDS: Sql = sql(
    "parked_ids",
    "SELECT work_id FROM work
     WHERE state = 'parked' AND ($1::uuid IS NULL OR work_id = $1) AND ($2::text IS NULL OR queue = $2)
     ORDER BY work_id LIMIT $3",
);

pub(crate) const PARKED_COUNT: Sql =
    sql("parked_count", "SELECT count(*) AS parked FROM work WHERE state = 'parked'");

pub(crate) const NODES_BY_STATE: Sql = sql(
    "nodes_by_state",
    "SELECT state, count(*) AS count FROM nodes WHERE state <> 'removed' GROUP BY state ORDER BY state",
);
pub(crate) const RESERVATIONS_BY_STATE: Sql = sql(
    "reservations_by_state",
    "SELECT state, count(*) AS count FROM reservations
     WHERE state IN ('scheduling', 'placed', 'active', 'releasing') GROUP BY state ORDER BY state",
);
pub(crate) const GATEWAYS: Sql = sql(
    "gateways_live",
    "SELECT g.gateway_id, g.address, g.started_at, g.drained_at,
            (SELECT count(*) FROM node_sessions s
             WHERE s.gateway_id = g.gateway_id AND s.gateway_epoch = g.epoch AND s.closed_at IS NULL) AS sessions
     FROM gateways g WHERE g.expires_at > compute_now() ORDER BY g.gateway_id LIMIT 1000",
);
pub(crate) const EPOCH_LOCK: Sql = sql("epoch_lock", "SELECT epoch FROM deployment FOR UPDATE");
/// As the queue of specs names nodes.
pub(crate) const NODE_KEYS: Sql = sql(
    "node_keys",
    "SELECT node_id::text AS key FROM nodes WHERE state NOT IN ('revoked', 'removed') ORDER BY node_id",
);

/// For the test that prepares them.
#[cfg(test)]
pub(crate) const ALL: &[Sql] = &[
    EVENTS_BEFORE,
    EVENTS_AFTER,
    AUDIT_LIST,
    PARKED_LIST,
    PARKED_IDS,
    PARKED_COUNT,
    NODES_BY_STATE,
    RESERVATIONS_BY_STATE,
    GATEWAYS,
    EPOCH_LOCK,
    NODE_KEYS,
];

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn every_statement_prepares_on_a_migrated_database() {
        testkit::db().await.prepare_all(super::ALL).await;
    }
}
