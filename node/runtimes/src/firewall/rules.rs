//! The rules as text for nft. Pure.
//!
//! Frames of a guarded card are let in by what it may send, so that whatever nobody thought of is dropped: a VLAN tag, another
//! protocol, ARP of another shape. A frame is judged where it enters the bridge from its tap, and where it leaves the bridge for
//! a tap that only some may reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::name::{Bridge, Cidr, Mac, TAP_PREFIX};

/// Family and name, in the order in which they are counted.
pub const TABLES: [(&str, &str); 3] =
    [("bridge", "bcd_instances"), ("inet", "bcd_taps"), ("arp", "bcd_taps")];

/// With whom an instance may speak, besides that nobody may speak as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// With everybody.
    Egress,
    /// With its own networks and the host.
    Private,
    /// With the host alone.
    Isolated,
}

/// One card of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    pub tap: String,
    pub bridge: Bridge,
    pub mac: Mac,
    /// Those leased to it. Without any it asks by DHCP, and its addresses are not judged.
    pub addresses: Vec<Cidr>,
    pub policy: NetworkPolicy,
    /// TCP port 22 is for the host only, whatever the policy.
    pub ssh_from_host_only: bool,
}

/// The host's own addresses where its instances are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostAddresses(pub BTreeSet<IpAddr>);

impl HostAddresses {
    fn v4(&self) -> Vec<Ipv4Addr> {
        v4(self.0.iter().copied())
    }

    fn v6(&self) -> Vec<Ipv6Addr> {
        v6(self.0.iter().copied())
    }
}

impl Guard {
    /// Whether its policy can be said in rules: who speaks with some only, is told from others by its addresses.
    pub fn is_expressible(&self) -> bool {
        self.policy == NetworkPolicy::Egress || !self.addresses.is_empty()
    }
}

/// All tables, as they are loaded in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    text: String,
    counts: [usize; 3],
    taps: Vec<String>,
    bound: BTreeMap<IpAddr, String>,
}

fn v4(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<Ipv4Addr> {
    let of_family = |address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    addresses.into_iter().filter_map(of_family).collect()
}

fn v6(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<Ipv6Addr> {
    let of_family = |address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    };
    addresses.into_iter().filter_map(of_family).collect()
}

/// `{ a, b }`; none of no elements, which nft takes for a mistake.
fn set<T: ToString>(elements: impl IntoIterator<Item = T>) -> Option<String> {
    let elements: BTreeSet<String> = elements.into_iter().map(|element| element.to_string()).collect();
    let joined = elements.into_iter().collect::<Vec<_>>().join(", ");
    (!joined.is_empty()).then(|| format!("{{ {joined} }}"))
}

/// The target of a neighbour advertisement, where nft has no name for it: 128 bits behind the first 64 of the message
/// (RFC 4861, 4.4).
const ADVERTISED: &str = "icmpv6 type nd-neighbor-advert @th,64,128";

/// The target of a neighbour solicitation, in the same place (RFC 4861, 4.3).
const SOLICITED: &str = "icmpv6 type nd-neighbor-solicit @th,64,128";

fn targets(addresses: &[Ipv6Addr]) -> Option<String> {
    set(addresses.iter().map(|address| format!("0x{:032x}", address.to_bits())))
}

/// Networks, and addresses outside of them: nft takes no set in which one holds the other.
fn reachable(networks: &[Cidr], host: &[IpAddr], more: &[&str]) -> Option<String> {
    let networks: BTreeSet<Cidr> = networks.iter().map(|network| network.network()).collect();
    let within = |address: IpAddr| networks.iter().any(|network| network.contains(address));
    let outermost = networks.iter().filter(|one| {
        !networks
            .iter()
            .any(|other| other != *one && other.contains(one.address()) && other.prefix() < one.prefix())
    });
    let host = host.iter().filter(|address| !within(**address)).map(ToString::to_string);
    set(outermost.map(ToString::to_string).chain(host).chain(more.iter().map(|one| (*one).to_owned())))
}

/// Rules of one table, counted as they are written.
struct Table {
    body: String,
    rules: usize,
}

impl Table {
    fn new() -> Self {
        Self { body: String::new(), rules: 0 }
    }

    fn chain(&mut self, name: &str, head: &str, rules: &[String]) {
        let _ = writeln!(self.body, "  chain {name} {{");
        if !head.is_empty() {
            let _ = writeln!(self.body, "    {head}");
        }
        for rule in rules {
            let _ = writeln!(self.body, "    {rule}");
        }
        let _ = writeln!(self.body, "  }}");
        self.rules += rules.len();
    }

    /// Named and emptied before it is filled, so that it is there whatever was before.
    fn text(&self, (family, name): (&str, &str)) -> String {
        format!(
            "table {family} {name}\ndelete table {family} {name}\ntable {family} {name} {{\n{}}}\n",
            self.body
        )
    }
}

fn hook(hook: &str) -> String {
    format!("type filter hook {hook} priority -300; policy accept;")
}

/// Where a frame goes, by a card's tap.
fn by_tap<'a>(field: &str, to: &str, taps: impl Iterator<Item = &'a str>) -> Option<String> {
    let elements = set(taps.map(|tap| format!("\"{tap}\" : jump {to}_{tap}")))?;
    Some(format!("{field} vmap {elements}"))
}

