use super::*;
use kit::SeededRng;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A session that is open at `now` with an interval of 10 s.
fn open(now: Duration) -> Session {
    let mut session = Session::new();
    assert_eq!(session.due(now), Some(Due::Dial));
    session.greeting(vec![1; 32], BTreeSet::new(), now);
    session.opened(7, 10_000, false, now);
    session
}

#[test]
fn it_dials_at_once_and_only_once() {
    let mut session = Session::new();
    assert_eq!(session.due(seconds(0)), Some(Due::Dial));
    assert_eq!(session.due(seconds(100)), None, "the dial has its own limit");
}

#[test]
fn waits_grow_with_full_jitter_up_to_a_minute() {
    let rng = SeededRng::new(1);
    let mut session = Session::new();
    let mut longest = Duration::ZERO;
    for attempt in 0..200u32 {
        session.ended("refused", None, Duration::ZERO, &rng);
        let Phase::Waiting { until } = *session.phase() else { panic!("{:?}", session.phase()) };
        let ceiling = seconds(1u64.checked_shl(attempt).unwrap_or(60).min(60));
        assert!(until <= ceiling, "attempt {attempt} waits {until:?} of {ceiling:?}");
        longest = longest.max(until);
    }
    assert!(longest > seconds(50));
}

#[test]
fn a_busy_gateway_is_obeyed_exactly() {
    let mut session = Session::new();
    session.ended("busy", Some(Duration::from_millis(12_345)), seconds(10), &SeededRng::new(1));
    assert_eq!(*session.phase(), Phase::Waiting { until: seconds(10) + Duration::from_millis(12_345) });
}

#[test]
fn no_welcome_in_time_ends_the_connection() {
    let mut session = Session::new();
    session.due(seconds(0));
    session.greeting(vec![], BTreeSet::new(), seconds(0));
    assert_eq!(session.due(seconds(29)), None);
    assert!(matches!(session.due(seconds(30)), Some(Due::Close(_))));
}

#[test]
fn every_tenth_heartbeat_carries_the_hashes_and_a_change_brings_one_at_once() {
    let mut session = open(seconds(0));
    let mut with = Vec::new();
    for n in 0..25u64 {
        let Some(Due::Heartbeat { seq, with_hashes }) = session.due(seconds(n * 10)) else {
            panic!("beat {n}")
        };
        session.heartbeat_acked(seq, seconds(n * 10));
        if with_hashes {
            with.push(seq);
        }
    }
    assert_eq!(with, [10, 20]);
    session.hashes_changed(seconds(241));
    assert_eq!(session.due(seconds(241)), Some(Due::Heartbeat { seq: 26, with_hashes: true }));
    assert_eq!(session.due(seconds(241)), None);
}

#[test]
fn three_intervals_without_an_ack_end_the_session() {
    let mut session = open(seconds(0));
    for n in 0..=3 {
        assert!(matches!(session.due(seconds(n * 10)), Some(Due::Heartbeat { .. })), "beat {n}");
    }
    assert_eq!(session.deadline(), Some(seconds(30) + Duration::from_millis(1)));
    assert!(matches!(session.due(seconds(31)), Some(Due::Close(_))));
}

#[test]
fn an_ack_of_a_beat_never_sent_keeps_nothing_alive() {
    let mut session = open(seconds(0));
    session.due(seconds(0));
    session.heartbeat_acked(99, seconds(29));
    assert!(matches!(session.due(seconds(31)), Some(Due::Close(_))));
}

#[test]
fn only_a_session_that_worked_ends_the_backoff() {
    let rng = SeededRng::new(3);
    let mut session = open(seconds(0));
    for _ in 0..10 {
        session.ended("closed", None, seconds(0), &rng);
        session.opened(1, 0, false, seconds(0));
    }
    assert_eq!(session.backoff.attempt(), 10);
    session.due(seconds(0));
    session.heartbeat_acked(1, seconds(0));
    assert_eq!(session.backoff.attempt(), 0);
}

#[test]
fn a_drained_session_goes_on_until_its_time_and_reconnects_at_once() {
    let mut session = open(seconds(0));
    session.due(seconds(0));
    session.drain(seconds(5), seconds(0));
    assert_eq!(session.due(seconds(4)), None);
    assert_eq!(session.due(seconds(5)), Some(Due::Close("drained")));
    session.ended("drained", None, seconds(5), &SeededRng::new(1));
    assert_eq!(session.due(seconds(5)), Some(Due::Dial));
}

#[test]
fn a_gateway_that_drains_at_once_is_not_dialed_in_a_loop() {
    let mut session = open(seconds(0));
    let rng = SeededRng::new(1);
    let mut dialed = 0;
    for millis in 0..10_000 {
        let now = Duration::from_millis(millis);
        if session.due(now) == Some(Due::Dial) {
            dialed += 1;
            session.greeting(vec![1], BTreeSet::new(), now);
            session.opened(1, 10_000, false, now);
        }
        if session.is_open() {
            session.drain(Duration::ZERO, now);
            session.ended("drained", None, now, &rng);
        }
    }
    assert!(dialed < 20, "dialed {dialed} times in ten seconds");
}

#[test]
fn an_interval_out_of_reason_is_bounded() {
    for (given, expected) in [(0, 10), (1, 1), (u32::MAX, 120)] {
        let mut session = open(seconds(0));
        session.opened(1, given, false, seconds(0));
        assert_eq!(session.connection.interval, seconds(expected), "{given} ms");
    }
}

#[test]
fn events_go_in_batches_within_a_window() {
    let mut session = open(seconds(0));
    let mut acked = 0;
    let mut sent = Vec::new();
    while let Some(batch) = session.next_events(acked, 5000, 256) {
        sent.push(batch);
    }
    assert_eq!(sent, [(0, 256), (256, 512), (512, 768), (768, 1024)]);
    acked = 300;
    session.events_acked(acked);
    assert_eq!(session.next_events(acked, 5000, 256), Some((1024, 1280)));
    assert_eq!(session.next_events(acked, 5000, 256), Some((1280, 1324)));
    assert_eq!(session.next_events(acked, 5000, 256), None);
}

#[test]
fn a_new_connection_sends_again_what_was_not_acked() {
    let mut session = open(seconds(0));
    assert_eq!(session.next_events(0, 10, 256), Some((0, 10)));
    session.ended("closed", None, seconds(1), &SeededRng::new(1));
    session.greeting(vec![], BTreeSet::new(), seconds(2));
    assert_eq!(session.next_events(4, 10, 256), None, "not before the Welcome");
    session.opened(8, 0, false, seconds(2));
    assert_eq!(session.next_events(4, 10, 256), Some((4, 10)));
}
