//! The files this daemon keeps on its host, as a port. A file is named by what it is, never by a path: the paths are
//! built here, and whoever writes on behalf of an unprivileged daemon can tell the same few files apart.

mod host;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use futures::future::BoxFuture;
use model::{AllocationId, NodeId};
use pki::ssh::Principal;

pub use host::HostFiles;

/// The largest file read or written: a revocation list of 30,000 serials takes 240 KB, a hold of 64 GPUs 20 KB.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Entries of one folder. A machine holds at most as many allocations as it has GPUs and slots.
pub const ENTRIES_MAX: usize = 4096;

/// Where the host's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    root: PathBuf,
    /// Folders on the way must be root's and closed to others.
    strict: bool,
    /// Device nodes are taken to be there: a simulated machine has none.
    devices_assumed: bool,
}

impl HostPaths {
    /// This machine.
    pub fn host() -> Self {
        Self { root: "/".into(), strict: rustix::process::geteuid().is_root(), devices_assumed: false }
    }

    /// A folder that stands for a machine that is not there.
    pub fn simulated(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), strict: false, devices_assumed: true }
    }
}

/// A local account's name, safe as a file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account(String);

impl Account {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text is not an account's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not an account name: 1 to 32 of a-z, 0-9, '_', '-', '.', beginning with a letter or '_'")]
pub struct AccountError;

impl FromStr for Account {
    type Err = AccountError;

    fn from_str(text: &str) -> Result<Self, AccountError> {
        // The rule is a principal's; the node does not matter to it.
        let principal = format!("{text}@{}", NodeId::from_uuid(uuid::Uuid::nil()));
        let principal: Principal = principal.parse().map_err(|_| AccountError)?;
        Ok(Self(principal.account().to_owned()))
    }
}

impl From<&Principal> for Account {
    fn from(principal: &Principal) -> Self {
        Self(principal.account().to_owned())
    }
}

/// A folder that is looked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDir {
    Cdi,
    Allocations,
    Ssh,
    SshDropIns,
    SshPrincipals,
}

impl HostDir {
    /// Below the root, without a leading slash.
    pub const fn path(self) -> &'static str {
        match self {
            HostDir::Cdi => "etc/cdi",
            HostDir::Allocations => "run/bcd/allocations",
            HostDir::Ssh => "etc/ssh",
            HostDir::SshDropIns => "etc/ssh/sshd_config.d",
            HostDir::SshPrincipals => "etc/ssh/bc_principals",
        }
    }
}

/// A file this daemon writes or removes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostFile {
    Cdi(AllocationId),
    AllocationEnv(AllocationId),
    SshDropIn,
    SshCa,
    SshKrl,
    SshPrincipals(Account),
}

impl HostFile {
    pub const fn dir(&self) -> HostDir {
        match self {
            HostFile::Cdi(_) => HostDir::Cdi,
            HostFile::AllocationEnv(_) => HostDir::Allocations,
            HostFile::SshDropIn => HostDir::SshDropIns,
            HostFile::SshCa | HostFile::SshKrl => HostDir::Ssh,
            HostFile::SshPrincipals(_) => HostDir::SshPrincipals,
        }
    }

    pub fn name(&self) -> String {
        match self {
            HostFile::Cdi(allocation) => format!("bcd-{allocation}.json"),
            HostFile::AllocationEnv(allocation) => format!("{allocation}.env"),
            HostFile::SshDropIn => "10-better-compute.conf".into(),
            HostFile::SshCa => "bc_ca.pub".into(),
            HostFile::SshKrl => "bc_krl".into(),
            HostFile::SshPrincipals(account) => account.as_str().into(),
        }
    }
}

impl fmt::Display for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.dir().path(), self.name())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{doing} {path}: {why}")]
    Refused { doing: &'static str, path: String, why: String },
    #[error("{doing} {path}")]
    Io {
        doing: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
}

/// Reads, replaces and removes the host's files.
///
/// A write is atomic and durable, mode 0644. No call follows a symbolic link: one in the way is an error, one in a
/// file's place is replaced or removed itself, and never read.
pub trait Files: Send + Sync + 'static {
    /// The names in a folder, sorted, without those that begin with a dot; none where there is no folder.
    fn list(&self, dir: HostDir) -> BoxFuture<'_, Result<Vec<String>, FilesError>>;
    /// A regular file of at most [`FILE_BYTES_MAX`]; `None` where there is nothing of that name.
    fn read<'a>(&'a self, dir: HostDir, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, FilesError>>;
    fn write<'a>(&'a self, file: &'a HostFile, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), FilesError>>;
    /// What is not there is removed already.
    fn remove<'a>(&'a self, file: &'a HostFile) -> BoxFuture<'a, Result<(), FilesError>>;
    /// Whether a device node like `/dev/nvidia0` is there.
    fn has_device(&self, path: &str) -> bool;
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