impl Ruleset {
    pub fn of(guards: &[Guard], host: &HostAddresses) -> Self {
        let (bound, all) = bindings(guards);
        let instances = instances(guards, host, &all);
        let mut taps = Table::new();
        let (from, to) =
            (format!("iifname \"{TAP_PREFIX}*\" drop"), format!("oifname \"{TAP_PREFIX}*\" drop"));
        taps.chain("input", &hook("input"), std::slice::from_ref(&from));
        taps.chain("forward", &hook("forward"), &[from.clone(), to.clone()]);
        taps.chain("output", &hook("output"), std::slice::from_ref(&to));
        let mut arp = Table::new();
        arp.chain("input", &hook("input"), &[from]);
        arp.chain("output", &hook("output"), &[to]);
        let tables = [instances, taps, arp];
        let text = tables.iter().zip(TABLES).map(|(table, name)| table.text(name)).collect();
        let taps = guards.iter().map(|guard| guard.tap.clone()).collect();
        Self { text, counts: tables.map(|table| table.rules), taps, bound }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many rules each table has, in the order of [`TABLES`].
    pub fn counts(&self) -> [usize; 3] {
        self.counts
    }

    pub fn taps(&self) -> &[String] {
        &self.taps
    }

    pub fn bound(&self) -> BTreeMap<IpAddr, String> {
        self.bound.clone()
    }
}

/// The tap that has each address, and every address that any has. What two claim is nobody's to be dialled at.
fn bindings(guards: &[Guard]) -> (BTreeMap<IpAddr, String>, BTreeSet<IpAddr>) {
    let mut holders: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for guard in guards {
        for address in own_addresses(guard) {
            holders.entry(address).or_default().push(&guard.tap);
        }
    }
    let all = holders.keys().copied().collect();
    let single = holders.into_iter().filter_map(|(address, taps)| match taps.as_slice() {
        [tap] => Some((address, (*tap).to_owned())),
        _ => None,
    });
    (single.collect(), all)
}

/// Those leased to it, and the link-local one of its MAC. None of one that asks by DHCP.
fn own_addresses(guard: &Guard) -> BTreeSet<IpAddr> {
    let leased = guard.addresses.iter().map(|cidr| cidr.address());
    let link_local = (!guard.addresses.is_empty()).then(|| guard.mac.link_local().into());
    leased.chain(link_local).collect()
}

fn instances(guards: &[Guard], host: &HostAddresses, bound: &BTreeSet<IpAddr>) -> Table {
    let mut table = Table::new();
    table.chain("of_instances", "", &of_every_instance(host));
    for guard in guards {
        table.chain(&format!("from_{}", guard.tap), "", &from_tap(guard, host));
    }
    for guard in guards {
        table.chain(&format!("forward_{}", guard.tap), "", &forwarded_to(guard, host));
        table.chain(&format!("host_{}", guard.tap), "", &from_host_to(guard, host));
    }
    let names = || guards.iter().map(|guard| guard.tap.as_str());
    let mut entering = vec![format!("iifname \"{TAP_PREFIX}*\" jump of_instances")];
    entering.extend(by_tap("iifname", "from", guards.iter().map(|guard| guard.tap.as_str())));
    entering.extend(claims("", &v4(bound.iter().copied()), &v6(bound.iter().copied())));
    // A card that asks by DHCP has nothing else to be judged by. One that is in no entry is let in by nothing.
    let by_dhcp = guards.iter().filter(|guard| own_addresses(guard).is_empty());
    entering.extend(set(by_dhcp.map(quoted)).map(|taps| format!("iifname {taps} accept")));
    entering.push(format!("iifname \"{TAP_PREFIX}*\" drop"));
    table.chain("prerouting", &hook("prerouting"), &entering);
    let isolated = guards.iter().filter(|guard| guard.policy == NetworkPolicy::Isolated);
    let mut forward = Vec::new();
    forward.extend(set(isolated.map(quoted)).map(|taps| format!("iifname {taps} drop")));
    forward.extend(by_tap("oifname", "forward", names()));
    table.chain("forward", &hook("forward"), &forward);
    let output: Vec<String> = by_tap("oifname", "host", names()).into_iter().collect();
    table.chain("output", &hook("output"), &output);
    table
}

fn quoted(guard: &Guard) -> String {
    format!("\"{}\"", guard.tap)
}

/// What is no Ethernet of today's, or has a tag in which nobody looks.
const ODD: &str = "ether type != { arp, ip, ip6 } drop";

/// Whether not everybody may reach it.
fn is_closed(guard: &Guard) -> bool {
    guard.policy != NetworkPolicy::Egress || guard.ssh_from_host_only
}

/// A bridge that has learned wrongly of whom a frame is hands over nothing: a card gets what is for it, or for a group.
fn of_others(guard: &Guard) -> String {
    format!("ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether daddr != {} drop", guard.mac)
}

/// Who says that an address is its own, and may not. `of` says of whom.
fn claims(of: &str, four: &[Ipv4Addr], six: &[Ipv6Addr]) -> Vec<String> {
    let mut rules = Vec::new();
    if let Some(four) = set(four) {
        rules.push(format!("{of}ip saddr {four} drop"));
        rules.push(format!("{of}arp saddr ip {four} drop"));
    }
    if let (Some(addresses), Some(targets)) = (set(six), targets(six)) {
        rules.push(format!("{of}ip6 saddr {addresses} drop"));
        rules.push(format!("{of}{ADVERTISED} {targets} drop"));
    }
    rules
}

/// What no instance may send, guarded or not: answers of a DHCP server or a router, and anything as the host.
fn of_every_instance(host: &HostAddresses) -> Vec<String> {
    let mut rules = vec![
        ODD.to_owned(),
        "udp sport { 67, 547 } drop".to_owned(),
        "icmpv6 type { nd-router-advert, nd-redirect } drop".to_owned(),
        "icmp type redirect drop".to_owned(),
    ];
    rules.extend(claims("", &host.v4(), &host.v6()));
    rules
}

/// Everything that the card may send; the rest is dropped.
fn from_tap(guard: &Guard, host: &HostAddresses) -> Vec<String> {
    let mac = guard.mac;
    let mut rules = vec![format!("ether saddr != {mac} drop")];
    let own = own_addresses(guard);
    if own.is_empty() {
        // Its addresses are what DHCP gives it; those of others are asked about behind this chain, as any port's are.
        return rules;
    }
    let (four, six) = (v4(own.iter().copied()), v6(own.iter().copied()));
    let own4 = set(&four);
    let four = set(four.iter().copied().chain([Ipv4Addr::UNSPECIFIED])).expect("it has one");
    let targets = targets(&six).expect("it has its link-local one");
    let six = set(six.into_iter().chain([Ipv6Addr::UNSPECIFIED])).expect("it has one");
    let arp =
        format!("ether type arp arp htype 1 arp ptype 0x0800 arp hlen 6 arp plen 4 arp saddr ether {mac}");
    if let Some(own4) = own4 {
        rules.push(format!("{arp} arp saddr ip {own4} accept"));
        // Whether somebody else has its address (RFC 5227): of others' it asks in its own name.
        rules.push(format!("{arp} arp saddr ip 0.0.0.0 arp daddr ip {own4} accept"));
    }
    rules.push("ether type arp drop".to_owned());
    rules.push(format!("ether type ip ip saddr != {four} drop"));
    let (to4, to6) = destinations(guard, host);
    rules.extend(to4.map(|to| {
        to.map_or("ether type ip drop".into(), |to| format!("ether type ip ip daddr != {to} drop"))
    }));
    rules.push("ether type ip accept".to_owned());
    rules.push(format!("ether type ip6 ip6 saddr != {six} drop"));
    rules.push(format!("{ADVERTISED} != {targets} drop"));
    // The same question of IPv6 (RFC 4862, 5.4.3): asked of others' addresses it takes these from them.
    rules.push(format!("ip6 saddr :: {SOLICITED} != {targets} drop"));
    rules.extend(to6.map(|to| {
        to.map_or("ether type ip6 drop".into(), |to| format!("ether type ip6 ip6 daddr != {to} drop"))
    }));
    rules.push("ether type ip6 accept".to_owned());
    rules.push("drop".to_owned());
    rules
}

/// Where a card may send to, of each family; none where it may send anywhere, and no set where nowhere.
fn destinations(guard: &Guard, host: &HostAddresses) -> (Option<Option<String>>, Option<Option<String>>) {
    let host4: Vec<IpAddr> = host.v4().into_iter().map(IpAddr::from).collect();
    let host6: Vec<IpAddr> = host.v6().into_iter().map(IpAddr::from).collect();
    let of_family = |four: bool| -> Vec<Cidr> {
        guard.addresses.iter().copied().filter(|cidr| cidr.address().is_ipv4() == four).collect()
    };
    match guard.policy {
        NetworkPolicy::Egress => (None, None),
        NetworkPolicy::Private => (
            Some(reachable(&of_family(true), &host4, &["255.255.255.255"])),
            Some(reachable(&of_family(false), &not_link_local(&host6), &["::", "fe80::/10", "ff02::/16"])),
        ),
        // Who its neighbours are it may ask, and only the host hears it.
        NetworkPolicy::Isolated => {
            (Some(reachable(&[], &host4, &[])), Some(reachable(&[], &host6, &["ff02::/16"])))
        }
    }
}

fn not_link_local(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let is_link_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    addresses.iter().copied().filter(|address| !is_link_local(address)).collect()
}

/// From other ports of its bridge.
fn forwarded_to(guard: &Guard, host: &HostAddresses) -> Vec<String> {
    if guard.policy == NetworkPolicy::Isolated {
        return vec!["drop".to_owned()];
    }
    let mut rules = vec![of_others(guard)];
    rules.extend(is_closed(guard).then(|| ODD.to_owned()));
    if guard.ssh_from_host_only {
        rules.push("tcp dport 22 drop".to_owned());
    }
    rules.extend(sources(guard, host));
    rules
}

/// From the host, which may be a router for others.
fn from_host_to(guard: &Guard, host: &HostAddresses) -> Vec<String> {
    let mut rules = vec![of_others(guard)];
    rules.extend(is_closed(guard).then(|| ODD.to_owned()));
    if guard.ssh_from_host_only {
        let four = set(host.v4()).map_or(String::new(), |host| format!("ip saddr != {host} "));
        let six = set(host.v6()).map_or(String::new(), |host| format!("ip6 saddr != {host} "));
        rules.push(format!("ether type ip {four}tcp dport 22 drop"));
        rules.push(format!("ether type ip6 {six}tcp dport 22 drop"));
    }
    rules.extend(sources(guard, host));
    rules
}

/// Who may send to it, where not everybody may.
fn sources(guard: &Guard, host: &HostAddresses) -> Vec<String> {
    let (four, six) = destinations(guard, host);
    let mut rules = Vec::new();
    if let Some(from) = four {
        rules.push(
            from.map_or("ether type ip drop".into(), |from| format!("ether type ip ip saddr != {from} drop")),
        );
    }
    if let Some(from) = six {
        rules.push(
            from.map_or("ether type ip6 drop".into(), |from| {
                format!("ether type ip6 ip6 saddr != {from} drop")
            }),
        );
    }
    rules
}
