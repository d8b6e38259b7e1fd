//! Names that reach the hypervisor and the kernel. Each is checked where it enters and cannot be made otherwise.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use model::InstanceId;
use sha2::{Digest, Sha256};

/// What all domains of ours begin with.
pub const DOMAIN_PREFIX: &str = "bc-";
/// What all taps of ours begin with. Firewall rules match it, so no bridge may.
pub const TAP_PREFIX: &str = "bc";
/// `IFNAMSIZ` without its end.
const INTERFACE_CHARS_MAX: usize = 15;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error(
        "{given:?} is no MAC address of one card: six pairs of hexadecimal digits, like 52:54:00:12:34:56"
    )]
    Mac { given: String },
    #[error(
        "{given:?} is no bridge's name: 1 to 15 of A-Z, a-z, 0-9, '_', '-', '.', the first a letter or digit"
    )]
    Bridge { given: String },
    #[error("bridge {given:?}: names that begin with \"bc\" are for instances' taps")]
    BridgeReserved { given: String },
    #[error("{given:?} is no host name: 1 to 63 of a-z, 0-9 and '-', neither first nor last a '-'")]
    Hostname { given: String },
    #[error("{given:?} is no address with its prefix, like 10.0.0.2/24 or fd00::2/64")]
    Cidr { given: String },
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The domain of an instance, as the hypervisor names it.
pub fn domain(id: InstanceId) -> String {
    format!("{DOMAIN_PREFIX}{id}")
}

/// The instance that a domain's name is of; none for any other name, and for another spelling of it.
pub fn instance(domain: &str) -> Option<InstanceId> {
    domain.strip_prefix(DOMAIN_PREFIX)?.parse().ok()
}

/// The host's interface of an instance's NIC, by its place. Known before the instance runs, so that rules can be there
/// first: two letters, 10 hexadecimal digits of SHA-256 over the id, `n`, and the place.
pub fn tap(id: InstanceId, nic: usize) -> String {
    let digest = Sha256::digest(id.to_string().as_bytes());
    format!("{TAP_PREFIX}{}n{nic}", hex::encode(&digest[..5]))
}

/// The address of one card: not zero, not of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

impl Mac {
    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// The link-local address that is made of it (RFC 4291, appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let identifier = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(identifier))
    }
}

impl FromStr for Mac {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = || NameError::Mac { given: shown(text) };
        let mut octets = [0u8; 6];
        let mut pairs = text.split(':');
        for octet in &mut octets {
            let pair = pairs.next().filter(|pair| pair.len() == 2).ok_or_else(refused)?;
            if !pair.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(refused());
            }
            *octet = u8::from_str_radix(pair, 16).map_err(|_| refused())?;
        }
        if pairs.next().is_some() || octets[0] & 1 == 1 || octets == [0; 6] {
            return Err(refused());
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A bridge of the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bridge(String);

impl Bridge {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Bridge {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !starts || text.len() > INTERFACE_CHARS_MAX || !text.bytes().all(plain) {
            return Err(NameError::Bridge { given: shown(text) });
        }
        if text.starts_with(TAP_PREFIX) {
            return Err(NameError::BridgeReserved { given: shown(text) });
        }
        Ok(Self(text.to_owned()))
    }
}

/// One label of a host name (RFC 1123), in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostname(String);

impl Hostname {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Hostname {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let inside = !text.starts_with('-') && !text.ends_with('-');
        if text.is_empty() || text.len() > 63 || !inside || !text.bytes().all(plain) {
            return Err(NameError::Hostname { given: shown(text) });
        }
        Ok(Self(text.to_owned()))
    }
}

/// An interface's address and the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Another address in a network of the same length.
    pub fn with(self, address: IpAddr) -> Self {
        Self { address, ..self }
    }

    /// The network it is in: its address with nothing behind the prefix.
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::from(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::from(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Self { address, prefix: self.prefix }
    }

    /// Whether a neighbour at this address is reached without a router.
    pub fn contains(self, other: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == other.is_ipv4();
        same_family && Self { address: other, prefix: self.prefix }.network() == self.network()
    }
}

impl FromStr for Cidr {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let refused = || NameError::Cidr { given: shown(text) };
        let (address, prefix) = text.split_once('/').ok_or_else(refused)?;
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.parse().map_err(|_| refused())?;
        if !digits || prefix > max || address.is_unspecified() || address.is_multicast() {
            return Err(refused());
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests;
