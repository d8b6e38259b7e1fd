//! Labels as small numbers, and the nodes that carry each.

use std::collections::BTreeMap;

use model::label::CAPABILITY_PREFIX;

use super::Slot;
use crate::view::Text;

/// One key with one value.
pub(crate) type Sym = u32;

/// A label that no more nodes carry is searched by its own list of nodes. One that more carry has a bit, by which the
/// index passes over nodes without it.
const NARROW_MAX: usize = 32;

struct Label {
    key: Text,
    value: Text,
    /// Ascending.
    nodes: Vec<Slot>,
    /// Several labels may share one, so that a node with the bit need not have the label. Zero when it never was on
    /// many nodes; once given it stays until no node carries the label.
    bit: u128,
}

#[derive(Default)]
pub(crate) struct Labels {
    by_key: BTreeMap<Text, BTreeMap<Text, Sym>>,
    /// Those by which nodes advertise capabilities, by the capability's name.
    capabilities: BTreeMap<Text, Sym>,
    table: Vec<Label>,
    /// Labels no node carries any more; taken first for new ones, so relabelling does not grow the table.
    vacant: Vec<Sym>,
    /// How many labels have each bit; empty until the first has one.
    bits: Vec<u32>,
}

impl Labels {
    pub fn find(&self, key: &str, value: &str) -> Option<Sym> {
        self.by_key.get(key)?.get(value).copied()
    }

    /// The label of a node that has the capability.
    pub fn find_capability(&self, name: &str) -> Option<Sym> {
        self.capabilities.get(name).copied()
    }

    pub fn nodes(&self, symbol: Sym) -> &[Slot] {
        &self.table[symbol as usize].nodes
    }

    /// The nodes of the label that fewest carry, when they are few.
    pub fn narrowest(&self, symbols: &[Sym]) -> Option<&[Slot]> {
        let nodes = symbols.iter().map(|symbol| self.nodes(*symbol)).min_by_key(|nodes| nodes.len());
        nodes.filter(|nodes| nodes.len() <= NARROW_MAX)
    }

    /// Zero for one that has none.
    pub fn bit(&self, symbol: Sym) -> u128 {
        self.table[symbol as usize].bit
    }

    pub fn text(&self, symbol: Sym) -> (&Text, &Text) {
        let label = &self.table[symbol as usize];
        (&label.key, &label.value)
    }

    /// Notes that a node carries a label. With true, the label has just got its bit, which all its nodes are to have.
    pub fn attach(&mut self, key: &str, value: &str, slot: Slot) -> (Sym, bool) {
        let symbol = self.find(key, value).unwrap_or_else(|| self.create(key, value));
        let label = &mut self.table[symbol as usize];
        if let Err(at) = label.nodes.binary_search(&slot) {
            label.nodes.insert(at, slot);
        }
        let widens = label.bit == 0 && label.nodes.len() > NARROW_MAX;
        if widens {
            self.bits.resize(u128::BITS as usize, 0);
            let least = (0..self.bits.len()).min_by_key(|at| self.bits[*at]).expect("there are bits");
            self.bits[least] += 1;
            label.bit = 1 << least;
        }
        (symbol, widens)
    }

    fn create(&mut self, key: &str, value: &str) -> Sym {
        let capability = key.strip_prefix(CAPABILITY_PREFIX).filter(|_| value == "1").map(Text::from);
        let key = self.by_key.get_key_value(key).map_or_else(|| Text::from(key), |(known, _)| known.clone());
        let value = Text::from(value);
        let label = Label { key: key.clone(), value: value.clone(), nodes: Vec::new(), bit: 0 };
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
        if let Some(name) = capability {
            self.capabilities.insert(name, symbol);
        }
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
        if label.bit != 0 {
            self.bits[label.bit.trailing_zeros() as usize] -= 1;
            label.bit = 0;
        }
        if let Some(values) = self.by_key.get_mut(&label.key) {
            values.remove(&label.value);
            if values.is_empty() {
                self.by_key.remove(&label.key);
            }
        }
        let name = label.key.strip_prefix(CAPABILITY_PREFIX);
        if let Some(name) = name.filter(|name| self.capabilities.get(*name) == Some(&symbol)) {
            self.capabilities.remove(name);
        }
        self.vacant.push(symbol);
    }
}
