//! Every statement of this crate.
//!
//! Durable: places and leases, because a second instance at one address or on one device is the fault to prevent, and an
//! instance's row until its host said that nothing of it is there; instances that were deleted are kept for readers.
//!
//! Locks are taken in one order: node, where its state decides, instance, quotas, the row in `node_capacity` (both by `capacity`), the addresses of a pool.

use store::{Sql, sql};

mod images;
pub mod lost;

pub use images::*;

// Flavors and images.

pub const FLAVOR_INSERT: Sql = sql(
    "flavor_insert",
    "INSERT INTO flavors (flavor_id, pool_id, name, vcpu, memory_mib, disk_gib, gpus, gpu_model, numa_affine, pinned, hugepages)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
);

macro_rules! flavor_select {
    ($rest:literal) => {
        concat!(
            "SELECT f.flavor_id, f.pool_id, f.name, f.vcpu, f.memory_mib, f.disk_gib, f.gpus, f.gpu_model, f.created_at,
       f.numa_affine, f.pinned, f.hugepages, p.name AS pool_name, p.tenant_id, compute_now() AS now
     FROM flavors f JOIN pools p ON p.pool_id = f.pool_id ",
            $rest
        )
    };
}

/// Flavors go with their pool; the rows stay for instances that ended.
pub const FLAVOR_GET: Sql =
    sql("flavor_get", flavor_select!("WHERE f.flavor_id = $1 AND p.deleted_at IS NULL"));
pub const FLAVOR_FIND: Sql = sql(
    "flavor_find",
    flavor_select!(
        "WHERE f.pool_id = $1 AND ($2::uuid IS NULL OR f.flavor_id = $2) AND ($3::text IS NULL OR f.name = $3)"
    ),
);
pub const FLAVORS_LIST: Sql = sql(
    "flavors_list",
    flavor_select!("WHERE f.pool_id = $1 AND f.flavor_id < $2 ORDER BY f.flavor_id DESC LIMIT $3"),
);

pub const IMAGE_INSERT: Sql = sql(
    "image_insert",
    "INSERT INTO images (image_id, tenant_id, name, url, sha256, format, shared, verified, size_bytes, login_user)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
);

macro_rules! image_select {
    ($from:literal, $rest:literal) => {
        concat!(
            "SELECT i.image_id, i.tenant_id, t.name AS tenant_name, i.name, i.url, i.size_bytes, i.arrived_at, i.sha256, i.format, i.shared, i.verified, i.login_user,
       i.created_at, i.deleted_at, compute_now() AS now
     FROM ",
            $from,
            " JOIN tenants t ON t.tenant_id = i.tenant_id ",
            $rest
        )
    };
}

macro_rules! way_up {
    ($($rest:tt)*) => {
        concat!(
            "WITH RECURSIVE way AS (
       SELECT tenant_id, parent_id, 0 AS depth FROM tenants WHERE tenant_id = $1
       UNION ALL
       SELECT t.tenant_id, t.parent_id, way.depth + 1 FROM tenants t JOIN way ON t.tenant_id = way.parent_id
       WHERE way.depth < 64
     ) ",
            $($rest)*
        )
    };
}

