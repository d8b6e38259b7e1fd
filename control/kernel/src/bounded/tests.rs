use super::Bounded;

#[test]
fn a_full_map_forgets_what_was_used_least_recently() {
    let mut map = Bounded::new(4);
    for n in 0..4 {
        map.insert(n, n * 10);
    }
    assert_eq!(map.get(&0), Some(&mut 0));
    map.insert(4, 40);
    assert_eq!(map.get(&1), None, "the least recently used");
    for n in [0, 2, 3, 4] {
        assert_eq!(map.get(&n), Some(&mut (n * 10)));
    }
}

#[test]
fn a_map_never_holds_more_than_its_bound() {
    let mut map = Bounded::new(7);
    for n in 0..1000 {
        map.insert(n, ());
        assert!(map.len() <= 7, "{} entries", map.len());
    }
    let mut one = Bounded::new(1);
    one.insert("a", 1);
    one.insert("b", 2);
    assert_eq!((one.len(), one.get(&"b")), (1, Some(&mut 2)));
}

#[test]
fn replacing_an_entry_forgets_no_other() {
    let mut map = Bounded::new(2);
    map.insert("a", 1);
    map.insert("b", 2);
    map.insert("a", 3);
    assert_eq!((map.get(&"a").copied(), map.get(&"b").copied()), (Some(3), Some(2)));
}
