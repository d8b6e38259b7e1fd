use placer::Amount;

use super::*;

fn node(id: u16, cpus: &str, free_gib: u64, pages: u64) -> NumaView {
    NumaView {
        id,
        cpus: CpuSet::parse(cpus).unwrap(),
        memory_bytes: Amount::unbooked(free_gib * GIB),
        hugepages_1gi: Amount::unbooked(pages),
    }
}

fn sitter(vcpus: usize, gib: u64, numa_affine: bool, pinned: bool) -> Sitter {
    let seating = Seating { numa_affine, pinned, hugepages_1gi: false };
    Sitter { vcpus, memory_bytes: gib * GIB, hugepages_1gi: 0, near: BTreeSet::new(), seating }
}

fn seat(numa: &[NumaView], sitter: &Sitter) -> (String, bool, Vec<u16>, String) {
    let Seat { cpus, pinned, mems, degraded } = choose(numa, sitter);
    (cpus.to_string(), pinned, mems, degraded)
}

#[test]
fn who_asks_for_nothing_sits_anywhere() {
    let host = [node(0, "0-7", 32, 0)];
    assert_eq!(choose(&host, &sitter(4, 8, false, false)), Seat::default());
    let pages = Seating { hugepages_1gi: true, ..Seating::default() };
    assert_eq!(choose(&host, &Sitter { seating: pages, ..sitter(4, 8, false, false) }), Seat::default());
}

#[test]
fn one_numa_node_has_all_of_an_affine_one_the_fullest_that_takes_it() {
    let host = [node(0, "0-7", 64, 4), node(1, "8-15", 32, 0)];
    let whole = |cpus: &str, mems| (cpus.to_owned(), false, vec![mems], String::new());
    assert_eq!(seat(&host, &sitter(4, 16, true, false)), whole("8-15", 1));
    assert_eq!(seat(&host, &sitter(4, 40, true, false)), whole("0-7", 0));
    let paged = Sitter { hugepages_1gi: 2, ..sitter(4, 1, true, false) };
    assert_eq!(seat(&host, &paged), whole("0-7", 0), "the pages are there");
    let near = Sitter { near: [0].into(), ..sitter(4, 16, true, false) };
    assert_eq!(seat(&host, &near), whole("0-7", 0), "its devices are there");
    let pinned = seat(&host, &sitter(3, 16, true, true));
    assert_eq!(pinned, ("8-10".to_owned(), true, vec![1], String::new()));
}

#[test]
fn what_cannot_be_had_is_said_and_the_rest_is_had() {
    let host = [node(0, "2-3", 64, 0), node(1, "8-9", 64, 0)];
    let (cpus, pinned, mems, why) = seat(&host, &sitter(4, 16, true, true));
    assert_eq!((cpus.as_str(), pinned, mems), ("2-3,8-9", true, vec![]));
    assert_eq!(why, "no NUMA node of the host has 4 CPUs and 16384 MiB for it");
    let (cpus, pinned, _, why) = seat(&host, &sitter(5, 16, true, true));
    assert_eq!((cpus.as_str(), pinned), ("", false));
    assert!(why.ends_with("for it; 4 CPUs of the host are not pinned, 5 wanted"), "{why}");
    let (.., why) = seat(&[], &sitter(1, 1, true, false));
    assert!(why.starts_with("no NUMA node"), "{why}");
}

#[test]
fn pinned_ones_sit_together_where_they_can() {
    let host = [node(0, "0-7", 64, 0), node(1, "8-11", 64, 0)];
    let cpus = |vcpus| seat(&host, &sitter(vcpus, 1, false, true)).0;
    assert_eq!((cpus(3).as_str(), cpus(6).as_str(), cpus(10).as_str()), ("8-10", "0-5", "0-9"));
}