pub const IMAGE_GET: Sql = sql("image_get", image_select!("images i", "WHERE i.image_id = $1"));
/// Its bytes are all there.
pub const IMAGE_ARRIVED: Sql = sql(
    "image_arrived",
    "UPDATE images SET arrived_at = compute_now()
     WHERE image_id = $1 AND url IS NULL AND arrived_at IS NULL AND deleted_at IS NULL",
);
/// Of those a tenant may use: its own and, nearest first, what tenants above share.
pub const IMAGE_FIND: Sql = sql(
    "image_find",
    way_up!(image_select!(
        "way JOIN images i ON i.tenant_id = way.tenant_id AND (way.depth = 0 OR i.shared)",
        "WHERE i.deleted_at IS NULL AND ($2::uuid IS NULL OR i.image_id = $2) AND ($3::text IS NULL OR i.name = $3)
     ORDER BY way.depth LIMIT 1"
    )),
);
pub const IMAGES_LIST: Sql = sql(
    "images_list",
    way_up!(image_select!(
        "way JOIN images i ON i.tenant_id = way.tenant_id AND (way.depth = 0 OR i.shared)",
        "WHERE i.image_id < $2 AND ($4::boolean OR i.deleted_at IS NULL) ORDER BY i.image_id DESC LIMIT $3"
    )),
);
/// By its name, of those of the tenant itself.
pub const IMAGE_NAMED: Sql = sql(
    "image_named",
    image_select!("images i", "WHERE i.tenant_id = $1 AND i.name = $2 AND i.deleted_at IS NULL"),
);
/// Its bytes are there, and this tenant may use an image that has them.
pub const IMAGE_KNOWN: Sql = sql(
    "image_known",
    way_up!(
        "SELECT 1 AS known FROM way JOIN images i ON i.tenant_id = way.tenant_id AND (way.depth = 0 OR i.shared)
     WHERE i.sha256 = $2 AND i.url IS NULL AND i.arrived_at IS NOT NULL AND i.deleted_at IS NULL LIMIT 1"
    ),
);

// Instances.

pub const INSTANCE_INSERT: Sql = sql(
    "instance_insert",
    "INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, name, state, desired, runtime,
       vcpu, memory_mib, disk_gib, gpus, gpu_model, ssh_keys, network_policy, waiting_reason, user_data_secret)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
);
pub const INSTANCE_LOCK: Sql = sql(
    "instance_lock",
    "SELECT i.tenant_id, i.pool_id, i.state, i.desired, i.revision, i.said_reason, i.said_message,
       i.vcpu, i.memory_mib, i.disk_gib, i.gpus, i.gpu_model, i.exhausted_at, i.exhausted_moves,
       f.numa_affine, f.pinned, f.hugepages
     FROM instances i JOIN flavors f ON f.flavor_id = i.flavor_id WHERE i.instance_id = $1 FOR NO KEY UPDATE OF i",
);
/// Of an instance that is locked: only who has its lock gives it a place or takes it.
pub const INSTANCE_PLACE: Sql = sql(
    "instance_place",
    "SELECT allocation_id, node_id FROM instance_allocations
     WHERE instance_id = $1 AND ended_at IS NULL AND left_at IS NULL",
);
/// Something else is wanted. With `$4` it is a start: what runs since an earlier one is to start anew.
pub const INSTANCE_WANT: Sql = sql(
    "instance_want",
    "UPDATE instances SET state_since = CASE WHEN state = $2 THEN state_since ELSE compute_now() END,
       stuck_at = CASE WHEN state = $2 THEN stuck_at END, state = $2, desired = $3, revision = revision + 1,
       boot = CASE WHEN $4::boolean THEN revision + 1 ELSE boot END,
       said_reason = '', said_message = '', said_at = NULL, updated_at = compute_now()
     WHERE instance_id = $1",
);
/// Another size, which its host is to have it in from its next start on.
pub const INSTANCE_RESHAPE: Sql = sql(
    "instance_reshape",
    "UPDATE instances SET flavor_id = $2, vcpu = $3, memory_mib = $4, disk_gib = $5, gpu_model = $6, revision = revision + 1,
       updated_at = compute_now()
     WHERE instance_id = $1",
);
pub const INSTANCE_MOVE: Sql = sql(
    "instance_move",
    "UPDATE instances SET state_since = CASE WHEN state = $2 THEN state_since ELSE compute_now() END,
       stuck_at = CASE WHEN state = $2 THEN stuck_at END, state = $2, said_reason = $3, said_message = $4,
       said_at = CASE WHEN $3 <> '' OR $4 <> '' THEN compute_now() END, waiting_reason = '', updated_at = compute_now()
     WHERE instance_id = $1",
);
pub const INSTANCE_SAID: Sql = sql(
    "instance_said",
    "UPDATE instances SET said_reason = $2, said_message = $3, said_at = compute_now(), updated_at = compute_now()
     WHERE instance_id = $1",
);
pub const INSTANCE_WAIT: Sql = sql(
    "instance_wait",
    "UPDATE instances SET waiting_reason = $2, updated_at = compute_now()
     WHERE instance_id = $1 AND state = 'scheduling' AND waiting_reason <> $2",
);
pub const INSTANCE_STUCK: Sql = sql(
    "instance_stuck",
    "UPDATE instances SET stuck_at = compute_now() WHERE instance_id = $1 AND state = $2 AND stuck_at IS NULL",
);
pub const INSTANCE_END: Sql = sql(
    "instance_end",
    "UPDATE instances SET state = 'deleted', desired = 'deleted', state_since = compute_now(), stuck_at = NULL,
       waiting_reason = '', said_reason = '', said_message = '', said_at = NULL,
       user_data_secret = NULL, ended_at = compute_now(), updated_at = compute_now()
     WHERE instance_id = $1 AND ended_at IS NULL",
);

