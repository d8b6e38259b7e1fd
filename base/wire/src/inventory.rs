//! NodeInventory, version 1: what a machine is made of, as its daemon reports it.
//!
//! The inventory is split into sections that travel and are hashed independently, so a changed disk does not resend
//! eight GPUs. A section's bytes are canonical JSON (see [`canonical`]); its hash is the SHA-256 of exactly those bytes.
//! Whoever receives a section hashes the bytes it was given and never a re-encoding: a newer daemon may send fields
//! this build does not know and drops while decoding.
//!
//! Two rules hold for every section. A fact that could not be read is absent, never guessed; the section then names it
//! in `unread`. And nothing here moves by itself: live readings are [`GpuSample`] and [`MemoryInfo`], outside the hash.

pub mod canonical;
mod cpulist;
mod gpu;
mod host;
mod live;
mod pci;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use cpulist::{CPU_LIST_BYTES_MAX, CPUS_MAX, CpuList, CpuListError};
pub use gpu::{
    EccCounters, Fabric, GPUS_MAX, Gpu, GpuHealth, GpuProblem, GpuSection, GpuVerdict, MIG_INSTANCES_MAX,
    MigInstance, MigMode, MigPlacement, PcieLink, RowRemap,
};
pub use host::{
    CgroupInfo, CpuSection, DISKS_MAX, Disk, DiskSection, Distribution, Firmware, HUGE_PAGE_POOLS_MAX,
    HugePagePool, MemorySection, NICS_MAX, NUMA_NODES_MAX, Nic, NicSection, NumaNode, OsSection, Sriov,
    SystemSection, Tpm, Transport, Unread,
};
pub use live::{GpuProcess, GpuSample, MemoryInfo, Pressure, PressureLine, PressureReport};
pub use pci::{PciAddress, PciAddressError};

/// Longest encoded section. The most disks, NICs or GPUs there may be stay under it.
pub const SECTION_BYTES_MAX: usize = 1 << 20;
/// Longest text in a section, in bytes, but for CPU lists. Firmware strings and device models are at most a quarter of it.
pub const TEXT_BYTES_MAX: usize = 512;
/// Deepest nesting in a section. The types here use six levels.
pub const DEPTH_MAX: usize = 16;
/// Longest list in a section that this build does not know a tighter bound for.
pub const LIST_MAX: usize = 4096;

/// The sections of an inventory, in the order they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SectionName {
    System,
    Cpu,
    Memory,
    Disks,
    Nics,
    Gpus,
    Os,
}

impl SectionName {
    pub const ALL: [SectionName; 7] =
        [Self::System, Self::Cpu, Self::Memory, Self::Disks, Self::Nics, Self::Gpus, Self::Os];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disks => "disks",
            Self::Nics => "nics",
            Self::Gpus => "gpus",
            Self::Os => "os",
        }
    }
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text names no inventory section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an inventory section: one of system, cpu, memory, disks, nics, gpus, os")]
pub struct SectionNameError {
    given: String,
}

impl FromStr for SectionName {
    type Err = SectionNameError;

    fn from_str(text: &str) -> Result<Self, SectionNameError> {
        Self::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| SectionNameError { given: text.chars().take(64).collect() })
    }
}

/// SHA-256 of a section's canonical bytes. Its text form is 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionHash(pub [u8; 32]);

impl SectionHash {
    /// The hash of a section as it was received.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for SectionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for SectionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A whole inventory, as one collection pass finds it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInventory {
    pub system: SystemSection,
    pub cpu: CpuSection,
    pub memory: MemorySection,
    pub disks: DiskSection,
    pub nics: NicSection,
    pub gpus: GpuSection,
    pub os: OsSection,
}

impl NodeInventory {
    /// The version of the shape in this module.
    pub const VERSION: u32 = 1;

    /// One section's canonical bytes: what is sent and what is hashed.
    pub fn encode(&self, name: SectionName) -> Vec<u8> {
        match name {
            SectionName::System => canonical::to_vec(&self.system),
            SectionName::Cpu => canonical::to_vec(&self.cpu),
            SectionName::Memory => canonical::to_vec(&self.memory),
            SectionName::Disks => canonical::to_vec(&self.disks),
            SectionName::Nics => canonical::to_vec(&self.nics),
            SectionName::Gpus => canonical::to_vec(&self.gpus),
            SectionName::Os => canonical::to_vec(&self.os),
        }
    }

    pub fn hash(&self, name: SectionName) -> SectionHash {
        SectionHash::of(&self.encode(name))
    }

    /// Every section's hash.
    pub fn hashes(&self) -> BTreeMap<SectionName, SectionHash> {
        SectionName::ALL.into_iter().map(|name| (name, self.hash(name))).collect()
    }

    /// Puts one decoded section in its place.
    pub fn set(&mut self, section: Section) {
        match section {
            Section::System(system) => self.system = system,
            Section::Cpu(cpu) => self.cpu = cpu,
            Section::Memory(memory) => self.memory = memory,
            Section::Disks(disks) => self.disks = disks,
            Section::Nics(nics) => self.nics = nics,
            Section::Gpus(gpus) => self.gpus = gpus,
            Section::Os(os) => self.os = os,
        }
    }

    /// What the section could not read; empty when it is complete.
    pub fn unread(&self, name: SectionName) -> &[Unread] {
        match name {
            SectionName::System => &self.system.unread,
            SectionName::Cpu => &self.cpu.unread,
            SectionName::Memory => &self.memory.unread,
            SectionName::Disks => &self.disks.unread,
            SectionName::Nics => &self.nics.unread,
            SectionName::Gpus => &self.gpus.unread,
            SectionName::Os => &self.os.unread,
        }
    }
}

