//! Finds the statements that may concern an action by walking the action's bytes down a radix tree, so that a
//! decision does not look at the rest.

use crate::template::Template;

/// Patterns by the text they start with.
#[derive(Debug, Default)]
pub(crate) struct Index {
    root: Option<Node>,
}

#[derive(Debug)]
struct Node {
    /// Bytes between the parent and this node. Empty only at the root.
    label: Box<[u8]>,
    /// For actions that end here.
    exact: Box<[u32]>,
    /// For actions that pass through here or end here.
    open: Box<[Hit]>,
    /// By the first byte of their labels, which differ.
    children: Box<[Node]>,
}

/// A statement whose pattern starts with the walked text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hit {
    pub(crate) statement: u32,
    /// Whether the rest of the action matches already, because the pattern ends in its only wildcard `*`.
    pub(crate) certain: bool,
}

/// A pattern on its way into the index, in the order the tree is built.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry<'a> {
    prefix: &'a [u8],
    open: bool,
    hit: Hit,
}

impl Index {
    /// `patterns` in any order, each with its statement.
    pub(crate) fn build<'a>(patterns: impl Iterator<Item = (u32, &'a Template)>) -> Self {
        let mut entries: Vec<Entry<'a>> = patterns
            .map(|(statement, pattern)| Entry {
                prefix: pattern.literal_prefix().as_bytes(),
                open: !matches!(pattern, Template::Exact(_)),
                hit: Hit { statement, certain: !matches!(pattern, Template::General(_)) },
            })
            .collect();
        entries.sort_unstable();
        entries.dedup();
        Self { root: (!entries.is_empty()).then(|| node(&entries, 0)) }
    }

    /// Calls back for every pattern that may match. A statement with several of them is named several times.
    pub(crate) fn visit(&self, action: &str, mut found: impl FnMut(Hit)) {
        let mut rest = action.as_bytes();
        let mut next = self.root.as_ref();
        while let Some(node) = next {
            let Some(after) = rest.strip_prefix(&*node.label) else { return };
            node.open.iter().for_each(|hit| found(*hit));
            let Some(first) = after.first() else {
                node.exact.iter().for_each(|statement| found(Hit { statement: *statement, certain: true }));
                return;
            };
            rest = after;
            next = node.children.iter().find(|child| child.label[0] == *first);
        }
    }
}

/// The tree over sorted, non-empty `entries` that agree in their first `depth` bytes. Its depth is at most a
/// pattern's length.
fn node(entries: &[Entry<'_>], depth: usize) -> Node {
    let (first, last) = (&entries[0].prefix[depth..], &entries[entries.len() - 1].prefix[depth..]);
    // Entries are sorted, so what the first and the last share all share.
    let shared = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let end = depth + shared;
    let here = entries.partition_point(|entry| entry.prefix.len() == end);
    let (here, below) = entries.split_at(here);
    let open = here.iter().filter(|entry| entry.open).map(|entry| entry.hit).collect();
    let exact = here.iter().filter(|entry| !entry.open).map(|entry| entry.hit.statement).collect();
    let children =
        below.chunk_by(|a, b| a.prefix[end] == b.prefix[end]).map(|children| node(children, end)).collect();
    Node { label: first[..shared].into(), exact, open, children }
}

#[cfg(test)]
mod tests;