/// What an instance is read by, however it is found: with its names and its place.
macro_rules! instance_select {
    ($rest:literal) => {
        concat!(
            "SELECT i.instance_id, i.tenant_id, i.pool_id, i.flavor_id, i.image_id, i.created_by, i.name, i.state, i.desired,
       i.runtime, i.network_policy, i.vcpu, i.memory_mib, i.disk_gib, i.gpus, i.gpu_model, i.waiting_reason, i.said_reason, i.said_message,
       i.said_at, i.state_since, i.created_at, i.updated_at, i.ended_at,
       t.name AS tenant_name, p.name AS pool_name, u.name AS created_by_name, f.name AS flavor_name,
       f.numa_affine, f.pinned, f.hugepages, a.degraded, a.placed_at,
       g.name AS image_name, g.verified AS image_verified, g.login_user,
       i.user_data_secret IS NOT NULL AS user_data,
       a.allocation_id, a.node_id, n.name AS node_name, n.state AS node_state, s.last_heartbeat_at,
       a.placed_at < (SELECT restored_at FROM deployment) AS before_restore, n.dead_at IS NOT NULL AS declared_dead,
       i.exhausted_at, ARRAY(SELECT x.name FROM unnest(i.exhausted_hosts) WITH ORDINALITY w (node_id, place)
         JOIN nodes x ON x.node_id = w.node_id ORDER BY w.place) AS exhausted_hosts,
       p.policy->'recreateOnHostLoss' = 'true'::jsonb AS recreates,
       host(l.address) AS address, compute_now() AS now
     FROM instances i
     JOIN tenants t ON t.tenant_id = i.tenant_id
     JOIN pools p ON p.pool_id = i.pool_id
     JOIN users u ON u.user_id = i.created_by
     JOIN flavors f ON f.flavor_id = i.flavor_id
     JOIN images g ON g.image_id = i.image_id
     LEFT JOIN instance_allocations a ON a.instance_id = i.instance_id AND a.ended_at IS NULL AND a.left_at IS NULL
     LEFT JOIN nodes n ON n.node_id = a.node_id
     LEFT JOIN node_sessions s ON s.node_id = a.node_id
     LEFT JOIN ip_leases l ON l.allocation_id = a.allocation_id ",
            $rest
        )
    };
}

