//! Networks, as a configuration names them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// All addresses of one length that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

impl Network {
    pub fn contains(self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && first(address, self.prefix) == self.first
    }

    /// Whether it is one address.
    pub fn is_single(self) -> bool {
        self.prefix == bits(self.first)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The first address of the network that this one is in.
fn first(address: IpAddr, prefix: u8) -> IpAddr {
    let behind = u32::from(bits(address) - prefix);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(behind).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(behind).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

impl FromStr for Network {
    type Err = String;

    /// The error completes "the setting …".
    fn from_str(text: &str) -> Result<Self, String> {
        let shown = || text.chars().take(64).collect::<String>();
        let parsed = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let plain = prefix.bytes().all(|byte| byte.is_ascii_digit()) && prefix.len() <= 3;
            let prefix: u8 = prefix.parse().ok().filter(|prefix| plain && *prefix <= bits(address))?;
            Some((address, prefix))
        };
        let (address, prefix) = parsed()
            .ok_or_else(|| format!("names {:?}, which is no network like 10.0.0.0/8 or fd00::/8", shown()))?;
        let network = Self { first: first(address, prefix), prefix };
        if network.first != address {
            return Err(format!("names {:?}; the network is written {network}", shown()));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}
