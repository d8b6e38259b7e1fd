//! What waits in a pool, and what it is told.

use store::{Sql, sql};

/// Whoever asks has left out those that [`RESERVATIONS_IN_LINE`] says were told lately.
pub const RESERVATIONS_WAIT: Sql = sql(
    "reservations_wait",
    "UPDATE reservations r SET waiting_reason = w.reason, updated_at = compute_now()
     FROM unnest($1::uuid[], $2::text[]) AS w (id, reason)
     WHERE r.reservation_id = w.id AND r.state = 'scheduling' AND r.waiting_reason <> w.reason
     RETURNING r.reservation_id, r.tenant_id, r.pool_id, r.waiting_reason",
);
/// Pools with something to do: what waits, and nodes kept for what does not any more.
pub const POOLS_WAITING: Sql = sql(
    "pools_waiting",
    "SELECT pool_id FROM reservations WHERE stage = 1
     UNION SELECT pool_id FROM node_capacity WHERE kept_for IS NOT NULL AND pool_id IS NOT NULL ORDER BY pool_id",
);
/// What is told of one that waits is told again when it is another, and once a minute at most: whatever happens to a node
/// changes the counts in what all of them wait for. `$4` says nothing yet, and is replaced at once.
pub const RESERVATIONS_IN_LINE: Sql = sql(
    "reservations_in_line",
    "SELECT reservation_id, tenant_id, pool_id, gpus, gpu_model, vcpu, memory_mib, hugepages_1gi, whole_node, binding,
       selector, waiting_reason, CASE WHEN avoid_until > compute_now() THEN avoid ELSE '{}' END AS avoid,
       created_at < compute_now() - $3::bigint * interval '1 second' AS aged,
       waiting_reason IN ($4, '') OR updated_at <= compute_now() - interval '1 minute' AS may_tell
     FROM reservations WHERE pool_id = $1 AND stage = 1 AND reservation_id > $2
     ORDER BY reservation_id LIMIT 500",
);
