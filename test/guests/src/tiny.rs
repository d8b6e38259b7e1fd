//! The smallest guest there is to log in to: Debian's kernel for clouds, BusyBox, and a script that reads its seed. It boots
//! from a disk, as any image does, or straight from its kernel.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::bail;

use crate::{built, programs};

const SCRIPT: &str = include_str!("tiny.sh");
const INIT: &str = include_str!("init.sh");

const TOOLS: [(&str, &str); 7] = [
    ("qemu-img", "qemu-utils"),
    ("mkfs.vfat", "dosfstools"),
    ("mcopy", "mtools"),
    ("syslinux", "syslinux"),
    ("dpkg-deb", "dpkg"),
    ("gzip", "gzip"),
    ("setpriv", "util-linux"),
];

#[derive(Debug, Clone)]
pub struct Tiny {
    dir: PathBuf,
}

impl Tiny {
    /// What its script says on the serial console, on a line of its own, when it has read its seed.
    pub const READY: &str = "tiny: ready";

    /// The image, built below the target folder when it is not there.
    pub fn built() -> anyhow::Result<Self> {
        Self::built_in(&built::below_target("tiny")?)
    }

    /// The same in a folder that holds nothing else. Whoever else wants it meanwhile waits.
    pub fn built_in(folder: &Path) -> anyhow::Result<Self> {
        programs::check(&TOOLS)?;
        Ok(Self { dir: built::once(&std::path::absolute(folder)?, recipe(), make)? })
    }

    /// The disk, as qcow2.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("tiny.qcow2")
    }

    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }
}

/// Names an image by all that goes into it, but for the versions of the packages.
fn recipe() -> u64 {
    let mut hash = DefaultHasher::new();
    (SCRIPT, INIT).hash(&mut hash);
    hash.finish()
}

fn make(work: &Path, out: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    std::fs::write(work.join("tiny.sh"), SCRIPT)?;
    std::fs::write(work.join("init"), INIT)?;
    let made = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "sh", "tiny.sh"])
        .arg(out)
        .current_dir(work)
        .env("PATH", programs::path_with_sbin())
        .stdin(Stdio::null())
        .output()?;
    if !made.status.success() {
        bail!("the tiny image could not be made:\n{}", String::from_utf8_lossy(&made.stderr));
    }
    eprintln!("made the tiny image in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