pub const INSTANCE_GET: Sql = sql("instance_get", instance_select!("WHERE i.instance_id = $1"));
/// Those of a tenant that have the name and have not ended.
pub const INSTANCES_NAMED: Sql = sql(
    "instances_named",
    instance_select!(
        "WHERE i.tenant_id = $1 AND i.name = $2 AND i.ended_at IS NULL ORDER BY i.instance_id DESC LIMIT $3"
    ),
);
pub const INSTANCES_LIST: Sql = sql(
    "instances_list",
    instance_select!(
        "WHERE i.tenant_id = $1 AND i.instance_id < $2
       AND ($3::uuid IS NULL OR i.pool_id = $3) AND ($4::text IS NULL OR p.name = $4)
       AND ($5::uuid IS NULL OR a.node_id = $5) AND ($6::text IS NULL OR n.name = $6)
       AND ($7::text IS NULL OR i.state = $7) AND ($8::text IS NULL OR i.name = $8)
       AND ($9::boolean OR i.ended_at IS NULL)
     ORDER BY i.instance_id DESC LIMIT $10"
    ),
);
/// What a node that asks for its user data must know.
pub const INSTANCE_SECRET: Sql = sql(
    "instance_secret",
    "SELECT i.tenant_id, i.desired, i.user_data_secret, a.node_id, a.allocation_id FROM instances i
     LEFT JOIN instance_allocations a ON a.instance_id = i.instance_id AND a.ended_at IS NULL AND a.left_at IS NULL
     WHERE i.instance_id = $1",
);
pub const POOL_POLICY: Sql = sql("instance_pool_policy", "SELECT policy FROM pools WHERE pool_id = $1");

// Addresses.

/// Until the transaction is over nobody else leases of this pool.
pub const ADDRESSES_LOCK: Sql = sql(
    "addresses_lock",
    "SELECT pg_advisory_xact_lock(hashtextextended('ip_leases:' || $1::uuid::text, 0)) IS NULL AS locked",
);
/// The next address that is free, of `$5` and the `$6` after it, less `$7`: the first after the one that was leased last, and
/// from the beginning again when there is none.
pub const ADDRESS_LEASE: Sql = sql(
    "address_lease",
    "WITH scope AS (SELECT CASE WHEN $4 = 'pool' THEN $2::uuid ELSE $3::uuid END AS scope_id),
     turn AS (
       SELECT coalesce((SELECT r.last - $5::text::inet FROM ip_turns r, scope s
         WHERE r.pool_id = $2 AND r.scope_id = s.scope_id
           AND r.last BETWEEN $5::text::inet AND $5::text::inet + $6::bigint), -1) AS at),
     free AS MATERIALIZED (
       SELECT $5::text::inet + w.n AS address FROM (
         SELECT generate_series(t.at + 1, $6::bigint) AS n FROM turn t
         UNION ALL SELECT generate_series(0, t.at) FROM turn t) w
       WHERE ($7::text IS NULL OR $5::text::inet + w.n <> $7::text::inet)
         AND NOT EXISTS (SELECT FROM ip_leases l WHERE l.pool_id = $2 AND l.scope = $4
           AND ($4 = 'pool' OR l.node_id = $3) AND l.address = $5::text::inet + w.n)
       LIMIT 1),
     turned AS (
       INSERT INTO ip_turns (pool_id, scope_id, last) SELECT $2, s.scope_id, f.address FROM free f, scope s
       ON CONFLICT (pool_id, scope_id) DO UPDATE SET last = excluded.last)
     INSERT INTO ip_leases (allocation_id, pool_id, node_id, scope, address)
     SELECT $1, $2, $3, $4, f.address FROM free f RETURNING host(address) AS address",
);
pub const ADDRESSES_RETURN: Sql = sql(
    "addresses_return",
    "DELETE FROM ip_leases l USING instance_allocations a
     WHERE a.instance_id = $1 AND a.left_at IS NULL AND l.allocation_id = a.allocation_id",
);

// Hosts.

