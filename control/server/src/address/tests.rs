use std::net::IpAddr;

use proptest::prelude::*;

use super::{Cidr, client};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of the test")
}

fn block(text: &str) -> Cidr {
    text.parse().expect("a block of the test")
}

#[test]
fn a_block_holds_its_addresses_and_no_others() {
    for (text, inside, outside) in [
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        ("::/0", "2001:db8::1", "192.0.2.1"),
        ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.1.2.3"),
    ] {
        assert!(block(text).contains(ip(inside)), "{text} {inside}");
        assert!(!block(text).contains(ip(outside)), "{text} {outside}");
    }
}

#[test]
fn what_is_no_block_does_not_parse() {
    for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/+8", "10.0.0.0/", "localhost"] {
        assert!(text.parse::<Cidr>().is_err(), "{text}");
    }
}

#[test]
fn an_untrusted_peer_cannot_choose_its_address() {
    assert_eq!(client(ip("203.0.113.9"), &["10.0.0.1"], &[block("10.0.0.0/8")]), ip("203.0.113.9"));
    assert_eq!(client(ip("203.0.113.9"), &["10.0.0.1"], &[]), ip("203.0.113.9"));
}

#[test]
fn behind_trusted_proxies_the_last_untrusted_hop_is_the_client() {
    let trusted = [block("10.0.0.0/8")];
    let peer = ip("10.0.0.1");
    assert_eq!(client(peer, &["203.0.113.9"], &trusted), ip("203.0.113.9"));
    assert_eq!(client(peer, &["1.2.3.4, 203.0.113.9, 10.0.0.2"], &trusted), ip("203.0.113.9"));
    assert_eq!(client(peer, &["1.2.3.4", "203.0.113.9"], &trusted), ip("203.0.113.9"), "two headers");
    assert_eq!(client(peer, &["1.2.3.4, nonsense"], &trusted), peer);
    assert_eq!(client(peer, &[], &trusted), peer);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_header_leaves_an_address_that_was_written_or_seen(header in "[0-9a-f:., x]{0,60}") {
        let trusted = [block("10.0.0.0/8")];
        let peer = ip("10.0.0.1");
        let found = client(peer, &[&header], &trusted);
        let written = header.split(',').any(|entry| entry.trim().parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical() == found));
        prop_assert!(found == peer || written, "{found} from {header:?}");
        prop_assert_eq!(client(ip("192.0.2.1"), &[&header], &trusted), ip("192.0.2.1"));
    }

    #[test]
    fn a_block_that_parses_prints_as_itself(text in "[0-9a-f:.]{1,20}(/[0-9]{1,3})?") {
        if let Ok(parsed) = text.parse::<Cidr>() {
            prop_assert_eq!(parsed.to_string().parse::<Cidr>(), Ok(parsed));
        }
    }
}
