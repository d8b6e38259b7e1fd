//! Allocations, and what they book on their node until they have ended.

use store::{Sql, sql};

/// Opens the node's books, which no other booking has open then, and writes in them. No row when the node takes no work.
/// A device that is not healthy any more is not booked, and the count tells. A whole node comes with what is ill in it.
pub const ALLOCATION_BOOK: Sql = sql(
    "allocation_book",
    "WITH opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM nodes n
       WHERE c.node_id = $3 AND c.pool_id = $11 AND n.node_id = c.node_id AND n.pool_id = c.pool_id
         AND n.state = 'ready' AND n.cordoned_at IS NULL AND n.draining_at IS NULL AND n.quarantined_at IS NULL
       RETURNING c.node_id, c.version
     ), allocation AS (
       INSERT INTO allocations (allocation_id, reservation_id, node_id, state, atoms, limits)
       SELECT $1, $2, o.node_id, 'placed', $4::text[], $5 FROM opened o
     ), booked AS (
       INSERT INTO bookings (node_id, atom, allocation_id)
       SELECT a.node_id, a.atom, $1 FROM opened o JOIN atoms a ON a.node_id = o.node_id
       WHERE a.atom = ANY($4::text[]) AND (a.health = 'healthy' OR $10::boolean)
       RETURNING 1
     ), host AS (
       INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node)
       SELECT $1, o.node_id, $6, $7, $8, $9, $10 FROM opened o
     )
     SELECT o.version, (SELECT count(*) FROM booked) AS booked FROM opened o",
);
pub const ALLOCATION_FIND: Sql =
    sql("allocation_find", "SELECT reservation_id, node_id FROM allocations WHERE allocation_id = $1");
pub const ALLOCATION_LOCK: Sql = sql(
    "allocation_lock",
    "SELECT a.state, a.ended_at IS NULL AS live, a.atoms, r.state AS reservation_state, r.tenant_id, r.pool_id,
       r.attempts, r.release_to
     FROM allocations a JOIN reservations r ON r.reservation_id = a.reservation_id
     WHERE a.allocation_id = $1 FOR NO KEY UPDATE OF a",
);
pub const ALLOCATION_BOUND: Sql = sql(
    "allocation_bound",
    "UPDATE allocations SET state = 'bound', cdi_devices = $2, bound_at = compute_now()
     WHERE allocation_id = $1 AND state = 'placed'",
);
pub const ALLOCATION_RELEASING: Sql = sql(
    "allocation_releasing",
    "UPDATE allocations SET state = 'releasing'
     WHERE reservation_id = $1 AND live AND state IN ('placed', 'bound') RETURNING allocation_id, node_id",
);
/// It is not its reservation's any more; what it booked stays booked.
pub const ALLOCATION_FAILED: Sql = sql(
    "allocation_failed",
    "UPDATE allocations SET state = 'failed', reason = $2
     WHERE allocation_id = $1 AND state IN ('placed', 'bound', 'releasing')",
);
/// Ends an allocation and gives back what it booked, in one statement: neither happens alone.
pub const ALLOCATION_END: Sql = sql(
    "allocation_end",
    "WITH ended AS (
       UPDATE allocations SET state = CASE state WHEN 'failed' THEN state ELSE 'released' END, ended_at = compute_now()
       WHERE allocation_id = $1 AND ended_at IS NULL AND state IN ('releasing', 'failed')
       RETURNING allocation_id, node_id
     ), opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM ended e WHERE c.node_id = e.node_id RETURNING e.allocation_id
     ), atoms_back AS (
       DELETE FROM bookings b USING opened o WHERE b.allocation_id = o.allocation_id
     )
     DELETE FROM host_bookings h USING opened o WHERE h.allocation_id = o.allocation_id",
);
/// Ends what failed on a node that was removed: nobody will speak for it any more.
pub const ALLOCATIONS_OF_REMOVED_END: Sql = sql(
    "allocations_of_removed_end",
    "WITH ended AS (
       UPDATE allocations a SET ended_at = compute_now() FROM nodes n
       WHERE n.node_id = $1 AND n.state = 'removed' AND a.node_id = n.node_id AND a.ended_at IS NULL
         AND a.state = 'failed'
       RETURNING a.allocation_id
     ), atoms_back AS (
       DELETE FROM bookings b USING ended e WHERE b.allocation_id = e.allocation_id
     )
     DELETE FROM host_bookings h USING ended e WHERE h.allocation_id = e.allocation_id",
);
pub const LOST_HELD: Sql = sql(
    "lost_held",
    "SELECT a.allocation_id, a.reservation_id, a.node_id FROM nodes n JOIN allocations a ON a.node_id = n.node_id
     WHERE n.state = 'lost' AND a.ended_at IS NULL AND a.state IN ('placed', 'bound', 'releasing')
     ORDER BY a.allocation_id LIMIT 200",
);
/// Keeps the node's state as it is until the transaction is over.
pub const NODE_STATE_SHARE: Sql =
    sql("node_state_share", "SELECT state FROM nodes WHERE node_id = $1 FOR SHARE");
pub const NODE_ASSIGNMENTS: Sql = sql(
    "node_assignments",
    "SELECT a.allocation_id, a.state, a.atoms, a.limits, r.binding
     FROM allocations a JOIN reservations r ON r.reservation_id = a.reservation_id
     WHERE a.node_id = $1 AND a.ended_at IS NULL ORDER BY a.allocation_id",
);
pub const NODE_HOLDS: Sql = sql(
    "node_holds",
    "SELECT a.reservation_id, a.state FROM allocations a
     WHERE a.node_id = $1 AND a.ended_at IS NULL AND a.state IN ('placed', 'bound', 'releasing')
     ORDER BY a.allocation_id LIMIT 100",
);
/// In the order in which everybody locks reservations.
pub const NODE_HELD: Sql = sql(
    "node_held",
    "SELECT allocation_id, reservation_id FROM allocations
     WHERE node_id = $1 AND ended_at IS NULL AND state IN ('placed', 'bound', 'releasing') ORDER BY reservation_id",
);
pub const NODE_POOL_TENANT: Sql = sql(
    "node_pool_tenant",
    "SELECT p.tenant_id FROM nodes n JOIN pools p ON p.pool_id = n.pool_id WHERE n.node_id = $1",
);
