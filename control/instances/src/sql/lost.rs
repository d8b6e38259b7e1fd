//! Hosts that are lost or have no room, what instances leave behind there, and what is on hosts that no row places there.
//!
//! Locks: the host's row is locked before the instance's, as whoever gives a host up does.

use store::{Sql, sql};

/// Keeps the host's state as it is until the transaction is over.
pub const HOST_SHARE: Sql = sql(
    "instance_host_share",
    "SELECT node_id, name, state, dead_at IS NOT NULL AS declared_dead FROM nodes WHERE node_id = $1 FOR SHARE",
);
/// The same without a lock, for whoever has the instance's already.
pub const HOST: Sql = sql(
    "instance_host",
    "SELECT node_id, name, state, dead_at IS NOT NULL AS declared_dead FROM nodes WHERE node_id = $1",
);
/// In the order in which everybody locks several.
pub const NODE_PLACED: Sql = sql(
    "node_placed",
    "SELECT instance_id FROM instance_allocations
     WHERE node_id = $1 AND ended_at IS NULL AND left_at IS NULL ORDER BY instance_id",
);
/// Instances to which it is news how their host is: it is lost and they are not, or they are.
pub const NODE_NEWS: Sql = sql(
    "node_news",
    "SELECT i.instance_id FROM instance_allocations a JOIN instances i USING (instance_id) JOIN nodes n USING (node_id)
     WHERE a.node_id = $1 AND a.ended_at IS NULL AND a.left_at IS NULL AND (n.state = 'lost' OR i.state = 'lost')
     ORDER BY i.instance_id",
);

/// What its host said before it was lost counts no more: it is asked anew, by a revision of its own.
pub const INSTANCE_LOST: Sql = sql(
    "instance_lost",
    "UPDATE instances SET state = 'lost', state_since = compute_now(), stuck_at = NULL, revision = revision + 1,
       said_reason = '', said_message = '', said_at = NULL, waiting_reason = '', exhausted_at = NULL, updated_at = compute_now()
     WHERE instance_id = $1",
);
/// Off its host and back in line. `$3` is the host that had no room for it, when that is why.
pub const INSTANCE_RECREATE: Sql = sql(
    "instance_recreate",
    "UPDATE instances SET state = 'scheduling', state_since = compute_now(), stuck_at = NULL, revision = revision + 1,
       said_reason = '', said_message = '', said_at = NULL, waiting_reason = $2, exhausted_at = NULL,
       exhausted_hosts = CASE WHEN $3::uuid IS NULL OR $3 = ANY(exhausted_hosts) THEN exhausted_hosts ELSE exhausted_hosts || $3 END,
       exhausted_moves = CASE WHEN $3::uuid IS NULL THEN exhausted_moves ELSE exhausted_moves + 1 END,
       exhausted_until = CASE WHEN $3::uuid IS NULL THEN exhausted_until ELSE compute_now() + $4::float8 * interval '1 second' END,
       updated_at = compute_now()
     WHERE instance_id = $1",
);
/// Asked once more, as it is wanted. One that is lost is lost since it was.
pub const INSTANCE_ASK: Sql = sql(
    "instance_ask",
    "UPDATE instances SET state_since = CASE WHEN state = 'lost' THEN state_since ELSE compute_now() END, state = $2,
       stuck_at = NULL, revision = revision + 1, said_reason = '', said_message = '', said_at = NULL, updated_at = compute_now()
     WHERE instance_id = $1",
);

/// The place of an instance that leaves it: named as to be deleted under the next revision, and booked, until the host has
/// nothing of it.
pub const PLACE_LEAVE: Sql = sql(
    "place_leave",
    "UPDATE instance_allocations a SET left_at = compute_now(), left_revision = i.revision + 1 FROM instances i
     WHERE i.instance_id = $1 AND a.instance_id = i.instance_id AND a.ended_at IS NULL AND a.left_at IS NULL
     RETURNING a.allocation_id, a.node_id",
);
/// What an instance left on a host.
pub const PLACE_LEFT: Sql = sql(
    "place_left",
    "SELECT a.allocation_id, a.left_revision, i.pool_id FROM instance_allocations a JOIN instances i USING (instance_id)
     WHERE a.instance_id = $1 AND a.node_id = $2 AND a.ended_at IS NULL AND a.left_at IS NOT NULL",
);
pub const NODE_LEFT: Sql = sql(
    "node_left",
    "SELECT a.allocation_id, i.pool_id FROM instance_allocations a JOIN instances i USING (instance_id)
     WHERE a.node_id = $1 AND a.ended_at IS NULL AND a.left_at IS NOT NULL ORDER BY a.instance_id",
);
pub const ADDRESS_RETURN: Sql = sql("address_return", "DELETE FROM ip_leases WHERE allocation_id = $1");

