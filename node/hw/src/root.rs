//! Reading the kernel's files below a root: `/` on the machine, a folder in tests.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// `/proc/cpuinfo` of a machine with 1,024 threads is under 2 MiB; nothing else comes close.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// The largest folder read is `/sys/block` or `/sys/class/net`, with hundreds of entries on large machines.
pub const ENTRIES_MAX: usize = 16_384;

/// A file that is there but could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("permission denied")]
    PermissionDenied,
    #[error("larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("more than {ENTRIES_MAX} entries")]
    TooMany,
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::PermissionDenied,
            kind => Self::Io(kind.to_string()),
        }
    }
}

/// Where the kernel's file systems are. Paths are relative: `proc/meminfo`.
#[derive(Debug, Clone)]
pub struct Root {
    base: PathBuf,
}

/// Whether an error says that the thing is not there, and not that it could not be read.
fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || [libc::ENODEV, libc::ENXIO, libc::EOPNOTSUPP].map(Some).contains(&error.raw_os_error())
}

impl Root {
    pub fn host() -> Self {
        Self { base: PathBuf::from("/") }
    }

    pub fn at(base: impl Into<PathBuf>) -> Self {
        Self { base: base.into() }
    }

    /// Whether this is the machine itself and not a folder that looks like one.
    pub fn is_host(&self) -> bool {
        self.base == Path::new("/")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's bytes, or `None` where there is none.
    pub fn bytes(&self, path: &str) -> Result<Option<Vec<u8>>, ReadError> {
        let file = match File::open(self.path(path)) {
            Ok(file) => file,
            Err(error) if absent(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        match file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes) {
            Ok(len) if len as u64 > FILE_BYTES_MAX => Err(ReadError::TooLarge),
            Ok(_) => Ok(Some(bytes)),
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A file's text with surrounding white space and NUL bytes gone; `None` where there is none or it is empty.
    pub fn text(&self, path: &str) -> Result<Option<String>, ReadError> {
        let Some(bytes) = self.bytes(path)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    /// The names in a folder, sorted; empty where there is none.
    pub fn list(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let entries = match std::fs::read_dir(self.path(path)) {
            Ok(entries) => entries,
            Err(error) if absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut names = Vec::new();
        for entry in entries {
            if names.len() == ENTRIES_MAX {
                return Err(ReadError::TooMany);
            }
            // A name that is not text is none the kernel gives.
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The last part of what a link points to: how sysfs names a device's driver or bus.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }

    /// Where a path leads once its links are followed, as text.
    pub fn resolved(&self, path: &str) -> Option<String> {
        std::fs::canonicalize(self.path(path)).ok()?.to_str().map(str::to_owned)
    }
}
