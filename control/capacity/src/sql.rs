//! Every statement of this crate.
//!
//! Durable: bookings, because two holders of one GPU is the fault this crate exists to prevent; quota holds, for they are
//! what a tenant is refused by; allocations, since a node holds until it says otherwise. Drafts are not: one that nobody
//! admitted is deleted.
//!
//! Locks are taken in one order: node (whoever looks at its state), reservation (a draft is nobody else's), quotas
//! (by resource, from the root downwards), the row in `node_capacity`, then what hangs
//! on it. Whoever changes what a node offers or holds changes its `node_capacity` row, whose trigger raises the version.

mod booking;
pub mod inline;
mod line;
pub mod many;
mod pools;
mod tenant;

use store::{Sql, sql};

pub use booking::*;
pub use line::*;
pub use pools::*;
pub use tenant::*;

// Reservations.

pub const RESERVATION_INSERT: Sql = sql(
    "reservation_insert",
    "INSERT INTO reservations (reservation_id, tenant_id, pool_id, created_by, name, state, gpus, gpu_model, vcpu,
       memory_mib, hugepages_1gi, whole_node, binding, selector, starts_at, expires_at)
     VALUES ($1, $2, $3, $4, $5, 'draft', $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
);
pub const RESERVATION_DRAFT_DELETE: Sql =
    sql("reservation_draft_delete", "DELETE FROM reservations WHERE reservation_id = $1 AND state = 'draft'");
pub const DRAFTS_PRUNE: Sql = sql(
    "reservation_drafts_prune",
    "DELETE FROM reservations WHERE reservation_id IN (
       SELECT reservation_id FROM reservations
       WHERE stage = 0 AND created_at < compute_now() - $1::bigint * interval '1 second'
       ORDER BY created_at LIMIT 500 FOR UPDATE SKIP LOCKED)",
);
pub const RESERVATION_ADMIT: Sql = sql(
    "reservation_admit",
    "UPDATE reservations SET state = 'scheduling', waiting_reason = $2, updated_at = compute_now()
     WHERE reservation_id = $1 AND state = 'draft'",
);
pub const RESERVATION_LOCK: Sql =
    sql("reservation_lock", "SELECT state FROM reservations WHERE reservation_id = $1 FOR NO KEY UPDATE");
/// From the state it was found in, which is `draft` when it is placed as it is admitted.
pub const RESERVATION_PLACED: Sql = sql(
    "reservation_placed",
    "UPDATE reservations SET state = 'placed', attempts = attempts + 1, waiting_reason = '',
       placed_at = compute_now(), updated_at = compute_now()
     WHERE reservation_id = $1 AND state = $2 AND state IN ('draft', 'scheduling')",
);
pub const RESERVATION_ACTIVE: Sql = sql(
    "reservation_active",
    "UPDATE reservations SET state = 'active', active_at = compute_now(), updated_at = compute_now()
     WHERE reservation_id = $1 AND state = 'placed'",
);
pub const RESERVATION_RESCHEDULE: Sql = sql(
    "reservation_reschedule",
    "UPDATE reservations SET state = 'scheduling', waiting_reason = $3, updated_at = compute_now(),
       avoid = CASE WHEN $2 = ANY(avoid) THEN avoid ELSE avoid || $2::uuid END,
       avoid_until = compute_now() + attempts * $4::bigint * interval '1 second'
     WHERE reservation_id = $1 AND state IN ('placed', 'active')",
);
pub const RESERVATION_RELEASING: Sql = sql(
    "reservation_releasing",
    "UPDATE reservations SET state = 'releasing', release_to = $2, updated_at = compute_now()
     WHERE reservation_id = $1 AND state IN ('scheduling', 'placed', 'active')",
);
pub const RESERVATION_END: Sql = sql(
    "reservation_end",
    "UPDATE reservations SET state = $2, failure = $3, waiting_reason = '', ended_at = compute_now(),
       updated_at = compute_now()
     WHERE reservation_id = $1 AND ended_at IS NULL",
);
pub const RESERVATION_EXTEND: Sql = sql(
    "reservation_extend",
    "UPDATE reservations SET expires_at = $2, updated_at = compute_now()
     WHERE reservation_id = $1 AND expires_at IS NOT DISTINCT FROM $3 AND state IN ('scheduling', 'placed', 'active')
     RETURNING state",
);
pub const RESERVATIONS_EXPIRING: Sql = sql(
    "reservations_expiring",
    "SELECT reservation_id FROM reservations
     WHERE ended_at IS NULL AND expires_at <= compute_now() AND state IN ('scheduling', 'placed', 'active')
     ORDER BY expires_at, reservation_id LIMIT 200",
);

