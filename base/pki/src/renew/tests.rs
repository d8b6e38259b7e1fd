use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;
use crate::csr::make_csr;
use crate::identity::NodeTrust;
use crate::testing::{at, authority, node, node_name, trust_domain};

struct Setup {
    old_key: SigningKey,
    new_key: SigningKey,
    csr: Vec<u8>,
    peer: PeerIdentity,
}

fn setup() -> Setup {
    let entropy = SeededEntropy::new(50);
    let ca = authority("node CA", 1);
    let old_key = SigningKey::generate(&entropy);
    let issued = ca.issue_node(&node_name(1), old_key.verifying_key(), at(0), &entropy).unwrap();
    let trust = NodeTrust::new(trust_domain(), &[ca.certificate_der()]).unwrap();
    let peer = PeerIdentity::from_certificate_der(&issued.der, &trust, at(0)).unwrap();
    let new_key = SigningKey::generate(&entropy);
    Setup { csr: make_csr(&new_key, "host-1"), old_key, new_key, peer }
}

fn statement(setup: &Setup) -> RenewStatement {
    RenewStatement::new(setup.peer.node_id, &setup.csr, setup.peer.serial, at(0), &SeededEntropy::new(51))
}

#[test]
fn the_old_key_vouches_for_the_new() {
    let setup = setup();
    let proof = RenewProof::sign(&setup.old_key, statement(&setup));
    let proof = RenewProof::decode(&proof.encode()).unwrap();
    let renewal = proof.verify(&setup.peer, &setup.csr, at(60)).unwrap();
    assert_eq!(&renewal.key, setup.new_key.verifying_key());
    assert_eq!(renewal.nonce, statement(&setup).nonce);
}

#[test]
fn a_proof_by_another_key_is_refused() {
    let setup = setup();
    let proof = RenewProof::sign(&setup.new_key, statement(&setup));
    assert_eq!(proof.verify(&setup.peer, &setup.csr, at(0)), Err(RenewRefused::BadSignature));
}

#[test]
fn a_proof_is_bound_to_node_certificate_csr_and_time() {
    let setup = setup();
    let good = statement(&setup);
    let later = at(0).saturating_add(RENEW_AGE_MAX).saturating_add(Duration::from_micros(1));
    let earlier = at(0).saturating_sub(RENEW_AGE_MAX).saturating_sub(Duration::from_micros(1));
    for (statement, wanted) in [
        (RenewStatement { node_id: node(2), ..good.clone() }, RenewRefused::OtherCertificate),
        (
            RenewStatement { old_serial: Serial::from_bytes([1; 16]), ..good.clone() },
            RenewRefused::OtherCertificate,
        ),
        (RenewStatement { csr_sha256: [0; 32], ..good.clone() }, RenewRefused::OtherCsr),
        (RenewStatement { at: later, ..good.clone() }, RenewRefused::Age),
        (RenewStatement { at: earlier, ..good }, RenewRefused::Age),
    ] {
        let proof = RenewProof::sign(&setup.old_key, statement);
        assert_eq!(proof.verify(&setup.peer, &setup.csr, at(0)), Err(wanted));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_changed_proof_never_verifies(index in 0usize..600, bit in 0u8..8, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = RenewProof::decode(&bytes);
        let setup = setup();
        let mut encoded = RenewProof::sign(&setup.old_key, statement(&setup)).encode();
        let index = index % encoded.len();
        encoded[index] ^= 1 << bit;
        let verified = RenewProof::decode(&encoded).is_ok_and(|proof| proof.verify(&setup.peer, &setup.csr, at(0)).is_ok());
        prop_assert!(!verified);
    }
}
