//! What an instance is to be.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use model::InstanceId;
use model::unit::MIB;
use pki::ssh::SshPublicKey;

use crate::name::{Bridge, Cidr, Hostname, Mac};
use crate::vfio::Gpu;

/// As many as the machine type takes.
pub const VCPUS_MAX: u32 = 288;
/// Less boots no system.
pub const MEMORY_BYTES_MIN: u64 = 64 * MIB;
/// The largest machines have a few tens of TiB.
pub const MEMORY_BYTES_MAX: u64 = 64 << 40;
/// A disk larger than this is a mistake.
pub const DISK_BYTES_MAX: u64 = 64 << 40;
/// One digit of a tap's name counts them.
pub const NICS_MAX: usize = 8;
/// Of one card; also gateways and nameservers.
pub const ADDRESSES_MAX: usize = 16;
pub const SSH_KEYS_MAX: usize = 64;
/// The largest machines have as many.
pub const GPUS_MAX: usize = 16;
/// The kernel's own bounds.
pub const HOST_CPUS_MAX: usize = 8192;
pub const NUMA_NODES_MAX: usize = 1024;
/// Of x86.
pub const HUGE_PAGES: [u64; 2] = [2 * MIB, 1024 * MIB];

/// An instance, as a spec asks for it. Power is no part of it: that is [`crate::Runtime::start`] and its like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    pub id: InstanceId,
    pub vcpus: u32,
    /// A multiple of 1 MiB.
    pub memory_bytes: u64,
    /// A multiple of 512, and no less than the image has. It may grow later and never shrinks.
    pub disk_bytes: u64,
    pub image: Image,
    /// In the guest's order.
    pub nics: Vec<Nic>,
    pub hostname: Hostname,
    /// For the guest's default user.
    pub ssh_keys: Vec<AuthorizedKey>,
    pub placement: Placement,
    /// Those of the host that it has, in the guest's order.
    pub gpus: Vec<Gpu>,
    /// How much of its disk the host must have room for; 0 for all of it.
    pub disk_backed_bytes: u64,
}

/// Which of the host's CPUs, memory and pages an instance has. The default is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Of no fewer than it has vCPUs. Of as many, each vCPU is on the CPU at its place; of more, all are on all of them.
    /// Empty: on any.
    pub cpus: Vec<u32>,
    pub memory: MemoryPlace,
}

/// Where an instance's memory is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryPlace {
    /// NUMA nodes; empty: on any.
    pub mems: Vec<u32>,
    /// 2 MiB or 1 GiB; 0 for normal pages.
    pub hugepage_bytes: u64,
}

/// A file that was downloaded and whose digest was verified. It is checked again before every use, and never written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Absolute.
    pub path: PathBuf,
    pub format: ImageFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// The disk's beginning; the disk holds what differs.
    Qcow2,
    /// The same, byte by byte.
    Raw,
    /// A disc to install from, beside an empty disk.
    Iso,
}

impl ImageFormat {
    /// As QEMU and libvirt name it.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw | Self::Iso => "raw",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub mac: Mac,
    /// Of the host; it exists already.
    pub bridge: Bridge,
    /// Those leased to it. Without any it asks by DHCP.
    pub addresses: Vec<Cidr>,
    /// At most one of each family.
    pub gateways: Vec<IpAddr>,
    pub nameservers: Vec<IpAddr>,
}

/// A public key that may log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizedKey(SshPublicKey);

