use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

/// Names and own addresses as a test has them. A name's answers come one after the other, and the last one stays.
#[derive(Default)]
pub(crate) struct Names {
    pub names: Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>,
    pub own: Vec<IpAddr>,
}

impl Names {
    pub(crate) fn name(self, name: &str, answers: &[&[&str]]) -> Self {
        let parsed = answers.iter().map(|answer| answer.iter().map(|text| text.parse().unwrap()).collect());
        self.names.lock().unwrap().insert(name.to_owned(), parsed.rev().collect());
        self
    }

    pub(crate) fn own(mut self, address: &str) -> Self {
        self.own.push(address.parse().unwrap());
        self
    }
}

impl Lookup for Names {
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let found = match self.names.lock().unwrap().get_mut(name) {
            Some(answers) if answers.len() > 1 => Ok(answers.pop().unwrap()),
            Some(answers) => Ok(answers.first().cloned().unwrap_or_default()),
            None => Err(io::Error::other("there is no such name")),
        };
        std::future::ready(found).boxed()
    }

    fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        Ok(self.own.contains(&address))
    }
}

fn guard(names: Names, listed: &[&str]) -> Guard {
    Guard::new(Arc::new(names), listed.iter().map(|text| text.parse().unwrap()).collect())
}

fn admits(guard: &Guard, address: &str) -> bool {
    guard.admit(address.parse().unwrap()).is_ok()
}

const REFUSED: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.0.1",
    "198.18.0.1",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "64:ff9b:1::a00:1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    // What they lead to: 10.0.0.1, 127.0.0.1 and 169.254.169.254.
    "::10.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:a00:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::9",
];

const ADMITTED: &[&str] = &[
    "1.1.1.1",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700::1111",
    "2a00:1450::1",
    "::ffff:1.1.1.1",
    "64:ff9b::1.1.1.1",
    "2002:101:101::1",
];

#[test]
fn an_image_comes_from_the_internet_alone() {
    let guard = guard(Names::default(), &[]);
    for address in REFUSED {
        assert!(!admits(&guard, address), "{address}");
    }
    for address in ADMITTED {
        assert!(admits(&guard, address), "{address}");
    }
}

#[test]
fn a_network_that_is_listed_is_admitted_and_no_more_of_it_than_that() {
    let listed = ["10.0.0.0/8", "fd00::/8", "192.0.2.0/24", "127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8"];
    let guard = guard(Names::default().own("10.0.0.7").own("fd00::7").own("1.2.3.4"), &listed);
    for address in
        ["10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::1", "fd00::1", "192.0.2.1"]
    {
        assert!(admits(&guard, address), "{address}");
    }
    for address in [
        "192.168.0.1",
        "fc00::1",
        // This host's, for all that their network is listed.
        "10.0.0.7",
        "::ffff:10.0.0.7",
        "2002:a00:7::1",
        "fd00::7",
        "1.2.3.4",
        "127.0.0.1",
        // Nobody's, whoever lists them.
        "0.0.0.1",
        "169.254.169.254",
        "fd00:ec2::254",
    ] {
        assert!(!admits(&guard, address), "{address}");
    }
}

#[test]
fn an_address_of_this_host_is_admitted_by_itself() {
    let own = || Names::default().own("10.0.0.7").own("fd00::7").own("1.2.3.4");
    let named = guard(own(), &["10.0.0.7/32", "fd00::7/128", "1.2.3.4/32", "127.0.0.1/32"]);
    for address in ["10.0.0.7", "fd00::7", "1.2.3.4", "127.0.0.1", "::ffff:127.0.0.1"] {
        assert!(admits(&named, address), "{address}");
    }
    for address in ["10.0.0.8", "127.0.0.2", "::1"] {
        assert!(!admits(&named, address), "{address}");
    }
    let metadata = guard(own(), &["169.254.169.254/32", "fd00:ec2::254/128"]);
    assert!(!admits(&metadata, "169.254.169.254") && !admits(&metadata, "fd00:ec2::254"));
    // The address itself is not private, and what it leads to is another's.
    let by_6to4 = guard(Names::default().own("2002:101:101::1"), &[]);
    assert!(!admits(&by_6to4, "2002:101:101::1") && admits(&by_6to4, "2002:101:101::2"));
}

