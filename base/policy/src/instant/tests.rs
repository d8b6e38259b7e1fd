use proptest::prelude::*;

use super::parse;

#[test]
fn times_with_an_offset_are_read_to_the_microsecond() {
    for (text, micros) in [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2000-02-29T00:00:00+00:00", 951_782_400_000_000),
        ("2026-03-01T12:00:00+02:00", 1_772_359_200_000_000),
        ("2026-03-01T10:00:00.5Z", 1_772_359_200_500_000),
        ("2026-03-01T10:00:00.000001000Z", 1_772_359_200_000_001),
    ] {
        assert_eq!(parse(text), Some(micros), "{text}");
    }
}

#[test]
fn anything_else_is_refused() {
    for text in [
        "",
        "2026-03-01",
        "2026-03-01T12:00:00",
        "2026-03-01 12:00:00Z",
        "2026-03-01t12:00:00Z",
        "2026-03-01T12:00:00z",
        "2026-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-03-01T24:00:00Z",
        "2026-03-01T12:00:60Z",
        "2026-03-01T12:00:00.Z",
        "2026-03-01T12:00:00.0000001Z",
        "2026-03-01T12:00:00.0000000000Z",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00+0200",
        "2026-03-01T12:00:00Z ",
        "2026-03-01T12:00:0éZ",
        "+026-03-01T12:00:00Z",
    ] {
        assert_eq!(parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn every_time_agrees_with_a_calendar_library(micros in -62_135_596_800_000_000i64..253_402_207_200_000_000) {
        let text = jiff::Timestamp::from_microsecond(micros).expect("in the calendar's years").to_string();
        prop_assert_eq!(parse(&text), Some(micros), "{}", text);
    }

    #[test]
    fn what_is_accepted_a_calendar_library_accepts_too(
        text in "[0-2][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,7})?(Z|[+-][0-2][0-9]:[0-5][0-9])"
    ) {
        if let Some(micros) = parse(&text) {
            let theirs = text.parse::<jiff::Timestamp>();
            prop_assert_eq!(theirs.map(|time| time.as_microsecond()).ok(), Some(micros), "{}", text);
        }
    }

    #[test]
    fn reading_never_panics(text: String) {
        let _ = parse(&text);
    }
}
