//! Many reservations in one statement. Lists of a row are given joined by a unit separator, which no part of them holds.
//!
//! Rows are asked for by `= ANY(ARRAY(SELECT unnest($1)))`: the planner knows the length of `$1` itself where it plans for
//! these very values, finds a short one cheaper than the list of unknown length of a kept plan, and then plans anew at every
//! call, which costs more than the call. A list that is a subquery has the same unknown length in both.
//!
//! Of rows that are asked for by their keys, that they have not ended is said in words that no index knows (`IS TRUE`): an index
//! of all that have not ended held few when the statement was planned, and is read as a whole then for each list of keys.
//!
//! Rows that several transactions want are locked in order of their ids before they are changed.

use store::{Sql, sql};

/// Joins the parts of a list: a control character, which no device and no CDI name holds.
pub const SEPARATOR: char = '\u{1f}';

pub const RESERVATIONS_ADMIT: Sql = sql(
    "reservations_admit",
    "INSERT INTO reservations (reservation_id, tenant_id, pool_id, created_by, name, state, gpus, gpu_model, vcpu,
       memory_mib, hugepages_1gi, whole_node, binding, selector, starts_at, expires_at, waiting_reason, attempts, placed_at)
     SELECT reservation_id, tenant_id, pool_id, created_by, name, state, gpus, gpu_model, vcpu,
       memory_mib, hugepages_1gi, whole_node, binding, selector, starts_at, expires_at, waiting_reason,
       (state = 'placed')::integer, CASE state WHEN 'placed' THEN compute_now() END
     FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::integer[], $8::text[],
                 $9::integer[], $10::bigint[], $11::bigint[], $12::boolean[], $13::text[], $14::jsonb[],
                 $15::timestamptz[], $16::timestamptz[], $17::text[])
       AS w (reservation_id, tenant_id, pool_id, created_by, name, state, gpus, gpu_model, vcpu, memory_mib,
             hugepages_1gi, whole_node, binding, selector, starts_at, expires_at, waiting_reason)
     RETURNING reservation_id, created_at,
       (SELECT t.name FROM tenants t WHERE t.tenant_id = reservations.tenant_id) AS tenant_name",
);
/// Those that wait still, and are not anybody else's until the transaction is over.
pub const RESERVATIONS_PLACED: Sql = sql(
    "reservations_placed",
    "WITH waiting AS (
       SELECT reservation_id FROM reservations WHERE reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND state = 'scheduling'
       ORDER BY reservation_id FOR NO KEY UPDATE)
     UPDATE reservations r SET state = 'placed', attempts = attempts + 1, waiting_reason = '',
       placed_at = compute_now(), updated_at = compute_now()
     FROM waiting w WHERE r.reservation_id = w.reservation_id RETURNING r.reservation_id",
);
pub const QUOTA_HOLDS_PUT_ALL: Sql = sql(
    "quota_holds_put_all",
    "INSERT INTO quota_holds (reservation_id, tenant_id, resource, amount)
     SELECT reservation_id, tenant_id, resource, amount
     FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[]) AS w (reservation_id, tenant_id, resource, amount)
     ON CONFLICT (reservation_id, resource) DO UPDATE SET amount = excluded.amount",
);
/// Quotas that bind any of these tenants, by whom they bind, locked as the trigger of the holds locks them.
pub const QUOTAS_OVER: Sql = sql(
    "quotas_over",
    "WITH RECURSIVE up AS (
       SELECT t.tenant_id AS leaf, t.tenant_id, t.parent_id, t.name, 0 AS above
       FROM tenants t WHERE t.tenant_id = ANY(ARRAY(SELECT unnest($1::uuid[])))
       UNION ALL
       SELECT up.leaf, t.tenant_id, t.parent_id, t.name, up.above + 1 FROM tenants t JOIN up ON t.tenant_id = up.parent_id),
     way AS (
       SELECT tenant_id, name, max(depth) AS depth, array_agg(leaf) AS leaves FROM (
         SELECT leaf, tenant_id, name, max(above) OVER (PARTITION BY leaf) - above AS depth FROM up) x
       GROUP BY tenant_id, name)
     SELECT q.tenant_id, way.name AS tenant_name, q.resource, q.amount, way.leaves
     FROM way JOIN quotas q ON q.tenant_id = way.tenant_id
     ORDER BY q.resource, way.depth, q.tenant_id FOR NO KEY UPDATE OF q",
);
/// What is held of these quotas, which are locked by now.
pub const QUOTAS_USED: Sql = sql(
    "quotas_used",
    "SELECT quota_used(tenant_id, resource) AS used
     FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS w (tenant_id, resource, place) ORDER BY place",
);

