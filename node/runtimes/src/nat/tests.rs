use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use hw::HostCommands;
use tempfile::TempDir;

use super::*;
use crate::lab::{self, Frame, Tap, ip};

const WITHIN: Duration = Duration::from_secs(2);

fn nat(dir: &TempDir) -> NatBridge {
    NatBridge::new("vmnat0".parse().unwrap(), Arc::new(HostCommands::new()), dir.path().to_owned(), None)
}

fn gateways() -> BTreeSet<Cidr> {
    ["10.88.0.1/24".parse().unwrap()].into()
}

/// Links, addresses, rules: what a bridge could leave behind.
fn host() -> String {
    let said = |program: &str, words: &[&str]| {
        let done = Command::new(program).args(words).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    format!(
        "{}{}{}",
        said("ip", &["-o", "link"]),
        said("ip", &["-o", "address"]),
        said("nft", &["list", "ruleset"])
    )
}

fn mac(link: &str) -> crate::name::Mac {
    let shown = Command::new("ip").args(["-o", "link", "show", "dev", link]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let mut words = shown.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).unwrap().parse().unwrap()
}

#[test]
fn an_instance_reaches_the_world_as_its_host_and_nothing_is_left_after_the_last() {
    lab::in_a_network_of_its_own(async || {
        let uplink = Tap::open("up0");
        ip("link set up0 addrgenmode none");
        ip("address add 192.0.2.1/24 dev up0");
        ip("link set up0 up");
        ip("neighbour add 192.0.2.254 lladdr 02:00:00:00:00:fe dev up0");
        ip("route add default via 192.0.2.254");
        let before = host();
        let dir = TempDir::new().unwrap();
        let nat = nat(&dir);
        nat.ensure(&gateways()).await.unwrap();
        nat.ensure(&gateways()).await.unwrap();
        let world = Ipv4Addr::new(198, 51, 100, 7);
        let guest = "02:00:00:00:00:01".parse().unwrap();
        {
            let tap = Tap::on_bridge("bcaan0", "vmnat0");
            let router = {
                let ask = Frame::arp(
                    guest,
                    Frame::EVERYBODY,
                    (guest, Ipv4Addr::new(10, 88, 0, 2)),
                    Ipv4Addr::new(10, 88, 0, 1),
                );
                tap.send(ask.bytes());
                assert!(
                    tap.hears_any(WITHIN, |frame| Frame::is_arp_answer(frame, Ipv4Addr::new(10, 88, 0, 1)))
                );
                mac("vmnat0")
            };
            let frame = Frame::udp4(guest, router, (Ipv4Addr::new(10, 88, 0, 2), 4_000), (world, 53));
            tap.send(frame.bytes());
            let leaves = |frame: &[u8]| Frame::ends4(frame) == Some((Ipv4Addr::new(192, 0, 2, 1), world));
            assert!(uplink.hears_any(WITHIN, leaves), "as the host");
        }
        // Another process of the daemon finds it, and the last instance is gone.
        let next =
            NatBridge::new(nat.bridge().clone(), Arc::new(HostCommands::new()), dir.path().to_owned(), None);
        next.ensure(&BTreeSet::new()).await.unwrap();
        assert_eq!(host(), before);
        assert!(!dir.path().join(RULES).exists());
        nat.ensure(&BTreeSet::new()).await.unwrap();
        assert_eq!(host(), before, "twice is as once");
    });
}

#[test]
fn a_bridge_that_somebody_else_made_is_left_alone() {
    lab::in_a_network_of_its_own(async || {
        ip("link add vmnat0 type bridge");
        let before = host();
        let dir = TempDir::new().unwrap();
        for gateways in [gateways(), BTreeSet::new()] {
            let refused = nat(&dir).ensure(&gateways).await.unwrap_err();
            assert!(matches!(refused, NatError::Foreign { .. }), "{refused}");
        }
        assert_eq!(host(), before);
    });
}

#[test]
fn what_somebody_took_away_is_there_again_at_the_next_pass() {
    lab::in_a_network_of_its_own(async || {
        let dir = TempDir::new().unwrap();
        let nat = nat(&dir);
        nat.ensure(&gateways()).await.unwrap();
        let made = host();
        ip("link delete vmnat0");
        nat.ensure(&gateways()).await.unwrap();
        let strip = |text: &str| {
            text.lines().filter(|line| line.contains("inet 10.88.0.1") || line.contains("masquerade")).count()
        };
        assert_eq!(strip(&host()), strip(&made));
        nat.ensure(&BTreeSet::new()).await.unwrap();
    });
}

#[test]
fn only_what_leaves_for_the_world_is_the_hosts() {
    let text = rules(&"vmnat0".parse().unwrap(), &gateways());
    assert!(
        text.contains("ip saddr 10.88.0.0/24 ip daddr != 10.88.0.0/24 oifname != \"vmnat0\" masquerade"),
        "{text}"
    );
}
