use proptest::prelude::*;

use super::*;
use crate::{OsEntropy, SeededEntropy};

fn jwk(x: &str, y: &str) -> EncryptionKey {
    EncryptionKey::from_parts("EC", "P-256", x, y).unwrap()
}

fn secret(d: &str) -> SecretKey {
    SecretKey::from_slice(&codec::from_base64url(d).unwrap()).unwrap()
}

/// RFC 7518 Appendix C: Alice's ephemeral key, Bob's static key, A128GCM.
#[test]
fn key_agreement_is_that_of_rfc_7518_appendix_c() {
    let alice = secret("0_NxaRPUMQoAJt50Gz8YiTr8gRTwyEaCumd-MToTmIo");
    let alice_public =
        jwk("gI0GAILBdu7T53akrFmMyGcsF3n5dO7MmwNBHKW5SV0", "SLW_xSffzlPWrHEVI30DHM_4egVwt3NQqeUD7nMFpps");
    let bob = secret("VEmDZpDXXK8p8N0Cndsxs924q6nS1RXFASRl6BfUqdw");
    let bob_public =
        jwk("weNJy2HscCSM6AEDTDg04biOvhFhyyWvOHQfeF_PxMQ", "e8lnCO-AlStT-NJVX-crhB7QRYhiix03illJOVAOyck");
    for (own, other) in [(&alice, &bob_public), (&bob, &alice_public)] {
        let shared = own.diffie_hellman(&other.public());
        assert_eq!(shared.raw_secret_bytes()[..4], [158, 86, 217, 29]);
        let key = concat_kdf::<16>(shared.raw_secret_bytes(), "A128GCM", b"Alice", b"Bob");
        assert_eq!(codec::to_base64url(&*key), "VqqN6vgjbSBcIijNcacQGg");
    }
}

/// Made with Python's `cryptography`: its ECDH, ConcatKDF and AES-GCM, and a header of its own.
#[test]
fn a_box_of_another_implementation_opens() {
    let key = DecryptionKey::from_secret(secret("biIYTyqmPZYEEdQD8r_YULoYazR0i1AuEAlNLsEFLPk"));
    let parts = [
        "eyJhbGciOiJFQ0RILUVTIiwiZW5jIjoiQTI1NkdDTSIsImtpZCI6InJlcS0xIiwiZXBrIjp7Imt0eSI6IkVDIiwiY3J2IjoiUC0yNTYiLCJ4IjoiTTlTSEdteThxTGMyaWp4UTFkZ25ZenVxWWQ4ckNncXJvRVpzUWNuVl9kVSIsInkiOiItc1QweWNnVHVfZkMxZzZTTzhhQWh4b0lidzZyQmNCMDVvdkVZTmw5VENVIn19",
        "",
        "AAECAwQFBgcICQoL",
        "Up1yYKhfvmr5928q4KqsHUmGbmPgX_lREYbvSNLG",
        "JdxTXO_KpXpxDb5xNgyGfg",
    ];
    assert_eq!(open(&parts.join("."), &key, "req-1").unwrap().as_slice(), b"made by another implementation");
}

#[test]
fn only_the_recipient_opens_a_box() {
    let key = DecryptionKey::generate(&OsEntropy);
    let sealed = seal(b"secret", key.encryption_key(), "kid-1", &OsEntropy).unwrap();
    assert_eq!(open(&sealed, &key, "kid-1").unwrap().as_slice(), b"secret");
    assert_eq!(open(&sealed, &key, "kid-2").unwrap_err(), OpenError::OtherRecipient);
    let other = DecryptionKey::generate(&OsEntropy);
    assert_eq!(open(&sealed, &other, "kid-1").unwrap_err(), OpenError::Refused);
}

#[test]
fn two_boxes_of_one_secret_differ() {
    let key = DecryptionKey::generate(&OsEntropy);
    let sealed = || seal(b"secret", key.encryption_key(), "k", &OsEntropy).unwrap();
    assert_ne!(sealed(), sealed());
}

#[test]
fn the_largest_box_opens_and_a_larger_one_is_not_made() {
    let key = DecryptionKey::generate(&OsEntropy);
    let plaintext = vec![7u8; SEALED_PLAINTEXT_BYTES_MAX];
    let sealed = seal(&plaintext, key.encryption_key(), &"k".repeat(64), &OsEntropy).unwrap();
    assert!(sealed.len() <= SEALED_BYTES_MAX);
    assert_eq!(open(&sealed, &key, &"k".repeat(64)).unwrap().as_slice(), plaintext);
    let longer = vec![7u8; SEALED_PLAINTEXT_BYTES_MAX + 1];
    assert_eq!(seal(&longer, key.encryption_key(), "k", &OsEntropy), Err(SealError::TooLong));
    assert_eq!(open(&"a".repeat(SEALED_BYTES_MAX + 1), &key, "k").unwrap_err(), OpenError::TooLong);
    for kid in ["", "a b", "a\"b", &"k".repeat(65)] {
        assert_eq!(seal(b"", key.encryption_key(), kid, &OsEntropy), Err(SealError::KeyId), "{kid:?}");
    }
}

