//! The same question asked of every node, with numbers, and what would fit instead. It looks at every node, so it is
//! for people, not for the loop that places.

mod hint;
mod reason;

use std::collections::BTreeMap;
use std::fmt;

use model::NodeId;

pub use hint::Hint;
pub use reason::Reason;

use crate::claim::{Claim, Policy};
use crate::decide::Wanted;
use crate::placement::Score;
use crate::snapshot::Snapshot;
use crate::view::Text;

/// Names a group shows.
const NAMES_MAX: usize = 3;

/// What a claim meets on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Rank 1 is the node [`Snapshot::place`] takes.
    Fits { rank: u32, score: Score },
    /// The first check that fails.
    Refused(Reason),
}

/// Nodes that refuse for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Of the node that comes nearest, where numbers differ.
    pub reason: Reason,
    /// Whether the numbers differ between the nodes.
    pub varies: bool,
    pub count: usize,
    /// The first few by name.
    pub names: Vec<Text>,
}

/// Why no node takes a claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no node takes the claim: {} nodes looked at", nodes.len())]
pub struct NoFit {
    /// The largest first.
    pub groups: Vec<Group>,
    /// Every node, in order of id.
    pub nodes: Vec<(NodeId, Reason)>,
    /// What would fit now, the nearest to the claim first.
    pub hints: Vec<Hint>,
}

impl Snapshot {
    /// Why each node fits or does not: those that fit first, by rank, then the others by name.
    pub fn explain(&self, claim: &Claim, policy: Policy) -> Vec<(NodeId, Verdict)> {
        let mut scores: Vec<Score> = Vec::new();
        let mut refused: Vec<(&Text, NodeId, Reason)> = Vec::new();
        let wanted = Wanted::read(self, claim, policy);
        for node in self.all() {
            match reason::of(self, node, claim) {
                Some(reason) => refused.push((&node.name, node.id, reason)),
                None => {
                    let devices = wanted.as_ref().and_then(|wanted| self.best_class(node, wanted));
                    let (devices, _) =
                        devices.expect("a node without a reason against it is in a class that fits");
                    scores.push(wanted.as_ref().expect("read, as a node fits").score(node, devices));
                }
            }
        }
        scores.sort_unstable();
        refused.sort_unstable_by_key(|(name, id, _)| (*name, *id));
        let ranked = (1..).zip(scores).map(|(rank, score)| (score.node, Verdict::Fits { rank, score }));
        ranked.chain(refused.into_iter().map(|(_, id, reason)| (id, Verdict::Refused(reason)))).collect()
    }
}

impl NoFit {
    /// Of a claim no node takes.
    pub(crate) fn of(snapshot: &Snapshot, claim: &Claim, policy: Policy) -> NoFit {
        let mut nodes = Vec::with_capacity(snapshot.len());
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        for node in snapshot.all() {
            let Some(reason) = reason::of(snapshot, node, claim) else { continue };
            groups.entry(reason.group()).and_modify(|group| group.add(&reason, &node.name)).or_insert_with(
                || Group { reason: reason.clone(), varies: false, count: 1, names: vec![node.name.clone()] },
            );
            nodes.push((node.id, reason));
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.names.cmp(&b.names)));
        let hints = hint::hints(snapshot, claim, policy, &nodes);
        NoFit { groups, nodes, hints }
    }
}

impl Group {
    fn add(&mut self, reason: &Reason, name: &Text) {
        self.count += 1;
        self.varies |= self.reason != *reason;
        if reason.nearness() > self.reason.nearness() {
            self.reason = reason.clone();
        }
        let at = self.names.partition_point(|known| known < name);
        if at < NAMES_MAX {
            self.names.insert(at, name.clone());
            self.names.truncate(NAMES_MAX);
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = if self.count == 1 { "node" } else { "nodes" };
        write!(f, "{} {nodes} ({}", self.count, self.names.join(", "))?;
        let more = if self.count > self.names.len() { ", …" } else { "" };
        let at_most = if self.varies { "at best: " } else { "" };
        write!(f, "{more}): {at_most}{}", self.reason)
    }
}
