use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;
use crate::testing::{bundle, deployment};

fn join_key() -> SigningKey {
    SigningKey::generate(&SeededEntropy::new(40))
}

fn with_version(epoch: u64, version: u64) -> TrustBundle {
    TrustBundle { deployment_epoch: epoch, version, ..bundle(&join_key()) }
}

#[test]
fn a_bundle_survives_its_text_form() {
    let bundle = bundle(&join_key());
    assert_eq!(TrustBundle::parse(&bundle.render()), Ok(bundle));
}

#[test]
fn a_newer_bundle_wins_and_an_older_one_is_refused() {
    let held = with_version(3, 7);
    let offered = |epoch, version| held.replaced_by(&with_version(epoch, version).sign(&join_key()));
    assert_eq!(offered(3, 8).unwrap(), Some(with_version(3, 8)));
    assert_eq!(offered(4, 1).unwrap(), Some(with_version(4, 1)), "a restore starts a new epoch");
    assert_eq!(offered(3, 7).unwrap(), None, "the one held");
    for (epoch, version) in [(3, 6), (2, 99)] {
        assert!(matches!(offered(epoch, version), Err(TrustRefused::Older { .. })), "{epoch}/{version}");
    }
}

#[test]
fn the_same_version_with_other_content_is_refused() {
    let held = with_version(3, 7);
    let mut other = held.clone();
    other.command_roots.clear();
    assert!(matches!(held.replaced_by(&other.sign(&join_key())), Err(TrustRefused::Conflict { version: 7 })));
}

#[test]
fn a_bundle_of_another_deployment_or_domain_is_refused() {
    let held = with_version(3, 7);
    let other = TrustBundle { deployment_id: deployment(9), ..with_version(3, 8) };
    assert!(matches!(held.replaced_by(&other.sign(&join_key())), Err(TrustRefused::OtherDeployment { .. })));
    let other = TrustBundle { trust_domain: "other.test".parse().unwrap(), ..with_version(3, 8) };
    assert!(matches!(held.replaced_by(&other.sign(&join_key())), Err(TrustRefused::OtherTrustDomain)));
}

#[test]
fn a_signer_outside_the_bundle_held_is_refused() {
    let held = with_version(3, 7);
    let stranger = SigningKey::generate(&SeededEntropy::new(41));
    let refused = held.replaced_by(&with_version(3, 8).sign(&stranger));
    assert!(matches!(refused, Err(TrustRefused::Signed(SignedRefused::UnknownSigner { .. }))));
}

#[test]
fn members_of_a_newer_control_plane_are_ignored_and_a_newer_format_is_refused() {
    let bundle = bundle(&join_key());
    let text = String::from_utf8(bundle.render()).unwrap();
    let extended = text.replacen('{', "{\"approverKeys\":[1],", 1);
    assert_eq!(TrustBundle::parse(extended.as_bytes()), Ok(bundle));
    assert!(TrustBundle::parse(text.replacen("\"v\":1", "\"v\":2", 1).as_bytes()).is_err());
}

#[test]
fn a_bundle_that_leaves_nothing_to_trust_is_refused() {
    let full = bundle(&join_key());
    for bad in [
        TrustBundle { serving_ca_pins: vec![], ..full.clone() },
        TrustBundle { join_signing_pins: vec![], ..full.clone() },
        TrustBundle { node_cas: vec![], ..full.clone() },
        TrustBundle { node_cas: vec![vec![1, 2, 3]], ..full.clone() },
        TrustBundle { serving_ca_pins: vec![full.serving_ca_pins[0]; TRUSTED_KEYS_MAX + 1], ..full.clone() },
    ] {
        assert!(TrustBundle::parse(&bad.render()).is_err());
    }
    assert!(TrustBundle::parse(&TrustBundle { command_roots: vec![], ..full }.render()).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..2000, byte in any::<u8>()) {
        let _ = TrustBundle::parse(&bytes);
        let mut text = bundle(&join_key()).render();
        let at = at % text.len();
        text[at] = byte;
        let _ = TrustBundle::parse(&text);
    }
}
