//! On a real kernel: a network namespace of the test's own, whose taps are the test's to write frames to.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hw::HostCommands;
use kit::SystemClock;
use tempfile::TempDir;

use super::*;
use crate::lab::{self, Frame, Tap, ip};
use crate::name::{Cidr, Mac};

const BRIDGE: &str = "vm0";
/// A frame that passes does so at once, on a machine that is not busy.
const PASSES_WITHIN: Duration = Duration::from_secs(10);
/// One that is dropped is waited for so long.
const DROPPED_AFTER: Duration = Duration::from_millis(300);

/// A bridge of the host's, two guarded cards, one that is not, and a port that is none of ours.
struct Lab {
    firewall: Arc<Firewall>,
    kernel: Arc<Nft>,
    one: Tap,
    two: Tap,
    dhcp: Tap,
    uplink: Tap,
    _dir: TempDir,
}

fn mac(last: u8) -> Mac {
    format!("02:00:00:00:00:{last:02x}").parse().unwrap()
}

fn guard(tap: &str, last: u8, addresses: &[&str], policy: NetworkPolicy) -> Guard {
    Guard {
        tap: tap.to_owned(),
        bridge: BRIDGE.parse().unwrap(),
        mac: mac(last),
        addresses: addresses.iter().map(|address| address.parse::<Cidr>().unwrap()).collect(),
        policy,
        ssh_from_host_only: false,
    }
}

fn one(policy: NetworkPolicy) -> Guard {
    guard("bcaan0", 1, &["10.9.0.11/24", "fd00:9::11/64"], policy)
}

fn two(policy: NetworkPolicy) -> Guard {
    guard("bcbbn0", 2, &["10.9.0.12/24", "fd00:9::12/64"], policy)
}

fn dhcp() -> Guard {
    guard("bcccn0", 3, &[], NetworkPolicy::Egress)
}

fn in_lab<F: Future<Output = ()>>(test: impl FnOnce(Lab) -> F + Send + 'static) {
    lab::in_a_network_of_its_own(async || {
        ip("link add vm0 type bridge stp_state 0 mcast_snooping 0 forward_delay 0");
        ip("address add 10.9.0.1/24 dev vm0");
        ip("address add fd00:9::1/64 dev vm0 nodad");
        ip("link set vm0 up");
        let tap = |name: &str| Tap::on_bridge(name, BRIDGE);
        let (one, two, dhcp, uplink) = (tap("bcaan0"), tap("bcbbn0"), tap("bcccn0"), tap("up0"));
        let dir = TempDir::new().unwrap();
        let kernel = Arc::new(Nft::new(Arc::new(HostCommands::new()), dir.path().to_owned()));
        let firewall = Arc::new(Firewall::new(kernel.clone(), Arc::new(SystemClock::new())));
        test(Lab { firewall, kernel, one, two, dhcp, uplink, _dir: dir }).await;
    });
}

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, last)
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, last)
}

impl Lab {
    /// What everybody may do, whatever the policy.
    fn is_well(&self) {
        let ping = Frame::udp4(mac(1), mac(2), (v4(11), 4_000), (v4(12), 4_000));
        assert!(passes(&self.one, &self.two, &ping), "one reaches two");
    }
}

fn heard(from: &Tap, to: &Tap, frame: &Frame, within: Duration) -> bool {
    to.drain();
    from.send(frame.bytes());
    to.hears(frame.bytes(), within)
}

fn passes(from: &Tap, to: &Tap, frame: &Frame) -> bool {
    heard(from, to, frame, PASSES_WITHIN)
}

fn is_dropped(from: &Tap, to: &Tap, frame: &Frame) -> bool {
    !heard(from, to, frame, DROPPED_AFTER)
}

fn does(passes: bool, from: &Tap, to: &Tap, frame: &Frame) -> bool {
    heard(from, to, frame, if passes { PASSES_WITHIN } else { DROPPED_AFTER }) == passes
}

