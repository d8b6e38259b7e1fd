//! Addresses and networks, parsed at the edge.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scalar::shown;

/// A wider network has more addresses than one pool leases; a narrower one has none to lease.
const PREFIX_MIN: u8 = 16;
const PREFIX_MAX: u8 = 30;

const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";

/// An IPv4 address of one machine, as four numbers with dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub Ipv4Addr);

/// An IPv4 network from /16 to /30, like 10.0.0.0/24, by its first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    network: Ipv4Addr,
    prefix: u8,
}

impl Subnet {
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The addresses that machines may have: all but the first and the last.
    pub fn hosts(self) -> std::ops::RangeInclusive<Ipv4Addr> {
        let first = self.network.to_bits();
        let last = first | (u32::MAX >> self.prefix);
        Ipv4Addr::from_bits(first + 1)..=Ipv4Addr::from_bits(last - 1)
    }

    pub fn has_host(self, address: Address) -> bool {
        self.hosts().contains(&address.0)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed: Option<Ipv4Addr> = text.parse().ok();
        parsed
            .filter(|it| {
                !it.is_unspecified() && !it.is_multicast() && !it.is_broadcast() && !it.is_loopback()
            })
            .map(Self)
            .ok_or_else(|| format!("{:?} is no IPv4 address of a machine, like 10.0.0.1", shown(text)))
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "{:?} is no IPv4 network from /{PREFIX_MIN} to /{PREFIX_MAX} by its first address, like 10.0.0.0/24",
                shown(text)
            )
        };
        let (network, prefix) = text.split_once('/').ok_or_else(refused)?;
        let network: Ipv4Addr = network.parse().map_err(|_| refused())?;
        let plain = (1..=2).contains(&prefix.len()) && prefix.bytes().all(|digit| digit.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| plain).ok_or_else(refused)?;
        let fits = (PREFIX_MIN..=PREFIX_MAX).contains(&prefix)
            && network.to_bits() & (u32::MAX >> prefix) == 0
            && !network.is_unspecified()
            && !network.is_multicast()
            && !network.is_loopback();
        if fits { Ok(Self { network, prefix }) } else { Err(refused()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

macro_rules! as_text {
    ($type:ident, $name:literal, $pattern:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "maxLength": 18, "pattern": $pattern })
            }
        }
    };
}

as_text!(Address, "Address", format!(r"^({OCTET}\.){{3}}{OCTET}$"));
as_text!(Subnet, "Subnet", format!(r"^({OCTET}\.){{3}}{OCTET}/(1[6-9]|2[0-9]|30)$"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_its_first_address_and_a_prefix() {
        let subnet: Subnet = "10.1.2.0/29".parse().unwrap();
        assert_eq!((subnet.to_string().as_str(), subnet.prefix()), ("10.1.2.0/29", 29));
        assert_eq!(*subnet.hosts().start(), Ipv4Addr::new(10, 1, 2, 1));
        assert_eq!(*subnet.hosts().end(), Ipv4Addr::new(10, 1, 2, 6));
        assert!(
            !subnet.has_host("10.1.2.7".parse().unwrap()) && subnet.has_host("10.1.2.6".parse().unwrap())
        );
        for bad in [
            "10.1.2.1/29",
            "10.0.0.0/8",
            "10.0.0.0/31",
            "10.0.0.0",
            "10.0.0/24",
            "10.0.0.0/024",
            "10.0.0.0/+24",
            "::/64",
            "0.0.0.0/16",
            "224.0.0.0/24",
            "127.0.0.0/16",
            "",
            "/24",
            "10.0.0.0/",
        ] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_is_of_one_machine() {
        assert_eq!("10.0.0.1".parse::<Address>().unwrap().to_string(), "10.0.0.1");
        for bad in ["10.0.0.01", "0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::1", "host", ""] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
