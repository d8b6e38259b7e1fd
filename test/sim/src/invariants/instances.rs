//! Instances: their rows by themselves, and what hosts have beside the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{InstanceId, NodeId, Timestamp};
use store::{Row, RowExt, Sql, Store, StoreError, sql};

use super::rows::{Rule, broken, rule};
use super::{Invariant, Violation};
use crate::world::{CardView, DomainView, NodeView, World};

/// A host that is there has an instance as its row says by then: a session lost, a machine that boots, and what went wrong in
/// a pass and is tried again.
const BOUND: Duration = Duration::from_secs(5 * 60);

const RULES: &[Rule] = &[
    rule(
        Invariant::AddressesAreOnes,
        "sim_lease_of_nobody",
        "SELECT format('%s is leased for %s, which has no place', host(l.address), l.allocation_id) AS what
         FROM ip_leases l LEFT JOIN instance_allocations a ON a.allocation_id = l.allocation_id AND a.ended_at IS NULL
         WHERE a.allocation_id IS NULL ORDER BY 1",
    ),
    rule(
        Invariant::AddressesAreOnes,
        "sim_leased_twice",
        "SELECT format('%s is leased %s times', host(address), count(*)) AS what FROM ip_leases
         GROUP BY pool_id, CASE scope WHEN 'host' THEN node_id END, address HAVING count(*) > 1 ORDER BY 1",
    ),
    rule(
        Invariant::AddressesAreOnes,
        "sim_without_address",
        "SELECT format('%s is in a network and has no address there', a.instance_id) AS what
         FROM instance_allocations a JOIN instances i USING (instance_id) JOIN pools p ON p.pool_id = i.pool_id
         LEFT JOIN ip_leases l ON l.allocation_id = a.allocation_id
         WHERE a.ended_at IS NULL AND p.policy->'network' IS NOT NULL AND l.allocation_id IS NULL ORDER BY 1",
    ),
    // A MAC is made of the end of the id.
    rule(
        Invariant::AddressesAreOnes,
        "sim_macs",
        "SELECT format('%s has the MAC of %s others', min(instance_id::text), count(*) - 1) AS what FROM instances
         WHERE ended_at IS NULL GROUP BY right(instance_id::text, 10) HAVING count(*) > 1 ORDER BY 1",
    ),
    rule(
        Invariant::QuotasAreTheirRows,
        "sim_instance_holds",
        "SELECT format('%s is %s: %s %s is held of %s', coalesce(w.instance_id, h.instance_id), w.state, coalesce(h.amount, 0),
                  coalesce(w.resource, h.resource), coalesce(w.amount, 0)) AS what
         FROM (
           SELECT i.instance_id, i.tenant_id, i.state, r.resource, r.amount FROM instances i CROSS JOIN LATERAL (VALUES
             ('gpu', i.gpus::bigint), ('vcpu', i.vcpu::bigint), ('memoryGiB', (i.memory_mib + 1023) / 1024),
             ('diskGiB', i.disk_gib)) r (resource, amount)
           WHERE i.ended_at IS NULL AND r.amount > 0) w
         FULL JOIN instance_holds h ON h.instance_id = w.instance_id AND h.resource = w.resource
         WHERE h.amount IS DISTINCT FROM w.amount OR h.tenant_id IS DISTINCT FROM w.tenant_id ORDER BY 1",
    ),
    rule(
        Invariant::BooksAreSound,
        "sim_instance_places",
        "SELECT format('%s is %s and has %s places', i.instance_id, i.state, count(a.allocation_id)) AS what
         FROM instances i LEFT JOIN instance_allocations a ON a.instance_id = i.instance_id AND a.ended_at IS NULL
           AND a.left_at IS NULL
         GROUP BY i.instance_id
         HAVING count(a.allocation_id) <> CASE WHEN i.state IN ('pending', 'scheduling', 'deleted') THEN 0 ELSE 1 END ORDER BY 1",
    ),
    // What runs an instance takes a thirty-second of its memory and 256 MiB.
    rule(
        Invariant::BooksAreSound,
        "sim_instance_bookings",
        "SELECT format('%s: %s and %s are booked for %s and %s MiB', i.instance_id, h.cpu_millis, h.memory_bytes, i.vcpu,
                  i.memory_mib) AS what
         FROM instances i JOIN instance_allocations a ON a.instance_id = i.instance_id AND a.ended_at IS NULL
           AND a.left_at IS NULL
         JOIN host_bookings h ON h.allocation_id = a.allocation_id
         WHERE h.cpu_millis <> i.vcpu * 1000
            OR h.memory_bytes <> i.memory_mib * 1048576 + i.memory_mib * 1048576 / 32 + 268435456
            OR h.disk_bytes <> i.disk_gib * 1073741824 ORDER BY 1",
    ),
];

pub(super) async fn rows(store: &Store) -> Result<Vec<Violation>, StoreError> {
    broken(store, RULES).await
}