#[test]
fn a_guarded_card_speaks_as_itself_and_as_nobody_else() {
    in_lab(async |lab| {
        lab.firewall.guard(&[one(NetworkPolicy::Egress), two(NetworkPolicy::Egress), dhcp()]).await.unwrap();
        let (one, two) = (&lab.one, &lab.two);
        lab.is_well();
        let own = mac(1).link_local();
        for (what, frame) in [
            ("ARP", Frame::arp(mac(1), mac(2), (mac(1), v4(11)), v4(12))),
            ("IPv6", Frame::udp6(mac(1), mac(2), (v6(0x11), 4_000), (v6(0x12), 4_000))),
            ("its link-local address", Frame::udp6(mac(1), mac(2), (own, 4_000), (v6(0x12), 4_000))),
            ("a question whether its own is free", Frame::solicitation(mac(1), mac(2), v6(0x11))),
            ("a probe for its own", Frame::arp(mac(1), mac(2), (mac(1), Ipv4Addr::UNSPECIFIED), v4(11))),
            ("what it says of itself", Frame::advertisement(mac(1), mac(2), v6(0x11), v6(0x11))),
        ] {
            assert!(passes(one, two, &frame), "{what} passes");
        }
        for (what, frame) in [
            ("another's MAC", Frame::udp4(mac(2), mac(2), (v4(11), 4_000), (v4(12), 4_000))),
            ("another's address", Frame::udp4(mac(1), mac(2), (v4(13), 4_000), (v4(12), 4_000))),
            ("the host's address", Frame::udp4(mac(1), mac(2), (v4(1), 4_000), (v4(12), 4_000))),
            ("another's IPv6 address", Frame::udp6(mac(1), mac(2), (v6(0x13), 4_000), (v6(0x12), 4_000))),
            (
                "an answer that another's address is here",
                Frame::arp(mac(1), mac(2), (mac(1), v4(12)), v4(12)),
            ),
            ("an answer with another's MAC in it", Frame::arp(mac(1), mac(2), (mac(2), v4(11)), v4(12))),
            ("an answer that the host is here", Frame::arp(mac(1), mac(2), (mac(1), v4(1)), v4(12))),
            ("ARP of another shape", Frame::arp(mac(1), mac(2), (mac(1), v4(11)), v4(12)).with(18, 8)),
            ("an advertisement of another", Frame::advertisement(mac(1), mac(2), v6(0x11), v6(0x13))),
            ("an advertisement of the host", Frame::advertisement(mac(1), mac(2), v6(0x11), v6(1))),
            ("an answer of a DHCP server", Frame::udp4(mac(1), mac(2), (v4(11), 67), (v4(12), 68))),
            ("an answer of a DHCPv6 server", Frame::udp6(mac(1), mac(2), (own, 547), (v6(0x12), 546))),
            ("a router's advertisement", Frame::icmp6(mac(1), mac(2), own, v6(0x12), 134)),
            (
                "a question whether another's IPv6 address is free",
                Frame::solicitation(mac(1), mac(2), v6(0x12)),
            ),
            (
                "a probe for another's address",
                Frame::arp(mac(1), mac(2), (mac(1), Ipv4Addr::UNSPECIFIED), v4(12)),
            ),
            ("a redirect", Frame::icmp6(mac(1), mac(2), own, v6(0x12), 137)),
            ("a VLAN", Frame::udp4(mac(1), mac(2), (v4(13), 4_000), (v4(12), 4_000)).tagged()),
            (
                "another protocol",
                Frame::udp4(mac(1), mac(2), (v4(11), 4_000), (v4(12), 4_000)).with(12, 0x88),
            ),
        ] {
            assert!(is_dropped(one, two, &frame), "{what} is dropped");
        }
        lab.is_well();
    });
}