#[test]
fn a_refusal_tells_what_would_allow_it() {
    let told = |address: &str| {
        let refused =
            guard(Names::default().own("10.0.0.7"), &[]).admit(address.parse().unwrap()).unwrap_err();
        assert!(refused.is_lasting());
        refused.to_string()
    };
    assert_eq!(
        told("10.0.0.1"),
        "10.0.0.1 is a private address, and [instances] image_networks of this host names no network with 10.0.0.1"
    );
    assert_eq!(
        told("::ffff:10.0.0.7"),
        "::ffff:10.0.0.7 is this host's own address, and [instances] image_networks of this host does not name 10.0.0.7/32"
    );
    assert_eq!(told("fe80::1"), "fe80::1 is a link-local address: no image is fetched from there");
}

#[tokio::test]
async fn of_a_names_addresses_those_that_are_admitted_are_connected_to() {
    let names = Names::default()
        .name("mixed.test", &[&["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1111"]])
        .name("inside.test", &[&["10.0.0.1", "169.254.169.254"]])
        .name("nowhere.test", &[&[]])
        .name("rebound.test", &[&["1.1.1.1"], &["127.0.0.1"]]);
    let guard = guard(names, &[]);
    let found = guard.admitted("mixed.test").await.unwrap();
    assert_eq!(found, ["1.1.1.1", "2606:4700::1111"].map(|text| text.parse::<IpAddr>().unwrap()));
    let refused = guard.admitted("inside.test").await.unwrap_err();
    assert!(refused.is_lasting());
    let told = kit::chain(&refused);
    assert!(told.starts_with("every address of \"inside.test\" is refused: 10.0.0.1 is a private"), "{told}");
    for name in ["nowhere.test", "unknown.test"] {
        assert!(!guard.admitted(name).await.unwrap_err().is_lasting(), "{name}");
    }
    assert!(guard.admitted("rebound.test").await.is_ok());
    assert!(guard.admitted("rebound.test").await.is_err(), "it is judged each time");
}

#[test]
fn every_network_is_one() {
    assert_eq!(WHOSE.len(), NETWORKS.len());
}

fn forms(v4: Ipv4Addr, low: u64) -> [IpAddr; 6] {
    let bits = u128::from(v4.to_bits());
    let of = |bits: u128| IpAddr::from(Ipv6Addr::from_bits(bits));
    [
        v4.into(),
        of(bits),
        of(0xffff << 32 | bits),
        of(0xffff << 48 | bits),
        of(0x64_ff9b << 96 | bits),
        of(0x2002 << 112 | bits << 80 | u128::from(low)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn an_ipv4_address_is_refused_or_admitted_in_all_its_forms(v4: u32, low: u64, which in 0..REFUSED.len()) {
        let guard = guard(Names::default(), &["192.168.0.0/16"]);
        // Few of all addresses are refused: one that is has its turn too.
        let known = REFUSED[which].parse::<Ipv4Addr>().ok();
        for v4 in [Some(Ipv4Addr::from_bits(v4)), known].into_iter().flatten() {
            let as_v4 = guard.admit(v4.into()).is_ok();
            for form in forms(v4, low) {
                prop_assert_eq!(guard.admit(form).is_ok(), as_v4, "{} of {}", form, v4);
            }
        }
    }

    #[test]
    fn what_the_standard_library_calls_special_is_refused(bits: u128, prefix in 0..16u32) {
        // Few of all addresses begin with so many zeroes, or ones.
        for bits in [bits, bits >> (prefix * 8), bits | !(u128::MAX >> prefix)] {
            let v6 = Ipv6Addr::from_bits(bits);
            let special = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.to_ipv4().is_some_and(|v4| {
                    v4.is_loopback() || v4.is_private() || v4.is_link_local() || v4.is_broadcast()
                        || v4.is_multicast() || v4.is_unspecified() || v4.is_documentation()
                });
            prop_assert!(!special || guard(Names::default(), &[]).admit(v6.into()).is_err(), "{}", v6);
        }
    }
}
