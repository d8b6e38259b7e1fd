//! PCI addresses in the form sysfs uses: `0000:53:00.0`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Domain, bus, device and function. The driver's tools write the domain with eight digits and in capitals, its kernel
/// messages without a function; all forms parse to the same address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    /// 0 to 31.
    pub device: u8,
    /// 0 to 7; 0 where the text names none.
    pub function: u8,
}

/// A text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a PCI address: write it as 0000:53:00.0")]
pub struct PciAddressError {
    given: String,
}

fn digits(text: &str, len_max: usize) -> Option<u32> {
    let plain =
        !text.is_empty() && text.len() <= len_max && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { u32::from_str_radix(text, 16).ok() } else { None }
}

impl PciAddress {
    /// The same device, whatever the function: what a kernel message without a function names.
    pub fn same_device(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }

    fn parse(text: &str) -> Option<Self> {
        let (rest, function) = match text.split_once('.') {
            Some((rest, function)) => (rest, digits(function, 1)?),
            None => (text, 0),
        };
        let mut parts = rest.rsplit(':');
        let device = digits(parts.next()?, 2)?;
        let bus = digits(parts.next()?, 2)?;
        let domain = match parts.next() {
            Some(domain) => digits(domain, 8)?,
            None => 0,
        };
        if parts.next().is_some() || device > 31 || function > 7 {
            return None;
        }
        let byte = |value: u32| u8::try_from(value).ok();
        Some(Self { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        Self::parse(text).ok_or_else(|| PciAddressError { given: text.chars().take(64).collect() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
