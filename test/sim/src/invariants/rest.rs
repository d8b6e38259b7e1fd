//! What is true of a world at rest: nothing is put in any more, every node is there, and everybody had the time to finish.

use std::collections::BTreeSet;

use model::{AllocationId, InstanceId, NodeId};
use store::{RowExt, Sql, Store, StoreError, sql};
use wire::proto::agent::{DesiredHold, DesiredInstance, DesiredStateBody, InstancesSection};

use super::rows::{Rule, broken, rule};
use super::{Invariant, Violation};

/// No handler of a queue asks to look again by itself, so nothing but a retry may be scheduled; but an instance is looked at
/// again in half an hour at most, whatever became of it.
const RULES: &[Rule] = &[
    rule(
        Invariant::LoopsRest,
        "sim_rest_work",
        "SELECT format('%s %s is %s, due %s, after %s failures: %s', queue, key, state, run_at, attempts, last_error) AS what
         FROM work
         WHERE NOT (queue = 'instance' AND state = 'ready' AND attempts = 0
           AND run_at > compute_now() AND run_at <= compute_now() + interval '30 minutes')
         UNION ALL SELECT format('%s %s was woken', queue, key) FROM work_wake_keys ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_outbox",
        "SELECT format('%s of %s has no number', kind, subject) AS what FROM outbox_events ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_inbox",
        "SELECT format('%s %s is not answered', kind, inbox_id) AS what FROM join_inbox WHERE answered_at IS NULL ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_node_events",
        "SELECT format('%s %s is not handled', node_id, seq) AS what FROM node_events WHERE handled_at IS NULL ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_commands",
        "SELECT format('%s is %s, handled %s', command_id, state, handled_at) AS what FROM commands
         WHERE settled_at IS NULL OR handled_at IS NULL ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_allocations",
        "SELECT format('%s is %s', allocation_id, state) AS what FROM allocations
         WHERE ended_at IS NULL AND state <> 'bound' ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_left_behind",
        "SELECT format('%s left %s, and %s has it yet', instance_id, allocation_id, node_id) AS what FROM instance_allocations
         WHERE ended_at IS NULL AND left_at IS NOT NULL ORDER BY 1",
    ),
    rule(
        Invariant::LoopsRest,
        "sim_rest_generations",
        "SELECT format('%s is at %s of %s', n.node_id, coalesce(s.observed_generation, 0), n.generation) AS what
         FROM nodes n LEFT JOIN node_status s USING (node_id)
         WHERE n.state = 'ready' AND coalesce(s.observed_generation, 0) <> n.generation ORDER BY 1",
    ),
];

pub(super) async fn all(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let mut found = broken(store, RULES).await?;
    found.extend(specs(store).await?);
    Ok(found)
}

const SPECS: Sql = sql(
    "sim_specs",
    "SELECT node_id, generation, spec_body FROM nodes
     WHERE spec_body IS NOT NULL AND state IN ('accepting', 'ready', 'unreachable', 'lost') ORDER BY node_id",
);
const ENDED: Sql = sql(
    "sim_ended",
    "SELECT node_id, allocation_id FROM allocations WHERE ended_at IS NOT NULL ORDER BY 1, 2",
);
const UNENDED: Sql = sql(
    "sim_unended",
    "SELECT node_id, allocation_id, state IN ('placed', 'bound') AS held FROM allocations WHERE ended_at IS NULL ORDER BY 1, 2",
);

const PLACED: Sql = sql(
    "sim_placed_instances",
    "SELECT a.node_id, i.instance_id, CASE WHEN a.left_at IS NULL THEN i.desired ELSE 'deleted' END AS desired,
       coalesce(a.left_revision, i.revision) AS revision FROM instance_allocations a JOIN instances i USING (instance_id)
     WHERE a.ended_at IS NULL ORDER BY 1, 2",
);