impl AuthorizedKey {
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        if text.contains("PRIVATE KEY") {
            return Err(SpecError::PrivateKey);
        }
        text.parse().map(Self).map_err(SpecError::SshKey)
    }

    /// One line without its end.
    pub fn line(&self) -> &str {
        self.0.line()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("{what}: {given}; {min} to {max} are possible")]
    OutOfRange { what: &'static str, given: u64, min: u64, max: u64 },
    #[error("{what}: {given} bytes are no multiple of {unit}")]
    NotWhole { what: &'static str, given: u64, unit: u64 },
    #[error("{given} {what}; at most {max} are possible")]
    TooMany { what: &'static str, given: usize, max: usize },
    #[error("{given} CPUs of the host for {vcpus} vCPUs: each needs one")]
    TooFewCpus { given: usize, vcpus: u32 },
    #[error("pages of {given} bytes; there are those of 2 MiB and of 1 GiB")]
    PageSize { given: u64 },
    #[error("MAC address {mac} is on two of its cards")]
    MacTwice { mac: Mac },
    #[error("card {mac}: two gateways of one family")]
    GatewayTwice { mac: Mac },
    #[error("card {mac}: it has gateways and no address")]
    GatewayAlone { mac: Mac },
    #[error("image path {path:?} is not absolute, or no text")]
    ImagePath { path: PathBuf },
    #[error(
        "this SSH key is a private one; give the public one, the file that ends in .pub, and replace this one"
    )]
    PrivateKey,
    #[error("{0}")]
    SshKey(pki::ssh::SshError),
}

impl Instance {
    /// Whether it can be had at all.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |what, given: u64, min, max| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(SpecError::OutOfRange { what, given, min, max }),
        };
        let whole = |what, given: u64, unit| match given.is_multiple_of(unit) {
            true => Ok(()),
            false => Err(SpecError::NotWhole { what, given, unit }),
        };
        let count = |what, given: usize, max| match given <= max {
            true => Ok(()),
            false => Err(SpecError::TooMany { what, given, max }),
        };
        range("vCPUs", self.vcpus.into(), 1, VCPUS_MAX.into())?;
        range("bytes of memory", self.memory_bytes, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX)?;
        whole("memory", self.memory_bytes, MIB)?;
        range("bytes of disk", self.disk_bytes, MIB, DISK_BYTES_MAX)?;
        whole("disk", self.disk_bytes, 512)?;
        range("bytes of disk to be backed", self.disk_backed_bytes, 0, self.disk_bytes)?;
        let Placement { cpus, memory: MemoryPlace { mems, hugepage_bytes } } = &self.placement;
        count("CPUs of the host", cpus.len(), HOST_CPUS_MAX)?;
        count("NUMA nodes", mems.len(), NUMA_NODES_MAX)?;
        if !cpus.is_empty() && cpus.len() < usize::try_from(self.vcpus).unwrap_or(usize::MAX) {
            return Err(SpecError::TooFewCpus { given: cpus.len(), vcpus: self.vcpus });
        }
        match *hugepage_bytes {
            0 => {}
            size if HUGE_PAGES.contains(&size) => whole("memory", self.memory_bytes, size)?,
            given => return Err(SpecError::PageSize { given }),
        }
        count("GPUs", self.gpus.len(), GPUS_MAX)?;
        count("SSH keys", self.ssh_keys.len(), SSH_KEYS_MAX)?;
        count("network cards", self.nics.len(), NICS_MAX)?;
        if !self.image.path.is_absolute() || self.image.path.to_str().is_none() {
            return Err(SpecError::ImagePath { path: self.image.path.clone() });
        }
        let mut seen = BTreeSet::new();
        for nic in &self.nics {
            if !seen.insert(nic.mac) {
                return Err(SpecError::MacTwice { mac: nic.mac });
            }
            count("addresses of one card", nic.addresses.len(), ADDRESSES_MAX)?;
            count("nameservers of one card", nic.nameservers.len(), ADDRESSES_MAX)?;
            let of_family = |four: bool| nic.gateways.iter().filter(|ip| ip.is_ipv4() == four).count();
            if of_family(true) > 1 || of_family(false) > 1 {
                return Err(SpecError::GatewayTwice { mac: nic.mac });
            }
            if !nic.gateways.is_empty() && nic.addresses.is_empty() {
                return Err(SpecError::GatewayAlone { mac: nic.mac });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
