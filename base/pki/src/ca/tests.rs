use x509_parser::extensions::GeneralName;

use super::*;
use crate::SeededEntropy;
use crate::testing::{at, authority, node_name};

#[test]
fn an_authority_survives_storage() {
    let made = authority("node CA", 1);
    let stored = CertificateAuthority::load(
        made.certificate_der().to_vec(),
        SigningKey::from_pkcs8_pem(&made.key().to_pkcs8_pem()).unwrap(),
    )
    .unwrap();
    assert_eq!(stored.pin(), made.pin());
}

#[test]
fn an_authority_is_not_loaded_with_another_key_or_from_a_leaf() {
    let entropy = SeededEntropy::new(5);
    let made = authority("node CA", 1);
    let other = SigningKey::generate(&entropy);
    let load = |der: &[u8], key: &SigningKey| CertificateAuthority::load(der.to_vec(), key.clone()).err();
    assert_eq!(load(made.certificate_der(), &other), Some(CaError::OtherKey));
    let leaf = made.issue_node(&node_name(1), other.verifying_key(), at(0), &entropy).unwrap();
    assert_eq!(load(&leaf.der, &other), Some(CaError::NotAnAuthority));
    assert_eq!(load(b"", &other), Some(CaError::NotAnAuthority));
}

#[test]
fn a_node_certificate_is_what_the_doc_says() {
    let entropy = SeededEntropy::new(5);
    let ca = authority("node CA", 1);
    let key = SigningKey::generate(&entropy);
    let issued = ca.issue_node(&node_name(1), key.verifying_key(), at(100), &entropy).unwrap();
    let certificate = parse_certificate(&issued.der).unwrap();
    assert!(!certificate.is_ca());
    let san = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(san.value.general_names, [GeneralName::URI(&node_name(1).to_string())]);
    assert_eq!(Serial::from_der_integer(certificate.raw_serial()), Some(issued.serial));
    assert_eq!(issued.validity.not_after.since(at(100)), NODE_CERTIFICATE_LIFETIME);
    assert_eq!(certificate.validity().not_after.timestamp(), seconds(issued.validity.not_after));
    assert_eq!(certificate.validity().not_before.timestamp(), seconds(issued.validity.not_before));
    assert_eq!(issued.spki_pin, key.verifying_key().pin());
}

#[test]
fn serials_differ() {
    let entropy = SeededEntropy::new(5);
    let ca = authority("node CA", 1);
    let key = SigningKey::generate(&entropy);
    let serial = || ca.issue_node(&node_name(1), key.verifying_key(), at(0), &entropy).unwrap().serial;
    assert_ne!(serial(), serial());
}

#[test]
fn serials_are_read_from_any_der_form_of_them() {
    let padded = |bytes: &[u8]| {
        let mut out = [0u8; 16];
        out[16 - bytes.len()..].copy_from_slice(bytes);
        Some(Serial::from_bytes(out))
    };
    assert_eq!(Serial::from_der_integer(&[1]), padded(&[1]));
    assert_eq!(Serial::from_der_integer(&[0, 0x80]), padded(&[0x80]));
    assert_eq!(Serial::from_der_integer(&[0x80]), None, "negative");
    assert_eq!(Serial::from_der_integer(&[0]), None, "zero");
    assert_eq!(Serial::from_der_integer(&[]), None);
    assert_eq!(Serial::from_der_integer(&[1; 17]), None, "too long");
    let serial = Serial::from_bytes([0xab; 16]);
    assert_eq!(serial.to_string().parse(), Ok(serial));
    assert_eq!("ABababababababababababababababab".parse::<Serial>(), Err(SerialError));
}

#[test]
fn a_serving_certificate_carries_dns_and_ip_names() {
    let entropy = SeededEntropy::new(5);
    let ca = authority("serving CA", 1);
    let key = SigningKey::generate(&entropy);
    let validity = Validity::starting(at(0), Duration::from_secs(3600));
    let issue = |names: &[&str]| ca.issue_serving(names, key.verifying_key(), validity, &entropy);
    let issued = issue(&["gw.example.test", "127.0.0.1", "::1"]).unwrap();
    let certificate = parse_certificate(&issued.der).unwrap();
    let san = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(san.value.general_names.len(), 3);
    assert_eq!(san.value.general_names[0], GeneralName::DNSName("gw.example.test"));
    assert_eq!(issue(&[]), Err(CaError::ServingNames));
    assert!(matches!(issue(&["not a name"]), Err(CaError::ServingName(_))));
    assert!(matches!(issue(&["https://gw"]), Err(CaError::ServingName(_))));
}

#[test]
fn an_empty_validity_is_refused() {
    let validity = Validity { not_before: at(1), not_after: at(1) };
    assert_eq!(
        CertificateAuthority::create("x", validity, &SeededEntropy::new(1)).err(),
        Some(CaError::Validity)
    );
}
