//! The nodes of a class in order of free CPU and memory, then id. In chunks of some dozens with a summary each, so that
//! a search passes over those in which no node can have what is wanted.

use model::NodeId;

use crate::claim::Policy;
use crate::snapshot::Slot;

/// A node in a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub cpu_millis_free: u64,
    pub memory_bytes_free: u64,
    pub id: NodeId,
    pub slot: Slot,
    pub hugepages_1gi_free: u64,
    pub disk_bytes_free: u64,
    /// Of the labels that many nodes carry; see `Labels`.
    pub label_bits: u128,
}

/// The order in which nodes are tried.
type Key = (u64, u64, NodeId);

impl Entry {
    fn key(&self) -> Key {
        (self.cpu_millis_free, self.memory_bytes_free, self.id)
    }
}

/// What a node must have, as far as an entry tells.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
    pub disk_bytes: u64,
    pub label_bits: u128,
}

/// The most that any of some nodes has of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Most {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub hugepages_1gi: u64,
    pub disk_bytes: u64,
    pub label_bits: u128,
    /// There are any.
    pub some: bool,
}

impl Most {
    /// No node of them is out of the question.
    pub fn may_have(&self, ask: &Ask) -> bool {
        self.some
            && self.cpu_millis >= ask.cpu_millis
            && self.memory_bytes >= ask.memory_bytes
            && self.hugepages_1gi >= ask.hugepages_1gi
            && self.disk_bytes >= ask.disk_bytes
            && self.label_bits & ask.label_bits == ask.label_bits
    }

    fn and(self, other: Most) -> Most {
        Most {
            cpu_millis: self.cpu_millis.max(other.cpu_millis),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            hugepages_1gi: self.hugepages_1gi.max(other.hugepages_1gi),
            disk_bytes: self.disk_bytes.max(other.disk_bytes),
            label_bits: self.label_bits | other.label_bits,
            some: self.some || other.some,
        }
    }
}

impl From<&Entry> for Most {
    fn from(entry: &Entry) -> Self {
        Most {
            cpu_millis: entry.cpu_millis_free,
            memory_bytes: entry.memory_bytes_free,
            hugepages_1gi: entry.hugepages_1gi_free,
            disk_bytes: entry.disk_bytes_free,
            label_bits: entry.label_bits,
            some: true,
        }
    }
}

/// Entries in a chunk, at most: a search looks through some of them one by one, and a change moves as many.
const CHUNK_MAX: usize = 64;

/// The chunks' summaries lie apart from their entries, which most searches leave alone.
#[derive(Debug, Default)]
pub(crate) struct Ranked {
    heads: Vec<Head>,
    /// None is empty.
    chunks: Vec<Vec<Entry>>,
    most: Most,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    last: Key,
    most: Most,
}

impl Head {
    fn of(chunk: &[Entry]) -> Head {
        let last = chunk.last().expect("no chunk is empty").key();
        Head { last, most: chunk.iter().map(Most::from).fold(Most::default(), Most::and) }
    }
}

impl Ranked {
    pub fn most(&self) -> Most {
        self.most
    }

    pub fn insert(&mut self, entry: Entry) {
        let key = entry.key();
        self.most = self.most.and(Most::from(&entry));
        if self.chunks.is_empty() {
            self.chunks.push(Vec::with_capacity(4));
            self.heads.push(Head { last: key, most: Most::default() });
        }
        let at = self.chunk_of(key).min(self.chunks.len() - 1);
        let (chunk, head) = (&mut self.chunks[at], &mut self.heads[at]);
        chunk.insert(chunk.partition_point(|held| held.key() < key), entry);
        head.last = head.last.max(key);
        head.most = head.most.and(Most::from(&entry));
        if chunk.len() > CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            *head = Head::of(chunk);
            self.heads.insert(at + 1, Head::of(&upper));
            self.chunks.insert(at + 1, upper);
        }
    }

    /// Takes out the entry with this order and id; says whether it was there.
    pub fn remove(&mut self, entry: &Entry) -> bool {
        let key = entry.key();
        let at = self.chunk_of(key);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let place = chunk.partition_point(|held| held.key() < key);
        if chunk.get(place).is_none_or(|held| held.key() != key) {
            return false;
        }
        chunk.remove(place);
        let before = self.heads[at].most;
        if chunk.is_empty() {
            self.chunks.remove(at);
            self.heads.remove(at);
        } else {
            self.heads[at] = Head::of(chunk);
            self.join_small(at);
            self.join_small(at.saturating_sub(1));
        }
        if self.heads.get(at).is_none_or(|head| head.most != before) {
            self.most = self.heads.iter().map(|head| head.most).fold(Most::default(), Most::and);
        }
        true
    }

    /// Two neighbours that fit in half of a chunk become one.
    fn join_small(&mut self, at: usize) {
        let fits = |one: &Vec<Entry>, two: &Vec<Entry>| one.len() + two.len() <= CHUNK_MAX / 2;
        if self.chunks.get(at + 1).is_some_and(|next| fits(&self.chunks[at], next)) {
            let next = self.chunks.remove(at + 1);
            self.heads.remove(at + 1);
            self.chunks[at].extend(next);
            self.heads[at] = Head::of(&self.chunks[at]);
        }
    }

    /// The chunk that has the key or would; one after the last when it is above all.
    fn chunk_of(&self, key: Key) -> usize {
        self.heads.partition_point(|head| head.last < key)
    }

    /// The best node that has what is asked for and passes `admits`.
    pub fn first(&self, ask: &Ask, policy: Policy, admits: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let nobody = NodeId::from_uuid(Default::default());
        match policy {
            Policy::Pack => self.upward((ask.cpu_millis, 0, nobody), ask, admits),
            Policy::Spread => {
                let last = self.downward(ask, &admits)?;
                // Going down, ids fall too: among nodes with as much left the lowest id is wanted.
                self.upward((last.cpu_millis_free, last.memory_bytes_free, nobody), ask, admits)
            }
        }
    }

    fn upward(&self, from: Key, ask: &Ask, admits: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let start = self.chunk_of(from);
        let heads = self.heads.iter().zip(&self.chunks).skip(start);
        heads.filter(|(head, _)| head.most.may_have(ask)).find_map(|(_, chunk)| {
            let place = chunk.partition_point(|held| held.key() < from);
            chunk[place..].iter().find(|entry| has(entry, ask) && admits(entry))
        })
    }

    fn downward(&self, ask: &Ask, admits: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let heads = self.heads.iter().zip(&self.chunks).rev();
        heads
            .take_while(|(head, _)| head.last.0 >= ask.cpu_millis)
            .filter(|(head, _)| head.most.may_have(ask))
            .find_map(|(_, chunk)| chunk.iter().rev().find(|entry| has(entry, ask) && admits(entry)))
    }
}

fn has(entry: &Entry, ask: &Ask) -> bool {
    entry.cpu_millis_free >= ask.cpu_millis
        && entry.memory_bytes_free >= ask.memory_bytes
        && entry.hugepages_1gi_free >= ask.hugepages_1gi
        && entry.disk_bytes_free >= ask.disk_bytes
        && entry.label_bits & ask.label_bits == ask.label_bits
}

#[cfg(test)]
mod tests;