/// An instance on a node, what is wanted of it, and of which revision.
type Entry = (NodeId, String, String, u64);

fn entries(node_id: NodeId, section: &InstancesSection) -> impl Iterator<Item = Entry> {
    wire::instance::instances(section).into_iter().flatten().map(move |entry| {
        let desired = match entry.desired() {
            DesiredInstance::Running => "running",
            DesiredInstance::Stopped => "stopped",
            DesiredInstance::Deleted => "deleted",
            DesiredInstance::Unspecified => "unspecified",
        };
        (node_id, entry.instance_id.clone(), desired.to_owned(), entry.revision)
    })
}

/// Each node's newest spec asks for its allocations that have not ended, and says of each whether it is to be held. What has
/// ended since it was signed it may name as released. It has an entry for each instance that has its place there, as it is
/// wanted, and no other.
async fn specs(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let mut wanted: BTreeSet<(NodeId, String, bool)> = BTreeSet::new();
    for row in store.read(&UNENDED, &[]).await? {
        let id: AllocationId = row.id("allocation_id");
        wanted.insert((row.id("node_id"), id.to_string(), row.get("held")));
    }
    let mut placed: BTreeSet<Entry> = BTreeSet::new();
    for row in store.read(&PLACED, &[]).await? {
        let (id, desired): (InstanceId, &str) = (row.id("instance_id"), row.get("desired"));
        let revision = u64::try_from(row.get::<_, i64>("revision")).unwrap_or(0);
        placed.insert((row.id("node_id"), id.to_string(), desired.to_owned(), revision));
    }
    let mut found = Vec::new();
    let mut asked = BTreeSet::new();
    let mut named = BTreeSet::new();
    for row in store.read(&SPECS, &[]).await? {
        let node_id: NodeId = row.id("node_id");
        let wrong = |why: String| Violation::new(Invariant::SpecsSayTheRows, format!("{node_id}: {why}"));
        let body: &[u8] = row.get("spec_body");
        let body = match wire::decode::<DesiredStateBody>("spec", body, wire::limits::SPEC_BODY_BYTES_MAX) {
            Ok(body) => body,
            Err(err) => {
                found.push(wrong(err.to_string()));
                continue;
            }
        };
        if body.node_id != node_id.to_string() || i64::try_from(body.generation) != Ok(row.get("generation"))
        {
            found.push(wrong(format!("it is signed for {} at {}", body.node_id, body.generation)));
        }
        let spec = body.spec.unwrap_or_default();
        let section = spec.instances.unwrap_or_default();
        named.extend(entries(node_id, &section));
        let devices = spec.devices.unwrap_or_default();
        for assignment in devices.assignments {
            let held = assignment.desired() == DesiredHold::Held;
            asked.insert((node_id, assignment.allocation_id, held));
        }
    }
    let mut over: BTreeSet<(NodeId, String, bool)> = BTreeSet::new();
    for row in store.read(&ENDED, &[]).await? {
        let id: AllocationId = row.id("allocation_id");
        over.insert((row.id("node_id"), id.to_string(), false));
    }
    let asked: BTreeSet<_> = asked.difference(&over).cloned().collect();
    for (node_id, allocation_id, held) in wanted.symmetric_difference(&asked) {
        let by =
            if asked.contains(&(*node_id, allocation_id.clone(), *held)) { "its spec" } else { "the rows" };
        let what = format!("{node_id}: {allocation_id}, held {held}, is said by {by} alone");
        found.push(Violation::new(Invariant::SpecsSayTheRows, what));
    }
    for one in placed.symmetric_difference(&named) {
        let by = if named.contains(one) { "its spec" } else { "the rows" };
        let (node_id, instance_id, desired, revision) = one;
        let what =
            format!("{node_id}: {instance_id}, {desired} of revision {revision}, is said by {by} alone");
        found.push(Violation::new(Invariant::SpecsSayTheRows, what));
    }
    Ok(found)
}