/// One decoded section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Section {
    System(SystemSection),
    Cpu(CpuSection),
    Memory(MemorySection),
    Disks(DiskSection),
    Nics(NicSection),
    Gpus(GpuSection),
    Os(OsSection),
}

impl Section {
    pub fn name(&self) -> SectionName {
        match self {
            Self::System(_) => SectionName::System,
            Self::Cpu(_) => SectionName::Cpu,
            Self::Memory(_) => SectionName::Memory,
            Self::Disks(_) => SectionName::Disks,
            Self::Nics(_) => SectionName::Nics,
            Self::Gpus(_) => SectionName::Gpus,
            Self::Os(_) => SectionName::Os,
        }
    }
}

/// Why a section's bytes are refused.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("decode inventory section {section}: {len} bytes, at most {SECTION_BYTES_MAX}")]
    TooLong { section: SectionName, len: usize },
    #[error("decode inventory section {section}: not the JSON it should be")]
    Json {
        section: SectionName,
        #[source]
        source: serde_json::Error,
    },
    #[error("decode inventory section {section}: a text of {len} bytes, at most {max}")]
    TextTooLong { section: SectionName, len: usize, max: usize },
    #[error("decode inventory section {section}: a control character in a text")]
    ControlCharacter { section: SectionName },
    #[error("decode inventory section {section}: a number that is not an integer of 64 bits")]
    NotAnInteger { section: SectionName },
    #[error("decode inventory section {section}: nested deeper than {DEPTH_MAX}")]
    TooDeep { section: SectionName },
    #[error("decode inventory section {section}: {count} {what}, at most {max}")]
    TooMany { section: SectionName, what: &'static str, count: usize, max: usize },
}

/// Parses a section a node sent. Sizes, counts, nesting and texts are bounded; fields this build does not know are
/// ignored, a known field twice or of another type is refused.
pub fn decode(section: SectionName, bytes: &[u8]) -> Result<Section, DecodeError> {
    if bytes.len() > SECTION_BYTES_MAX {
        return Err(DecodeError::TooLong { section, len: bytes.len() });
    }
    let value: Value = parse(section, bytes)?;
    check_value(section, &value, 0)?;
    let decoded = match section {
        SectionName::System => Section::System(parse(section, bytes)?),
        SectionName::Cpu => Section::Cpu(parse(section, bytes)?),
        SectionName::Memory => Section::Memory(parse(section, bytes)?),
        SectionName::Disks => Section::Disks(parse(section, bytes)?),
        SectionName::Nics => Section::Nics(parse(section, bytes)?),
        SectionName::Gpus => Section::Gpus(parse(section, bytes)?),
        SectionName::Os => Section::Os(parse(section, bytes)?),
    };
    check_counts(section, &decoded)?;
    Ok(decoded)
}

fn parse<T: DeserializeOwned>(section: SectionName, bytes: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(bytes).map_err(|source| DecodeError::Json { section, source })
}

fn check_value(section: SectionName, value: &Value, depth: usize) -> Result<(), DecodeError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::TooDeep { section });
    }
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(()),
        Value::Number(_) => Err(DecodeError::NotAnInteger { section }),
        Value::String(text) => check_text(section, text),
        Value::Array(items) => {
            check_count(section, "list items", items.len(), LIST_MAX)?;
            items.iter().try_for_each(|item| check_value(section, item, depth + 1))
        }
        Value::Object(fields) => {
            check_count(section, "fields", fields.len(), LIST_MAX)?;
            fields.iter().try_for_each(|(key, field)| {
                check_text(section, key)?;
                check_value(section, field, depth + 1)
            })
        }
    }
}

fn check_text(section: SectionName, text: &str) -> Result<(), DecodeError> {
    let cpu_list = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',' || byte == b'-');
    let max = if cpu_list { CPU_LIST_BYTES_MAX } else { TEXT_BYTES_MAX };
    if text.len() > max {
        return Err(DecodeError::TextTooLong { section, len: text.len(), max });
    }
    // These texts end up in terminals and logs; a device must not be able to write escape sequences there.
    if text.chars().any(char::is_control) {
        return Err(DecodeError::ControlCharacter { section });
    }
    Ok(())
}

fn check_counts(section: SectionName, decoded: &Section) -> Result<(), DecodeError> {
    match decoded {
        Section::System(_) | Section::Os(_) => Ok(()),
        Section::Cpu(cpu) => check_count(section, "NUMA nodes", cpu.numa_nodes.len(), NUMA_NODES_MAX),
        Section::Memory(memory) => {
            check_count(section, "huge page pools", memory.huge_pages.len(), HUGE_PAGE_POOLS_MAX)
        }
        Section::Disks(disks) => check_count(section, "disks", disks.disks.len(), DISKS_MAX),
        Section::Nics(nics) => check_count(section, "NICs", nics.nics.len(), NICS_MAX),
        Section::Gpus(gpus) => {
            check_count(section, "GPUs", gpus.gpus.len(), GPUS_MAX)?;
            gpus.gpus.iter().try_for_each(|gpu| {
                check_count(section, "MIG instances", gpu.mig_instances.len(), MIG_INSTANCES_MAX)
            })
        }
    }
}

fn check_count(
    section: SectionName,
    what: &'static str,
    count: usize,
    max: usize,
) -> Result<(), DecodeError> {
    if count > max { Err(DecodeError::TooMany { section, what, count, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
