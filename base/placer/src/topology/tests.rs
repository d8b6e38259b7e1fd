use proptest::prelude::*;

use super::*;

fn cell(numa: u16, island: u16, free: u16) -> Cell {
    Cell { numa, island, memory_bytes: 80, free }
}

fn takes(cells: &[Cell], wanted: u32) -> Vec<u16> {
    choose(cells, wanted, 0).expect("it fits").takes
}

#[test]
fn one_numa_node_of_an_island_is_taken_before_two() {
    let board = [cell(0, 1, 4), cell(1, 1, 4)];
    assert_eq!(takes(&board, 4), [4, 0]);
    assert_eq!(takes(&[cell(0, 1, 3), cell(1, 1, 4)], 4), [0, 4]);
    assert_eq!(takes(&board, 6), [4, 2]);
}

#[test]
fn the_tightest_place_is_taken_so_that_larger_ones_stay_whole() {
    assert_eq!(takes(&[cell(0, 1, 4), cell(1, 2, 2)], 2), [0, 2]);
    assert_eq!(takes(&[cell(0, 1, 2), cell(0, NO_ISLAND, 1)], 1), [0, 1]);
    assert_eq!(choose(&[cell(0, 1, 4)], 2, 0).map(|choice| choice.broken), Some(1));
    assert_eq!(choose(&[cell(0, 1, 4)], 4, 0).map(|choice| choice.broken), Some(0));
}

#[test]
fn bridged_pairs_are_taken_on_one_numa_node() {
    let cells = [cell(0, 1, 2), cell(0, 2, 1), cell(1, 3, 2), cell(1, 4, 2)];
    let choice = choose(&cells, 4, 0).expect("it fits");
    assert_eq!((choice.takes, choice.islands, choice.numa_nodes), (vec![0, 0, 2, 2], 2, 1));
}

#[test]
fn devices_without_nvlink_stay_on_one_numa_node_where_they_can() {
    let cells = [cell(0, NO_ISLAND, 3), cell(1, NO_ISLAND, 5)];
    assert_eq!(takes(&cells, 4), [0, 4]);
    assert_eq!(takes(&cells, 3), [3, 0]);
    let choice = choose(&cells, 6, 0).expect("it fits");
    assert_eq!((choice.takes, choice.islands, choice.numa_nodes), (vec![1, 5], 6, 2));
}

#[test]
fn devices_with_too_little_memory_do_not_count() {
    let cells = [
        Cell { numa: 0, island: 1, memory_bytes: 40, free: 4 },
        Cell { numa: 0, island: 1, memory_bytes: 80, free: 2 },
    ];
    assert_eq!(choose(&cells, 2, 80).map(|choice| choice.takes), Some(vec![0, 2]));
    assert_eq!(choose(&cells, 3, 80), None);
    assert_eq!(
        choose(&cells, 5, 0).map(|choice| (choice.takes, choice.memory_bytes)),
        Some((vec![4, 1], 80))
    );
}

#[test]
fn nothing_is_chosen_where_nothing_is_wanted_or_free() {
    assert_eq!(choose(&[cell(0, 1, 4)], 0, 0), None);
    assert_eq!(choose(&[], 1, 0), None);
}

/// Every way to take `wanted` of the cells, as (islands, NUMA nodes).
fn every_way(cells: &[Cell], wanted: u32) -> Vec<(u32, u32)> {
    let mut ways = vec![vec![]];
    for cell in cells {
        ways = ways
            .into_iter()
            .flat_map(|way: Vec<u16>| (0..=cell.free).map(move |take| [&way[..], &[take]].concat()))
            .collect();
    }
    ways.retain(|way| way.iter().map(|take| u32::from(*take)).sum::<u32>() == wanted);
    ways.iter().map(|way| spans(cells, way)).collect()
}

fn spans(cells: &[Cell], takes: &[u16]) -> (u32, u32) {
    let taken = || cells.iter().zip(takes).filter(|(_, take)| **take > 0);
    let loose: u32 =
        taken().filter(|(cell, _)| cell.island == NO_ISLAND).map(|(_, take)| u32::from(*take)).sum();
    let distinct =
        |numbers: Vec<u16>| numbers.into_iter().collect::<std::collections::BTreeSet<_>>().len() as u32;
    let linked =
        distinct(taken().map(|(cell, _)| cell.island).filter(|island| *island != NO_ISLAND).collect());
    (loose + linked, distinct(taken().map(|(cell, _)| cell.numa).collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_other_way_uses_fewer_islands(
        drawn in proptest::collection::btree_map((0..2u16, prop_oneof![0..3u16, Just(NO_ISLAND)]), 1..4u16, 1..6),
        wanted in 1..10u32,
    ) {
        let cells: Vec<Cell> = drawn.iter().map(|((numa, island), free)| cell(*numa, *island, *free)).collect();
        let ways = every_way(&cells, wanted);
        let choice = choose(&cells, wanted, 0);
        prop_assert_eq!(choice.is_some(), !ways.is_empty());
        let Some(choice) = choice else { return Ok(()) };
        prop_assert_eq!(choice.takes.iter().map(|take| u32::from(*take)).sum::<u32>(), wanted);
        prop_assert!(choice.takes.iter().zip(&cells).all(|(take, cell)| *take <= cell.free));
        prop_assert_eq!((choice.islands, choice.numa_nodes), spans(&cells, &choice.takes));
        prop_assert_eq!(choice.islands, ways.iter().map(|way| way.0).min().expect("there is a way"));
        if choice.islands == 1 {
            prop_assert_eq!((choice.islands, choice.numa_nodes), ways.into_iter().min().expect("there is a way"));
        }
    }
}
