//! A map of bounded size for caches and per-caller state: when it is full, what was used least recently goes.

use std::collections::HashMap;
use std::hash::Hash;

#[derive(Debug)]
pub struct Bounded<K, V> {
    entries: HashMap<K, (V, u64)>,
    entries_max: usize,
    tick: u64,
}

impl<K: Hash + Eq + Clone, V> Bounded<K, V> {
    /// Holds at most `entries_max` entries, which is at least 1.
    pub fn new(entries_max: usize) -> Self {
        Self { entries: HashMap::new(), entries_max: entries_max.max(1), tick: 0 }
    }

    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.tick += 1;
        let (value, used) = self.entries.get_mut(key)?;
        *used = self.tick;
        Some(value)
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.tick += 1;
        if !self.entries.contains_key(&key) && self.entries.len() >= self.entries_max {
            self.forget_a_quarter();
        }
        self.entries.insert(key, (value, self.tick));
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|(value, _)| value)
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A quarter at once, so that a full map costs a constant per insert and not a scan per insert.
    fn forget_a_quarter(&mut self) {
        let mut ticks: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
        let at = (ticks.len() - 1) / 4;
        let (_, oldest_kept, _) = ticks.select_nth_unstable(at);
        let limit = *oldest_kept;
        self.entries.retain(|_, (_, used)| *used > limit);
    }
}

#[cfg(test)]
mod tests;