/// What must be true of hosts whatever the rows say.
pub(super) fn by_themselves(world: &World<'_>, restored: bool) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut running: BTreeMap<InstanceId, &NodeView> = BTreeMap::new();
    let mut owners: BTreeMap<(&str, &str), InstanceId> = BTreeMap::new();
    for (node, domain) in all(world.nodes) {
        let id = domain.instance_id;
        if domain.running
            && let Some(other) = running.insert(id, node)
            // Whoever declared it dead answers for it until the host has heard.
            && !other.declared_dead
            && !node.declared_dead
        {
            let what = format!("{id} runs on machines {} and {}", other.index, node.index);
            found.push(Violation::new(Invariant::RunsOnce, what));
        }
        // What an older database does not know is kept, and the database gives its address to others.
        if restored {
            continue;
        }
        // The hosts of a pool are one network, on bridges of one name.
        for CardView { mac, bridge, addresses } in &domain.cards {
            for own in addresses.iter().map(String::as_str).chain([mac.as_str()]) {
                let owner = *owners.entry((bridge, own)).or_insert(id);
                if owner != id {
                    let what = format!("{own} on {bridge} is that of {owner} and of {id}");
                    found.push(Violation::new(Invariant::AddressesAreOnes, what));
                }
            }
        }
    }
    let unasked = world.destroyed.iter().filter(|one| !one.intended);
    found.extend(unasked.map(|one| {
        let (node, id, generation) = (one.node_id, one.instance_id, one.generation);
        let what = format!("{id} went from {node}, and spec {generation} had no entry that said so");
        Violation::new(Invariant::DestroyedByIntent, what)
    }));
    found
}

fn all(nodes: &[NodeView]) -> impl Iterator<Item = (&NodeView, &DomainView)> {
    nodes.iter().flat_map(|node| node.domains.iter().map(move |domain| (node, domain)))
}

const PLACED: Sql = sql(
    "sim_placed",
    "SELECT i.instance_id, i.state, i.state_since, i.revision, i.boot, i.vcpu, i.memory_mib, a.node_id, host(l.address) AS address,
       n.state IN ('revoked', 'removed') AS gone,
       n.state = 'ready' AND n.quarantined_at IS NULL AND s.closed_at IS NULL AND NOT d.observe_only
         AND s.last_heartbeat_at > compute_now() - interval '30 seconds' AS there,
       compute_now() AS now
     FROM instance_allocations a JOIN instances i USING (instance_id) JOIN nodes n USING (node_id)
     LEFT JOIN node_sessions s USING (node_id) LEFT JOIN ip_leases l ON l.allocation_id = a.allocation_id
     CROSS JOIN deployment d
     WHERE a.ended_at IS NULL AND a.left_at IS NULL ORDER BY 1",
);
/// What instances left on hosts, which are to delete it.
const LEFT_BEHIND: Sql = sql(
    "sim_left_behind",
    "SELECT instance_id, node_id FROM instance_allocations WHERE ended_at IS NULL AND left_at IS NOT NULL ORDER BY 1, 2",
);

/// Since when each instance is otherwise than its row says, by its revision.
#[derive(Default)]
pub(super) struct Hosts {
    otherwise: BTreeMap<(InstanceId, i64), Timestamp>,
}

impl Hosts {
    /// Hosts beside the rows. At rest nothing may be otherwise for any time.
    pub async fn look(&mut self, world: &World<'_>, at_rest: bool) -> Result<Vec<Violation>, StoreError> {
        let rows = world.store.read(&PLACED, &[]).await?;
        let placed: BTreeMap<InstanceId, &Row> =
            rows.iter().map(|row| (row.id("instance_id"), row)).collect();
        let left: BTreeSet<(InstanceId, Option<NodeId>)> = world
            .store
            .read(&LEFT_BEHIND, &[])
            .await?
            .iter()
            .map(|row| (row.id("instance_id"), Some(row.id("node_id"))))
            .collect();
        let mut found = Vec::new();
        let mut wrong = |what: String| found.push(Violation::new(Invariant::HostsHaveWhatRowsSay, what));
        for (node, domain) in all(world.nodes) {
            let id = domain.instance_id;
            if left.contains(&(id, node.node_id)) {
                continue;
            }
            match placed.get(&id) {
                None => wrong(format!("machine {} has {id}, and no row places it anywhere", node.index)),
                Some(row) if node.node_id != Some(row.id::<NodeId>("node_id")) => {
                    wrong(format!(
                        "machine {} has {id}, whose place is on {}",
                        node.index,
                        row.id::<NodeId>("node_id")
                    ));
                }
                Some(row) if !has_address(domain, row.get("address")) => {
                    let address: Option<&str> = row.get("address");
                    wrong(format!(
                        "machine {} has {id} at {:?}, and not at {address:?}",
                        node.index, domain.cards
                    ));
                }
                Some(_) => {}
            }
        }
        for (id, row) in &placed {
            found.extend(taken_for_done(world.nodes, *id, row));
        }
        let mut wrong = |what: String| found.push(Violation::new(Invariant::HostsHaveWhatRowsSay, what));
        let mut still = BTreeMap::new();
        for (id, row) in placed {
            let Some(what) = otherwise(world.nodes, id, row) else { continue };
            let (key, now) = ((id, row.get("revision")), row.ts("now"));
            let since = self.otherwise.get(&key).copied().unwrap_or(now);
            still.insert(key, since);
            if at_rest || now.since(since) > BOUND {
                wrong(format!("{what}, for {} s by now", now.since(since).as_secs()));
            }
        }
        self.otherwise = still;
        Ok(found)
    }
}

