//! The guest's network, in version 2 of cloud-init's format. Every card is matched by its MAC address, since its name is
//! the guest's own business.

use std::fmt::Write;
use std::net::IpAddr;

use crate::instance::Nic;

/// None when every card asks by DHCP, which is what a guest does without being told.
pub fn config(nics: &[Nic]) -> Option<String> {
    if nics.iter().all(|nic| nic.addresses.is_empty() && nic.nameservers.is_empty()) {
        return None;
    }
    let mut text = String::from("version: 2\nethernets:\n");
    for (at, nic) in nics.iter().enumerate() {
        card(&mut text, at, nic).expect("a string takes what is written to it");
    }
    Some(text)
}

/// All values are numbers and colons: nothing in them needs escaping inside the quotes.
fn card(text: &mut String, at: usize, nic: &Nic) -> std::fmt::Result {
    let fixed = !nic.addresses.is_empty();
    writeln!(text, "  nic{at}:\n    match:\n      macaddress: \"{}\"", nic.mac)?;
    writeln!(text, "    dhcp4: {}\n    dhcp6: false", !fixed)?;
    if fixed && !needs_router(nic) {
        writeln!(text, "    accept-ra: false")?;
    }
    if fixed {
        writeln!(text, "    addresses:")?;
    }
    for address in &nic.addresses {
        writeln!(text, "      - \"{address}\"")?;
    }
    if !nic.gateways.is_empty() {
        writeln!(text, "    routes:")?;
    }
    for gateway in &nic.gateways {
        let all = match gateway {
            IpAddr::V4(_) => "0.0.0.0/0",
            IpAddr::V6(_) => "::/0",
        };
        writeln!(text, "      - to: \"{all}\"\n        via: \"{gateway}\"")?;
        // A router outside the card's networks is a neighbour all the same.
        if !nic.addresses.iter().any(|address| address.contains(*gateway)) {
            writeln!(text, "        on-link: true")?;
        }
    }
    if !nic.nameservers.is_empty() {
        writeln!(text, "    nameservers:\n      addresses:")?;
    }
    for nameserver in &nic.nameservers {
        writeln!(text, "        - \"{nameserver}\"")?;
    }
    Ok(())
}

/// Whether a router has yet to tell the card the way. Where none is to come, a guest that listens for one waits some ten seconds
/// for it at each boot (systemd-networkd), and its host lets none but its own addresses through.
fn needs_router(nic: &Nic) -> bool {
    nic.addresses.iter().any(|cidr| cidr.address().is_ipv6()) && !nic.gateways.iter().any(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests;