/// Opens the books of these nodes, which no other booking has open then. Fewer rows than asked for are nodes that take no
/// work of that pool.
pub const NODES_OPEN: Sql = sql(
    "nodes_open",
    "WITH locked AS (
       SELECT c.node_id FROM unnest($1::uuid[], $2::uuid[]) AS w (node_id, pool_id)
       JOIN node_capacity c ON c.node_id = w.node_id AND c.pool_id = w.pool_id
       JOIN nodes n ON n.node_id = c.node_id AND n.pool_id = c.pool_id
       WHERE n.state = 'ready' AND n.cordoned_at IS NULL AND n.draining_at IS NULL AND n.quarantined_at IS NULL
       ORDER BY c.node_id FOR NO KEY UPDATE OF c)
     UPDATE node_capacity c SET books = c.books + 1 FROM locked l WHERE c.node_id = l.node_id
     RETURNING c.node_id, c.version",
);
/// Writes in books that are open. A device that is not healthy any more is not booked, and the count tells.
pub const ALLOCATIONS_BOOK: Sql = sql(
    "allocations_book",
    "WITH wanted AS MATERIALIZED (
       SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::jsonb[], $6::bigint[], $7::bigint[],
                            $8::bigint[], $9::text[], $10::boolean[])
         AS w (allocation_id, reservation_id, node_id, atoms, limits, cpu_millis, memory_bytes, hugepages_1gi, mems,
               whole_node)
     ), allocation AS (
       INSERT INTO allocations (allocation_id, reservation_id, node_id, state, atoms, limits)
       SELECT allocation_id, reservation_id, node_id, 'placed', string_to_array(atoms, chr(31)), limits FROM wanted
     ), host AS (
       INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node)
       SELECT allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, string_to_array(mems, chr(31))::integer[],
         whole_node FROM wanted
     ), booked AS (
       INSERT INTO bookings (node_id, atom, allocation_id)
       SELECT a.node_id, a.atom, x.allocation_id
       FROM unnest($11::uuid[], $12::uuid[], $13::text[], $14::boolean[]) AS x (allocation_id, node_id, atom, whole_node)
       JOIN atoms a ON a.node_id = x.node_id AND a.atom = x.atom AND (a.health = 'healthy' OR x.whole_node)
       RETURNING 1
     )
     SELECT count(*) AS booked FROM booked",
);

pub const RESERVATIONS_LOCK: Sql = sql(
    "reservations_lock",
    "SELECT reservation_id, tenant_id, state FROM reservations WHERE reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[])))
     ORDER BY reservation_id FOR NO KEY UPDATE",
);
pub const RESERVATIONS_RELEASING: Sql = sql(
    "reservations_releasing",
    "UPDATE reservations SET state = 'releasing', release_to = $2, updated_at = compute_now()
     WHERE reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND state IN ('scheduling', 'placed', 'active')
     RETURNING reservation_id, updated_at",
);
pub const ALLOCATIONS_RELEASING: Sql = sql(
    "allocations_releasing",
    "UPDATE allocations SET state = 'releasing'
     WHERE reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND live AND state IN ('placed', 'bound')
     RETURNING reservation_id, allocation_id, node_id",
);
pub const RESERVATIONS_END: Sql = sql(
    "reservations_end",
    "UPDATE reservations r SET state = w.state, waiting_reason = '', ended_at = compute_now(), updated_at = compute_now()
     FROM unnest($1::uuid[], $2::text[]) AS w (reservation_id, state)
     WHERE r.reservation_id = w.reservation_id AND (r.ended_at IS NULL) IS TRUE",
);
pub const QUOTA_HOLDS_DELETE_ALL: Sql = sql(
    "quota_holds_delete_all",
    "DELETE FROM quota_holds WHERE reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[])))",
);

