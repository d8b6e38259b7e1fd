use std::time::Duration;

use proptest::prelude::*;
use rcgen::{
    CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;

use super::*;
use crate::ca::{CertificateAuthority, NODE_CERTIFICATE_LIFETIME, NOT_BEFORE_ALLOWANCE};
use crate::testing::{at, authority, node_name, trust_domain};
use crate::x509::{RcgenKey, RcgenPublic, to_x509_time};
use crate::{SeededEntropy, SigningKey};

fn trust(ca: &CertificateAuthority) -> NodeTrust {
    NodeTrust::new(trust_domain(), &[ca.certificate_der()]).unwrap()
}

fn node_key() -> SigningKey {
    SigningKey::generate(&SeededEntropy::new(77))
}

/// A certificate like ours, then changed by `change`, signed by the real CA.
fn odd(ca: &CertificateAuthority, change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.not_before = to_x509_time(at(0)).unwrap();
    params.not_after = to_x509_time(at(3600)).unwrap();
    params.serial_number = Some(vec![1u8; 16].into());
    params.subject_alt_names = vec![SanType::URI(node_name(1).to_string().try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.is_ca = IsCa::ExplicitNoCa;
    change(&mut params);
    let der = CertificateDer::from(ca.certificate_der());
    let issuer = Issuer::from_ca_cert_der(&der, RcgenKey::new(ca.key())).unwrap();
    let subject = RcgenPublic(node_key().verifying_key().sec1_uncompressed());
    params.signed_by(&subject, &issuer).unwrap().der().to_vec()
}

#[test]
fn an_issued_certificate_identifies_its_node() {
    let ca = authority("node CA", 1);
    let issued =
        ca.issue_node(&node_name(1), node_key().verifying_key(), at(0), &SeededEntropy::new(2)).unwrap();
    let peer = PeerIdentity::from_certificate_der(&issued.der, &trust(&ca), at(5)).unwrap();
    assert_eq!(
        (peer.node_id, peer.site_id, peer.role),
        (node_name(1).node_id, node_name(1).site_id, Role::Node)
    );
    assert_eq!((peer.serial, peer.not_after), (issued.serial, issued.validity.not_after));
    assert_eq!(&peer.key, node_key().verifying_key());
}

#[test]
fn a_certificate_identifies_only_while_valid() {
    let ca = authority("node CA", 1);
    let issued =
        ca.issue_node(&node_name(1), node_key().verifying_key(), at(1000), &SeededEntropy::new(2)).unwrap();
    let second = Duration::from_secs(1);
    let start = at(1000).saturating_sub(NOT_BEFORE_ALLOWANCE);
    let end = at(1000).saturating_add(NODE_CERTIFICATE_LIFETIME);
    let identify = |when| PeerIdentity::from_certificate_der(&issued.der, &trust(&ca), when).err();
    assert_eq!(identify(start), None);
    assert_eq!(identify(end), None);
    assert_eq!(identify(start.saturating_sub(second)), Some(IdentityRefused::Validity));
    assert_eq!(identify(end.saturating_add(second)), Some(IdentityRefused::Validity));
}

#[test]
fn another_authority_of_the_same_name_is_refused() {
    let (ours, theirs) = (authority("node CA", 1), authority("node CA", 2));
    let issued =
        theirs.issue_node(&node_name(1), node_key().verifying_key(), at(0), &SeededEntropy::new(2)).unwrap();
    let refused = PeerIdentity::from_certificate_der(&issued.der, &trust(&ours), at(5)).unwrap_err();
    assert_eq!(refused, IdentityRefused::Issuer);
    let both = NodeTrust::new(trust_domain(), &[ours.certificate_der(), theirs.certificate_der()]).unwrap();
    assert!(PeerIdentity::from_certificate_der(&issued.der, &both, at(5)).is_ok(), "while a CA rotates");
}

#[test]
fn anything_our_ca_would_not_issue_is_refused() {
    let ca = authority("node CA", 1);
    let identify = |der: &[u8]| PeerIdentity::from_certificate_der(der, &trust(&ca), at(5)).map(|_| ());
    assert_eq!(identify(&odd(&ca, |_| {})), Ok(()), "the unchanged one passes");
    let uri = |text: &str| SanType::URI(text.to_owned().try_into().unwrap());
    let dns = SanType::DnsName("host.test".to_owned().try_into().unwrap());
    let critical = || {
        let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
        extension.set_criticality(true);
        extension
    };
    let cases: Vec<(&str, Vec<u8>, IdentityRefused)> = vec![
        ("extra name", odd(&ca, |p| p.subject_alt_names.push(dns.clone())), IdentityRefused::Name),
        (
            "second id",
            odd(&ca, |p| p.subject_alt_names.push(uri(&node_name(2).to_string()))),
            IdentityRefused::Name,
        ),
        ("no name", odd(&ca, |p| p.subject_alt_names.clear()), IdentityRefused::Name),
        (
            "other uri",
            odd(&ca, |p| p.subject_alt_names = vec![uri("https://a.test/")]),
            IdentityRefused::Name,
        ),
        (
            "other domain",
            odd(&ca, |p| {
                let text = node_name(1).to_string().replace("example.test", "other.test");
                p.subject_alt_names = vec![uri(&text)];
            }),
            IdentityRefused::TrustDomain,
        ),
        (
            "authority",
            odd(&ca, |p| p.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(0))),
            IdentityRefused::Authority,
        ),
        (
            "server",
            odd(&ca, |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            IdentityRefused::Usage,
        ),
        (
            "both",
            odd(&ca, |p| p.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth)),
            IdentityRefused::Usage,
        ),
        ("no usage", odd(&ca, |p| p.extended_key_usages.clear()), IdentityRefused::Usage),
        (
            "signs certificates",
            odd(&ca, |p| p.key_usages.push(KeyUsagePurpose::KeyCertSign)),
            IdentityRefused::Usage,
        ),
        ("critical", odd(&ca, |p| p.custom_extensions.push(critical())), IdentityRefused::Extension),
        ("long serial", odd(&ca, |p| p.serial_number = Some(vec![1u8; 17].into())), IdentityRefused::Serial),
        ("the CA itself", ca.certificate_der().to_vec(), IdentityRefused::Authority),
        ("trailing", [odd(&ca, |_| {}), vec![0]].concat(), IdentityRefused::Malformed),
        ("empty", Vec::new(), IdentityRefused::Malformed),
    ];
    for (what, der, wanted) in cases {
        assert_eq!(identify(&der), Err(wanted), "{what}");
    }
}

#[test]
fn an_expired_authority_identifies_nobody() {
    let ca = authority("node CA", 1);
    let der = odd(&ca, |params| params.not_after = to_x509_time(at(20 * 365 * 86400)).unwrap());
    let refused = PeerIdentity::from_certificate_der(&der, &trust(&ca), at(15 * 365 * 86400)).unwrap_err();
    assert_eq!(refused, IdentityRefused::Validity);
}

#[test]
fn trust_takes_authorities_only_and_a_bounded_number() {
    let ca = authority("node CA", 1);
    let leaf = odd(&ca, |_| {});
    assert!(NodeTrust::new(trust_domain(), &[leaf]).is_err());
    assert!(NodeTrust::new::<Vec<u8>>(trust_domain(), &[]).is_err());
    assert!(NodeTrust::new(trust_domain(), &[ca.certificate_der(); NODE_CAS_MAX + 1]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn identifying_never_panics_and_never_believes_a_changed_certificate(at_byte in 0usize..700, byte in any::<u8>()) {
        let ca = authority("node CA", 1);
        let good = odd(&ca, |_| {});
        let mut changed = good.clone();
        let index = at_byte % changed.len();
        changed[index] = byte;
        let identified = PeerIdentity::from_certificate_der(&changed, &trust(&ca), at(5)).is_ok();
        prop_assert!(!identified || changed == good);
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let ca = authority("node CA", 1);
        prop_assert!(PeerIdentity::from_certificate_der(&bytes, &trust(&ca), at(5)).is_err());
        prop_assert!(NodeTrust::new(trust_domain(), &[bytes]).is_err());
    }
}
