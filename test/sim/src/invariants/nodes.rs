//! The nodes themselves, and the nodes beside the rows.

use std::collections::{BTreeMap, BTreeSet};

use model::{AllocationId, CommandId, JournalId, NodeId};
use store::{RowExt, Sql, StoreError, sql};

use super::{Invariant, Violation};
use crate::world::{NodeView, World};

/// What must be true of machines whatever the rows say: cheap, since nothing is asked.
pub(super) fn by_themselves(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    held_twice(world.nodes, &mut found);
    for node in world.nodes {
        done_twice(node, &mut found);
        if node.acked_event_seq > node.last_event_seq {
            let what = format!(
                "{} has {} events acknowledged and wrote {}",
                shown(node),
                node.acked_event_seq,
                node.last_event_seq
            );
            found.push(Violation::new(Invariant::AcknowledgedIsStored, what));
        }
    }
    let unasked = world.releases.iter().filter(|release| !release.intended);
    found.extend(unasked.map(|release| {
        let (node, allocation, generation) = (release.node_id, release.allocation_id, release.generation);
        let what = format!("{allocation} went from {node}, and no spec up to {generation} said so");
        Violation::new(Invariant::DestroyedByIntent, what)
    }));
    found
}

fn shown(node: &NodeView) -> String {
    node.node_id.map_or_else(|| format!("machine {}", node.index), |id| id.to_string())
}

fn held_twice(nodes: &[NodeView], found: &mut Vec<Violation>) {
    let mut holders: BTreeMap<&str, (usize, AllocationId)> = BTreeMap::new();
    for node in nodes {
        for hold in &node.holds {
            for atom in &hold.atoms {
                let here = (node.index, hold.allocation_id);
                let before = *holders.entry(atom).or_insert(here);
                if before != here {
                    let (there, other) = before;
                    let what = format!(
                        "{atom} is held for {other} on machine {there} and for {} on {}",
                        here.1, here.0
                    );
                    found.push(Violation::new(Invariant::AtomsHeldOnce, what));
                }
            }
        }
    }
}

fn done_twice(node: &NodeView, found: &mut Vec<Violation>) {
    let mut done: BTreeSet<CommandId> = BTreeSet::new();
    for effect in node.effects.iter().filter(|effect| !effect.kind.policy().retry_safe) {
        if !done.insert(effect.command_id) {
            let what =
                format!("{} of {} ran twice on {}", effect.kind.name(), effect.command_id, shown(node));
            found.push(Violation::new(Invariant::EffectsOnce, what));
        }
    }
}

/// What a journal remembered the highest of, at the look before.
#[derive(Default)]
pub(super) struct Marks(BTreeMap<(usize, JournalId, &'static str), u64>);

impl Marks {
    pub fn look(&mut self, nodes: &[NodeView]) -> Vec<Violation> {
        let mut found = Vec::new();
        for node in nodes {
            let marks = [
                ("generation", node.marks.generation),
                ("deployment epoch", node.marks.deployment_epoch),
                ("event", node.last_event_seq),
                ("acknowledgement", node.acked_event_seq),
            ];
            for (name, value) in marks {
                let before = self.0.entry((node.index, node.journal_id, name)).or_insert(value);
                if value < *before {
                    let what = format!("the {name} of {} fell from {before} to {value}", shown(node));
                    found.push(Violation::new(Invariant::NothingGoesBack, what));
                }
                *before = value;
            }
        }
        found
    }
}

const ALLOCATIONS: Sql = sql(
    "sim_allocations",
    "SELECT a.allocation_id, a.node_id, a.ended_at, a.atoms, n.state IN ('revoked', 'removed') AS gone
     FROM allocations a JOIN nodes n USING (node_id) ORDER BY 1",
);

/// Holds beside the allocations they are for. A hold of an allocation that has ended is one whose devices are another's by now.
pub(super) async fn beside_rows(world: &World<'_>) -> Result<Vec<Violation>, StoreError> {
    let mut rows = BTreeMap::new();
    for row in world.store.read(&ALLOCATIONS, &[]).await? {
        rows.insert(row.id::<AllocationId>("allocation_id"), row);
    }
    let mut found = Vec::new();
    for node in world.nodes {
        for hold in &node.holds {
            let id = hold.allocation_id;
            let why = match rows.get(&id) {
                None => "no row knows it".to_owned(),
                Some(row) if Some(row.id::<NodeId>("node_id")) != node.node_id => {
                    format!("its row is on {}", row.id::<NodeId>("node_id"))
                }
                // Nobody speaks for the node any more; what is on it is a person's to judge.
                Some(row) if row.get("gone") => continue,
                Some(row) if row.opt_ts("ended_at").is_some() => "its row has ended".to_owned(),
                Some(row) if atoms_differ(&hold.atoms, row.get("atoms")) => {
                    "its row has other devices".to_owned()
                }
                Some(_) => continue,
            };
            let what = format!("{} holds {id}: {why}", shown(node));
            found.push(Violation::new(Invariant::NodesHoldWhatRowsSay, what));
        }
    }
    Ok(found)
}

fn atoms_differ(held: &[String], mut booked: Vec<String>) -> bool {
    let mut held = held.to_vec();
    held.sort_unstable();
    booked.sort_unstable();
    held != booked
}
