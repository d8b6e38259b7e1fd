//! How many of something each of many may hold at once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// Places that are counted by who holds them and, together, against a total.
#[derive(Debug)]
pub(crate) struct Places<K> {
    total_max: usize,
    each_max: usize,
    held: Mutex<Held<K>>,
}

#[derive(Debug)]
struct Held<K> {
    total: usize,
    each: HashMap<K, usize>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    key: K,
}

impl<K: Eq + Hash + Copy> Places<K> {
    pub(crate) fn new(total_max: usize, each_max: usize) -> Arc<Self> {
        let held = Mutex::new(Held { total: 0, each: HashMap::new() });
        Arc::new(Self { total_max, each_max, held })
    }

    /// A place for `key`, unless all or all of its own are held.
    pub(crate) fn take(self: &Arc<Self>, key: K) -> Option<Place<K>> {
        let mut held = self.held.lock().expect("no holder of this lock panics");
        let of_key = held.each.get(&key).copied().unwrap_or(0);
        if held.total >= self.total_max || of_key >= self.each_max {
            return None;
        }
        held.total += 1;
        held.each.insert(key, of_key + 1);
        Some(Place { places: self.clone(), key })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut held = self.places.held.lock().expect("no holder of this lock panics");
        held.total -= 1;
        let left = held.each.get_mut(&self.key).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            held.each.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests;
