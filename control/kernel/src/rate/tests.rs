use std::time::Duration;

use super::{Buckets, Rate};

const SECOND: Duration = Duration::from_secs(1);

fn taken(buckets: &Buckets<&'static str>, caller: &'static str, now: Duration) -> usize {
    (0..1000).take_while(|_| buckets.take(caller, now).is_ok()).count()
}

#[test]
fn a_burst_is_allowed_and_then_the_rate() {
    let buckets = Buckets::new(Rate { per_second: 10, burst: 20 }, 8);
    assert_eq!(taken(&buckets, "a", SECOND), 20);
    assert_eq!(taken(&buckets, "a", SECOND * 2), 10);
    assert_eq!(taken(&buckets, "a", SECOND * 100), 20, "credit stops at the burst");
}

#[test]
fn a_refusal_says_when_the_next_call_is_there() {
    let buckets = Buckets::new(Rate { per_second: 2, burst: 1 }, 8);
    assert_eq!(buckets.take("a", SECOND), Ok(()));
    let wait = buckets.take("a", SECOND).expect_err("the bucket is empty");
    assert_eq!(wait, Duration::from_millis(500));
    assert_eq!(buckets.take("a", SECOND + wait), Ok(()));
}

#[test]
fn callers_do_not_share_a_bucket() {
    let buckets = Buckets::new(Rate { per_second: 1, burst: 3 }, 8);
    assert_eq!(taken(&buckets, "a", SECOND), 3);
    assert_eq!(taken(&buckets, "b", SECOND), 3);
}

#[test]
fn what_is_given_back_can_be_taken_again_and_no_more() {
    let buckets = Buckets::new(Rate { per_second: 1, burst: 2 }, 8);
    assert_eq!(taken(&buckets, "a", SECOND), 2);
    buckets.give_back("a", SECOND);
    assert_eq!(taken(&buckets, "a", SECOND), 1);
    for _ in 0..5 {
        buckets.give_back("a", SECOND);
    }
    assert_eq!(taken(&buckets, "a", SECOND), 2, "credit stops at the burst");
}

#[test]
fn a_clock_that_stands_still_or_jumps_back_gives_no_credit() {
    let buckets = Buckets::new(Rate { per_second: 1000, burst: 1 }, 8);
    assert_eq!(buckets.take("a", SECOND * 5), Ok(()));
    assert!(buckets.take("a", SECOND).is_err());
    assert!(buckets.take("a", SECOND * 5).is_err());
}