/// Hosts on which it cannot be, since what it left there is there yet, and those that had no room for it lately.
pub const INSTANCE_AVOIDS: Sql = sql(
    "instance_avoids",
    "SELECT node_id FROM instance_allocations WHERE instance_id = $1 AND ended_at IS NULL
     UNION
     SELECT unnest(exhausted_hosts) FROM instances WHERE instance_id = $1 AND exhausted_until > compute_now()",
);
/// A host that says that it has it, and on which no row places it.
pub const INSTANCE_ELSEWHERE: Sql = sql(
    "instance_elsewhere",
    "SELECT n.name FROM instance_orphans o JOIN nodes n USING (node_id)
     WHERE o.instance_id = $1 AND n.state <> 'removed' AND NOT EXISTS (SELECT FROM instance_allocations a
       WHERE a.instance_id = o.instance_id AND a.node_id = o.node_id AND a.ended_at IS NULL)
     ORDER BY o.since, o.node_id LIMIT 1",
);

/// Its host has no room for its start, since then.
pub const EXHAUSTED_SINCE: Sql = sql(
    "exhausted_since",
    "UPDATE instances SET exhausted_at = compute_now() WHERE instance_id = $1 AND exhausted_at IS NULL",
);
pub const EXHAUSTED_NO_MORE: Sql =
    sql("exhausted_no_more", "UPDATE instances SET exhausted_at = NULL WHERE instance_id = $1");
/// It is as was asked.
pub const EXHAUSTED_FORGET: Sql = sql(
    "exhausted_forget",
    "UPDATE instances SET exhausted_at = NULL, exhausted_hosts = '{}', exhausted_moves = 0, exhausted_until = NULL
     WHERE instance_id = $1",
);

/// What a host says of itself that it has and was not told of.
pub const ORPHANS_SAID: Sql = sql(
    "orphans_said",
    "SELECT DISTINCT c.value->>'reason' AS named FROM node_status s JOIN nodes n USING (node_id)
     CROSS JOIN LATERAL jsonb_array_elements(CASE jsonb_typeof(s.conditions) WHEN 'array' THEN s.conditions ELSE '[]' END) c
     WHERE s.node_id = $1 AND n.state <> 'removed' AND c.value->>'kind' = 'UnlistedInstance' ORDER BY 1",
);
pub const ORPHANS_KNOWN: Sql =
    sql("orphans_known", "SELECT instance_id FROM instance_orphans WHERE node_id = $1 ORDER BY instance_id");
/// Of those that no row places there, and no more than a host may name at a time.
pub const ORPHANS_ADD: Sql = sql(
    "orphans_add",
    "INSERT INTO instance_orphans (node_id, instance_id)
     SELECT $1, w.instance_id FROM unnest($2::uuid[]) AS w (instance_id)
     WHERE NOT EXISTS (SELECT FROM instance_allocations a
         WHERE a.node_id = $1 AND a.instance_id = w.instance_id AND a.ended_at IS NULL)
       AND NOT EXISTS (SELECT FROM instance_orphans o WHERE o.node_id = $1 AND o.instance_id = w.instance_id)
       AND (SELECT count(*) FROM instance_orphans o WHERE o.node_id = $1) < $3::bigint
     ORDER BY w.instance_id ON CONFLICT DO NOTHING",
);
/// Those that it does not name any more. One that was told just now may not be in what it said before.
pub const ORPHANS_DROP: Sql = sql(
    "orphans_drop",
    "DELETE FROM instance_orphans o WHERE o.node_id = $1 AND (
       (o.since < compute_now() - interval '1 minute' AND NOT o.instance_id = ANY($2::uuid[]))
       OR EXISTS (SELECT FROM instance_allocations a
         WHERE a.node_id = o.node_id AND a.instance_id = o.instance_id AND a.ended_at IS NULL))",
);
/// Those of these nodes with some that are too fresh to be dropped.
pub const ORPHANS_FRESH: Sql = sql(
    "orphans_fresh",
    "SELECT DISTINCT node_id FROM instance_orphans
     WHERE node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND since >= compute_now() - interval '1 minute' ORDER BY node_id",
);

/// By pool and state, of those whose state lasts longer than it may.
pub const STUCK_COUNT: Sql = sql(
    "instances_stuck_count",
    "SELECT pool_id, state, count(*) AS instances FROM instances WHERE stuck_at IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2",
);
pub const ORPHANS_COUNT: Sql = sql(
    "instances_orphaned_count",
    "SELECT n.pool_id, count(*) AS instances FROM instance_orphans o JOIN nodes n USING (node_id)
     WHERE n.pool_id IS NOT NULL GROUP BY 1 ORDER BY 1",
);

/// For the test that prepares them.
#[cfg(test)]
pub const ALL: &[Sql] = &[
    HOST_SHARE,
    HOST,
    NODE_PLACED,
    NODE_NEWS,
    INSTANCE_LOST,
    INSTANCE_RECREATE,
    INSTANCE_ASK,
    PLACE_LEAVE,
    PLACE_LEFT,
    NODE_LEFT,
    ADDRESS_RETURN,
    INSTANCE_AVOIDS,
    INSTANCE_ELSEWHERE,
    EXHAUSTED_SINCE,
    EXHAUSTED_NO_MORE,
    EXHAUSTED_FORGET,
    ORPHANS_SAID,
    ORPHANS_KNOWN,
    ORPHANS_ADD,
    ORPHANS_DROP,
    ORPHANS_FRESH,
    STUCK_COUNT,
    ORPHANS_COUNT,
];
