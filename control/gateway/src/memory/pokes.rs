//! Wake-ups, so that each gateway hears all of them.

use std::collections::{BTreeSet, VecDeque};

use kernel::ports::delivery::Poke;
use model::NodeId;

/// Wake-ups that are remembered: who has missed more looks at everything.
const POKES_KEPT: usize = 1024;

/// What there was news of, the newest last.
#[derive(Default)]
pub(super) struct Pokes {
    /// In all.
    pub(super) count: u64,
    /// None for something that every node may be concerned by.
    last: VecDeque<Option<NodeId>>,
}

impl Pokes {
    pub(super) fn note(&mut self, node_id: Option<NodeId>) {
        self.count += 1;
        if self.last.len() == POKES_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(node_id);
    }

    /// What came since `heard` of them.
    pub(super) fn since(&self, heard: Option<u64>) -> Option<Poke> {
        let Some(heard) = heard else { return Some(Poke::Everything) };
        let missed = usize::try_from(self.count - heard).unwrap_or(usize::MAX);
        if missed == 0 {
            return None;
        }
        let Some(from) = self.last.len().checked_sub(missed) else { return Some(Poke::Everything) };
        let nodes: Option<BTreeSet<NodeId>> = self.last.range(from..).copied().collect();
        Some(nodes.map_or(Poke::Everything, Poke::Nodes))
    }
}
