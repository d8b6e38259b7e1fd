//! CIDR blocks (RFC 4632, RFC 4291).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address block. IPv4 blocks hold IPv4 addresses only and IPv6 blocks IPv6 addresses only, after an IPv4
/// address mapped into IPv6 has been taken for the IPv4 address it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    V4 { base: u32, mask: u32 },
    V6 { base: u128, mask: u128 },
}

impl Net {
    /// An address, or an address and a prefix length whose remaining bits are zero. The error says what was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "an IPv4 or IPv6 address or CIDR block, such as 10.0.0.0/8";
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| EXPECTED.to_owned())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => bits,
            Some(length) => prefix_length(length, bits).ok_or_else(|| EXPECTED.to_owned())?,
        };
        match address {
            IpAddr::V4(address) => Self::v4(address, length),
            IpAddr::V6(address) => match address.to_ipv4_mapped() {
                Some(mapped) if length >= 96 => Self::v4(mapped, length - 96),
                _ => Self::v6(address, length),
            },
        }
    }

    fn v4(address: Ipv4Addr, length: u32) -> Result<Self, String> {
        let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
        let base = address.to_bits() & mask;
        if base != address.to_bits() {
            return Err(format!("the first address of the block: {}/{length}", Ipv4Addr::from_bits(base)));
        }
        Ok(Net::V4 { base, mask })
    }

    fn v6(address: Ipv6Addr, length: u32) -> Result<Self, String> {
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        let base = address.to_bits() & mask;
        if base != address.to_bits() {
            return Err(format!("the first address of the block: {}/{length}", Ipv6Addr::from_bits(base)));
        }
        Ok(Net::V6 { base, mask })
    }

    pub(crate) fn contains(self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Net::V4 { base, mask }, IpAddr::V4(address)) => address.to_bits() & mask == base,
            (Net::V6 { base, mask }, IpAddr::V6(address)) => address.to_bits() & mask == base,
            (Net::V4 { .. }, IpAddr::V6(_)) | (Net::V6 { .. }, IpAddr::V4(_)) => false,
        }
    }
}

fn prefix_length(text: &str, bits: u32) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|length| plain && *length <= bits)
}

#[cfg(test)]
mod tests;