/// Allocations that reports name, with their reservations, each reservation locked before its allocation.
pub const ALLOCATIONS_SPOKEN: Sql = sql(
    "allocations_spoken",
    "SELECT a.allocation_id, a.reservation_id, a.node_id, a.state, a.ended_at IS NULL AS live, a.atoms,
       r.state AS reservation_state, r.tenant_id, r.pool_id, r.attempts, r.release_to
     FROM allocations a JOIN reservations r ON r.reservation_id = a.reservation_id
     WHERE a.allocation_id = ANY(ARRAY(SELECT unnest($1::uuid[])))
     ORDER BY r.reservation_id, a.allocation_id FOR NO KEY UPDATE OF r, a",
);
pub const ALLOCATIONS_BOUND: Sql = sql(
    "allocations_bound",
    "WITH said AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS w (allocation_id, reservation_id, cdi_devices)),
     active AS (
       UPDATE reservations r SET state = 'active', active_at = compute_now(), updated_at = compute_now()
       FROM said WHERE r.reservation_id = said.reservation_id AND r.state = 'placed')
     UPDATE allocations a SET state = 'bound', cdi_devices = string_to_array(said.cdi_devices, chr(31)),
       bound_at = compute_now()
     FROM said WHERE a.allocation_id = said.allocation_id AND a.state = 'placed'",
);
/// Ends allocations and gives back what they booked, in one statement: neither happens alone. Counting the nodes that were
/// opened is what has them opened before anything is given back.
pub const ALLOCATIONS_END: Sql = sql(
    "allocations_end",
    "WITH ended AS (
       UPDATE allocations SET state = CASE state WHEN 'failed' THEN state ELSE 'released' END, ended_at = compute_now()
       WHERE allocation_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND (ended_at IS NULL) IS TRUE
         AND state IN ('releasing', 'failed')
       RETURNING allocation_id, node_id
     ), locked AS (
       SELECT c.node_id FROM node_capacity c WHERE c.node_id IN (SELECT node_id FROM ended)
       ORDER BY c.node_id FOR NO KEY UPDATE
     ), opened AS (
       UPDATE node_capacity c SET books = c.books + 1 FROM locked l WHERE c.node_id = l.node_id RETURNING c.node_id
     ), atoms_back AS (
       DELETE FROM bookings b USING ended e
       WHERE b.allocation_id = e.allocation_id AND (SELECT count(*) FROM opened) > 0
     ), host_back AS (
       DELETE FROM host_bookings h USING ended e
       WHERE h.allocation_id = e.allocation_id AND (SELECT count(*) FROM opened) > 0
     )
     SELECT count(*) AS ended FROM ended",
);
/// Of these pools, those in which something waits.
pub const POOLS_WAITING_OF: Sql = sql(
    "pools_waiting_of",
    "SELECT p.pool_id FROM unnest((SELECT $1::uuid[])) AS p (pool_id)
     WHERE EXISTS (SELECT FROM reservations r WHERE r.pool_id = p.pool_id AND r.stage = 1) ORDER BY p.pool_id",
);
/// [`NODE_ASSIGNMENTS`](super::NODE_ASSIGNMENTS) of many nodes.
pub const NODES_ASSIGNMENTS: Sql = sql(
    "nodes_assignments",
    "SELECT a.node_id, a.allocation_id, a.state, a.atoms, a.limits, r.binding
     FROM allocations a JOIN reservations r ON r.reservation_id = a.reservation_id
     WHERE a.node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND a.ended_at IS NULL ORDER BY a.node_id, a.allocation_id",
);

/// For the test that prepares them, and for the one that looks at their plans.
pub const ALL: &[Sql] = &[
    RESERVATIONS_ADMIT,
    RESERVATIONS_PLACED,
    QUOTA_HOLDS_PUT_ALL,
    QUOTAS_OVER,
    QUOTAS_USED,
    NODES_OPEN,
    ALLOCATIONS_BOOK,
    RESERVATIONS_LOCK,
    RESERVATIONS_RELEASING,
    ALLOCATIONS_RELEASING,
    RESERVATIONS_END,
    QUOTA_HOLDS_DELETE_ALL,
    ALLOCATIONS_SPOKEN,
    ALLOCATIONS_BOUND,
    ALLOCATIONS_END,
    POOLS_WAITING_OF,
    NODES_ASSIGNMENTS,
];
