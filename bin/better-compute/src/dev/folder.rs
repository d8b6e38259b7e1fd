//! The data folder: locked while we run, and removed at exit in memory mode, or by the next start when we were killed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kit::{OsRng, Rng};
use rustix::fs::{FlockOperation, flock};

use super::DevArgs;

const MEMORY_PREFIX: &str = "better-compute-dev-";
const LOCK: &str = "lock";

pub struct Folder {
    pub path: PathBuf,
    _lock: File,
    forget: bool,
}

impl Folder {
    pub fn open(args: &DevArgs) -> anyhow::Result<Self> {
        // As root the database runs as a user of its own, who has to pass through here. What is secret has a mode of its own.
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        if args.memory {
            let above = std::env::temp_dir();
            sweep(&above);
            return Self::temporary(&above, mode);
        }
        let path = std::path::absolute(&args.data_dir)?;
        kit::fs::create_dir(&path, mode)?;
        check_owner(&path)?;
        match lock(&path.join(LOCK))? {
            Some(lock) => Ok(Self { path, _lock: lock, forget: false }),
            None => bail!(
                "another `better-compute dev` runs on {}; stop it, or give this one --data-dir",
                path.display()
            ),
        }
    }

    /// A name that nobody can know before, in a folder where everybody may make one.
    fn temporary(above: &Path, mode: u32) -> anyhow::Result<Self> {
        let rng: &dyn Rng = &OsRng;
        let path = above.join(format!("{MEMORY_PREFIX}{:016x}", rng.u64()));
        fs::DirBuilder::new()
            .mode(mode)
            .create(&path)
            .with_context(|| format!("create {}", path.display()))?;
        // Held before it has the name by which another start looks for it.
        let making = path.join("lock.new");
        let lock = lock(&making)?.context("nobody else knows the new folder")?;
        fs::rename(&making, path.join(LOCK))?;
        Ok(Self { path, _lock: lock, forget: true })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.forget {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Best effort: removes our folders below `above` that nobody holds, left by one that was killed.
fn sweep(above: &Path) {
    let ours = rustix::process::geteuid().as_raw();
    let Ok(entries) = fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let named = entry.file_name().to_string_lossy().starts_with(MEMORY_PREFIX);
        let own = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == ours);
        // One without a lock is being made at this moment.
        let lock_path = path.join(LOCK);
        if named && own && lock_path.is_file() && matches!(lock(&lock_path), Ok(Some(_))) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// `None` when another process holds it.
fn lock(path: &Path) -> anyhow::Result<Option<File>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(err) => Err(err).with_context(|| format!("lock {}", path.display())),
    }
}

fn check_owner(path: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(path)?.uid();
    let ours = rustix::process::geteuid().as_raw();
    if owner != ours {
        bail!(
            "{} belongs to uid {owner} and we run as uid {ours}; run as its owner, or give --data-dir",
            path.display()
        );
    }
    Ok(())
}