/// What a reservation is read by, however it is found: with its names, its live allocation and that one's devices.
macro_rules! reservation_select {
    ($rest:literal) => {
        concat!(
            "SELECT r.reservation_id, r.tenant_id, r.pool_id, r.created_by, r.name, r.state, r.gpus, r.gpu_model, r.vcpu,
       r.memory_mib, r.hugepages_1gi, r.whole_node, r.binding, r.selector, r.attempts, r.waiting_reason, r.failure,
       r.release_to, r.starts_at, r.expires_at, r.created_at, r.updated_at, r.placed_at, r.active_at, r.ended_at,
       t.name AS tenant_name, u.name AS created_by_name,
       p.name AS pool_name, p.class AS pool_class,
       a.allocation_id, a.node_id, a.limits, a.cdi_devices, n.name AS node_name, n.state AS node_state,
       n.quarantined_at, s.last_heartbeat_at, d.devices, compute_now() AS now
     FROM reservations r
     JOIN tenants t ON t.tenant_id = r.tenant_id
     JOIN pools p ON p.pool_id = r.pool_id
     JOIN users u ON u.user_id = r.created_by
     LEFT JOIN allocations a ON a.reservation_id = r.reservation_id AND a.live
     LEFT JOIN nodes n ON n.node_id = a.node_id
     LEFT JOIN node_sessions s ON s.node_id = a.node_id
     LEFT JOIN LATERAL (
       SELECT jsonb_agg(jsonb_build_object('uuid', x.atom, 'index', x.device_index, 'model', x.model,
                'health', x.health, 'reason', x.health_reason,
                'sinceMs', floor(extract(epoch FROM x.health_at) * 1000)::bigint) ORDER BY x.device_index, x.atom) AS devices
       FROM atoms x WHERE x.node_id = a.node_id AND x.atom = ANY(a.atoms)) d ON true ",
            $rest
        )
    };
}

pub const RESERVATION_GET: Sql =
    sql("reservation_get", reservation_select!("WHERE r.reservation_id = $1 AND r.state <> 'draft'"));
pub const RESERVATIONS_GET: Sql = sql(
    "reservations_get",
    reservation_select!(
        "WHERE r.reservation_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND r.state <> 'draft'"
    ),
);
pub const RESERVATIONS_LIST: Sql = sql(
    "reservations_list",
    reservation_select!(
        "WHERE r.tenant_id = $1 AND r.reservation_id < $2 AND r.state <> 'draft'
       AND ($3::uuid IS NULL OR r.pool_id = $3) AND ($4::text IS NULL OR p.name = $4)
       AND ($5::uuid IS NULL OR a.node_id = $5) AND ($6::text IS NULL OR n.name = $6)
       AND ($7::text IS NULL OR r.state = $7) AND ($8::text IS NULL OR r.name = $8)
       AND ($9::boolean OR r.ended_at IS NULL)
     ORDER BY r.reservation_id DESC LIMIT $10"
    ),
);

// Quotas.

pub const QUOTA_HOLDS_PUT: Sql = sql(
    "quota_holds_put",
    "INSERT INTO quota_holds (reservation_id, tenant_id, resource, amount)
     SELECT $1, $2, w.resource, w.amount FROM unnest($3::text[], $4::bigint[]) AS w (resource, amount) ORDER BY w.resource
     ON CONFLICT (reservation_id, resource) DO UPDATE SET amount = excluded.amount",
);
pub const QUOTA_HOLDS_DELETE: Sql =
    sql("quota_holds_delete", "DELETE FROM quota_holds WHERE reservation_id = $1");
