use proptest::prelude::*;

use super::*;

fn id(bits: u128) -> InstanceId {
    InstanceId::from_uuid(uuid::Uuid::from_u128(bits))
}

#[test]
fn a_domain_is_of_one_instance_and_spelled_in_one_way() {
    let name = domain(id(7));
    assert_eq!(name, "bc-inst_00000000000000000000000007");
    assert_eq!(instance(&name), Some(id(7)));
    for other in [
        "",
        "bc-",
        "bc-inst_",
        "bc-canary",
        "inst_00000000000000000000000007",
        "BC-inst_00000000000000000000000007",
    ] {
        assert_eq!(instance(other), None, "{other}");
    }
    assert_eq!(instance(&format!("{name} ")), None);
    assert_eq!(instance(&name.to_uppercase()), None);
}

#[test]
fn a_tap_has_a_name_the_kernel_takes_and_no_other_instances() {
    let first = tap(id(1), 0);
    assert_eq!(first.len(), 14);
    assert!(first.starts_with("bc") && first.ends_with("n0"), "{first}");
    assert_ne!(first, tap(id(2), 0));
    assert_ne!(first, tap(id(1), 1));
    assert!(tap(id(1), crate::instance::NICS_MAX - 1).len() <= INTERFACE_CHARS_MAX);
}

#[test]
fn an_address_is_of_one_card() {
    assert_eq!("52:54:00:AB:cd:0f".parse::<Mac>().map(|mac| mac.to_string()), Ok("52:54:00:ab:cd:0f".into()));
    for odd in [
        "",
        "52:54:00:ab:cd",
        "52:54:00:ab:cd:0f:00",
        "52:54:00:ab:cd:0",
        "+2:54:00:ab:cd:0f",
        "52-54-00-ab-cd-0f",
        "53:54:00:ab:cd:0f",
        "ff:ff:ff:ff:ff:ff",
        "00:00:00:00:00:00",
        "52:54:00:ab:cd:0f ",
    ] {
        assert!(odd.parse::<Mac>().is_err(), "{odd}");
    }
}

#[test]
fn a_bridge_is_not_named_like_a_tap() {
    for good in ["br0", "virbr0", "vmbr0.100", "0"] {
        assert!(good.parse::<Bridge>().is_ok(), "{good}");
    }
    assert!(matches!("bc0".parse::<Bridge>(), Err(NameError::BridgeReserved { .. })));
    for odd in ["", "-br0", ".", "br 0", "br/0", "br0'", "sixteen-letters-", "brü"] {
        assert!(odd.parse::<Bridge>().is_err(), "{odd}");
    }
}

#[test]
fn a_host_name_is_one_label() {
    for good in ["a", "web-1", "0day"] {
        assert!(good.parse::<Hostname>().is_ok(), "{good}");
    }
    let long = "a".repeat(64);
    for odd in ["", "-a", "a-", "a.b", "A", "a_b", "a\n", long.as_str()] {
        assert!(odd.parse::<Hostname>().is_err(), "{odd}");
    }
}

#[test]
fn an_address_knows_its_neighbours() {
    let cidr: Cidr = "10.1.2.3/24".parse().expect("an address");
    assert!(cidr.contains("10.1.2.254".parse().expect("an address")));
    assert!(!cidr.contains("10.1.3.1".parse().expect("an address")));
    assert!(!cidr.contains("fd00::1".parse().expect("an address")));
    let all: Cidr = "10.1.2.3/0".parse().expect("an address");
    assert!(all.contains("192.0.2.1".parse().expect("an address")));
    let six: Cidr = "fd00:1::3/64".parse().expect("an address");
    assert!(six.contains("fd00:1::ffff".parse().expect("an address")));
    assert!(!six.contains("fd00:2::1".parse().expect("an address")));
    for odd in [
        "10.0.0.1",
        "10.0.0.1/33",
        "10.0.0.1/+8",
        "10.0.0/8",
        "fd00::1/129",
        "0.0.0.0/8",
        "224.0.0.1/8",
        "10.0.0.1/",
    ] {
        assert!(odd.parse::<Cidr>().is_err(), "{odd}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_taken_is_said_again(text in ".{0,40}") {
        if let Ok(mac) = text.parse::<Mac>() {
            prop_assert_eq!(mac.to_string().parse::<Mac>(), Ok(mac));
        }
        if let Ok(cidr) = text.parse::<Cidr>() {
            prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
        }
        if let Ok(bridge) = text.parse::<Bridge>() {
            prop_assert_eq!(bridge.as_str(), text.as_str());
        }
        if let Some(id) = instance(&text) {
            prop_assert_eq!(domain(id), text);
        }
    }
}
