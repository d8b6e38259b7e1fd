//! What a guest is told at its first boot: a NoCloud seed (cloud-init's data source of that name), a small ISO 9660 image
//! labelled `cidata` with `meta-data`, `user-data` and `network-config` in it.

use std::fmt;

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::instance::Instance;

pub mod iso;
pub mod network;

/// Cloud-init takes more, but no configuration that a person wrote is this long; larger things are fetched by it.
pub const USER_DATA_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeedError {
    #[error(
        "take user data of {given} bytes: at most {USER_DATA_BYTES_MAX} are possible; have it fetch the rest"
    )]
    UserDataTooLong { given: usize },
}

/// A tenant's user data, which may hold secrets: never shown, and wiped from memory.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(Zeroizing<Vec<u8>>);

impl UserData {
    /// Taken as it is, whatever its format. Empty is an empty cloud-config.
    pub fn new(bytes: impl Into<Zeroizing<Vec<u8>>>) -> Result<Self, SeedError> {
        let bytes = bytes.into();
        if bytes.len() > USER_DATA_BYTES_MAX {
            return Err(SeedError::UserDataTooLong { given: bytes.len() });
        }
        match bytes.is_empty() {
            true => Ok(Self::none()),
            false => Ok(Self(bytes)),
        }
    }

    /// For whoever compares two.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_slice()).into()
    }

    pub fn none() -> Self {
        Self(Zeroizing::new(b"#cloud-config\n{}\n".to_vec()))
    }
}

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.0.len())
    }
}

/// The seed's image, the same bytes for the same instance.
pub fn render(instance: &Instance, user_data: &UserData) -> Zeroizing<Vec<u8>> {
    let meta_data = meta_data(instance);
    let network = network::config(&instance.nics);
    let mut files: Vec<(&str, &[u8])> = vec![("meta-data", meta_data.as_bytes())];
    if let Some(network) = &network {
        files.push(("network-config", network.as_bytes()));
    }
    files.push(("user-data", user_data.0.as_slice()));
    Zeroizing::new(iso::write(&files))
}

/// A guest that sees another instance id than at its last boot takes itself for a new one.
fn meta_data(instance: &Instance) -> String {
    let mut text = format!("instance-id: {}\nlocal-hostname: {}\n", instance.id, instance.hostname.as_str());
    if !instance.ssh_keys.is_empty() {
        text.push_str("public-keys:\n");
    }
    for key in &instance.ssh_keys {
        // A comment may hold what YAML reads otherwise; a JSON string is one of YAML's.
        let line = serde_json::Value::from(key.line());
        text.push_str(&format!("  - {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests;