/// Of the tenant and of those above it, which bind it too: the nearest first.
pub const QUOTA_USAGE: Sql = sql(
    "quota_usage",
    "WITH RECURSIVE way AS (
       SELECT tenant_id, parent_id, name, 0 AS depth FROM tenants WHERE tenant_id = $1
       UNION ALL
       SELECT t.tenant_id, t.parent_id, t.name, way.depth + 1 FROM tenants t JOIN way ON t.tenant_id = way.parent_id
     )
     SELECT q.tenant_id, way.name AS tenant_name, q.resource, q.amount, quota_used(q.tenant_id, q.resource) + images_used(q.tenant_id, q.resource) AS used
     FROM way JOIN quotas q ON q.tenant_id = way.tenant_id ORDER BY way.depth, q.resource",
);
pub const QUOTA_PUT: Sql = sql(
    "quota_put",
    "INSERT INTO quotas (quota_id, tenant_id, resource, amount) VALUES ($1, $2, $3, $4)
     ON CONFLICT (tenant_id, resource) DO UPDATE SET amount = excluded.amount, updated_at = compute_now()",
);
pub const QUOTA_LOCK: Sql =
    sql("quota_lock", "SELECT amount FROM quotas WHERE tenant_id = $1 AND resource = $2 FOR NO KEY UPDATE");
pub const QUOTA_GET: Sql = sql(
    "quota_get",
    "SELECT q.quota_id, q.tenant_id, t.name AS tenant_name, q.resource, q.amount, q.updated_at,
       quota_used(q.tenant_id, q.resource) + images_used(q.tenant_id, q.resource) AS used
     FROM quotas q JOIN tenants t ON t.tenant_id = q.tenant_id WHERE q.tenant_id = $1 AND q.resource = $2",
);
pub const QUOTAS_LIST: Sql = sql(
    "quotas_list",
    "SELECT q.quota_id, q.tenant_id, t.name AS tenant_name, q.resource, q.amount, q.updated_at,
       quota_used(q.tenant_id, q.resource) + images_used(q.tenant_id, q.resource) AS used
     FROM quotas q JOIN tenants t ON t.tenant_id = q.tenant_id
     WHERE q.tenant_id = $1 AND q.quota_id < $2 ORDER BY q.quota_id DESC LIMIT $3",
);
pub const TENANT_GET: Sql =
    sql("capacity_tenant_get", "SELECT tenant_id, parent_id, name FROM tenants WHERE tenant_id = $1");

// What nodes offer.

