use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;
use crate::testing::{at, deployment};

const HOUR: Duration = Duration::from_secs(3600);

struct Setup {
    root: SigningKey,
    worker: IntentSigner,
    verifier: CommandVerifier,
}

fn setup() -> Setup {
    let entropy = SeededEntropy::new(1);
    let root = SigningKey::generate(&entropy);
    let worker = worker_under(&root, deployment(1), &entropy);
    let verifier = CommandVerifier::new(deployment(1), &[root.verifying_key().clone()]);
    Setup { root, worker, verifier }
}

fn worker_under(root: &SigningKey, deployment_id: DeploymentId, entropy: &SeededEntropy) -> IntentSigner {
    let key = SigningKey::generate(entropy);
    let statement = WorkerKeyStatement {
        key: key.verifying_key().clone(),
        not_before: at(0),
        not_after: at(0).saturating_add(HOUR),
        deployment_id,
    };
    IntentSigner::new(key, WorkerCertificate::issue(root, statement)).unwrap()
}

#[test]
fn intent_signed_by_a_certified_worker_is_believed() {
    let Setup { worker, verifier, .. } = setup();
    for purpose in SIGNED_BY_WORKERS {
        let bytes = worker.sign(*purpose, b"body").encode();
        assert!(bytes.len() <= INTENT_SIGNATURE_BYTES_MAX);
        assert_eq!(verifier.verify_bytes(*purpose, b"body", &bytes, at(10)), Ok(()));
        assert_eq!(
            verifier.verify_bytes(*purpose, b"other", &bytes, at(10)),
            Err(SignatureRefused::BadSignature)
        );
    }
}

#[test]
fn a_command_signature_is_no_spec_signature() {
    let Setup { worker, verifier, .. } = setup();
    let intent = worker.sign(Purpose::Command, b"body");
    assert_eq!(
        verifier.verify(Purpose::DesiredState, b"body", Some(&intent), at(10)),
        Err(SignatureRefused::BadSignature)
    );
}

#[test]
fn unsigned_and_malformed_intent_are_told_apart() {
    let Setup { verifier, .. } = setup();
    let verify = |bytes: &[u8]| verifier.verify_bytes(Purpose::Command, b"body", bytes, at(10));
    assert_eq!(verify(b""), Err(SignatureRefused::Missing));
    assert_eq!(verify(b"nonsense"), Err(SignatureRefused::Malformed));
    assert_eq!(verifier.verify(Purpose::Command, b"", None, at(10)), Err(SignatureRefused::Missing));
}

#[test]
fn a_worker_signs_nothing_but_intent() {
    let Setup { worker, verifier, .. } = setup();
    let intent = worker.sign(Purpose::JoinResponse, b"body");
    assert_eq!(
        verifier.verify(Purpose::JoinResponse, b"body", Some(&intent), at(10)),
        Err(SignatureRefused::NotDelegated(Purpose::JoinResponse))
    );
}

#[test]
fn an_unknown_root_is_refused() {
    let Setup { verifier, .. } = setup();
    let entropy = SeededEntropy::new(2);
    let stranger = SigningKey::generate(&entropy);
    let intent = worker_under(&stranger, deployment(1), &entropy).sign(Purpose::Command, b"body");
    assert_eq!(
        verifier.verify(Purpose::Command, b"body", Some(&intent), at(10)),
        Err(SignatureRefused::UnknownRoot(stranger.verifying_key().key_id()))
    );
}

#[test]
fn a_forged_worker_certificate_is_refused() {
    let Setup { root, verifier, .. } = setup();
    let entropy = SeededEntropy::new(2);
    let stranger = SigningKey::generate(&entropy);
    let mut intent = worker_under(&stranger, deployment(1), &entropy).sign(Purpose::Command, b"body");
    intent.worker_certificate.root_key_id = root.verifying_key().key_id();
    assert_eq!(
        verifier.verify(Purpose::Command, b"body", Some(&intent), at(10)),
        Err(SignatureRefused::BadRootSignature)
    );
}

#[test]
fn a_worker_of_another_deployment_is_refused() {
    let Setup { root, verifier, .. } = setup();
    let intent = worker_under(&root, deployment(2), &SeededEntropy::new(2)).sign(Purpose::Command, b"body");
    assert_eq!(
        verifier.verify(Purpose::Command, b"body", Some(&intent), at(10)),
        Err(SignatureRefused::OtherDeployment)
    );
}

#[test]
fn a_worker_key_is_taken_only_while_valid() {
    let Setup { worker, verifier, .. } = setup();
    let intent = worker.sign(Purpose::Command, b"body");
    let end = at(0).saturating_add(HOUR);
    let tick = Duration::from_micros(1);
    for (when, wanted) in [
        (at(0).saturating_sub(tick), Err(SignatureRefused::WorkerExpired)),
        (at(0), Ok(())),
        (end, Ok(())),
        (end.saturating_add(tick), Err(SignatureRefused::WorkerExpired)),
    ] {
        assert_eq!(verifier.verify(Purpose::Command, b"body", Some(&intent), when), wanted, "at {when}");
    }
}

#[test]
fn a_signer_needs_the_certificate_of_its_own_key() {
    let Setup { worker, .. } = setup();
    let other = SigningKey::generate(&SeededEntropy::new(9));
    assert!(IntentSigner::new(other, worker.certificate().clone()).is_none());
}

#[test]
fn a_statement_with_an_unknown_member_is_refused() {
    let Setup { worker, .. } = setup();
    let text = String::from_utf8(worker.certificate().statement.clone()).unwrap();
    assert!(WorkerKeyStatement::parse(text.as_bytes()).is_ok());
    let widened = text.replacen('{', "{\"nodes\":[],", 1);
    assert!(WorkerKeyStatement::parse(widened.as_bytes()).is_err());
    let later = text.replacen("\"v\":1", "\"v\":2", 1);
    assert!(WorkerKeyStatement::parse(later.as_bytes()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn decoders_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut versioned = vec![1u8];
        versioned.extend_from_slice(&bytes);
        for candidate in [&bytes, &versioned] {
            let _ = WorkerCertificate::decode(candidate);
            let _ = IntentSignature::decode(candidate);
            let _ = WorkerKeyStatement::parse(candidate);
        }
    }

    #[test]
    fn a_flipped_bit_is_never_believed(index in 0usize..400, bit in 0u8..8) {
        let Setup { worker, verifier, .. } = setup();
        let mut bytes = worker.sign(Purpose::Command, b"body").encode();
        let index = index % bytes.len();
        bytes[index] ^= 1 << bit;
        prop_assert!(verifier.verify_bytes(Purpose::Command, b"body", &bytes, at(10)).is_err());
    }
}
