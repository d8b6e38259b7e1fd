use super::*;
use crate::conformance::sample;

fn refused(change: impl FnOnce(&mut Instance)) -> SpecError {
    let mut instance = sample(1);
    change(&mut instance);
    instance.check().expect_err("it cannot be had")
}

#[test]
fn an_instance_is_within_bounds() {
    assert_eq!(sample(1).check(), Ok(()));
    for vcpus in [0, VCPUS_MAX + 1] {
        assert!(matches!(refused(|it| it.vcpus = vcpus), SpecError::OutOfRange { what: "vCPUs", .. }));
    }
    for bytes in [0, MEMORY_BYTES_MIN - MIB, MEMORY_BYTES_MAX + MIB, u64::MAX] {
        assert!(matches!(refused(|it| it.memory_bytes = bytes), SpecError::OutOfRange { .. }), "{bytes}");
    }
    assert!(matches!(refused(|it| it.memory_bytes += 1), SpecError::NotWhole { what: "memory", .. }));
    assert!(matches!(refused(|it| it.disk_bytes += 1), SpecError::NotWhole { what: "disk", .. }));
    assert!(matches!(refused(|it| it.disk_bytes = 0), SpecError::OutOfRange { .. }));
    assert!(matches!(refused(|it| it.image.path = "relative".into()), SpecError::ImagePath { .. }));
}

#[test]
fn a_card_has_an_address_of_its_own() {
    let twice = refused(|it| it.nics = vec![it.nics[0].clone(), it.nics[0].clone()]);
    assert!(matches!(twice, SpecError::MacTwice { .. }), "{twice}");
    let gateways = refused(|it| {
        it.nics[0].gateways = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().expect("an address")).into()
    });
    assert!(matches!(gateways, SpecError::GatewayTwice { .. }), "{gateways}");
    let alone = refused(|it| it.nics[0].addresses.clear());
    assert!(matches!(alone, SpecError::GatewayAlone { .. }), "{alone}");
}

#[test]
fn a_private_key_is_no_key_to_log_in_with() {
    let private =
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
    let refused = AuthorizedKey::parse(private).expect_err("it is private");
    assert_eq!(refused, SpecError::PrivateKey);
    // What is refused is not shown again.
    assert!(!refused.to_string().contains("b3Blbn"), "{refused}");
    for odd in ["", "ssh-ed25519", "command=\"id\" ssh-ed25519 AAAA", "ssh-ed25519 AAAA\nssh-rsa BBBB"] {
        assert!(matches!(AuthorizedKey::parse(odd), Err(SpecError::SshKey(_))), "{odd}");
    }
    assert!(AuthorizedKey::parse(crate::conformance::SSH_KEY).is_ok());
}
