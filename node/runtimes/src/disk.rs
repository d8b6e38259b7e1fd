//! An instance's disk: an overlay on its image, made and grown by `qemu-img` after its header was read by ourselves.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hw::{CommandError, Commands};
use kit::fs::FsError;

use crate::admission::Space;
use crate::instance::{Image, ImageFormat};
use crate::qcow2::{self, Header, Problem, Qcow2Error};

const QEMU_IMG: &str = "qemu-img";
/// Where an ISO 9660 volume says what it is.
const ISO_MAGIC: (u64, &[u8]) = (32_769, b"CD001");

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error(transparent)]
    Qcow2(#[from] Qcow2Error),
    #[error("use image {path:?}: {problem}")]
    Image { path: std::path::PathBuf, problem: &'static str },
    #[error("make a disk of {asked} bytes: its image has {image}")]
    SmallerThanImage { asked: u64, image: u64 },
    #[error("shrink a disk from {has} to {asked} bytes: a disk only grows")]
    Shrinks { asked: u64, has: u64 },
    #[error("run qemu-img")]
    Command(#[source] CommandError),
    #[error("{doing} the disk: {said}")]
    QemuImg { doing: &'static str, said: String },
    #[error(transparent)]
    Fs(#[from] FsError),
}

impl DiskError {
    /// There is no room left on the file system.
    pub fn is_full(&self) -> bool {
        match self {
            // Its own words, in the C locale.
            Self::QemuImg { said, .. } => said.contains("No space left on device"),
            Self::Fs(err) => is_full(err),
            Self::Qcow2(_)
            | Self::Image { .. }
            | Self::SmallerThanImage { .. }
            | Self::Shrinks { .. }
            | Self::Command(_) => false,
        }
    }

    /// Whether it is the image's or the request's fault, so that trying again changes nothing.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Qcow2(Qcow2Error::Refused { .. })
            | Self::Image { .. }
            | Self::SmallerThanImage { .. }
            | Self::Shrinks { .. } => true,
            Self::Qcow2(Qcow2Error::Read { .. }) | Self::Command(_) | Self::QemuImg { .. } | Self::Fs(_) => {
                false
            }
        }
    }
}

/// The file system that a folder is on.
pub fn space(dir: &Path) -> Result<Space, FsError> {
    let failed = |err: rustix::io::Errno| FsError {
        doing: "ask the free space of",
        path: dir.to_owned(),
        source: err.into(),
    };
    let found = rustix::fs::statvfs(dir).map_err(failed)?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Space { total_bytes: bytes(found.f_blocks), free_bytes: bytes(found.f_bavail) })
}

/// Whether that is why a file cannot be written.
pub fn is_full(err: &FsError) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(err.source.kind(), StorageFull | QuotaExceeded)
}

/// What making or growing a disk came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    New,
    AsItWas,
    Grown,
}

/// The bytes that a guest sees of the image, once it was found to be usable.
pub fn check_image(image: &Image) -> Result<u64, DiskError> {
    let refused = |problem| DiskError::Image { path: image.path.clone(), problem };
    let read = |source| DiskError::Qcow2(Qcow2Error::Read { path: image.path.clone(), source });
    if image.format == ImageFormat::Qcow2 {
        let header = qcow2::read(&image.path)?;
        header.is_whole().map_err(|problem| Qcow2Error::Refused { path: image.path.clone(), problem })?;
        return Ok(header.virtual_bytes);
    }
    // Its format is stated wherever it is used, so that its content is only data.
    let metadata = std::fs::symlink_metadata(&image.path).map_err(read)?;
    if !metadata.is_file() {
        return Err(refused("it is no regular file"));
    }
    if metadata.len() == 0 || metadata.len() % 512 != 0 {
        return Err(refused("its length is no multiple of 512 bytes"));
    }
    if image.format == ImageFormat::Iso && !has_iso_magic(&image.path).map_err(read)? {
        return Err(refused("it is no ISO 9660 disc"));
    }
    Ok(metadata.len())
}