#[test]
fn no_other_port_speaks_as_a_guarded_card() {
    in_lab(async |lab| {
        lab.firewall.guard(&[one(NetworkPolicy::Egress), two(NetworkPolicy::Egress), dhcp()]).await.unwrap();
        for (port, last) in [(&lab.dhcp, 3), (&lab.uplink, 9)] {
            let plain = Frame::udp4(mac(last), mac(2), (v4(200), 4_000), (v4(12), 4_000));
            assert!(passes(port, &lab.two, &plain), "a stranger's own address passes");
            for (what, frame) in [
                ("address", Frame::udp4(mac(last), mac(2), (v4(11), 4_000), (v4(12), 4_000))),
                ("IPv6 address", Frame::udp6(mac(last), mac(2), (v6(0x11), 4_000), (v6(0x12), 4_000))),
                ("ARP", Frame::arp(mac(last), mac(2), (mac(last), v4(11)), v4(12))),
                ("advertisement", Frame::advertisement(mac(last), mac(2), v6(0x50), v6(0x11))),
            ] {
                assert!(is_dropped(port, &lab.two, &frame), "{what} of a guarded card from port {last}");
            }
        }
        let rogue = Frame::udp4(mac(3), mac(2), (v4(200), 67), (v4(12), 68));
        assert!(is_dropped(&lab.dhcp, &lab.two, &rogue), "no instance is a DHCP server");
    });
}

#[test]
fn a_policy_says_whom_a_card_reaches_and_who_reaches_it() {
    in_lab(async |lab| {
        let outside = Ipv4Addr::new(192, 0, 2, 7);
        let (one_tap, two_tap, uplink) = (&lab.one, &lab.two, &lab.uplink);
        let to_outside = Frame::udp4(mac(1), mac(9), (v4(11), 4_000), (outside, 4_000));
        let from_outside = Frame::udp4(mac(9), mac(1), (outside, 4_000), (v4(11), 4_000));
        let to_two = Frame::udp4(mac(1), mac(2), (v4(11), 4_000), (v4(12), 4_000));
        let to_one = Frame::udp4(mac(2), mac(1), (v4(12), 4_000), (v4(11), 4_000));
        for (policy, neighbours, world) in [
            (NetworkPolicy::Egress, true, true),
            (NetworkPolicy::Private, true, false),
            (NetworkPolicy::Isolated, false, false),
        ] {
            lab.firewall.guard(&[one(policy), two(NetworkPolicy::Egress)]).await.unwrap();
            assert!(does(neighbours, one_tap, two_tap, &to_two), "{policy:?}: to a neighbour");
            assert!(does(neighbours, two_tap, one_tap, &to_one), "{policy:?}: from a neighbour");
            assert!(does(world, one_tap, uplink, &to_outside), "{policy:?}: to the world");
            assert!(does(world, uplink, one_tap, &from_outside), "{policy:?}: from the world");
            // The host answers whoever may ask it.
            let ask = Frame::arp(mac(1), Frame::EVERYBODY, (mac(1), v4(11)), v4(1));
            one_tap.drain();
            one_tap.send(ask.bytes());
            assert!(
                one_tap.hears_any(PASSES_WITHIN, |frame| Frame::is_arp_answer(frame, v4(1))),
                "{policy:?}: the host"
            );
        }
    });
}

#[test]
fn a_card_that_no_entry_names_is_let_in_by_nothing_and_nobody_gets_what_is_for_another() {
    in_lab(async |lab| {
        lab.firewall.guard(&[two(NetworkPolicy::Egress)]).await.unwrap();
        let unlisted = Frame::udp4(mac(1), mac(2), (v4(11), 4_000), (v4(12), 4_000));
        assert!(is_dropped(&lab.one, &lab.two, &unlisted));
        // The bridge knows nobody of this address, and floods.
        let for_another = Frame::udp4(mac(9), mac(77), (v4(200), 4_000), (v4(77), 4_000));
        assert!(is_dropped(&lab.uplink, &lab.two, &for_another));
        assert!(passes(&lab.uplink, &lab.one, &for_another), "a port that nobody guards");
    });
}

#[test]
fn ssh_is_for_the_host_where_it_is_said_so() {
    in_lab(async |lab| {
        let closed = Guard { ssh_from_host_only: true, ..one(NetworkPolicy::Egress) };
        lab.firewall.guard(&[closed, two(NetworkPolicy::Egress)]).await.unwrap();
        let to = |port| Frame::tcp4(mac(2), mac(1), (v4(12), 40_000), (v4(11), port));
        assert!(is_dropped(&lab.two, &lab.one, &to(22)), "SSH from a neighbour");
        assert!(passes(&lab.two, &lab.one, &to(80)), "anything else");
    });
}

