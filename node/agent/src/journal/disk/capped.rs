//! The file under the store.

use std::fs::File;
use std::io;
use std::ops::Bound;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// A file with a last guard against growing without bound; bytes are counted before, in the index.
#[derive(Debug)]
pub(super) struct CappedFile {
    file: FileBackend,
    bytes_max: u64,
}

impl CappedFile {
    pub(super) fn new(file: File, bytes_max: u64) -> io::Result<Self> {
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Self { file, bytes_max })
    }
}

impl StorageBackend for CappedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal reached its size limit"));
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
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