/// A box with its header changed by `edit`, sealed anew so that only the header's rules can refuse it.
fn with_header(key: &DecryptionKey, edit: impl Fn(String) -> String) -> String {
    let ephemeral = DecryptionKey::generate(&SeededEntropy::new(3));
    let epk = ephemeral.public.to_jwk();
    let header = edit(format!("{{\"alg\":\"ECDH-ES\",\"enc\":\"A256GCM\",\"kid\":\"k\",\"epk\":{epk}}}"));
    let header = codec::to_base64url(header.as_bytes());
    let nonce = [1u8; 12];
    let sealed =
        gcm::encrypt(&agree(&ephemeral.secret, &key.public.public()), &nonce, header.as_bytes(), b"x");
    let (ciphertext, tag) = sealed.split_at(1);
    let encode = codec::to_base64url;
    format!("{header}..{}.{}.{}", encode(&nonce), encode(ciphertext), encode(tag))
}

#[test]
fn a_header_says_exactly_what_ours_says() {
    let key = DecryptionKey::generate(&SeededEntropy::new(1));
    assert!(open(&with_header(&key, |header| header), &key, "k").is_ok());
    let edits: [(&str, &str); 8] = [
        ("ECDH-ES", "ECDH-ES+A256KW"),
        ("A256GCM", "A128GCM"),
        ("{\"alg\"", "{\"zip\":\"DEF\",\"alg\""),
        ("{\"alg\"", "{\"crit\":[\"b64\"],\"alg\""),
        ("{\"alg\"", "{\"apu\":\"QWxpY2U\",\"alg\""),
        ("{\"alg\"", "{\"alg\":\"dir\",\"alg\""),
        ("P-256", "P-384"),
        ("\"kty\"", "\"d\":\"AA\",\"kty\""),
    ];
    for (from, to) in edits {
        let sealed = with_header(&key, |header| {
            assert!(header.contains(from));
            header.replacen(from, to, 1)
        });
        assert_eq!(open(&sealed, &key, "k").unwrap_err(), OpenError::Malformed, "{to}");
    }
}

#[test]
fn a_point_off_the_curve_is_refused() {
    let x = codec::to_base64url(&[1u8; 32]);
    assert!(EncryptionKey::from_parts("EC", "P-256", &x, &x).is_none());
}

#[test]
fn an_encryption_key_survives_its_jwk() {
    let key = DecryptionKey::generate(&OsEntropy);
    let text = key.encryption_key().to_jwk();
    assert_eq!(&EncryptionKey::from_jwk(&text).unwrap(), key.encryption_key());
    let published = text.replacen('{', "{\"use\":\"enc\",\"kid\":\"x\",", 1);
    assert_eq!(EncryptionKey::from_jwk(&published).unwrap().pin(), key.encryption_key().pin());
    let stored = DecryptionKey::from_pkcs8_pem(&key.to_pkcs8_pem()).unwrap();
    assert_eq!(stored.encryption_key(), key.encryption_key());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn opening_never_panics(text in ".{0,200}", parts in prop::collection::vec("[A-Za-z0-9_-]{0,40}", 0..7)) {
        let key = DecryptionKey::generate(&SeededEntropy::new(1));
        prop_assert!(open(&text, &key, "k").is_err());
        prop_assert!(open(&parts.join("."), &key, "k").is_err());
        let _ = EncryptionKey::from_jwk(&text);
        let _ = DecryptionKey::from_pkcs8_pem(&text);
    }

    #[test]
    fn a_changed_character_never_opens(index in 0usize..1000, byte in b'0'..=b'z') {
        let key = DecryptionKey::generate(&SeededEntropy::new(1));
        let good = seal(b"secret", key.encryption_key(), "k", &SeededEntropy::new(2)).unwrap();
        let mut changed = good.clone().into_bytes();
        let index = index % changed.len();
        changed[index] = byte;
        let changed = String::from_utf8(changed).unwrap();
        prop_assert!(changed == good || open(&changed, &key, "k").is_err());
    }
}
