use std::io::Write as _;

use kit::ManualClock;
use model::Timestamp;

use super::*;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_micros(0)))
}

#[test]
fn lines_of_the_asked_time_come_back_oldest_first() {
    let clock = clock();
    let mut ring = LogRing::new(clock.clone());
    ring.write_all(b"old\n").unwrap();
    clock.advance(Duration::from_secs(100));
    ring.write_all(b"new one\n").unwrap();
    ring.push("new two");
    assert_eq!(ring.recent(Duration::from_secs(50)), "new one\nnew two\n");
    assert_eq!(ring.recent(Duration::from_secs(1000)), "old\nnew one\nnew two\n");
}

#[test]
fn a_flood_keeps_the_end_and_stays_bounded() {
    let ring = LogRing::bounded(clock(), 1000);
    for number in 0..10_000 {
        ring.push(&format!("line {number}"));
    }
    let text = ring.recent(Duration::from_secs(1));
    assert!(text.len() <= 1000 && text.ends_with("line 9999\n"), "{}", text.len());
    ring.push(&"ä".repeat(LINE_BYTES_MAX));
    assert!(
        ring.recent(Duration::from_secs(1)).is_empty(),
        "a line that does not fit takes no others' place for long"
    );
}
