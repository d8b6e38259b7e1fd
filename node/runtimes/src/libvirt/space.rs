//! What instances' disks may still take of the file system that they are on.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kit::fs::FsError;
use model::InstanceId;

use super::Libvirt;
use super::files::Files;
use super::inventory::folders;
use crate::admission;
use crate::disk;
use crate::instance::{DISK_BYTES_MAX, Instance};
use crate::qcow2;
use crate::record::{self, InstanceRecord};
use crate::runtime::Trouble;

/// The kernel counts what a file has in these, whatever its file system's own are.
const BLOCK_BYTES: u64 = 512;

/// The bytes that a file has on its disk; none when it is not there.
fn taken(path: &Path) -> Result<Option<u64>, FsError> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(Some(metadata.blocks().saturating_mul(BLOCK_BYTES))),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FsError { doing: "look at", path: path.to_owned(), source }),
    }
}

/// How much more than it has a disk may come to have. One whose header cannot be read is not started, so it grows no more.
fn unwritten(files: &Files) -> Result<u64, FsError> {
    let Some(taken) = taken(&files.disk())? else { return Ok(0) };
    let Ok(header) = qcow2::read(&files.disk()) else { return Ok(0) };
    let size = header.virtual_bytes.min(DISK_BYTES_MAX);
    // One whose record cannot be read has all of it backed.
    let record = record::read::<InstanceRecord>(&files.record()).ok().flatten();
    let backed = record.map_or(0, |record| record.disk_backed_bytes);
    Ok(if backed == 0 { size } else { backed.min(size) }.saturating_sub(taken))
}

/// How much the disks of a folder of instances may still grow in all, but for one instance's.
///
/// # Errors
/// When the folder or what is in it cannot be looked at.
pub fn promised(instances: &Path, but: Option<InstanceId>) -> Result<u64, FsError> {
    let mut promised = 0u64;
    for id in folders(instances)?.into_iter().filter(|id| Some(*id) != but) {
        promised = promised.saturating_add(unwritten(&Files { dir: instances.join(id.to_string()) })?);
    }
    Ok(promised)
}

impl Libvirt {
    /// Whether the disk that is to be made, or to grow, can be filled with all others. One that is there in its size was
    /// promised before.
    pub(super) fn admit_disk(&self, instance: &Instance) -> Result<(), Trouble> {
        let files = self.files(instance.id);
        let has = taken(&files.disk())?;
        if has.is_some()
            && disk::check_disk(&files.disk(), &instance.image)?.virtual_bytes >= instance.disk_bytes
        {
            return Ok(());
        }
        let size = instance.disk_bytes;
        let backed = if instance.disk_backed_bytes == 0 { size } else { instance.disk_backed_bytes };
        self.admit_bytes(instance.id, backed.min(size).saturating_sub(has.unwrap_or(0)))
    }

    pub(super) fn back_disk(&self, id: InstanceId, bytes: u64) -> Result<(), Trouble> {
        let path = self.files(id).record();
        let Some(record) = record::read::<InstanceRecord>(&path)? else { return Ok(()) };
        if record.disk_backed_bytes != bytes {
            record::write(&path, &InstanceRecord { disk_backed_bytes: bytes, ..record })?;
        }
        Ok(())
    }

    /// Whether a guest that starts could still fill its disk, with all others.
    pub(super) fn admit_started(&self, id: InstanceId) -> Result<(), Trouble> {
        self.admit_bytes(id, unwritten(&self.files(id))?)
    }

    fn admit_bytes(&self, id: InstanceId, needed_bytes: u64) -> Result<(), Trouble> {
        let promised = promised(&self.instances(), Some(id))?;
        let space = disk::space(&self.options.dir)?;
        let kept = self.options.kept_bytes_min;
        admission::admit_disk(space, kept, promised, needed_bytes).map_err(Trouble::NoDisk)
    }
}

#[cfg(test)]
mod tests;