/// Spoofs all the while, from before the flush until after all is well again.
#[test]
fn a_guarded_tap_is_down_while_somebody_has_taken_its_rules() {
    in_lab(async |lab| {
        let guards = [one(NetworkPolicy::Egress), two(NetworkPolicy::Egress)];
        let changes = Changes::open(None).unwrap();
        lab.firewall.guard(&guards).await.unwrap();
        let watching = lab.firewall.watch(changes);
        let spoofed = Frame::udp4(mac(1), mac(2), (v4(13), 4_000), (v4(12), 4_000));
        let over = AtomicBool::new(false);
        let flushed = async {
            for words in [&["flush", "ruleset"][..], &["delete", "table", "bridge", "bcd_instances"]] {
                assert!(is_dropped(&lab.one, &lab.two, &spoofed));
                let since = Instant::now();
                let nft = tokio::process::Command::new("nft").args(words).status().await.unwrap();
                assert!(nft.success());
                let (mut passed, mut down) = (0, None);
                // Until it is down and up again.
                loop {
                    lab.two.drain();
                    let sent = lab.one.try_send(spoofed.bytes());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    passed += u32::from(sent && lab.two.hears(spoofed.bytes(), Duration::from_millis(1)));
                    if !sent && down.is_none() {
                        down = Some(since.elapsed());
                    }
                    if sent && down.is_some() {
                        break;
                    }
                    assert!(since.elapsed() < Duration::from_secs(20), "down {down:?}, {passed} passed");
                }
                let rules = lab.kernel.count().await.unwrap();
                assert!(rules.iter().all(|rules| *rules > 0), "up only after the rules are back: {rules:?}");
                eprintln!(
                    "nft {}: down after {:?}, up after {:?}, {passed} spoofed frames passed",
                    words.join(" "),
                    down.unwrap(),
                    since.elapsed()
                );
                assert!(is_dropped(&lab.one, &lab.two, &spoofed));
                lab.is_well();
            }
            over.store(true, Ordering::Relaxed);
        };
        tokio::select! {
            () = watching => {}
            () = flushed => {}
        }
        assert!(over.load(Ordering::Relaxed));
    });
}

#[test]
fn an_address_that_two_claim_is_trusted_of_neither() {
    in_lab(async |lab| {
        let twin = guard("bcbbn0", 2, &["10.9.0.11/24"], NetworkPolicy::Egress);
        lab.firewall.guard(&[one(NetworkPolicy::Egress), twin]).await.unwrap();
        let bound = lab.firewall.bound();
        assert_eq!(bound.get(&IpAddr::from(v4(11))), None);
        assert_eq!(bound.get(&IpAddr::from(v6(0x11))).map(String::as_str), Some("bcaan0"));
        lab.firewall.guard(&[]).await.unwrap();
        assert!(lab.firewall.bound().is_empty());
        assert!(lab.firewall.check().await.unwrap() == Checked::AsLoaded, "with nobody to guard too");
    });
}

#[test]
fn an_address_of_another_card_is_asked_for_anew() {
    in_lab(async |lab| {
        let known = || {
            let shown =
                std::process::Command::new("ip").args(["neigh", "show", "dev", BRIDGE]).output().unwrap();
            String::from_utf8(shown.stdout).unwrap().lines().filter(|line| line.contains("lladdr")).count()
        };
        lab.firewall.guard(&[one(NetworkPolicy::Egress)]).await.unwrap();
        for address in ["10.9.0.11", "fd00:9::11", "10.9.0.99"] {
            ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:01 dev {BRIDGE} nud reachable"));
        }
        lab.firewall.guard(&[one(NetworkPolicy::Egress), two(NetworkPolicy::Egress)]).await.unwrap();
        assert_eq!(known(), 3, "nothing changed for the one");
        let next = guard("bcbbn0", 2, &["10.9.0.11/24", "fd00:9::11/64"], NetworkPolicy::Egress);
        lab.firewall.guard(&[next]).await.unwrap();
        assert_eq!(known(), 1, "somebody else's stays");
    });
}