pub const NODES_INSTANCES: Sql = sql(
    "nodes_instances",
    "SELECT a.node_id, a.allocation_id, a.atoms, a.cpus, a.mems, f.hugepages, i.instance_id, i.name,
       CASE WHEN a.left_at IS NULL THEN i.desired ELSE 'deleted' END AS desired, i.runtime, i.network_policy, i.vcpu, i.memory_mib, i.disk_gib,
       i.ssh_keys, i.user_data_secret, coalesce(a.left_revision, i.revision) AS revision, i.boot, g.url, g.sha256, g.format, p.policy, host(l.address) AS address
     FROM instance_allocations a
     JOIN instances i ON i.instance_id = a.instance_id
     JOIN images g ON g.image_id = i.image_id
     JOIN flavors f ON f.flavor_id = i.flavor_id
     JOIN pools p ON p.pool_id = i.pool_id
     LEFT JOIN ip_leases l ON l.allocation_id = a.allocation_id
     WHERE a.node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND a.ended_at IS NULL ORDER BY a.node_id, i.instance_id",
);
/// What is on it but for what was given up with it, and what is elsewhere by now.
pub const NODE_INSTANCES: Sql = sql(
    "node_instances",
    "SELECT i.instance_id, i.state FROM instance_allocations a JOIN instances i ON i.instance_id = a.instance_id
     JOIN nodes n ON n.node_id = a.node_id
     WHERE a.node_id = $1 AND a.ended_at IS NULL AND a.left_at IS NULL AND (i.state <> 'lost' OR n.dead_at IS NULL)
     ORDER BY i.instance_id",
);
pub const NODE_TENANT: Sql = sql(
    "instance_node_tenant",
    "SELECT p.tenant_id FROM nodes n JOIN pools p ON p.pool_id = n.pool_id WHERE n.node_id = $1",
);

// What a tenant has.

pub const TENANT_HAS: Sql = sql(
    "instances_tenant_has",
    "SELECT (SELECT count(*) FROM instances WHERE tenant_id = $1 AND ended_at IS NULL) AS instances,
            (SELECT count(*) FROM images WHERE tenant_id = $1 AND deleted_at IS NULL) AS images",
);
pub const TENANT_INSTANCES: Sql = sql(
    "instances_of_tenant",
    "SELECT instance_id FROM instances WHERE tenant_id = $1 AND desired <> 'deleted' ORDER BY instance_id LIMIT 100",
);
/// Those of which nothing is made any more.
pub const TENANT_IMAGES: Sql = sql(
    "images_of_tenant",
    "SELECT g.image_id, g.name, encode(g.sha256, 'hex') AS sha256 FROM images g
     WHERE g.tenant_id = $1 AND g.deleted_at IS NULL
       AND NOT EXISTS (SELECT 1 FROM instances i WHERE i.image_id = g.image_id AND i.ended_at IS NULL)
     ORDER BY g.image_id LIMIT 100",
);

/// For the test that prepares them.
#[cfg(test)]
pub const ALL: &[Sql] = &[
    FLAVOR_INSERT,
    FLAVOR_GET,
    FLAVOR_FIND,
    FLAVORS_LIST,
    IMAGE_INSERT,
    IMAGE_GET,
    IMAGE_ARRIVED,
    IMAGE_FIND,
    IMAGES_LIST,
    IMAGE_NAMED,
    IMAGE_KNOWN,
    INSTANCE_INSERT,
    INSTANCE_LOCK,
    INSTANCE_PLACE,
    INSTANCE_WANT,
    INSTANCE_RESHAPE,
    INSTANCE_MOVE,
    INSTANCE_SAID,
    INSTANCE_WAIT,
    INSTANCE_STUCK,
    INSTANCE_END,
    INSTANCE_GET,
    INSTANCES_NAMED,
    INSTANCES_LIST,
    INSTANCE_SECRET,
    POOL_POLICY,
    ADDRESSES_LOCK,
    ADDRESS_LEASE,
    ADDRESSES_RETURN,
    NODES_INSTANCES,
    NODE_INSTANCES,
    NODE_TENANT,
    TENANT_HAS,
    TENANT_INSTANCES,
    TENANT_IMAGES,
];

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn every_statement_prepares_on_a_migrated_database() {
        let db = testkit::db().await;
        for statements in [super::ALL, super::images::IMAGES_END, super::lost::ALL] {
            db.prepare_all(statements).await;
        }
    }
}
