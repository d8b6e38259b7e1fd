use proptest::prelude::*;

use super::*;
use crate::testing::{node, site};

fn name(role: Role) -> NodeName {
    NodeName { trust_domain: "example.test".parse().unwrap(), site_id: site(1), role, node_id: node(2) }
}

#[test]
fn a_name_survives_its_text_form() {
    for role in Role::ALL {
        let text = name(role).to_string();
        assert_eq!(text.parse::<NodeName>(), Ok(name(role)));
    }
    assert!(name(Role::Node).to_string().starts_with("spiffe://example.test/site/site_"));
}

#[test]
fn near_misses_are_refused() {
    let good = name(Role::Node).to_string();
    let long = format!("{good}{}", "x".repeat(SPIFFE_ID_BYTES_MAX));
    for bad in [
        good.replace("spiffe:", "https:"),
        good.replace("/node/", "/root/"),
        good.replace("/site/", "/sites/"),
        good.replace("example.test", "Example.test"),
        good.replace("example.test", ""),
        format!("{good}/"),
        format!("{good}?a"),
        format!("{good}#a"),
        good.replace("example.test", "user@example.test"),
        long,
    ] {
        assert!(bad.parse::<NodeName>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in ".{0,100}") {
        let _ = text.parse::<NodeName>();
        let _ = format!("spiffe://{text}").parse::<NodeName>();
    }
}
