use super::*;
use crate::testing::{at, at_ms};

fn now(seconds: u64) -> Now {
    Now { monotonic: Duration::from_secs(seconds), wall: at(0) }
}

#[test]
fn server_time_goes_on_with_our_own_clock() {
    let mut clock = ServerClock::default();
    assert_eq!(clock.now(now(1)), None);
    clock.welcome(at_ms(1000), 0, at(86_400), now(10)).unwrap();
    assert_eq!(clock.now(now(15)), Some(at(1005)));
}

#[test]
fn a_welcome_far_behind_the_mark_is_refused_and_a_little_behind_moves_nothing_back() {
    let mut clock = ServerClock::default();
    let mark = at_ms(1000);
    let err = clock.welcome(at_ms(699), mark, at(86_400), now(0)).unwrap_err();
    assert!(matches!(err, TimeRefused::Behind { .. }), "{err}");
    assert_eq!(clock.now(now(0)), None);
    clock.welcome(at_ms(700), mark, at(86_400), now(0)).unwrap();
    assert_eq!(clock.now(now(0)), Some(at(1000)), "the mark is what it goes on from");
    clock.welcome(at_ms(1010), mark, at(86_400), now(60)).unwrap();
    assert_eq!(clock.now(now(60)), Some(at(1060)));
}

#[test]
fn a_time_at_which_our_certificate_was_over_is_refused() {
    let mut clock = ServerClock::default();
    assert!(clock.welcome(at_ms(86_400 + 301), 0, at(86_400), now(0)).is_err());
    assert!(clock.welcome(at_ms(86_400 + 300), 0, at(86_400), now(0)).is_ok());
}

#[test]
fn a_heartbeat_moves_time_forward_and_never_far() {
    let mut clock = ServerClock::default();
    clock.welcome(at_ms(1000), 0, at(86_400), now(0)).unwrap();
    assert!(clock.heartbeat(at_ms(1012), now(10)));
    assert_eq!(clock.now(now(10)), Some(at(1012)));
    assert!(clock.heartbeat(at_ms(1000), now(10)), "an old one is no fault");
    assert_eq!(clock.now(now(10)), Some(at(1012)));
    assert!(!clock.heartbeat(at_ms(1012 + 301), now(10)));
    assert_eq!(clock.now(now(10)), Some(at(1012)));
}

#[test]
fn heartbeats_do_not_add_up_to_a_time_far_ahead() {
    let mut clock = ServerClock::default();
    clock.welcome(at_ms(1000), 0, at(86_400), now(0)).unwrap();
    assert!(clock.heartbeat(at_ms(1290), now(1)));
    assert!(!clock.heartbeat(at_ms(1580), now(2)), "each of them within the allowance of the one before");
    assert_eq!(clock.now(now(2)), Some(at(1291)));
}

#[test]
fn a_welcome_takes_back_what_an_earlier_one_stated_far_ahead() {
    let mut clock = ServerClock::default();
    clock.welcome(at_ms(80_000), at_ms(900), at(86_400), now(0)).unwrap();
    clock.welcome(at_ms(1000), at_ms(900), at(86_400), now(10)).unwrap();
    assert_eq!(clock.now(now(10)), Some(at(1000)));
}

#[test]
fn what_outlives_a_session_is_borne_out_by_our_own_clock() {
    assert_eq!(durable_ms(at_ms(200), now(0)), at_ms(200));
    assert_eq!(durable_ms(at_ms(80_000), now(0)), at_ms(300));
    assert_eq!(durable_ms(u64::MAX, now(0)), at_ms(300));
}

#[test]
fn the_largest_number_is_a_time_and_no_overflow() {
    let mut clock = ServerClock::default();
    assert!(clock.welcome(u64::MAX, 0, at(86_400), now(0)).is_err());
    assert!(clock.welcome(0, u64::MAX, at(86_400), now(0)).is_err());
    assert_eq!(clock.estimate(now(0), u64::MAX).micros(), i64::MAX);
}
