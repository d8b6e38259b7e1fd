//! Which hosts are gateways of this deployment.
//!
//! A gateway says where it waits for a tunnel. Whatever is there has to have the deployment's certificate before it is told
//! anything; one that lies could still have a node connect to any host that the node reaches and it does not.

use std::net::IpAddr;

/// Whether `host` is one that is configured, or has a name beside the gateway's: gw-2.example.com beside gw-1.example.com.
pub(super) fn is_gateway(gateway: &str, others: &[String], host: &str) -> bool {
    let same = |known: &str| known.eq_ignore_ascii_case(host);
    same(gateway) || others.iter().any(|known| same(known)) || are_beside(gateway, host)
}

fn are_beside(one: &str, other: &str) -> bool {
    let is_address = |host: &str| host.parse::<IpAddr>().is_ok();
    if is_address(one) || is_address(other) {
        return false;
    }
    let (Some((_, of_one)), Some((_, of_other))) = (one.split_once('.'), other.split_once('.')) else {
        return false;
    };
    // What is right below a top level may be anybody's.
    of_one.contains('.') && of_one.eq_ignore_ascii_case(of_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_leads_to_gateways_and_nowhere_else() {
        let others = ["10.0.0.7".to_owned(), "gw.other.example".to_owned()];
        for (gateway, host, wanted) in [
            ("gw-1.eu.example.com", "gw-1.eu.example.com", true),
            ("gw-1.eu.example.com", "GW-2.eu.example.com", true),
            ("gw-1.eu.example.com", "10.0.0.7", true),
            ("gw-1.eu.example.com", "gw.other.example", true),
            ("gw-1.eu.example.com", "db.internal", false),
            ("gw-1.eu.example.com", "a.b.eu.example.com", false),
            ("gw-1.eu.example.com", "eu.example.com", false),
            ("gw-1.eu.example.com", "169.254.169.254", false),
            ("example.com", "evil.com", false),
            ("localhost", "otherhost", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "x.0.0.1", false),
            ("::1", "::1", true),
        ] {
            assert_eq!(is_gateway(gateway, &others, host), wanted, "{host} beside {gateway}");
        }
    }
}
