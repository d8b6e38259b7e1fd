use super::*;

#[test]
fn a_time_reads_back_from_its_text() {
    let time: Timestamp = "2026-03-01T12:00:00.25Z".parse().unwrap();
    assert_eq!(time.to_string(), "2026-03-01T12:00:00.25Z");
    assert_eq!(time.millis(), 1_772_366_400_250);
}

#[test]
fn an_offset_is_folded_into_utc() {
    let time: Timestamp = "2026-03-01T13:00:00+01:00".parse().unwrap();
    assert_eq!(time.to_string(), "2026-03-01T12:00:00Z");
}

#[test]
fn system_time_round_trips_on_both_sides_of_the_epoch() {
    for micros in [0, 1, -1, 1_772_366_400_250_001, -86_400_000_001] {
        let time = Timestamp::from_micros(micros);
        assert_eq!(Timestamp::from(SystemTime::from(time)), time);
    }
}

#[test]
fn a_text_without_an_offset_is_refused() {
    assert!("2026-03-01 12:00".parse::<Timestamp>().is_err());
    assert!("".parse::<Timestamp>().is_err());
}
