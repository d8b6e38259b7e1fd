use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;

const CONTEXT: &str = "bmc/node-1/password";

fn kek(name: &str) -> KekId {
    name.parse().unwrap()
}

fn entropy() -> SeededEntropy {
    SeededEntropy::new(1)
}

fn ring() -> KekRing {
    KekRing::generate(kek("2026-01"), &entropy())
}

#[test]
fn a_secret_opens_for_its_own_record_only() {
    let ring = ring();
    let record = ring.seal(b"secret", CONTEXT, &entropy()).unwrap();
    assert_eq!(ring.open(&record, CONTEXT).unwrap().as_slice(), b"secret");
    assert_eq!(ring.open(&record, "bmc/node-2/password"), Err(EnvelopeError::Refused));
    assert!(!record.windows(6).any(|window| window == b"secret"));
}

#[test]
fn a_rotation_opens_old_records_and_rewraps_them() {
    let old = ring();
    let record = old.seal(b"secret", CONTEXT, &entropy()).unwrap();
    let rotated = old.with_new(kek("2026-02"), &SeededEntropy::new(2)).unwrap();
    assert_eq!(rotated.open(&record, CONTEXT).unwrap().as_slice(), b"secret");
    let rewrapped = rotated.rewrap(&record, CONTEXT, &SeededEntropy::new(3)).unwrap().unwrap();
    assert_eq!(kek_id_of(&rewrapped).unwrap(), kek("2026-02"));
    assert_eq!(rotated.rewrap(&rewrapped, CONTEXT, &entropy()), Ok(None), "nothing left to do");
    assert_eq!(rotated.rewrap(&record, "other", &entropy()), Err(EnvelopeError::Refused));
    assert_eq!(old.open(&rewrapped, CONTEXT), Err(EnvelopeError::UnknownKek { id: kek("2026-02") }));
    let text = rotated.render();
    let newest_only = KekRing::parse(text.lines().last().unwrap()).unwrap();
    assert_eq!(newest_only.open(&rewrapped, CONTEXT).unwrap().as_slice(), b"secret");
    assert_eq!(newest_only.open(&record, CONTEXT), Err(EnvelopeError::UnknownKek { id: kek("2026-01") }));
}

#[test]
fn a_mark_tells_contents_apart_for_holders_of_the_ring_alone() {
    let ring = ring();
    let mark = ring.mark(b"hunter2", CONTEXT).unwrap();
    assert_eq!(ring.mark(b"hunter2", CONTEXT), Ok(mark));
    assert_ne!(ring.mark(b"hunter3", CONTEXT), Ok(mark));
    assert_ne!(ring.mark(b"hunter2", "other"), Ok(mark));
    let another = KekRing::generate(kek("2026-01"), &SeededEntropy::new(2));
    assert_ne!(another.mark(b"hunter2", CONTEXT), Ok(mark));
}

#[test]
fn a_ring_survives_its_file_and_seals_with_the_last_line() {
    let ring = ring().with_new(kek("2026-02"), &SeededEntropy::new(2)).unwrap();
    let text = format!("# key ring\n\n{}", *ring.render());
    let read = KekRing::parse(&text).unwrap();
    assert_eq!(read.newest(), &kek("2026-02"));
    assert_eq!(read.render(), ring.render());
    assert_eq!(format!("{read:?}"), "[\"2026-01\", \"2026-02\"]");
}

#[test]
fn a_bad_ring_names_its_line_and_never_shows_it() {
    let good = ring().render();
    let key = good.trim().rsplit(' ').next().unwrap().to_owned();
    for (text, wanted) in [
        (String::new(), RingError::Size),
        (format!("{}{}", *good, *good), RingError::Twice { id: kek("2026-01") }),
        (format!("\nkek2 a {key}"), RingError::Line { line: 2 }),
        (format!("kek1 A {key}"), RingError::Line { line: 1 }),
        (format!("kek1 a {}", &key[1..]), RingError::Line { line: 1 }),
        (format!("kek1 a {key} x"), RingError::Line { line: 1 }),
        ("#".repeat(RING_BYTES_MAX + 1), RingError::Size),
    ] {
        let refused = KekRing::parse(&text).unwrap_err();
        assert!(!format!("{refused} {refused:?}").contains(&key[1..20]));
        assert_eq!(refused, wanted);
    }
    assert!(matches!(ring().with_new(kek("2026-01"), &entropy()), Err(RingError::Twice { .. })));
}

#[test]
fn sizes_are_bounded() {
    let ring = KekRing::generate(kek(&"k".repeat(32)), &entropy());
    let largest = vec![0u8; ENVELOPE_PLAINTEXT_BYTES_MAX];
    let record = ring.seal(&largest, CONTEXT, &entropy()).unwrap();
    assert_eq!(ring.open(&record, CONTEXT).unwrap().len(), largest.len());
    assert_eq!(ring.seal(&[largest, vec![0]].concat(), CONTEXT, &entropy()), Err(EnvelopeError::TooLong));
    let long = "c".repeat(CONTEXT_BYTES_MAX + 1);
    assert_eq!(ring.seal(b"", &long, &entropy()), Err(EnvelopeError::Context));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_changed_record_never_opens(index in 0usize..300, bit in 0u8..8) {
        let ring = ring();
        let mut record = ring.seal(b"secret", CONTEXT, &entropy()).unwrap();
        let index = index % record.len();
        record[index] ^= 1 << bit;
        prop_assert!(ring.open(&record, CONTEXT).is_err());
    }

    #[test]
    fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,200}") {
        let _ = ring().open(&bytes, CONTEXT);
        let _ = kek_id_of(&bytes);
        let _ = KekRing::parse(&text);
        let _ = KekRing::parse(&format!("kek1 {text}"));
    }
}
