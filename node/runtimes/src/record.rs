//! What is kept on the host about an instance beside its domain: a line of SHA-256 over the rest, and JSON.

use std::path::Path;

use kit::fs::FsError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::instance::MemoryPlace;
use crate::vfio::Gpu;

/// A few paths and numbers.
const BYTES_MAX: u64 = 64 * 1024;

pub fn write<T: Serialize>(path: &Path, record: &T) -> Result<(), FsError> {
    let failed = |err| FsError { doing: "write", path: path.to_owned(), source: std::io::Error::other(err) };
    let json = serde_json::to_string(record).map_err(failed)?;
    let text = format!("{}\n{json}\n", digest(&json));
    kit::fs::write_atomic(path, text.as_bytes(), 0o600)
}

/// None when it is not there; an error when it is not as it was written.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FsError> {
    let failed = |why: String| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        FsError { doing: "read", path: path.to_owned(), source }
    };
    let Some(bytes) = kit::fs::read_if_present(path, BYTES_MAX)? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| failed("it is no text".into()))?;
    let (sum, json) = text.trim_end().split_once('\n').unwrap_or_default();
    if sum != digest(json) {
        return Err(failed("its checksum is another".into()));
    }
    serde_json::from_str(json).map(Some).map_err(|err| failed(err.to_string()))
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// What a disk is based on: read before every start, and believed over what the disk itself says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceRecord {
    pub version: u32,
    pub image_path: String,
    /// qcow2, raw or iso.
    pub image_format: String,
    pub vcpus: u32,
    pub memory_bytes: u64,
    /// What is not there is as it was before there was any: all of the disk is backed, the memory is anywhere and in normal
    /// pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disk_backed_bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mems: Vec<u32>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hugepage_bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl InstanceRecord {
    pub const VERSION: u32 = 1;

    pub fn place(self) -> MemoryPlace {
        MemoryPlace { mems: self.mems, hugepage_bytes: self.hugepage_bytes }
    }
}

#[cfg(test)]
mod tests;
