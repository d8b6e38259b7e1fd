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
       INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node, disk_bytes)
       SELECT $1, o.node_id, $5, $6, $7, $8, false, $10 FROM opened o
     )
     SELECT o.version, (SELECT count(*) FROM booked) AS booked FROM opened o",
);
/// Ends the place of an instance and gives back what it booked, in one statement: neither happens alone.
pub const INSTANCE_FREE: Sql = sql(
    "instance_free",
    "WITH ended AS (
       UPDATE instance_allocations SET ended_at = compute_now()
       WHERE instance_id = $1 AND ended_at IS NULL AND left_at IS NULL
       RETURNING allocation_id, node_id
     ), opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM ended e WHERE c.node_id = e.node_id RETURNING e.allocation_id
     ), atoms_back AS (
       DELETE FROM bookings b USING opened o WHERE b.allocation_id = o.allocation_id
     ), host_back AS (
       DELETE FROM host_bookings h USING opened o WHERE h.allocation_id = o.allocation_id
     ), pins_back AS (
       DELETE FROM pinned_cpus p USING opened o WHERE p.allocation_id = o.allocation_id
     )
     SELECT allocation_id, node_id FROM ended",
);
/// The same for one place, that its instance has left or is to leave.
pub const INSTANCE_FREE_PLACE: Sql = sql(
    "instance_free_place",
    "WITH ended AS (
       UPDATE instance_allocations SET ended_at = compute_now() WHERE allocation_id = $1 AND ended_at IS NULL
       RETURNING allocation_id, node_id
     ), opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM ended e WHERE c.node_id = e.node_id RETURNING e.allocation_id
     ), atoms_back AS (
       DELETE FROM bookings b USING opened o WHERE b.allocation_id = o.allocation_id
     ), host_back AS (
       DELETE FROM host_bookings h USING opened o WHERE h.allocation_id = o.allocation_id
     ), pins_back AS (
       DELETE FROM pinned_cpus p USING opened o WHERE p.allocation_id = o.allocation_id
     )
     SELECT node_id FROM ended",
);
/// Changes what an instance books of its host, which stays what it offers. What it books of devices stays as it is.
pub const INSTANCE_REBOOK: Sql = sql(
    "instance_rebook",
    "WITH opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM instance_allocations a
       WHERE a.instance_id = $1 AND a.ended_at IS NULL AND a.left_at IS NULL AND c.node_id = a.node_id
       RETURNING a.allocation_id
     )
     UPDATE host_bookings h SET cpu_millis = $2, memory_bytes = $3, disk_bytes = $4, hugepages_1gi = $5
     FROM opened o WHERE h.allocation_id = o.allocation_id RETURNING h.allocation_id, h.node_id",
);
pub const INSTANCE_HOST_CAPABILITIES: Sql = sql(
    "instance_host_capabilities",
    "SELECT c.capabilities FROM instance_allocations a JOIN node_capacity c ON c.node_id = a.node_id
     WHERE a.instance_id = $1 AND a.ended_at IS NULL AND a.left_at IS NULL",
);
/// What a seat on a node is chosen by: what others have there, and which NUMA nodes are near the instance's own devices.
pub const SEATS: Sql = sql(
    "instance_seats",
    "SELECT c.topology, p.policy,
       ARRAY(SELECT x.cpu FROM pinned_cpus x WHERE x.node_id = c.node_id AND x.allocation_id <> $2 ORDER BY x.cpu) AS pinned,
       ARRAY(SELECT DISTINCT a.numa FROM bookings b JOIN atoms a ON a.node_id = b.node_id AND a.atom = b.atom
             WHERE b.allocation_id = $2 AND a.numa IS NOT NULL ORDER BY a.numa) AS near,
       (SELECT jsonb_agg(jsonb_build_object('cpuMillis', h.cpu_millis, 'memoryBytes', h.memory_bytes,
                 'hugepages1Gi', h.hugepages_1gi, 'diskBytes', h.disk_bytes, 'mems', h.mems, 'wholeNode', h.whole_node))
        FROM host_bookings h WHERE h.node_id = c.node_id AND h.allocation_id <> $2 AND h.mems <> '{}') AS bound
     FROM node_capacity c LEFT JOIN pools p ON p.pool_id = c.pool_id WHERE c.node_id = $1",
);
pub const SEAT_LEAVE: Sql = sql("instance_seat_leave", "DELETE FROM pinned_cpus WHERE allocation_id = $1");
pub const SEAT_TAKE: Sql = sql(
    "instance_seat_take",
    "WITH pins AS (
       INSERT INTO pinned_cpus (node_id, cpu, allocation_id) SELECT $2, x.cpu, $1 FROM unnest($3::integer[]) AS x (cpu)
     ), bound AS (
       UPDATE host_bookings SET mems = $4 WHERE allocation_id = $1 AND mems <> $4::integer[]
     )
     UPDATE instance_allocations SET cpus = $5, mems = $6, degraded = $7 WHERE allocation_id = $1",
);
/// What is left on the host of an instance, with what the instance itself has booked there.
pub const INSTANCE_HOST_LEFT: Sql = sql(
    "instance_host_left",
    "SELECT t.cpu_millis_free + h.cpu_millis AS cpu_millis, t.memory_bytes_free + h.memory_bytes AS memory_bytes,
       d.disk_bytes_free + h.disk_bytes AS disk_bytes, t.hugepages_free + h.hugepages_1gi AS hugepages_1gi
     FROM instance_allocations a JOIN host_bookings h USING (allocation_id) JOIN node_totals t ON t.node_id = a.node_id
     JOIN node_disk_totals d ON d.node_id = a.node_id
     WHERE a.instance_id = $1 AND a.ended_at IS NULL AND a.left_at IS NULL",
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
    INSTANCE_FREE_PLACE,
    INSTANCE_REBOOK,
    INSTANCE_HOST_LEFT,
    INSTANCE_HOST_CAPABILITIES,
    SEATS,
    SEAT_LEAVE,
    SEAT_TAKE,
    INSTANCE_HOLDS_PUT,
    INSTANCE_HOLDS_DELETE,
];
