use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn entry(id: u128, cpu: u64, memory: u64, pages: u64, label_bits: u128) -> Entry {
    Entry {
        cpu_millis_free: cpu,
        memory_bytes_free: memory,
        id: NodeId::from_uuid(uuid::Uuid::from_u128(id)),
        slot: id as Slot,
        hugepages_1gi_free: pages,
        // Not in step with any of the others.
        disk_bytes_free: (cpu + pages) % 3,
        label_bits,
    }
}

/// The same search in a plain list.
fn expected(held: &[Entry], ask: &Ask, policy: Policy, odd: bool) -> Option<Entry> {
    let passes = |entry: &&Entry| has(entry, ask) && (!odd || entry.slot % 2 == 1);
    let key = |entry: &Entry| match policy {
        Policy::Pack => entry.key(),
        Policy::Spread => (!entry.cpu_millis_free, !entry.memory_bytes_free, entry.id),
    };
    held.iter().filter(passes).min_by_key(|entry| key(entry)).copied()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn chunks_hold_and_find_what_a_plain_list_does(
        steps in proptest::collection::vec((0..300u128, 0..6u64, 0..6u64, 0..3u64, 0..4u128), 1..900),
        asks in proptest::collection::vec((0..7u64, 0..7u64, 0..4u64, 0..4u128, any::<bool>()), 12),
    ) {
        let (mut ranked, mut held) = (Ranked::default(), BTreeMap::new());
        for (id, cpu, memory, pages, bits) in steps {
            // One that is there goes, or comes back elsewhere in the order.
            if let Some(old) = held.remove(&id) {
                prop_assert!(ranked.remove(&old));
                prop_assert!(!ranked.remove(&old));
                if cpu == 0 {
                    continue;
                }
            }
            let entry = entry(id, cpu, memory, pages, bits);
            ranked.insert(entry);
            held.insert(id, entry);
        }
        let mut sorted: Vec<Entry> = held.into_values().collect();
        sorted.sort_by_key(Entry::key);
        prop_assert_eq!(ranked.chunks.concat(), sorted.clone());
        prop_assert!(ranked.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_MAX));
        prop_assert_eq!(ranked.most(), sorted.iter().map(Most::from).fold(Most::default(), Most::and));
        for (cpu_millis, memory_bytes, hugepages_1gi, label_bits, odd) in asks {
            let disk_bytes = (cpu_millis + memory_bytes) % 3;
            let ask = Ask { cpu_millis, memory_bytes, hugepages_1gi, disk_bytes, label_bits };
            for policy in [Policy::Pack, Policy::Spread] {
                let found = ranked.first(&ask, policy, |entry| !odd || entry.slot % 2 == 1);
                prop_assert_eq!(found.copied(), expected(&sorted, &ask, policy, odd), "{:?} {:?}", ask, policy);
            }
        }
    }
}

#[test]
fn chunks_that_shrank_are_joined() {
    let mut ranked = Ranked::default();
    let all: Vec<Entry> = (0..1000).map(|id| entry(id, id as u64, 0, 0, 0)).collect();
    all.iter().for_each(|entry| ranked.insert(*entry));
    for entry in all.iter().filter(|entry| entry.slot % 10 > 0) {
        assert!(ranked.remove(entry));
    }
    assert!(ranked.chunks.len() <= 12, "{} chunks for 100 entries", ranked.chunks.len());
}
