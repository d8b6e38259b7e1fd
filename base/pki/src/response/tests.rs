use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;
use crate::csr::make_csr;
use crate::testing::{at, authority, bundle, deployment, node, node_name};

struct Setup {
    join_key: SigningKey,
    pins: [Pin; 1],
    node_key: SigningKey,
    csr: Vec<u8>,
    response: JoinResponse,
}

fn setup() -> Setup {
    let entropy = SeededEntropy::new(30);
    let join_key = SigningKey::generate(&entropy);
    let node_key = SigningKey::generate(&entropy);
    let csr = make_csr(&node_key, "host-1");
    let response = JoinResponse {
        node_id: node_name(1).node_id,
        site_id: node_name(1).site_id,
        role: Role::Node,
        chain: vec![leaf(&node_key, 1)],
        csr_sha256: csr_sha256(&csr),
        trust_bundle: bundle(&join_key).sign(&join_key),
        served_at: at(0),
        deployment_id: deployment(1),
        deployment_epoch: 1,
    };
    Setup { pins: [join_key.verifying_key().pin()], join_key, node_key, csr, response }
}

fn leaf(key: &SigningKey, ca_seed: u64) -> Vec<u8> {
    let ca = authority("node CA", ca_seed);
    ca.issue_node(&node_name(1), key.verifying_key(), at(0), &SeededEntropy::new(31)).unwrap().der
}

impl Setup {
    fn verify(&self) -> Result<Joined, ResponseRefused> {
        self.verify_asking(|_| ())
    }

    fn verify_asking<'a>(
        &'a self,
        change: impl FnOnce(&mut Expected<'a>),
    ) -> Result<Joined, ResponseRefused> {
        let mut expected = Expected {
            pins: &self.pins,
            csr_der: &self.csr,
            key: self.node_key.verifying_key(),
            role: Role::Node,
            node_id: None,
            at: at(10),
        };
        change(&mut expected);
        verify_join_response(&self.response.sign(&self.join_key).encode(), &expected)
    }
}

#[test]
fn a_good_response_joins() {
    let setup = setup();
    let joined = setup.verify().unwrap();
    assert_eq!(joined.response, setup.response);
    assert_eq!(joined.bundle, bundle(&setup.join_key));
    assert_eq!(joined.identity.node_id, node_name(1).node_id);
    assert!(setup.verify_asking(|expected| expected.node_id = Some(node(1))).is_ok());
}

#[test]
fn an_unpinned_signer_is_refused() {
    let setup = setup();
    let refused = setup.verify_asking(|expected| expected.pins = &[]).unwrap_err();
    assert!(matches!(refused, ResponseRefused::Signed(SignedRefused::UnknownSigner { .. })));
}

#[test]
fn an_answer_to_another_csr_or_for_another_key_is_refused() {
    let mut setup = setup();
    let other = SigningKey::generate(&SeededEntropy::new(32));
    let other_csr = make_csr(&other, "host-1");
    let refused = setup.verify_asking(|expected| expected.csr_der = &other_csr).unwrap_err();
    assert!(matches!(refused, ResponseRefused::OtherCsr));
    setup.response.chain = vec![leaf(&other, 1)];
    assert!(matches!(setup.verify(), Err(ResponseRefused::OtherKey)));
}

#[test]
fn another_role_or_node_than_asked_is_refused() {
    let setup = setup();
    let refused = setup.verify_asking(|expected| expected.role = Role::Site).unwrap_err();
    assert!(matches!(refused, ResponseRefused::OtherRole { asked: Role::Site, given: Role::Node }));
    let refused = setup.verify_asking(|expected| expected.node_id = Some(node(2))).unwrap_err();
    assert!(matches!(refused, ResponseRefused::OtherNode { .. }));
}

#[test]
fn a_certificate_that_says_otherwise_is_refused() {
    for change in [(|response| response.node_id = node(2)) as fn(&mut JoinResponse), |response| {
        response.site_id = crate::testing::site(2)
    }] {
        let mut setup = setup();
        change(&mut setup.response);
        assert!(matches!(setup.verify(), Err(ResponseRefused::NameMismatch)));
    }
}

#[test]
fn a_certificate_of_another_ca_or_outside_its_time_is_refused() {
    let mut setup = setup();
    let late = setup.verify_asking(|expected| expected.at = at(2 * 86_400)).unwrap_err();
    assert!(matches!(late, ResponseRefused::Certificate(IdentityRefused::Validity)));
    setup.response.chain = vec![leaf(&setup.node_key, 9)];
    assert!(matches!(setup.verify(), Err(ResponseRefused::Certificate(IdentityRefused::Issuer))));
}

#[test]
fn a_bundle_of_another_signer_or_deployment_is_refused() {
    let mut setup = setup();
    let stranger = SigningKey::generate(&SeededEntropy::new(33));
    setup.response.trust_bundle = bundle(&setup.join_key).sign(&stranger);
    assert!(matches!(setup.verify(), Err(ResponseRefused::Trust(_))));
    let other = TrustBundle { deployment_id: deployment(2), ..bundle(&setup.join_key) };
    setup.response.trust_bundle = other.sign(&setup.join_key);
    assert!(matches!(setup.verify(), Err(ResponseRefused::BundleMismatch)));
}

#[test]
fn a_trust_bundle_is_no_join_response() {
    let setup = setup();
    let encoded = setup.response.trust_bundle.encode();
    let expected = Expected {
        pins: &setup.pins,
        csr_der: &setup.csr,
        key: setup.node_key.verifying_key(),
        role: Role::Node,
        node_id: None,
        at: at(0),
    };
    let refused = verify_join_response(&encoded, &expected).unwrap_err();
    assert!(matches!(refused, ResponseRefused::Signed(SignedRefused::BadSignature { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), index in 0usize..4000, byte in any::<u8>()) {
        let _ = JoinResponse::parse(&bytes);
        let mut text = setup().response.render();
        let index = index % text.len();
        text[index] = byte;
        let _ = JoinResponse::parse(&text);
    }
}