pub const CAPACITY_LOCK: Sql = sql(
    "node_capacity_lock",
    "SELECT pool_id, cpu_millis, memory_bytes, hugepages_1gi, machine_cpu_millis, machine_memory_bytes, disk_bytes,
       machine_disk_bytes, topology, capabilities
     FROM node_capacity WHERE node_id = $1 FOR NO KEY UPDATE",
);
/// What [`CAPACITY_LOCK`] gives, with all that an offer is made of beside the inventory, and nothing locked.
pub const CAPACITY_KNOWN: Sql = sql(
    "node_capacity_known",
    "SELECT c.pool_id, c.cpu_millis, c.memory_bytes, c.hugepages_1gi, c.machine_cpu_millis, c.machine_memory_bytes,
       c.disk_bytes, c.machine_disk_bytes, c.topology, c.capabilities, p.policy, coalesce(s.capabilities, '{}') AS advertised,
       EXISTS (SELECT FROM atom_claims x WHERE x.node_id = c.node_id) AS claims
     FROM node_capacity c JOIN pools p ON p.pool_id = c.pool_id LEFT JOIN node_status s ON s.node_id = c.node_id
     WHERE c.node_id = $1",
);
pub const CAPACITY_PUT: Sql = sql(
    "node_capacity_put",
    "INSERT INTO node_capacity (node_id, pool_id, cpu_millis, memory_bytes, hugepages_1gi, machine_cpu_millis,
       machine_memory_bytes, topology, capabilities, disk_bytes, machine_disk_bytes)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
     ON CONFLICT (node_id) DO UPDATE SET pool_id = excluded.pool_id,
       kept_for = CASE WHEN node_capacity.pool_id = excluded.pool_id THEN node_capacity.kept_for END, cpu_millis = excluded.cpu_millis,
       memory_bytes = excluded.memory_bytes, hugepages_1gi = excluded.hugepages_1gi,
       machine_cpu_millis = excluded.machine_cpu_millis, machine_memory_bytes = excluded.machine_memory_bytes,
       topology = excluded.topology, capabilities = excluded.capabilities, disk_bytes = excluded.disk_bytes,
       machine_disk_bytes = excluded.machine_disk_bytes",
);
pub const CAPACITY_TOUCH: Sql = sql(
    "node_capacity_touch",
    "UPDATE node_capacity c SET capabilities = coalesce(
       (SELECT ARRAY(SELECT DISTINCT unnest(s.capabilities) AS name ORDER BY name) FROM node_status s WHERE s.node_id = $1), '{}')
     WHERE c.node_id = $1 RETURNING c.pool_id",
);
pub const NODE_CAPABILITIES: Sql = sql(
    "node_capabilities",
    "SELECT DISTINCT unnest(capabilities) AS name FROM node_status WHERE node_id = $1 ORDER BY name",
);
/// The first in line gets a node; none while another has one.
pub const NODE_KEEP: Sql = sql(
    "node_keep",
    "UPDATE node_capacity SET kept_for = $3 WHERE node_id = $2 AND pool_id = $1 AND kept_for IS NULL
       AND EXISTS (SELECT FROM reservations WHERE reservation_id = $3 AND stage = 1)
       AND NOT EXISTS (SELECT FROM node_capacity WHERE pool_id = $1 AND kept_for IS NOT NULL)",
);
/// Of those that wait no more, and of nodes that take no work.
pub const NODES_KEPT_CLEAR: Sql = sql(
    "nodes_kept_clear",
    "UPDATE node_capacity c SET kept_for = NULL WHERE c.pool_id = $1 AND c.kept_for IS NOT NULL
       AND (NOT EXISTS (SELECT FROM reservations r WHERE r.reservation_id = c.kept_for AND r.stage = 1)
         OR NOT EXISTS (SELECT FROM nodes n WHERE n.node_id = c.node_id AND n.pool_id = c.pool_id AND n.state = 'ready'
              AND n.cordoned_at IS NULL AND n.draining_at IS NULL AND n.quarantined_at IS NULL))",
);
pub const CAPACITY_LEAVE: Sql = sql(
    "node_capacity_leave",
    "UPDATE node_capacity SET pool_id = NULL, kept_for = NULL WHERE node_id = $1 AND pool_id IS NOT NULL",
);
pub const CAPACITY_RESERVE: Sql = sql(
    "node_capacity_reserve",
    "UPDATE node_capacity SET cpu_millis = greatest(machine_cpu_millis - $2, 0) * $4::bigint,
       memory_bytes = greatest(machine_memory_bytes - $3, 0),
       disk_bytes = CASE WHEN machine_disk_bytes IS NOT NULL
         THEN greatest(machine_disk_bytes - greatest($5::bigint, machine_disk_bytes / 20), 0) * $6::bigint END
     WHERE pool_id = $1",
);
pub const ATOMS_OF_NODE: Sql = sql(
    "atoms_of_node",
    "SELECT a.atom, a.device_index, a.model, a.memory_bytes, a.numa, a.island, a.health, a.health_reason,
       b.allocation_id
     FROM atoms a LEFT JOIN bookings b ON b.node_id = a.node_id AND b.atom = a.atom
     WHERE a.node_id = $1 ORDER BY a.atom",
);
pub const ATOMS_ELSEWHERE: Sql = sql(
    "atoms_elsewhere",
    "SELECT a.atom, n.node_id, n.name FROM atoms a JOIN nodes n ON n.node_id = a.node_id
     WHERE a.atom = ANY($2::text[]) AND a.node_id <> $1 ORDER BY a.atom",
);
/// Those that were not claimed before.
pub const ATOM_CLAIMS_PUT: Sql = sql(
    "atom_claims_put",
    "INSERT INTO atom_claims (node_id, atom, owner_id)
     SELECT $1, x.atom, x.owner_id FROM unnest($2::text[], $3::uuid[]) AS x (atom, owner_id) ORDER BY x.atom
     ON CONFLICT (node_id, atom) DO NOTHING RETURNING atom, owner_id",
);
/// Those of these nodes that list another's device.
pub const NODES_CLAIMING: Sql = sql(
    "nodes_claiming",
    "SELECT DISTINCT node_id FROM atom_claims WHERE node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) ORDER BY node_id",
);
/// All but these are not claimed any more.
pub const ATOM_CLAIMS_DROP: Sql =
    sql("atom_claims_drop", "DELETE FROM atom_claims WHERE node_id = $1 AND atom <> ALL($2::text[])");
