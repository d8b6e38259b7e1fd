//! PCI devices as the kernel shows them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kit::fs::FsError;
use serde::{Deserialize, Serialize};

/// As sysfs writes it: `0000:53:00.0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a PCI address as sysfs has it, like 0000:53:00.0")]
pub struct PciAddressError {
    given: String,
}

impl PciAddress {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Functions of one device.
    pub fn is_same_slot(&self, other: &Self) -> bool {
        let slot = |address: &Self| address.0.split_once('.').map(|(slot, _)| slot.to_owned());
        slot(self) == slot(other)
    }

    /// Domain, bus, device and function, as hexadecimal digits.
    pub fn parts(&self) -> [&str; 4] {
        // Its form was checked when it was made.
        [&self.0[..4], &self.0[5..7], &self.0[8..10], &self.0[11..]]
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = b"hhhh:hh:hh.o";
        let fits = |(byte, form): (u8, &u8)| match form {
            b'h' => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
            b'o' => (b'0'..=b'7').contains(&byte),
            exact => byte == *exact,
        };
        match text.len() == form.len() && text.bytes().zip(form).all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(PciAddressError { given: text.chars().take(32).collect() }),
        }
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.0
    }
}

/// A device of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub address: PciAddress,
    /// Base class, subclass and programming interface.
    pub class: u32,
    pub driver: Option<String>,
}

impl Device {
    /// Of any kind. They hand on and have no memory of their own.
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }
}

/// The host's devices. Every call looks anew, and may wait for a driver.
pub trait Pci: Send + Sync + 'static {
    fn is_there(&self, device: &PciAddress) -> bool;

    /// All of the device's IOMMU group, itself among them; none where it is in none.
    fn group(&self, device: &PciAddress) -> Result<Option<Vec<Device>>, FsError>;

    fn driver(&self, device: &PciAddress) -> Result<Option<String>, FsError>;

    /// Whether such a driver is loaded.
    fn has_driver(&self, driver: &str) -> bool;

    /// The one driver that takes the device when it is probed next; none: whichever knows it.
    fn set_override(&self, device: &PciAddress, driver: Option<&str>) -> Result<(), FsError>;

    /// Takes it from its driver, which may wait until nobody has it open. It has one.
    fn unbind(&self, device: &PciAddress) -> Result<(), FsError>;

    /// Has a driver take it, if one does.
    fn probe(&self, device: &PciAddress) -> Result<(), FsError>;
}

/// By sysfs, which is `/sys` on a host.
pub struct SysfsPci {
    bus: PathBuf,
}

/// An IOMMU group has a handful; a switch without isolation some dozens.
const GROUP_MAX: usize = 1024;
const FILE_BYTES_MAX: u64 = 4096;

impl SysfsPci {
    pub fn at(sys: &Path) -> Self {
        Self { bus: sys.join("bus/pci") }
    }

    fn device(&self, device: &PciAddress) -> PathBuf {
        self.bus.join("devices").join(device.as_str())
    }

    fn write(path: PathBuf, text: &str) -> Result<(), FsError> {
        use std::io::Write;
        // The file is the kernel's: none is made where there is none.
        let written = std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| FsError { doing: "write", path, source })
    }

    fn of_group(&self, folder: &Path) -> Result<Vec<Device>, FsError> {
        let failed = |source| FsError { doing: "list", path: folder.to_owned(), source };
        let mut devices = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)?.take(GROUP_MAX) {
            let name = entry.map_err(failed)?.file_name();
            // What is on no PCI bus is none of the group's that could reach anything.
            let Some(address) = name.to_str().and_then(|name| name.parse::<PciAddress>().ok()) else {
                continue;
            };
            let path = self.device(&address).join("class");
            let bytes = kit::fs::read_bounded(&path, FILE_BYTES_MAX)?;
            let text = String::from_utf8_lossy(&bytes);
            let class = text.trim().strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
            let unreadable = || std::io::Error::new(std::io::ErrorKind::InvalidData, "it is no class");
            let class = class.ok_or_else(|| FsError { doing: "read", path, source: unreadable() })?;
            let driver = self.driver(&address)?;
            devices.push(Device { address, class, driver });
        }
        devices.sort_by(|one, other| one.address.cmp(&other.address));
        Ok(devices)
    }
}

impl Pci for SysfsPci {
    fn is_there(&self, device: &PciAddress) -> bool {
        self.device(device).exists()
    }

    fn group(&self, device: &PciAddress) -> Result<Option<Vec<Device>>, FsError> {
        let folder = self.device(device).join("iommu_group/devices");
        if !folder.is_dir() { Ok(None) } else { self.of_group(&folder).map(Some) }
    }

    fn driver(&self, device: &PciAddress) -> Result<Option<String>, FsError> {
        let path = self.device(device).join("driver");
        match std::fs::read_link(&path) {
            Ok(to) => Ok(to.file_name().and_then(|name| name.to_str()).map(str::to_owned)),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FsError { doing: "read", path, source }),
        }
    }

    fn has_driver(&self, driver: &str) -> bool {
        self.bus.join("drivers").join(driver).is_dir()
    }

    fn set_override(&self, device: &PciAddress, driver: Option<&str>) -> Result<(), FsError> {
        // A line of nothing is none.
        Self::write(self.device(device).join("driver_override"), &format!("{}\n", driver.unwrap_or_default()))
    }

    fn unbind(&self, device: &PciAddress) -> Result<(), FsError> {
        Self::write(self.device(device).join("driver/unbind"), device.as_str())
    }

    fn probe(&self, device: &PciAddress) -> Result<(), FsError> {
        Self::write(self.bus.join("drivers_probe"), device.as_str())
    }
}
