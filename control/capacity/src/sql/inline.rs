//! What instances book and hold: the same books and quotas as reservations', without a hold of their node's daemon.

use store::{Sql, sql};

/// As [`ALLOCATION_BOOK`](super::ALLOCATION_BOOK): opens the node's books and writes in them.
pub const INSTANCE_BOOK: Sql = sql(
    "instance_book",
    "WITH opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM nodes n
       WHERE c.node_id = $3 AND c.pool_id = $9 AND n.node_id = c.node_id AND n.pool_id = c.pool_id
         AND n.state = 'ready' AND n.cordoned_at IS NULL AND n.draining_at IS NULL AND n.quarantined_at IS NULL
       RETURNING c.node_id, c.version
     ), allocation AS (
       INSERT INTO instance_allocations (allocation_id, instance_id, node_id, atoms)
       SELECT $1, $2, o.node_id, $4::text[] FROM opened o
     ), booked AS (
       INSERT INTO bookings (node_id, atom, allocation_id)
       SELECT a.node_id, a.atom, $1 FROM opened o JOIN atoms a ON a.node_id = o.node_id
       WHERE a.atom = ANY($4::text[]) AND a.health = 'healthy'
       RETURNING 1
     ), host AS (
       INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node)
       SELECT $1, o.node_id, $5, $6, $7, $8, false FROM opened o
     )
     SELECT o.version, (SELECT count(*) FROM booked) AS booked FROM opened o",
);
/// Ends the place of an instance and gives back what it booked, in one statement: neither happens alone.
pub const INSTANCE_FREE: Sql = sql(
    "instance_free",
    "WITH ended AS (
       UPDATE instance_allocations SET ended_at = compute_now() WHERE instance_id = $1 AND ended_at IS NULL
       RETURNING allocation_id, node_id
     ), opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM ended e WHERE c.node_id = e.node_id RETURNING e.allocation_id
     ), atoms_back AS (
       DELETE FROM bookings b USING opened o WHERE b.allocation_id = o.allocation_id
     ), host_back AS (
       DELETE FROM host_bookings h USING opened o WHERE h.allocation_id = o.allocation_id
     )
     SELECT allocation_id, node_id FROM ended",
);
/// Changes what an instance books of its host, which stays what it offers. What it books of devices stays as it is.
pub const INSTANCE_REBOOK: Sql = sql(
    "instance_rebook",
    "WITH opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM instance_allocations a
       WHERE a.instance_id = $1 AND a.ended_at IS NULL AND c.node_id = a.node_id
       RETURNING a.allocation_id
     )
     UPDATE host_bookings h SET cpu_millis = $2, memory_bytes = $3 FROM opened o WHERE h.allocation_id = o.allocation_id",
);
/// What is left on the host of an instance, with what the instance itself has booked there.
pub const INSTANCE_HOST_LEFT: Sql = sql(
    "instance_host_left",
    "SELECT t.cpu_millis_free + h.cpu_millis AS cpu_millis, t.memory_bytes_free + h.memory_bytes AS memory_bytes
     FROM instance_allocations a JOIN host_bookings h USING (allocation_id) JOIN node_totals t ON t.node_id = a.node_id
     WHERE a.instance_id = $1 AND a.ended_at IS NULL",
);
pub const INSTANCE_HOLDS_PUT: Sql = sql(
    "instance_holds_put",
    "INSERT INTO instance_holds (instance_id, tenant_id, resource, amount)
     SELECT $1, $2, w.resource, w.amount FROM unnest($3::text[], $4::bigint[]) AS w (resource, amount) ORDER BY w.resource",
);
pub const INSTANCE_HOLDS_DELETE: Sql =
    sql("instance_holds_delete", "DELETE FROM instance_holds WHERE instance_id = $1");

/// For the test that prepares them.
#[cfg(test)]
pub const ALL: &[Sql] = &[
    INSTANCE_BOOK,
    INSTANCE_FREE,
    INSTANCE_REBOOK,
    INSTANCE_HOST_LEFT,
    INSTANCE_HOLDS_PUT,
    INSTANCE_HOLDS_DELETE,
];