fn has_address(domain: &DomainView, leased: Option<&str>) -> bool {
    let has = domain.cards.iter().flat_map(|card| &card.addresses);
    has.map(|address| address.split('/').next().unwrap_or_default()).eq(leased)
}

fn on_host<'a>(nodes: &'a [NodeView], id: InstanceId, row: &Row) -> Option<&'a DomainView> {
    let node_id: NodeId = row.id("node_id");
    let here =
        |(node, domain): &(&NodeView, &DomainView)| node.node_id == Some(node_id) && domain.instance_id == id;
    all(nodes).find(here).map(|(_, domain)| domain)
}

/// A row is settled by its host's word, so what the row says has happened there. Between that word and the next thing that is
/// asked, a machine that goes down may stop what runs, and nothing starts what was stopped.
fn taken_for_done(nodes: &[NodeView], id: InstanceId, row: &Row) -> Option<Violation> {
    let (state, boot): (&str, i64) = (row.get("state"), row.get("boot"));
    let domain = on_host(nodes, id, row);
    let what = match (state, domain) {
        ("running" | "stopped", None) => format!("{id} is {state}, and its host has nothing of it"),
        ("running", Some(domain)) if domain.boot < boot => {
            format!("{id} is running by start {boot}, and its host has made start {}", domain.boot)
        }
        ("running", Some(domain)) if domain.boot == boot && domain.boot_since > row.ts("state_since") => {
            let (said, made) = (row.ts("state_since"), domain.boot_since);
            format!("{id} is running since {said}, and its host made start {boot} at {made}")
        }
        ("stopped", Some(domain)) if domain.running => format!("{id} is stopped, and runs on its host"),
        _ => return None,
    };
    Some(Violation::new(Invariant::HostsHaveWhatRowsSay, what))
}

/// What a settled instance is on its host, if it is not as its row says and its host is there to see to it.
fn otherwise(nodes: &[NodeView], id: InstanceId, row: &Row) -> Option<String> {
    let runs = match row.get("state") {
        "running" => true,
        "stopped" => false,
        _ => return None,
    };
    if !row.get::<_, bool>("there") {
        return None;
    }
    let node_id: NodeId = row.id("node_id");
    let domain = on_host(nodes, id, row)?;
    let size = (row.get::<_, i32>("vcpu"), row.get::<_, i64>("memory_mib") << 20);
    if domain.running != runs {
        Some(format!("that {id} runs is {} on {node_id}", domain.running))
    } else if runs && (i64::from(domain.vcpus), domain.memory_bytes) != (i64::from(size.0), size.1) {
        Some(format!("{id} runs on {node_id} with {} CPUs and {} bytes", domain.vcpus, domain.memory_bytes))
    } else {
        None
    }
}

const LEFT: &[Rule] = &[
    rule(
        Invariant::NothingLeft,
        "sim_left_instances",
        "SELECT format('%s is %s', instance_id, state) AS what FROM instances WHERE ended_at IS NULL ORDER BY 1",
    ),
    rule(
        Invariant::NothingLeft,
        "sim_left_rows",
        "SELECT format('the place %s of %s', allocation_id, instance_id) AS what FROM instance_allocations WHERE ended_at IS NULL
         UNION ALL SELECT format('the lease of %s', host(address)) FROM ip_leases
         UNION ALL SELECT format('%s %s of %s', amount, resource, instance_id) FROM instance_holds
         UNION ALL SELECT format('a booking of %s', h.allocation_id) FROM host_bookings h JOIN instance_allocations USING (allocation_id)
         UNION ALL SELECT format('a booking of %s', b.atom) FROM bookings b JOIN instance_allocations USING (allocation_id)
         ORDER BY 1",
    ),
];

/// Once everything was deleted. What an older database does not know stays on its hosts until a person looks.
pub(super) async fn left(world: &World<'_>, restored: bool) -> Result<Vec<Violation>, StoreError> {
    let mut found = broken(world.store, LEFT).await?;
    if restored {
        return Ok(found);
    }
    found.extend(all(world.nodes).map(|(node, domain)| {
        let what = format!("{} on machine {}", domain.instance_id, node.index);
        Violation::new(Invariant::NothingLeft, what)
    }));
    Ok(found)
}
