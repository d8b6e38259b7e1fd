use proptest::prelude::*;

use super::*;
use crate::{OsEntropy, SeededEntropy};

/// RFC 6979 A.2.5: the key, and its signature of "sample" with SHA-256, whose s is in the upper half as published.
const RFC_SCALAR: &str = "c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721";
const RFC_R: &str = "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716";
const RFC_S: &str = "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8";

fn rfc_key() -> SigningKey {
    SigningKey::from_secret(&SecretKey::from_slice(&hex::decode(RFC_SCALAR).unwrap()).unwrap())
}

#[test]
fn signatures_are_those_of_rfc_6979_with_s_lowered() {
    let published = hex::decode(format!("{RFC_R}{RFC_S}")).unwrap();
    assert_eq!(Signature::from_bytes(&published), Err(KeyError::Signature), "the upper half is refused");
    let lowered = Signature::from_device_bytes(&published).unwrap();
    assert_eq!(rfc_key().sign_parts(&[b"sample"]), lowered);
    assert!(rfc_key().verifying_key().verify_parts(&[b"sam", b"ple"], &lowered).is_ok());
}

#[test]
fn certificates_and_csrs_are_signed_the_same_each_time() {
    let key = SigningKey::generate(&OsEntropy);
    assert_eq!(key.sign_parts(&[b"a"]), key.sign_parts(&[b"a"]));
    assert_ne!(key.sign_quickly(&[b"a"]), key.sign_quickly(&[b"a"]));
}

#[test]
fn both_ways_to_sign_give_what_verifies_and_has_a_low_s() {
    let key = SigningKey::generate(&OsEntropy);
    // Half of all signatures have s in the upper half before it is lowered.
    for body in 0..32_u8 {
        let parts: [&[u8]; 2] = [b"framed ", &[body]];
        for signature in [key.sign_parts(&parts), key.sign_quickly(&parts)] {
            assert_eq!(Signature::from_bytes(&signature.to_bytes()), Ok(signature));
            assert_eq!(key.verifying_key().verify_parts(&parts, &signature), Ok(()));
            assert_eq!(key.verifying_key().verify_parts(&[b"framed", &[body]], &signature), Err(()));
        }
    }
}

#[test]
fn a_changed_body_does_not_verify() {
    let key = SigningKey::generate(&SeededEntropy::new(1));
    let signature = key.sign(Purpose::Command, b"body");
    assert!(key.verifying_key().verify(Purpose::Command, b"body", &signature).is_ok());
    assert!(key.verifying_key().verify(Purpose::Command, b"bodz", &signature).is_err());
    let other = SigningKey::generate(&SeededEntropy::new(2));
    assert!(other.verifying_key().verify(Purpose::Command, b"body", &signature).is_err());
}

#[test]
fn a_private_key_survives_pem_and_der() {
    let key = SigningKey::generate(&OsEntropy);
    let pem = key.to_pkcs8_pem();
    assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"));
    assert_eq!(SigningKey::from_pkcs8_pem(&pem).unwrap().verifying_key(), key.verifying_key());
    assert_eq!(SigningKey::from_pkcs8_der(&key.to_pkcs8_der()).unwrap().verifying_key(), key.verifying_key());
}

#[test]
fn debug_of_a_private_key_shows_only_its_id() {
    let key = rfc_key();
    let shown = format!("{key:?}");
    assert_eq!(shown, format!("SigningKey({})", key.verifying_key().key_id()));
    assert!(!shown.contains(&RFC_SCALAR[..8]));
}

#[test]
fn a_public_key_has_one_encoding() {
    let key = SigningKey::generate(&OsEntropy);
    let spki = key.verifying_key().spki_der().to_vec();
    assert_eq!(spki.len(), SPKI_BYTES);
    assert_eq!(&VerifyingKey::from_spki_der(&spki).unwrap(), key.verifying_key());
    let mut longer = spki.clone();
    longer.push(0);
    assert!(VerifyingKey::from_spki_der(&longer).is_err());
    let mut off_curve = spki;
    *off_curve.last_mut().unwrap() ^= 1;
    assert!(VerifyingKey::from_spki_der(&off_curve).is_err());
}

#[test]
fn pins_parse_strictly() {
    let pin = rfc_key().verifying_key().pin();
    let text = pin.to_string();
    assert_eq!(text.parse::<Pin>(), Ok(pin));
    for bad in [
        text.to_uppercase(),
        text[1..].to_owned(),
        format!("{text}0"),
        format!(" {}", &text[1..]),
        String::new(),
    ] {
        assert_eq!(bad.parse::<Pin>(), Err(KeyError::Pin), "{bad:?}");
    }
    assert_eq!(pin.key_id().to_string(), &text[..16]);
}

#[test]
fn seeded_entropy_repeats_and_differs_by_seed() {
    let draw = |seed| {
        let entropy = SeededEntropy::new(seed);
        let mut out = [0u8; 70];
        entropy.fill(&mut out);
        out
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert_ne!(draw(7)[..32], draw(7)[32..64], "blocks differ");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn key_decoders_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".{0,80}") {
        let _ = VerifyingKey::from_spki_der(&bytes);
        let _ = SigningKey::from_pkcs8_der(&bytes);
        let _ = SigningKey::from_pkcs8_pem(&text);
        let _ = Signature::from_bytes(&bytes);
        let _ = text.parse::<Pin>();
        let _ = text.parse::<KeyId>();
    }
}
