//! The image store of a control plane with a folder of its own: one machine's, or one that its processes share.
//!
//! ```text
//! <sha256>          whole, its digest found to be right. It is never written again
//! <image id>.part   what has come so far
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use kernel::ports::images::{
    ImageBytes, ImageDigest, ImageStore, ImageStoreError, ReadImage, Received, Stored, Upload,
};
use kit::fs::FsError;
use model::ImageId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// Read at once.
const READ_BYTES: usize = 256 * 1024;
/// Of the disk, left for the database that may share it: a twentieth, and at least this.
const KEPT_FREE_BYTES_MIN: u64 = 2 << 30;
const KEPT_FREE_SHARE: u64 = 20;

/// Cheap to clone.
#[derive(Clone)]
pub struct ImageFolder(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    kept_free_min: u64,
    /// Images that are being taken, one sender at a time, and how much is still to come of each.
    taking: Mutex<BTreeMap<ImageId, u64>>,
}

/// An image that nobody else takes meanwhile: what still works on its file when a sender is gone has it too.
struct Taking {
    inner: Arc<Inner>,
    image_id: ImageId,
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.inner.taking().remove(&self.image_id);
    }
}

impl ImageFolder {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::keeping_free(dir, KEPT_FREE_BYTES_MIN)
    }

    /// With so much of the disk left free at least.
    pub fn keeping_free(dir: impl Into<PathBuf>, kept_free_min: u64) -> Self {
        Self(Arc::new(Inner { dir: dir.into(), kept_free_min, taking: Mutex::default() }))
    }

    fn take(&self, image_id: ImageId) -> Result<Arc<Taking>, ImageStoreError> {
        match self.0.taking().entry(image_id) {
            Entry::Occupied(_) => return Err(ImageStoreError::Busy),
            Entry::Vacant(free) => free.insert(0),
        };
        Ok(Arc::new(Taking { inner: self.0.clone(), image_id }))
    }
}

impl Inner {
    fn taking(&self) -> MutexGuard<'_, BTreeMap<ImageId, u64>> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whole(&self, digest: &ImageDigest) -> PathBuf {
        self.dir.join(hex(digest))
    }

    fn part(&self, image_id: ImageId) -> PathBuf {
        self.dir.join(format!("{image_id}.part"))
    }

    fn received(&self, upload: Upload) -> Result<Received, ImageStoreError> {
        if upload.known && length(&self.whole(&upload.digest))? == Some(upload.total_bytes) {
            return Ok(Received::Whole(upload.total_bytes));
        }
        Ok(Received::Part(length(&self.part(upload.image_id))?.unwrap_or(0)))
    }

    /// The part, open at its end, and its digest so far. Nobody else has it open, in this process or another.
    fn open_part(&self, image_id: ImageId) -> Result<Part, ImageStoreError> {
        kit::fs::create_dir(&self.dir, 0o700).map_err(failed)?;
        let path = self.part(image_id);
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, &path)? => {}
            // Its holder has put it in its place, or somebody removed it.
            Ok(()) | Err(Errno::WOULDBLOCK) => return Err(ImageStoreError::Busy),
            Err(err) => return Err(failed(err)),
        }
        let (mut hash, mut got, mut buffer) = (Sha256::new(), 0, vec![0; READ_BYTES]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Part { path, file, hash, got }),
                read => {
                    hash.update(&buffer[..read]);
                    got += read as u64;
                }
            }
        }
    }

    /// Whether there is room for so much beside what is still to come of others; it is kept for this one from here on.
    fn room(&self, image_id: ImageId, needed: u64) -> Result<(), ImageStoreError> {
        let mut taking = self.taking();
        let others: u64 =
            taking.iter().filter(|(other, _)| **other != image_id).map(|(_, to_come)| to_come).sum();
        let disk = rustix::fs::statvfs(&self.dir).map_err(failed)?;
        let (free, all) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        let left =
            free.saturating_sub((all / KEPT_FREE_SHARE).max(self.kept_free_min)).saturating_sub(others);
        match needed <= left {
            true => {
                taking.insert(image_id, needed);
                Ok(())
            }
            false => Err(ImageStoreError::Full { needed: needed.div_ceil(1 << 20), left: left >> 20 }),
        }
    }

    /// Puts a part in its place when it is what was announced.
    fn settle(&self, digest: &ImageDigest, part: Part) -> Result<Received, ImageStoreError> {
        let found: ImageDigest = part.hash.finalize().into();
        if found != *digest {
            kit::fs::remove_if_present(&part.path).map_err(failed)?;
            return Err(ImageStoreError::OtherDigest { found: hex(&found) });
        }
        if let Err(err) = part.file.sync_all() {
            kit::fs::remove_if_present(&part.path).map_err(failed)?;
            return Err(err.into());
        }
        if !is_at(&part.file, &part.path)? {
            return Err(ImageStoreError::Offset { at: 0, given: part.got });
        }
        // What is there by now is the same, or not what it should be.
        std::fs::rename(&part.path, self.whole(digest))?;
        kit::fs::sync_dir(&self.dir).map_err(failed)?;
        Ok(Received::Whole(part.got))
    }
}

struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    got: u64,
}

impl Part {
    fn write(mut self, bytes: &Bytes) -> Result<Self, ImageStoreError> {
        if let Err(err) = self.file.write_all(bytes) {
            // How much of it was written is not known, and a disk that is full stays so while it lies there.
            kit::fs::remove_if_present(&self.path).map_err(failed)?;
            return Err(err.into());
        }
        self.hash.update(bytes);
        self.got += bytes.len() as u64;
        Ok(self)
    }
}

fn hex(digest: &ImageDigest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failed(err: impl std::error::Error + Send + Sync + 'static) -> ImageStoreError {
    ImageStoreError::Failed(Box::new(err))
}

/// Whether this is the file that is there.
fn is_at(file: &File, path: &Path) -> Result<bool, ImageStoreError> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(false),
        Err(err) => Err(err.into()),
    }
}

fn length(path: &Path) -> Result<Option<u64>, ImageStoreError> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found.len())),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(FsError { doing: "look at", path: path.to_owned(), source })),
    }
}

/// Runs what waits for the disk where that holds nobody up.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageStoreError> + Send + 'static,
) -> Result<T, ImageStoreError> {
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

impl ImageStore for ImageFolder {
    fn received(&self, upload: Upload) -> Stored<'_, Received> {
        let inner = self.0.clone();
        Box::pin(apart(move || inner.received(upload)))
    }

    fn append(&self, upload: Upload, offset: u64, mut bytes: ImageBytes) -> Stored<'_, Received> {
        Box::pin(async move {
            let Upload { image_id, digest, total_bytes, known: _ } = upload;
            let taking = self.take(image_id)?;
            let (inner, held) = (self.0.clone(), taking.clone());
            let opened = apart(move || {
                let _held = held;
                match inner.received(upload)? {
                    Received::Whole(_) => Ok(None),
                    Received::Part(at) if at != offset => Err(ImageStoreError::Offset { at, given: offset }),
                    Received::Part(at) => {
                        let part = inner.open_part(image_id)?;
                        inner.room(image_id, total_bytes.saturating_sub(at))?;
                        Ok(Some(part))
                    }
                }
            });
            let Some(mut part) = opened.await? else { return Ok(Received::Whole(total_bytes)) };
            while let Some(came) = bytes.next().await {
                let came = came.map_err(ImageStoreError::BrokenOff)?;
                if part.got + came.len() as u64 > total_bytes {
                    kit::fs::remove_if_present(&part.path).map_err(failed)?;
                    return Err(ImageStoreError::TooLong { announced: total_bytes });
                }
                let held = taking.clone();
                part = apart(move || {
                    let _held = held;
                    part.write(&came)
                })
                .await?;
            }
            if part.got < total_bytes {
                return Ok(Received::Part(part.got));
            }
            let inner = self.0.clone();
            apart(move || {
                let _held = taking;
                inner.settle(&digest, part)
            })
            .await
        })
    }

    fn drop_part(&self, image_id: ImageId) -> Stored<'_, ()> {
        let path = self.0.part(image_id);
        Box::pin(apart(move || kit::fs::remove_if_present(&path).map_err(failed)))
    }

    fn remove(&self, digest: ImageDigest) -> Stored<'_, ()> {
        let path = self.0.whole(&digest);
        Box::pin(apart(move || kit::fs::remove_if_present(&path).map_err(failed)))
    }

    fn read(&self, digest: ImageDigest, offset: u64) -> Stored<'_, Option<ReadImage>> {
        let path = self.0.whole(&digest);
        Box::pin(async move {
            let opened = apart(move || match File::open(&path) {
                Ok(file) => Ok(Some((file.metadata()?.len(), file))),
                Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
                Err(err) => Err(err.into()),
            });
            let Some((total_bytes, file)) = opened.await? else { return Ok(None) };
            let bytes = futures::stream::try_unfold((Arc::new(file), offset), |(file, at)| async move {
                let reader = file.clone();
                let read = tokio::task::spawn_blocking(move || {
                    let mut buffer = vec![0; READ_BYTES];
                    let read = reader.read_at(&mut buffer, at)?;
                    buffer.truncate(read);
                    Ok::<_, std::io::Error>(Bytes::from(buffer))
                });
                let read = read.await.map_err(std::io::Error::other)??;
                let next = at + read.len() as u64;
                Ok((!read.is_empty()).then_some((read, (file, next))))
            });
            Ok(Some(ReadImage { total_bytes, bytes: bytes.boxed() }))
        })
    }
}

#[cfg(test)]
mod tests;