fn has_iso_magic(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let (offset, magic) = ISO_MAGIC;
    let mut found = vec![0; magic.len()];
    match std::fs::File::open(path)?.read_exact_at(&mut found, offset) {
        Ok(()) => Ok(found == magic),
        Err(err) if err.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(err) => Err(err),
    }
}

/// The header of an instance's disk. Whoever ran it may have written it, so it names exactly the image, or nothing where
/// the instance is installed from a disc; else it is not used.
pub fn check_disk(disk: &Path, image: &Image) -> Result<Header, DiskError> {
    let header = qcow2::read(disk)?;
    let right = match image.format {
        ImageFormat::Qcow2 | ImageFormat::Raw => header.is_based_on(&image.path, image.format),
        ImageFormat::Iso => header.is_whole().map_err(|_| Problem::OtherBacking),
    };
    right.map_err(|problem| Qcow2Error::Refused { path: disk.to_owned(), problem })?;
    Ok(header)
}

/// Whether a disk of so many bytes can be made of the image.
pub fn check_size(image: &Image, bytes: u64) -> Result<(), DiskError> {
    let of_image = check_image(image)?;
    // A disc is beside the disk and not its beginning.
    match image.format != ImageFormat::Iso && bytes < of_image {
        true => Err(DiskError::SmallerThanImage { asked: bytes, image: of_image }),
        false => Ok(()),
    }
}

/// Makes the disk, or grows the one that is there. `running` tells that a hypervisor has it open: it is not grown then.
pub async fn ensure(
    commands: &dyn Commands,
    disk: &Path,
    image: &Image,
    bytes: u64,
    running: bool,
) -> Result<Made, DiskError> {
    check_size(image, bytes)?;
    if disk.symlink_metadata().is_err() {
        make(commands, disk, image, bytes).await?;
        return Ok(Made::New);
    }
    let has = check_disk(disk, image)?.virtual_bytes;
    match bytes.cmp(&has) {
        std::cmp::Ordering::Less => Err(DiskError::Shrinks { asked: bytes, has }),
        std::cmp::Ordering::Equal => Ok(Made::AsItWas),
        std::cmp::Ordering::Greater if running => Ok(Made::AsItWas),
        std::cmp::Ordering::Greater => {
            let size = bytes.to_string();
            run(commands, "grow", &["resize", "-q", "-f", "qcow2", text(disk), &size]).await?;
            Ok(Made::Grown)
        }
    }
}

/// Under another name first: a disk that is there is whole.
async fn make(commands: &dyn Commands, disk: &Path, image: &Image, bytes: u64) -> Result<(), DiskError> {
    let new = disk.with_extension("new");
    kit::fs::remove_if_present(&new)?;
    let size = bytes.to_string();
    // `-u` keeps qemu-img from opening the image.
    let based = ["-u", "-F", image.format.qemu(), "-b", text(&image.path)];
    let based: &[&str] = if image.format == ImageFormat::Iso { &[] } else { &based };
    let args = [&["create", "-q", "-f", "qcow2"], based, &[text(&new), &size]].concat();
    run(commands, "make", &args).await?;
    check_disk(&new, image)?;
    let failed = |doing, source| FsError { doing, path: disk.to_owned(), source };
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&new, private).map_err(|err| failed("restrict", err))?;
    let synced = std::fs::File::open(&new).and_then(|file| file.sync_all());
    synced.map_err(|err| failed("write", err))?;
    std::fs::rename(&new, disk).map_err(|err| failed("rename over", err))?;
    if let Some(dir) = disk.parent() {
        kit::fs::sync_dir(dir)?;
    }
    Ok(())
}

async fn run(commands: &dyn Commands, doing: &'static str, args: &[&str]) -> Result<(), DiskError> {
    let done = commands.run(QEMU_IMG, args).await.map_err(DiskError::Command)?;
    match done.success() {
        true => Ok(()),
        false => Err(DiskError::QemuImg { doing, said: crate::libvirt::said(&done.stderr) }),
    }
}

/// Paths were checked to be text where they entered.
fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests;
