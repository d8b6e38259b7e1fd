use super::*;
use crate::conformance::sample;

#[test]
fn a_card_with_a_lease_is_told_all_of_it() {
    let mut nic = sample(1).nics[0].clone();
    nic.addresses.push("fd00::2/64".parse().expect("an address"));
    nic.gateways.push("fe80::1".parse().expect("an address"));
    let expected = "\
version: 2
ethernets:
  nic0:
    match:
      macaddress: \"52:54:00:00:00:01\"
    dhcp4: false
    dhcp6: false
    accept-ra: false
    addresses:
      - \"10.88.7.11/24\"
      - \"fd00::2/64\"
    routes:
      - to: \"0.0.0.0/0\"
        via: \"10.88.7.1\"
      - to: \"::/0\"
        via: \"fe80::1\"
        on-link: true
    nameservers:
      addresses:
        - \"10.88.7.1\"
";
    assert_eq!(config(&[nic]).as_deref(), Some(expected));
}

#[test]
fn only_a_card_that_lacks_a_way_listens_for_routers() {
    let mut nic = sample(1).nics[0].clone();
    let listens = |nic: &Nic| {
        !config(std::slice::from_ref(nic)).expect("it is told something").contains("accept-ra: false")
    };
    assert!(!listens(&nic));
    nic.addresses.push("fd00::2/64".parse().expect("an address"));
    assert!(listens(&nic));
    nic.gateways.push("fe80::1".parse().expect("an address"));
    assert!(!listens(&nic));
}

#[test]
fn a_card_without_a_lease_asks_by_dhcp() {
    let leased = sample(1).nics[0].clone();
    let mut asking = sample(2).nics[0].clone();
    asking.addresses.clear();
    asking.gateways.clear();
    asking.nameservers.clear();
    assert_eq!(config(std::slice::from_ref(&asking)), None);
    assert_eq!(config(&[]), None);
    let both = config(&[leased, asking]).expect("one of them is told something");
    assert!(both.ends_with("  nic1:\n    match:\n      macaddress: \"52:54:00:00:00:02\"\n    dhcp4: true\n    dhcp6: false\n"), "{both}");
}