pub const ATOMS_DROP: Sql = sql(
    "atoms_drop",
    "DELETE FROM atoms a WHERE a.node_id = $1 AND a.atom = ANY($2::text[])
       AND NOT EXISTS (SELECT FROM bookings b WHERE b.node_id = a.node_id AND b.atom = a.atom)",
);
pub const ATOM_PUT: Sql = sql(
    "atom_put",
    "INSERT INTO atoms (node_id, atom, class, device_index, model, memory_bytes, numa, island, health, health_reason)
     VALUES ($1, $2, 'gpu', $3, $4, $5, $6, $7, $8, $9)
     ON CONFLICT (node_id, atom) DO UPDATE SET device_index = excluded.device_index, model = excluded.model,
       memory_bytes = excluded.memory_bytes, numa = excluded.numa, island = excluded.island,
       health = excluded.health, health_reason = excluded.health_reason,
       health_at = CASE WHEN atoms.health = excluded.health THEN atoms.health_at ELSE compute_now() END",
);
/// None when its reservation is elsewhere by now.
pub const ALLOCATION_SUBJECT: Sql = sql(
    "allocation_subject",
    "SELECT r.reservation_id, r.tenant_id, r.state FROM allocations a
     JOIN reservations r ON r.reservation_id = a.reservation_id WHERE a.allocation_id = $1 AND a.state <> 'failed'",
);

// The books in memory.

pub const BOOKS_CHANGED: Sql =
    sql("books_changed", "SELECT oldest, node_id, version, offer_version FROM books_changed($1)");
pub const BOOKS_BOOKED: Sql = sql(
    "books_booked",
    "SELECT c.node_id, c.version, c.offer_version,
       ARRAY(SELECT b.atom FROM bookings b WHERE b.node_id = c.node_id) AS atoms,
       h.cpu_millis, h.memory_bytes, h.hugepages_1gi, h.disk_bytes, h.whole_node, h.bound
     FROM node_capacity c CROSS JOIN LATERAL (
       SELECT coalesce(sum(h.cpu_millis), 0)::bigint AS cpu_millis, coalesce(sum(h.memory_bytes), 0)::bigint AS memory_bytes,
         coalesce(sum(h.hugepages_1gi), 0)::bigint AS hugepages_1gi, coalesce(sum(h.disk_bytes), 0)::bigint AS disk_bytes,
         coalesce(bool_or(h.whole_node), false) AS whole_node,
         jsonb_agg(jsonb_build_object('cpuMillis', h.cpu_millis, 'memoryBytes', h.memory_bytes,
           'hugepages1Gi', h.hugepages_1gi, 'diskBytes', h.disk_bytes, 'mems', h.mems, 'wholeNode', h.whole_node)) FILTER (WHERE h.mems <> '{}') AS bound
       FROM host_bookings h WHERE h.node_id = c.node_id) h
     WHERE c.node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) ORDER BY c.node_id",
);
pub const BOOKS_NODES: Sql = sql(
    "books_nodes",
    "SELECT c.node_id, c.pool_id, c.version, c.offer_version, c.kept_for, c.cpu_millis, c.memory_bytes, c.hugepages_1gi, c.disk_bytes,
       c.topology, p.policy,
       n.name, n.state, n.cordoned_at, n.cordoned_by, n.cordon_reason, n.draining_at, n.quarantined_at,
       n.quarantine_reason, n.labels, c.capabilities,
       (SELECT jsonb_agg(jsonb_build_object('atom', a.atom, 'model', a.model, 'memoryBytes', a.memory_bytes,
                 'numa', a.numa, 'index', a.device_index, 'island', a.island, 'health', a.health,
                 'reason', a.health_reason, 'booked', b.atom IS NOT NULL))
        FROM atoms a LEFT JOIN bookings b ON b.node_id = a.node_id AND b.atom = a.atom
        WHERE a.node_id = c.node_id AND (a.health <> 'absent' OR b.atom IS NOT NULL)) AS devices,
       (SELECT jsonb_agg(jsonb_build_object('cpuMillis', h.cpu_millis, 'memoryBytes', h.memory_bytes,
                 'hugepages1Gi', h.hugepages_1gi, 'diskBytes', h.disk_bytes, 'mems', h.mems, 'wholeNode', h.whole_node))
        FROM host_bookings h WHERE h.node_id = c.node_id) AS booked
     FROM node_capacity c JOIN nodes n ON n.node_id = c.node_id
     LEFT JOIN pools p ON p.pool_id = c.pool_id
     WHERE c.node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) ORDER BY c.node_id",
);

