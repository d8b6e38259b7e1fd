//! Files that survive a crash: write, fsync, rename, fsync the folder. And files that hold secrets: made
//! exclusively, readable by their owner alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("{doing} {path:?}")]
pub struct FsError {
    pub doing: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FsError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FsError> {
        self.map_err(|source| FsError { doing, path: path.to_owned(), source })
    }
}

/// Replaces `path` with `bytes`: a reader sees the old content or the new one, also after a power cut.
/// The temporary file sits beside it under a name that a crash leaves at most once.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FsError> {
    let dir = parent(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.new"));
    remove_if_present(&temporary)?;
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()
    })();
    if let Err(err) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(err).doing("write", path);
    }
    std::fs::rename(&temporary, path).doing("rename over", path)?;
    sync_dir(dir)
}

/// Creates `path`, which must not exist, with `bytes` in it.
pub fn create_exclusive(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FsError> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).doing("create", path)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).doing("write", path)?;
    sync_dir(parent(path)?)
}

/// Makes the directory and its parents; only the last one gets `mode`, and only when it is made here.
pub fn create_dir(path: &Path, mode: u32) -> Result<(), FsError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(above).doing("create the folders above", path)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.doing("create folder", path),
    }
}

/// Removes a file; one that is not there is removed already.
pub fn remove_if_present(path: &Path) -> Result<(), FsError> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.doing("remove", path),
    }
}

/// Reads a file of at most `max` bytes; a larger one is an error rather than a large allocation.
pub fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, FsError> {
    let file = File::open(path).doing("open", path)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).doing("read", path)?;
    if bytes.len() as u64 > max {
        let too_large = io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {max} bytes"));
        return Err(too_large).doing("read", path);
    }
    Ok(bytes)
}

/// Like [`read_bounded`], with `None` for a file that is not there.
pub fn read_if_present(path: &Path, max: u64) -> Result<Option<Vec<u8>>, FsError> {
    match read_bounded(path, max) {
        Err(err) if err.source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Refuses a secret file that others could read or replace.
pub fn check_private(path: &Path) -> Result<(), FsError> {
    let metadata = std::fs::metadata(path).doing("look at", path)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        let open = io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("its mode is {mode:03o}, others can reach it; run: chmod 600 {}", path.display()),
        );
        return Err(open).doing("trust", path);
    }
    Ok(())
}

pub fn sync_dir(dir: &Path) -> Result<(), FsError> {
    File::open(dir).and_then(|dir| dir.sync_all()).doing("sync folder", dir)
}

fn parent(path: &Path) -> Result<&Path, FsError> {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(dir) => Ok(dir),
        None => Err(io::Error::from(io::ErrorKind::InvalidInput)).doing("find the folder of", path),
    }
}
