use super::*;

#[test]
fn each_holds_its_own_places_and_all_no_more_than_the_total() {
    let places = Places::new(3, 2);
    let one = [places.take(1).unwrap(), places.take(1).unwrap()];
    assert!(places.take(1).is_none());
    let _two = places.take(2).unwrap();
    assert!(places.take(3).is_none());
    drop(one);
    let _three = places.take(3).unwrap();
    let _one = places.take(1).unwrap();
    assert!(places.take(1).is_none());
}

#[test]
fn who_holds_nothing_is_forgotten() {
    let places = Places::new(3, 2);
    drop((places.take(1), places.take(2)));
    assert!(places.held.lock().unwrap().each.is_empty());
}
