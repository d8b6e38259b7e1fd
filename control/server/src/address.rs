//! Whose request is it: the peer's address, or what a trusted proxy says.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A block of addresses: `10.0.0.0/8`, `2001:db8::/32`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no block of addresses: write it like 10.0.0.0/8 or 192.0.2.7")]
pub struct CidrError {
    given: String,
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = || {
            let (address, prefix) = match text.split_once('/') {
                Some((address, prefix)) => (address.parse().ok()?, Some(prefix)),
                None => (text.parse().ok()?, None),
            };
            let address = canonical(address);
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let prefix = match prefix {
                None => bits,
                Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
                Some(_) => return None,
            };
            (prefix <= bits).then_some(Self { address, prefix })
        };
        parsed().ok_or_else(|| CidrError { given: text.chars().take(64).collect() })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    pub fn contains(&self, address: IpAddr) -> bool {
        let same = |left: u128, right: u128, bits: u8| match u32::from(bits - self.prefix) {
            128 => true,
            shift => left >> shift == right >> shift,
        };
        match (self.address, canonical(address)) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same(ours.to_bits().into(), theirs.to_bits().into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.to_bits(), theirs.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// An IPv4 address that a dual-stack socket shows as IPv6 is an IPv4 address.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Entries of `X-Forwarded-For` that are read. A chain of proxies is shorter.
const HOPS_MAX: usize = 16;

/// The client's address. Each proxy appends who it was called by, so the list is read from the end for as long as whoever
/// wrote an entry is trusted; what stands before the first untrusted one may be anything and is not read.
pub(crate) fn client(peer: IpAddr, forwarded_for: &[&str], trusted: &[Cidr]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|block| block.contains(address));
    let mut client = canonical(peer);
    let entries = forwarded_for.iter().rev().flat_map(|header| header.rsplit(','));
    for entry in entries.take(HOPS_MAX) {
        if !is_trusted(client) {
            break;
        }
        match entry.trim().parse() {
            Ok(address) => client = canonical(address),
            // A trusted proxy that writes something else than an address: it itself is the best we know.
            Err(_) => break,
        }
    }
    client
}

#[cfg(test)]
mod tests;
