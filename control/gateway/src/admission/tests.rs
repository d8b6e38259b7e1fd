use kit::SeededRng;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn those_turned_away_are_spread_over_the_time_they_take() {
    let admission = Admission::new(100, 10);
    let rng = SeededRng::new(1);
    let waits: Vec<Duration> = (0..1_010).filter_map(|_| admission.admit(SECOND, &rng).err()).collect();
    assert_eq!(waits.len(), 1_000);
    // A thousand at a hundred a second are ten seconds of work.
    assert!(waits.iter().max().unwrap() >= &Duration::from_secs(9), "{:?}", waits.iter().max());
    let early = waits.iter().filter(|wait| **wait < Duration::from_secs(5)).count();
    assert!((300..700).contains(&early), "{early}");
}

#[test]
fn a_bucket_fills_again() {
    let admission = Admission::new(10, 1);
    let rng = SeededRng::new(1);
    assert_eq!(admission.admit(SECOND, &rng), Ok(()));
    assert!(admission.admit(SECOND, &rng).is_err());
    assert_eq!(admission.admit(SECOND + Duration::from_millis(101), &rng), Ok(()));
}

#[test]
fn no_wait_is_longer_than_the_longest() {
    let admission = Admission::new(1, 1);
    let rng = SeededRng::new(1);
    for _ in 0..500 {
        if let Err(wait) = admission.admit(SECOND, &rng) {
            assert!(wait <= WAIT_MAX + WAIT_MAX / 4, "{wait:?}");
        }
    }
}

#[test]
fn one_source_does_not_use_up_another_ones_joins() {
    let sources = Each::new(0.5, 2);
    let (one, two): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    assert!(sources.admit(one, SECOND) && sources.admit(one, SECOND));
    assert!(!sources.admit(one, SECOND));
    assert!(sources.admit(two, SECOND));
    assert!(sources.admit(one, 3 * SECOND));
}

#[test]
fn addresses_of_one_network_count_as_one() {
    let sources = Each::new(0.5, 1);
    assert!(sources.admit(counted_as("2001:db8::1".parse().unwrap()), SECOND));
    assert!(!sources.admit(counted_as("2001:db8::2".parse().unwrap()), SECOND));
    assert!(sources.admit(counted_as("2001:db8:0:1::1".parse().unwrap()), SECOND));
    assert!(sources.admit(counted_as("::ffff:192.0.2.1".parse().unwrap()), SECOND));
    assert!(!sources.admit(counted_as("192.0.2.1".parse().unwrap()), SECOND));
}

#[test]
fn a_full_table_is_bounded_and_turns_no_newcomer_away() {
    let each = Each::new(1.0, 2);
    let flood: Vec<u32> = (0..u32::try_from(COUNTED_MAX).unwrap()).collect();
    let at = |n: u32| SECOND + Duration::from_micros(u64::from(n));
    assert!(flood.iter().all(|n| each.admit(*n, at(*n))));
    for late in 1_000_000..1_001_000 {
        assert!(each.admit(late, at(10_000)));
    }
    assert!(each.levels.lock().unwrap().len() <= COUNTED_MAX);
    // Who was seen last is still counted.
    let last = *flood.last().unwrap();
    assert!(each.admit(last, at(10_000)));
    assert!(!each.admit(last, at(10_000)));
}
