//! Labels as small numbers, and the nodes that carry each.

use std::collections::BTreeMap;

use super::Slot;
use crate::view::Text;

/// One key with one value.
pub(crate) type Sym = u32;

struct Label {
    key: Text,
    value: Text,
    /// Ascending.
    nodes: Vec<Slot>,
}

#[derive(Default)]
pub(crate) struct Labels {
    by_key: BTreeMap<Text, BTreeMap<Text, Sym>>,
    table: Vec<Label>,
    /// Labels no node carries any more; taken first for new ones, so relabelling does not grow the table.
    vacant: Vec<Sym>,
}

impl Labels {
    pub fn find(&self, key: &str, value: &str) -> Option<Sym> {
        self.by_key.get(key)?.get(value).copied()
    }

    pub fn nodes(&self, symbol: Sym) -> &[Slot] {
        &self.table[symbol as usize].nodes
    }

    pub fn text(&self, symbol: Sym) -> (&Text, &Text) {
        let label = &self.table[symbol as usize];
        (&label.key, &label.value)
    }

    pub fn attach(&mut self, key: &str, value: &str, slot: Slot) -> Sym {
        let symbol = self.find(key, value).unwrap_or_else(|| self.create(key, value));
        let nodes = &mut self.table[symbol as usize].nodes;
        if let Err(at) = nodes.binary_search(&slot) {
            nodes.insert(at, slot);
        }
        symbol
    }

    fn create(&mut self, key: &str, value: &str) -> Sym {
        let key = self.by_key.get_key_value(key).map_or_else(|| Text::from(key), |(known, _)| known.clone());
        let value = Text::from(value);
        let label = Label { key: key.clone(), value: value.clone(), nodes: Vec::new() };
        let symbol = match self.vacant.pop() {
            Some(symbol) => {
                self.table[symbol as usize] = label;
                symbol
            }
            None => {
                self.table.push(label);
                Sym::try_from(self.table.len() - 1).expect("fewer than four billion labels in use")
            }
        };
        self.by_key.entry(key).or_default().insert(value, symbol);
        symbol
    }

    pub fn detach(&mut self, symbol: Sym, slot: Slot) {
        let label = &mut self.table[symbol as usize];
        if let Ok(at) = label.nodes.binary_search(&slot) {
            label.nodes.remove(at);
        }
        if !label.nodes.is_empty() {
            return;
        }
        label.nodes = Vec::new();
        if let Some(values) = self.by_key.get_mut(&label.key) {
            values.remove(&label.value);
            if values.is_empty() {
                self.by_key.remove(&label.key);
            }
        }
        self.vacant.push(symbol);
    }
}
