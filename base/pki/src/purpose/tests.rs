use std::collections::BTreeSet;

use super::*;
use crate::{SeededEntropy, SigningKey};

#[test]
fn a_signature_for_one_purpose_never_verifies_as_another() {
    let key = SigningKey::generate(&SeededEntropy::new(1));
    for signed in Purpose::ALL {
        let signature = key.sign(*signed, b"body");
        for asked in Purpose::ALL {
            let verified = key.verifying_key().verify(*asked, b"body", &signature).is_ok();
            assert_eq!(verified, signed == asked, "signed as {signed}, asked as {asked}");
        }
    }
}

#[test]
fn purpose_texts_are_unique_and_plain() {
    let texts: BTreeSet<_> = Purpose::ALL.iter().map(|purpose| purpose.text()).collect();
    assert_eq!(texts.len(), Purpose::ALL.len());
    for text in texts {
        assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
    }
}

#[test]
fn the_frame_is_the_prefix_the_purpose_and_a_zero() {
    assert_eq!(Purpose::Command.message(b"x"), b"better-compute/v1/command\0x");
}
