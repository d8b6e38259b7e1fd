use proptest::prelude::*;

use super::*;

#[test]
fn plain_decimals_are_read_exactly() {
    for (text, nanos) in [
        ("0", 0),
        ("-0", 0),
        ("8", 8_000_000_000),
        ("0.1", 100_000_000),
        ("-72.000000001", -72_000_000_001),
        ("18446744073709551615", 18_446_744_073_709_551_615_000_000_000),
    ] {
        assert_eq!(text.parse::<Number>().map(Number::nanos), Ok(nanos), "{text}");
    }
}

#[test]
fn anything_else_is_refused() {
    for text in [
        "",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e3",
        "0.0000000001",
        " 1",
        "1 ",
        "١",
        "NaN",
        "1_000",
        "--1",
        "1.-5",
    ] {
        assert_eq!(text.parse::<Number>(), Err(NumberError), "{text:?}");
    }
    assert_eq!("9".repeat(40).parse::<Number>(), Err(NumberError));
}

#[test]
fn a_float_is_the_decimal_it_was_written_as() {
    for (float, text) in
        [(0.1, "0.1"), (8.0, "8"), (-0.0, "0"), (1e20, "100000000000000000000"), (0.000000001, "0.000000001")]
    {
        assert_eq!(Number::try_from(float).map(|number| number.to_string()), Ok(text.to_owned()));
    }
}

#[test]
fn a_float_without_one_decimal_is_refused() {
    for float in [f64::NAN, f64::INFINITY, 0.1 + 0.2, 1e300, 1e-10, 9_007_199_254_740_993.0] {
        assert_eq!(Number::try_from(float), Err(NumberError), "{float}");
    }
}

proptest! {
    #[test]
    fn a_number_reads_back_as_itself(nanos in -(10i128.pow(37))..10i128.pow(37)) {
        let number = Number::from_nanos(nanos);
        prop_assert_eq!(number.to_string().parse::<Number>(), Ok(number));
    }

    #[test]
    fn integers_keep_their_order(a: i64, b: u64) {
        prop_assert_eq!(Number::from(a).cmp(&Number::from(b)), i128::from(a).cmp(&i128::from(b)));
    }

    #[test]
    fn reading_never_panics(text: String) {
        let _ = text.parse::<Number>();
    }
}
