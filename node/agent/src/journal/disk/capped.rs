//! The file under the store: the log at its front, and the database behind it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use super::log::LOG_BYTES;

/// The database's part of a file, with a last guard against growing without bound; bytes are counted before, in the index.
#[derive(Debug)]
pub(super) struct CappedFile {
    file: FileBackend,
    bytes_max: u64,
}

/// Opens `path` or makes it, with an empty log. The log's part is for another handle of the same file.
pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<(CappedFile, File)> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.metadata()?.len() {
        // Written out, so that no commit has to ask the file system for room.
        0 => {
            file.write_all_at(&vec![0; LOG_BYTES as usize], 0)?;
            file.sync_all()?;
        }
        length if length < LOG_BYTES => {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends in its log"));
        }
        _ => {}
    }
    let log = file.try_clone()?;
    Ok((CappedFile { file: FileBackend::new(file).map_err(io::Error::other)?, bytes_max }, log))
}

impl StorageBackend for CappedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()?.saturating_sub(LOG_BYTES))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset + LOG_BYTES, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len + LOG_BYTES > self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal reached its size limit"));
        }
        self.file.set_len(len + LOG_BYTES)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset + LOG_BYTES, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    // The lock is what keeps a second daemon out of the same data directory.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}
