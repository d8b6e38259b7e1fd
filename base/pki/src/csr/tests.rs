use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;

#[test]
fn a_csr_proves_its_key() {
    let key = SigningKey::generate(&SeededEntropy::new(1));
    let csr = make_csr(&key, "host-1");
    assert_eq!(verify_csr(&csr).as_ref(), Ok(key.verifying_key()));
    assert_eq!(
        csr,
        make_csr(&key, "host-1"),
        "the same key gives the same bytes, so a retried join keeps its CSR"
    );
}

#[test]
fn every_flipped_byte_is_refused() {
    let csr = make_csr(&SigningKey::generate(&SeededEntropy::new(1)), "host-1");
    for index in 0..csr.len() {
        let mut changed = csr.clone();
        changed[index] ^= 1;
        assert!(verify_csr(&changed).is_err(), "byte {index}");
    }
}

#[test]
fn trailing_bytes_and_oversize_are_refused() {
    let mut csr = make_csr(&SigningKey::generate(&SeededEntropy::new(1)), "host-1");
    csr.push(0);
    assert_eq!(verify_csr(&csr), Err(CsrRefused::Malformed));
    csr.resize(CSR_BYTES_MAX + 1, 0);
    assert_eq!(verify_csr(&csr), Err(CsrRefused::TooLong));
}

#[test]
fn another_curve_is_refused() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let csr = CertificateParams::default().serialize_request(&key).unwrap();
    assert_eq!(verify_csr(csr.der()), Err(CsrRefused::Key));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn verifying_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..300, byte in any::<u8>()) {
        let _ = verify_csr(&bytes);
        let mut csr = make_csr(&SigningKey::generate(&SeededEntropy::new(1)), "h");
        let at = at % csr.len();
        csr[at] = byte;
        let _ = verify_csr(&csr);
    }
}
