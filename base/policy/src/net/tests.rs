use std::net::IpAddr;

use super::Net;

fn contains(net: &str, address: &str) -> bool {
    Net::parse(net).expect(net).contains(address.parse::<IpAddr>().expect(address))
}

#[test]
fn a_block_holds_its_addresses_and_no_others() {
    for (net, address, expected) in [
        ("10.0.0.0/8", "10.255.255.255", true),
        ("10.0.0.0/8", "11.0.0.0", false),
        ("10.1.2.3", "10.1.2.3", true),
        ("10.1.2.3", "10.1.2.4", false),
        ("0.0.0.0/0", "203.0.113.9", true),
        ("0.0.0.0/0", "2001:db8::1", false),
        ("::/0", "2001:db8::1", true),
        ("::/0", "203.0.113.9", false),
        ("2001:db8::/32", "2001:db8:ffff::1", true),
        ("2001:db8::/32", "2001:db9::1", false),
    ] {
        assert_eq!(contains(net, address), expected, "{address} in {net}");
    }
}

#[test]
fn an_ipv4_address_written_as_ipv6_is_the_ipv4_address() {
    assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
    assert!(contains("::ffff:10.0.0.0/104", "10.1.2.3"));
    assert!(!contains("::/0", "::ffff:10.1.2.3"));
}

#[test]
fn malformed_blocks_are_refused() {
    for text in [
        "",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/08",
        "10.0.0/8",
        "::/129",
        "10.0.0.0/8/8",
        "::ffff:10.0.0.0/95",
    ] {
        assert!(Net::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_block_with_host_bits_names_the_block_that_was_meant() {
    assert_eq!(
        Net::parse("203.0.113.5/24"),
        Err("the first address of the block: 203.0.113.0/24".to_owned())
    );
}
