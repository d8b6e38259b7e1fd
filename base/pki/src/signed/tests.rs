use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;

#[test]
fn only_a_pinned_signer_is_believed() {
    let key = SigningKey::generate(&SeededEntropy::new(1));
    let message = SignedMessage::sign(&key, Purpose::TrustBundle, b"body".to_vec());
    let message = SignedMessage::decode(&message.encode()).unwrap();
    let pin = key.verifying_key().pin();
    assert_eq!(message.verify(Purpose::TrustBundle, &[pin]), Ok(&b"body"[..]));
    assert!(matches!(
        message.verify(Purpose::TrustBundle, &[Pin::from_bytes([0; 32])]),
        Err(SignedRefused::UnknownSigner { .. })
    ));
    assert!(matches!(message.verify(Purpose::TrustBundle, &[]), Err(SignedRefused::UnknownSigner { .. })));
    assert!(matches!(
        message.verify(Purpose::JoinResponse, &[pin]),
        Err(SignedRefused::BadSignature { purpose: Purpose::JoinResponse })
    ));
}

#[test]
fn every_flipped_byte_is_noticed() {
    let key = SigningKey::generate(&SeededEntropy::new(1));
    let pin = key.verifying_key().pin();
    let bytes = SignedMessage::sign(&key, Purpose::TrustBundle, b"body".to_vec()).encode();
    for index in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[index] ^= 1;
        let believed = SignedMessage::decode(&changed)
            .is_ok_and(|message| message.verify(Purpose::TrustBundle, &[pin]).is_ok());
        assert!(!believed, "byte {index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = SignedMessage::decode(&bytes);
    }
}