/// On the way of every call, report or pass.
pub const HOT: &[Sql] = &[
    TENANT_HAS,
    TENANT_RESERVATIONS,
    TENANT_DRAFTS_DELETE,
    RESERVATION_ADMIT,
    RESERVATION_PLACED,
    RESERVATION_LOCK,
    RESERVATION_GET,
    RESERVATIONS_GET,
    RESERVATIONS_EXPIRING,
    RESERVATIONS_IN_LINE,
    POOLS_WAITING,
    ALLOCATION_BOOK,
    ALLOCATION_FIND,
    ALLOCATION_LOCK,
    ALLOCATION_BOUND,
    ALLOCATION_RELEASING,
    ALLOCATION_FAILED,
    ALLOCATION_END,
    ALLOCATIONS_OF_REMOVED_END,
    LOST_HELD,
    NODE_ASSIGNMENTS,
    NODE_HOLDS,
    QUOTA_HOLDS_DELETE,
    ATOMS_OF_NODE,
    BOOKS_CHANGED,
    BOOKS_BOOKED,
    BOOKS_NODES,
];

/// For the test that prepares them.
#[cfg(test)]
pub const ALL: &[Sql] = &[
    RESERVATION_INSERT,
    RESERVATION_DRAFT_DELETE,
    DRAFTS_PRUNE,
    RESERVATION_ADMIT,
    RESERVATION_LOCK,
    RESERVATION_PLACED,
    RESERVATION_ACTIVE,
    RESERVATION_RESCHEDULE,
    RESERVATION_RELEASING,
    RESERVATION_END,
    RESERVATION_EXTEND,
    RESERVATIONS_WAIT,
    RESERVATIONS_EXPIRING,
    POOLS_WAITING,
    RESERVATIONS_IN_LINE,
    RESERVATION_GET,
    RESERVATIONS_GET,
    RESERVATIONS_LIST,
    QUOTA_HOLDS_PUT,
    QUOTA_HOLDS_DELETE,
    QUOTA_USAGE,
    QUOTA_PUT,
    QUOTA_LOCK,
    QUOTA_GET,
    QUOTAS_LIST,
    TENANT_GET,
    ALLOCATION_BOOK,
    ALLOCATION_FIND,
    ALLOCATION_LOCK,
    ALLOCATION_BOUND,
    ALLOCATION_RELEASING,
    ALLOCATION_FAILED,
    ALLOCATION_END,
    ALLOCATIONS_OF_REMOVED_END,
    LOST_HELD,
    NODE_STATE_SHARE,
    NODE_ASSIGNMENTS,
    NODE_HOLDS,
    NODE_HELD,
    NODE_POOL_TENANT,
    CAPACITY_LOCK,
    CAPACITY_KNOWN,
    CAPACITY_PUT,
    CAPACITY_TOUCH,
    NODE_CAPABILITIES,
    NODE_KEEP,
    NODES_KEPT_CLEAR,
    CAPACITY_LEAVE,
    CAPACITY_RESERVE,
    ATOMS_OF_NODE,
    ATOMS_ELSEWHERE,
    ATOM_CLAIMS_PUT,
    NODES_CLAIMING,
    ATOM_CLAIMS_DROP,
    ATOMS_DROP,
    ATOM_PUT,
    ALLOCATION_SUBJECT,
    BOOKS_CHANGED,
    BOOKS_BOOKED,
    BOOKS_NODES,
    POOL_INSERT,
    POOLS_ON_WAY_UP,
    POOL_GET,
    POOLS_LIST,
    POOL_LOCK,
    POOL_UPDATE,
    POOL_NODES,
    POOL_POLICY,
    POOL_DELETE_LOCK,
    POOL_DRAFTS_DELETE,
    POOL_HAS,
    POOL_DELETED,
];

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn every_statement_prepares_on_a_migrated_database() {
        let all = [super::ALL, super::inline::ALL, super::many::ALL, crate::invariants::RULES].concat();
        testkit::db().await.prepare_all(&all).await;
    }
}
