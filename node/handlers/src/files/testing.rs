//! Files whose operations can be counted, made to fail, or cut off as a crash would.

use std::sync::Mutex;

use futures::future::BoxFuture;

use super::{Files, FilesError, HostDir, HostFile, HostFiles, HostPaths};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    Never,
    /// From this change on (0 is the first) nothing happens any more: the process is gone.
    CrashBefore(usize),
    /// As above, but this change still reached the disk.
    CrashAfter(usize),
    /// Every write fails, removals go on.
    DiskFull,
}

pub struct TrappedFiles {
    inner: HostFiles,
    trap: Trap,
    changes: Mutex<Vec<String>>,
}

impl TrappedFiles {
    pub fn new(paths: HostPaths, trap: Trap) -> Self {
        Self { inner: HostFiles::new(paths), trap, changes: Mutex::default() }
    }

    /// What was changed, oldest first.
    pub fn changes(&self) -> Vec<String> {
        self.changes.lock().expect("no holder of this lock panics").clone()
    }

    /// Whether the change happens, and whether its caller lives to hear of it.
    fn next(&self, change: String, write: bool) -> (bool, bool) {
        let mut changes = self.changes.lock().expect("no holder of this lock panics");
        let at = changes.len();
        let (happens, heard) = match self.trap {
            Trap::Never => (true, true),
            Trap::CrashBefore(last) => (at < last, at < last),
            Trap::CrashAfter(last) => (at <= last, at < last),
            Trap::DiskFull => (!write, !write),
        };
        if happens {
            changes.push(change);
        } else if self.trap != Trap::DiskFull {
            changes.push(format!("lost: {change}"));
        }
        (happens, heard)
    }
}

fn failure(doing: &'static str, file: &HostFile) -> FilesError {
    let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
    FilesError::Io { doing, path: file.to_string(), source }
}

impl Files for TrappedFiles {
    fn list(&self, dir: HostDir) -> BoxFuture<'_, Result<Vec<String>, FilesError>> {
        self.inner.list(dir)
    }

    fn read<'a>(&'a self, dir: HostDir, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, FilesError>> {
        self.inner.read(dir, name)
    }

    fn write<'a>(&'a self, file: &'a HostFile, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), FilesError>> {
        let (happens, heard) = self.next(format!("write {file}"), true);
        Box::pin(async move {
            if happens {
                self.inner.write(file, bytes).await?;
            }
            if heard { Ok(()) } else { Err(failure("write", file)) }
        })
    }

    fn remove<'a>(&'a self, file: &'a HostFile) -> BoxFuture<'a, Result<(), FilesError>> {
        let (happens, heard) = self.next(format!("remove {file}"), false);
        Box::pin(async move {
            if happens {
                self.inner.remove(file).await?;
            }
            if heard { Ok(()) } else { Err(failure("remove", file)) }
        })
    }

    fn has_device(&self, path: &str) -> bool {
        self.inner.has_device(path)
    }
}