/// What both kernels do alike, as far as it can be told without frames.
async fn conforms(kernel: &dyn Kernel, flush: impl AsyncFn()) {
    let ruleset = Ruleset::of(&[one(NetworkPolicy::Private), two(NetworkPolicy::Isolated), dhcp()], &host());
    assert_eq!(kernel.count().await.unwrap(), [0; 3], "nothing is there");
    kernel.load(ruleset.text()).await.unwrap();
    assert_eq!(kernel.count().await.unwrap(), ruleset.counts(), "as many as were written");
    kernel.load(ruleset.text()).await.unwrap();
    assert_eq!(kernel.count().await.unwrap(), ruleset.counts(), "twice is as once");
    let less = Ruleset::of(&[], &HostAddresses::default());
    kernel.load(less.text()).await.unwrap();
    assert_eq!(kernel.count().await.unwrap(), less.counts(), "in the place of what was");
    flush().await;
    assert_eq!(kernel.count().await.unwrap(), [0; 3]);
    let absent = ["bcnonen0".to_owned()];
    kernel.set_links(&absent, false).await.unwrap();
    let nobody =
        [(BRIDGE.parse().unwrap(), IpAddr::from(v4(77))), ("vmnone".parse().unwrap(), IpAddr::from(v4(78)))];
    kernel.forget(&nobody).await.unwrap();
    let bridges = [BRIDGE.parse().unwrap(), "vmnone".parse().unwrap()].into();
    let HostAddresses(addresses) = kernel.addresses(&bridges).await.unwrap();
    assert!(host().0.is_subset(&addresses), "{addresses:?}");
}

fn host() -> HostAddresses {
    HostAddresses([IpAddr::from(v4(1)), IpAddr::from(v6(1))].into())
}

#[test]
fn a_real_kernel_conforms() {
    in_lab(async |lab| {
        let flush = async || {
            let nft = tokio::process::Command::new("nft").args(["flush", "ruleset"]).status().await.unwrap();
            assert!(nft.success());
        };
        conforms(&*lab.kernel, flush).await;
    });
}

#[tokio::test]
async fn the_kernel_in_memory_conforms() {
    let kernel = FakeKernel::default();
    kernel.set_addresses(&BRIDGE.parse().unwrap(), host().0);
    conforms(&kernel, async || kernel.flush()).await;
}

#[tokio::test]
async fn taps_stay_down_and_nothing_is_trusted_while_rules_cannot_be_loaded_again() {
    let kernel = Arc::new(FakeKernel::default());
    let firewall = Firewall::new(kernel.clone(), Arc::new(SystemClock::new()));
    let guards = [one(NetworkPolicy::Egress)];
    firewall.guard(&guards).await.unwrap();
    assert_eq!(firewall.check().await.unwrap(), Checked::AsLoaded);
    assert_eq!(firewall.bound().len(), 3);
    assert_eq!(kernel.is_up("bcaan0"), Some(true), "whatever an earlier process had done");
    let address = IpAddr::from(v4(11));
    kernel.remember(address, mac(9));
    firewall.guard(&guards).await.unwrap();
    assert_eq!(kernel.remembers(address), Some(mac(9)), "it is the card's that it was");
    firewall.guard(&[guard("bcbbn0", 2, &["10.9.0.11/24"], NetworkPolicy::Egress)]).await.unwrap();
    assert_eq!(kernel.remembers(address), None);
    firewall.guard(&guards).await.unwrap();
    kernel.flush();
    kernel.refuse(true);
    firewall.check().await.unwrap_err();
    assert_eq!((kernel.is_up("bcaan0"), firewall.bound().len()), (Some(false), 0));
    firewall.guard(&guards).await.unwrap_err();
    assert_eq!((kernel.is_up("bcaan0"), firewall.bound().len()), (Some(false), 0));
    kernel.refuse(false);
    assert!(matches!(firewall.check().await.unwrap(), Checked::Restored { .. }));
    assert_eq!((kernel.is_up("bcaan0"), firewall.bound().len()), (Some(true), 3));
}
