use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kit::{Clock, ManualClock, SeededRng};
use model::Timestamp;

use super::{WAIT_MAX, until_settled};

/// Looks until the `settles_at`-th look; returns how often it looked and how long that took.
async fn looks(at_most: Option<Duration>, settles_at: u32) -> (u32, Duration) {
    let clock = ManualClock::at(Timestamp::from_millis(0));
    let rng = SeededRng::new(7);
    let seen = Arc::new(AtomicU32::new(0));
    let counter = seen.clone();
    let last = until_settled(&clock, &rng, at_most, move || {
        let look = counter.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move { Ok((look, look >= settles_at)) })
    });
    let last = last.await.expect("looking does not fail");
    assert_eq!(last, seen.load(Ordering::SeqCst), "the last look is what is answered");
    (last, clock.monotonic())
}

#[tokio::test]
async fn without_a_wait_there_is_one_look() {
    assert_eq!(looks(None, 100).await, (1, Duration::ZERO));
}

#[tokio::test]
async fn a_settled_thing_is_answered_at_once() {
    assert_eq!(looks(Some(WAIT_MAX), 1).await, (1, Duration::ZERO));
    let (count, took) = looks(Some(WAIT_MAX), 3).await;
    assert_eq!(count, 3);
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test]
async fn a_wait_ends_at_its_time_and_does_not_spin() {
    let (count, took) = looks(Some(Duration::from_secs(10)), u32::MAX).await;
    assert_eq!(took, Duration::from_secs(10));
    assert!((20..50).contains(&count), "{count} looks in ten seconds");
}

#[tokio::test]
async fn nobody_waits_longer_than_the_longest_wait() {
    let (_, took) = looks(Some(Duration::from_secs(3600)), u32::MAX).await;
    assert_eq!(took, WAIT_MAX);
}
