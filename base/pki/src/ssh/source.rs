//! From where a certificate is taken: the addresses of its `source-address` option.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::SshError;

/// An address, or a network by its first address: sshd refuses a network that is named by another of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceAddress {
    address: IpAddr,
    prefix: Option<u8>,
}

impl FromStr for SourceAddress {
    type Err = SshError;

    fn from_str(text: &str) -> Result<Self, SshError> {
        let Some((address, prefix)) = text.split_once('/') else {
            return Ok(Self { address: text.parse().map_err(|_| SshError::Source)?, prefix: None });
        };
        let address: IpAddr = address.parse().map_err(|_| SshError::Source)?;
        let plain = (1..=3).contains(&prefix.len()) && prefix.bytes().all(|digit| digit.is_ascii_digit());
        let prefix: u8 = prefix.parse().ok().filter(|_| plain).ok_or(SshError::Source)?;
        let first = match address {
            IpAddr::V4(v4) if prefix <= 32 => v4.to_bits().checked_shl(u32::from(prefix)).unwrap_or(0) == 0,
            IpAddr::V6(v6) if prefix <= 128 => v6.to_bits().checked_shl(u32::from(prefix)).unwrap_or(0) == 0,
            IpAddr::V4(_) | IpAddr::V6(_) => false,
        };
        if first { Ok(Self { address, prefix: Some(prefix) }) } else { Err(SshError::Source) }
    }
}

impl fmt::Display for SourceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
            None => self.address.fmt(f),
        }
    }
}
