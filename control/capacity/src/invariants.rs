//! What must be true of the books at any moment, asked of the rows: for tests and for whoever doubts.

use store::{Sql, Store, StoreError, sql};

/// One row that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    /// Ids and numbers.
    pub what: String,
}

pub(crate) const RULES: &[Sql] = &[
    sql(
        "no atom is in two allocations that have not ended",
        "SELECT format('%s on %s: %s allocations', atom, node_id, count(*)) AS what FROM (
           SELECT node_id, unnest(atoms) AS atom FROM allocations WHERE ended_at IS NULL
           UNION ALL
           SELECT node_id, unnest(atoms) AS atom FROM instance_allocations WHERE ended_at IS NULL) live
         GROUP BY node_id, atom HAVING count(*) > 1 ORDER BY 1",
    ),
    sql(
        "bookings are the atoms of allocations that have not ended",
        "SELECT format('%s of %s', coalesce(b.atom, l.atom), coalesce(b.allocation_id, l.allocation_id)) AS what
         FROM bookings b FULL JOIN (
           SELECT allocation_id, node_id, unnest(atoms) AS atom FROM allocations WHERE ended_at IS NULL
           UNION ALL
           SELECT allocation_id, node_id, unnest(atoms) AS atom FROM instance_allocations WHERE ended_at IS NULL) l
           ON l.allocation_id = b.allocation_id AND l.node_id = b.node_id AND l.atom = b.atom
         WHERE b.atom IS NULL OR l.atom IS NULL ORDER BY 1",
    ),
    sql(
        "a device that is gone from its node is kept while it is booked and no longer",
        "SELECT format('%s on %s', a.atom, a.node_id) AS what
         FROM atoms a LEFT JOIN bookings b ON b.node_id = a.node_id AND b.atom = a.atom
         WHERE a.health = 'absent' AND b.atom IS NULL ORDER BY 1",
    ),
    sql(
        "an allocation has its host booking until it has ended",
        "SELECT format('%s is %s', coalesce(a.allocation_id, h.allocation_id), a.state) AS what
         FROM (SELECT allocation_id, node_id, state, ended_at FROM allocations
               UNION ALL SELECT allocation_id, node_id, 'bound', ended_at FROM instance_allocations) a
         FULL JOIN host_bookings h ON h.allocation_id = a.allocation_id AND h.node_id = a.node_id
         WHERE a.allocation_id IS NULL OR (a.ended_at IS NULL) <> (h.allocation_id IS NOT NULL) ORDER BY 1",
    ),
    sql(
        "only what ended or failed is not its reservation's",
        "SELECT format('%s is %s', allocation_id, state) AS what FROM allocations
         WHERE CASE state WHEN 'released' THEN ended_at IS NULL WHEN 'failed' THEN false ELSE ended_at IS NOT NULL END
         ORDER BY 1",
    ),
    sql(
        "what is booked fits what the node offers",
        "SELECT format('%s: %s of %s, %s of %s, %s of %s, %s of %s', h.node_id, h.cpu, c.cpu_millis, h.memory, c.memory_bytes,
                       h.pages, c.hugepages_1gi, h.disk, c.disk_bytes) AS what
         FROM (SELECT node_id, sum(cpu_millis) AS cpu, sum(memory_bytes) AS memory, sum(hugepages_1gi) AS pages,
                      sum(disk_bytes) AS disk
               FROM host_bookings GROUP BY node_id) h
         LEFT JOIN node_capacity c ON c.node_id = h.node_id
         WHERE c.node_id IS NULL OR h.cpu > c.cpu_millis OR h.memory > c.memory_bytes OR h.pages > c.hugepages_1gi
            OR h.disk > c.disk_bytes
         ORDER BY 1",
    ),
    sql(
        "a CPU is pinned to an instance that is there",
        "SELECT format('%s on %s', p.cpu, p.node_id) AS what FROM pinned_cpus p
         LEFT JOIN instance_allocations a ON a.allocation_id = p.allocation_id AND a.ended_at IS NULL
         WHERE a.allocation_id IS NULL ORDER BY 1",
    ),
    sql(
        "nothing that has not ended is in a pool that is deleted",
        concat!(
            "SELECT format('%s of %s in %s', c.thing, c.about, c.pool_id) AS what FROM pools p JOIN (",
            crate::sql::pool_contents!(),
            ") c ON c.pool_id = p.pool_id WHERE p.deleted_at IS NOT NULL ORDER BY 1"
        ),
    ),
    sql(
        "a node held whole is held by one",
        "SELECT node_id::text AS what FROM host_bookings GROUP BY node_id
         HAVING bool_or(whole_node) AND count(*) > 1 ORDER BY 1",
    ),
    sql(
        "a reservation is as far as its live allocation",
        "SELECT format('%s is %s, its allocation %s', r.reservation_id, r.state, coalesce(a.state, 'none')) AS what
         FROM reservations r
         LEFT JOIN allocations a ON a.reservation_id = r.reservation_id AND a.state IN ('placed', 'bound', 'releasing')
         WHERE CASE r.state WHEN 'placed' THEN 'placed' WHEN 'active' THEN 'bound' WHEN 'releasing' THEN 'releasing' END
               IS DISTINCT FROM a.state
         ORDER BY 1",
    ),
    sql(
        "quota is held from admission to the end",
        "SELECT format('%s is %s and holds %s', r.reservation_id, r.state, coalesce(h.amount, 0)) AS what
         FROM reservations r LEFT JOIN quota_holds h ON h.reservation_id = r.reservation_id AND h.resource = 'reservations'
         WHERE (r.state IN ('scheduling', 'placed', 'active', 'releasing')) <> (h.reservation_id IS NOT NULL) ORDER BY 1",
    ),
    sql(
        "what is held of a quota is what was asked",
        "SELECT format('%s: %s %s held', r.reservation_id, w.resource, coalesce(h.amount, 0)) AS what
         FROM reservations r
         CROSS JOIN LATERAL (VALUES ('gpu', r.gpus::bigint), ('vcpu', r.vcpu::bigint),
                                    ('memoryGiB', (r.memory_mib + 1023) / 1024)) w (resource, amount)
         LEFT JOIN quota_holds h ON h.reservation_id = r.reservation_id AND h.resource = w.resource
         WHERE r.state IN ('scheduling', 'placed', 'active', 'releasing')
           AND (coalesce(h.amount, 0) < w.amount OR (coalesce(h.amount, 0) > w.amount AND NOT r.whole_node))
         ORDER BY 1",
    ),
    sql(
        "holds are of their reservation's tenant",
        "SELECT h.reservation_id::text AS what FROM quota_holds h
         JOIN reservations r ON r.reservation_id = h.reservation_id WHERE h.tenant_id <> r.tenant_id ORDER BY 1",
    ),
    sql(
        "what a tenant and those below it hold fits its quota",
        "SELECT format('%s: %s of %s %s', tenant_id, used, amount, resource) AS what FROM (
           SELECT tenant_id, resource, amount, quota_used(tenant_id, resource) + images_used(tenant_id, resource) AS used FROM quotas) q
         WHERE used > amount ORDER BY 1",
    ),
];

/// Everything that breaks a rule; empty when all is well. Each rule is asked by itself, so ask while nothing moves, or ask
/// again about what it finds. A node that shrank under what it holds is found too, and so is a quota that was lowered under it.
pub async fn invariants(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let mut found = Vec::new();
    for rule in RULES {
        let rows = store.read(rule, &[]).await?;
        found.extend(rows.iter().map(|row| Violation { rule: rule.name, what: row.get("what") }));
    }
    Ok(found)
}
